# SPDX-License-Identifier: MIT
"""Steps 1 to 4 of scripts/gpu-check: what the device, its link and its driver do by themselves. One step a process:
gpu_native.py N. Prints one line of JSON."""

import ctypes
import os
import statistics
import subprocess
import sys
import time

from gpu_lib import H2D, MIB, Cuda, libc, mapped, result, unmap

STEP = 64 * MIB
TOTAL = int(os.environ.get("GPU_SIZE", 8192)) * MIB // 8 // STEP * STEP or STEP  # 1 GiB for a save of 8
SHOWN = "name,driver_version,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current"
cuda = Cuda(os.environ["CUDART"])


def about():
    try:
        smi = subprocess.run(["nvidia-smi", "--query-gpu=" + SHOWN, "--format=csv,noheader"], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True, timeout=15).stdout.strip().splitlines()
    except OSError:
        smi = []
    attribute = {name: cuda.number("cudaDeviceGetAttribute", n, 0)
                 for name, n in (("host_register", 99), ("pageable_access", 88), ("host_page_tables", 100),
                                 ("copy_engines", 40))}
    versions = [cuda.number("cudaRuntimeGetVersion"), cuda.number("cudaDriverGetVersion")]
    ok = attribute["host_register"] == 1 and attribute["host_page_tables"] == 0
    result(ok, "%s; runtime %d, driver %d; %s" % (smi[0] if smi else "no nvidia-smi", *versions, attribute),
           "host_register 1; host_page_tables 0, else device copies are left to the runtime", **attribute)


def memfd(n):
    fd = os.memfd_create("gpu-check")
    os.ftruncate(fd, n)
    return fd


def register_steps(p, n):
    begun = time.monotonic()
    errors = [cuda.register(p + i, STEP) for i in range(0, n, STEP)]
    return errors, (time.monotonic() - begun) * 1e3


def registering():
    cuda.sync()
    device = cuda.malloc(STEP)
    p = mapped(TOTAL, memfd(TOTAL), touch=True)
    errors, ms = register_steps(p, TOTAL)
    again = cuda.register(p, STEP)
    across = cuda.copy(p + STEP - 4 * MIB, device, 8 * MIB) if TOTAL > STEP else None
    cuda.lib.cudaGetLastError()
    half = mapped(STEP, touch=True)
    cuda.register(half + STEP // 2, STEP // 2)
    mixed = cuda.copy(half, device, STEP)
    cuda.lib.cudaGetLastError()
    slots = mapped(16 * MIB, touch=True)
    begun = time.monotonic()
    slot_error = cuda.register(slots, 16 * MIB)
    slot_ms = (time.monotonic() - begun) * 1e3
    per_gib = ms * 1024 * MIB / TOTAL
    ok = not any(errors) and slot_error == 0 and again == 712 and across in (1, None) and mixed == 1
    result(ok, "%.1f ms/GiB; errors %s; again %s; across two %s; half registered %s; 16 MiB of slots %.1f ms"
           % (per_gib, sorted(set(errors)), again, across, mixed, slot_ms),
           "errors [0]; again 712; across two 1; half registered 1", ms_per_gib=per_gib, slots_ms=slot_ms)


def timed(fn, before=None, after=None):
    took = []
    for _ in range(3):
        p = before() if before else None
        cuda.sync()
        begun = time.monotonic()
        fn(p)
        cuda.sync()
        took.append(time.monotonic() - begun)
        if after:
            after(p)
    return round(TOTAL / statistics.median(took) / 1e9, 2)


def sliced(p, device, step):
    for i in range(0, TOTAL, step):
        cuda.copy_async(p + i, device + i, min(step, TOTAL - i))


def rates():
    device = cuda.malloc(TOTAL)
    resident, pinned = mapped(TOTAL, touch=True), cuda.host_alloc(TOTAL)
    arena = mapped(TOTAL, memfd(TOTAL), touch=True)
    register_steps(arena, TOTAL)
    gb = {
        "pageable_fresh": timed(lambda p: cuda.copy(p, device, TOTAL), before=lambda: mapped(TOTAL),
                                after=lambda p: unmap(p, TOTAL)),
        "pageable_resident": timed(lambda p: cuda.copy(resident, device, TOTAL)),
        "pinned": timed(lambda p: cuda.copy(pinned, device, TOTAL)),
    }
    for mib in (4, 16, 64):
        gb["arena_%d" % mib] = timed(lambda p, n=mib * MIB: sliced(arena, device, n))
        gb["pinned_%d" % mib] = timed(lambda p, n=mib * MIB: sliced(pinned, device, n))
    gb["memcpy"] = timed(lambda p: ctypes.memmove(resident, pinned, TOTAL))
    ok = gb["arena_64"] > 0.9 * gb["pinned"] and gb["pinned_4"] > 0.85 * gb["pinned"]
    result(ok, "GB/s: " + ", ".join("%s %.2f" % kv for kv in gb.items()),
           "arena_64 as pinned; slices of 4 MiB hardly slower; pinned a multiple of pageable", gb_per_s=gb)


def kinds(data):
    return {b"\0" * len(data): "zeros", b"\x0a" * len(data): "old", b"\x0b" * len(data): "new"}.get(data, "mixed")


def hole():
    fd = memfd(STEP)
    p = mapped(STEP, fd, touch=True)
    error = cuda.register(p, STEP)
    device = cuda.malloc(STEP)
    for value in (0x0a, 0x0b):
        cuda.call("cudaMemset", ctypes.c_void_p(device), value, ctypes.c_size_t(STEP))
        cuda.call("cudaMemcpy", ctypes.c_void_p(p), ctypes.c_void_p(device), ctypes.c_size_t(STEP), 2)
        if value == 0x0a:  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
            libc.fallocate(fd, 3, ctypes.c_long(16 * MIB), ctypes.c_long(4 * MIB))
    seen = {"mapping": kinds(ctypes.string_at(p + 17 * MIB, MIB)), "file": kinds(os.pread(fd, MIB, 17 * MIB)),
            "outside": kinds(os.pread(fd, MIB, 0))}
    back = mapped(STEP, touch=True)
    cuda.call("cudaMemcpy", ctypes.c_void_p(device), ctypes.c_void_p(p), ctypes.c_size_t(STEP), H2D)
    cuda.copy(back, device, STEP)
    seen["device"] = kinds(ctypes.string_at(back + 17 * MIB, MIB))
    orphaned = seen["file"] == "zeros"
    result(error == 0 and seen["outside"] == "new", "within the hole: %s; registered memory %s be punched"
           % (seen, "must never" if orphaned else "could"),
           "file and mapping zeros, device new: an arena is never punched", **seen)


if __name__ == "__main__":
    {1: about, 2: registering, 3: rates, 4: hole}[int(sys.argv[1])]()
