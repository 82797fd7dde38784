# SPDX-License-Identifier: MIT
"""Steps 5 to 8 of scripts/gpu-check: programs natively and under fastckpt. gpu_saves.py N runs a step and prints one
line of JSON; gpu_saves.py CHILD ... is a program of such a step, run by the interpreter that has PyTorch."""

import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time

MIB = 1 << 20
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COPIES = re.compile(r"device copies: ([\d.]+) MiB through pinned memory, [\d.]+ MiB by the CUDA runtime, ([\d.]+) MiB "
                    r"straight to where they stay; ([\d.]+) MiB written without a copy")
LATER = re.compile(r"([\d.]+) MiB not waited for")
DEFERRED = ("threads", "snapshot", "calls", "back", "zeroed", "moved", "forked", "spawned", "returned")
ADOPTED = ("plain", "after", "some", "again", "zeros", "moved", "middle", "locked", "many", "reset")
CASES = ("sizes", "order", "places", "errors", "capture", "elsewhere", "threads", "fork", "reset", "small", "end")


class NotHere(Exception):
    pass


# ---------------------------------------------------------------------------------------------------- programs

def run(argv, cuda=None, env=None, timeout=60):
    """cuda: FASTCKPT_CUDA, under fastckpt; None: natively."""
    build, tmp = os.environ["BUILD"], os.environ["GPU_TMP"]
    if cuda:
        argv = [os.path.join(build, "fastckpt"), "run", "--paths", tmp + "/*", "--report", "1", "--cuda", cuda,
                "--"] + argv
    return subprocess.run(argv, env=dict(os.environ, **(env or {})), cwd=tmp, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=timeout)


def bounced(done):
    return sum(float(m[0]) for m in COPIES.findall(done.stderr))


def straight(done):
    return sum(float(m[1]) for m in COPIES.findall(done.stderr))


def later(done):
    return sum(float(m) for m in LATER.findall(done.stderr))


def guarded():
    """May this user have what FASTCKPT_CUDA=defer takes?"""
    with open("/proc/sys/vm/unprivileged_userfaultfd") as f:
        return os.geteuid() == 0 or f.read() == "1\n" or os.access("/dev/userfaultfd", os.R_OK | os.W_OK)


def child(name, *args, cuda=None, timeout=60):
    """One of the programs below. What it printed, as JSON."""
    done = run([os.environ["PYTHON"], os.path.abspath(__file__), name] + [str(a) for a in args], cuda, timeout=timeout)
    if done.returncode != 0:
        raise RuntimeError("%s: %s" % (name, (done.stderr.strip().splitlines() or ["?"])[-1]))
    return json.loads(done.stdout.splitlines()[-1]), done


def need_torch():
    test = "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 3)"
    done = subprocess.run([os.environ["PYTHON"], "-c", test], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise NotHere("%s has no PyTorch with a device (PYTHON=)" % os.environ["PYTHON"])


# ---------------------------------------------------------------------------------------------------- 5

def victim(name):
    """One of tests/victims, linked with the runtime at hand. (path, environment)"""
    cudart, built = os.environ["CUDART"], os.path.join(os.environ["BUILD"], "victims", name)
    folder = os.path.dirname(cudart)
    include = [d for d in (os.path.join(folder, "..", "include"), "/usr/local/cuda/include", "/usr/include")
               if folder and os.path.exists(os.path.join(d, "cuda_runtime_api.h"))]
    if include and shutil.which("gcc"):
        out = os.path.join(os.environ["GPU_TMP"], name)
        subprocess.run(["gcc", "-std=gnu11", "-O2", "-D_GNU_SOURCE", "-isystem", include[0], "-o", out,
                        os.path.join(ROOT, "tests", "victims", name + ".c"), cudart, "-pthread"], check=True)
        return out, {"LD_LIBRARY_PATH": folder}
    if os.path.exists(built) and ".so.13" in cudart:
        return built, {"LD_LIBRARY_PATH": folder} if folder else {}
    raise NotHere("no cuda_runtime_api.h, or no gcc, and no program that fits %s" % cudart)


def copies():
    differ, through = [], 0.0
    program, env = victim("cuda_copy")
    random, _ = victim("cuda_random")
    programs = [[program, name] for name in CASES] + [[random, str(seed)] for seed in range(5)]
    for argv in programs:
        name = " ".join([os.path.basename(argv[0]), argv[1]])
        n, r = run(argv, env=env), run(argv, "auto", env)
        through += bounced(r)
        said = [(d.returncode, d.stdout[-300:]) for d in (r, n)]
        if said[0] != said[1] or n.returncode:
            differ.append("%s: %r, natively %r" % (name, *said))
    adopted = straight(written("cuda_adopt", ADOPTED, "auto", differ))
    deferred = later(written("cuda_defer", DEFERRED, "defer", differ)) if guarded() else None
    ok = not differ and through > 300 and adopted > 300 and (deferred is None or deferred > 300)
    return {"ok": ok, "mib": through, "adopted": adopted, "deferred": deferred,
            "value": "%d programs, %.0f MiB through pinned memory, %.0f straight, %s%s"
                     % (len(programs) + 2, through, adopted,
                        "defer not tried (no userfaultfd)" if deferred is None else "%.0f not waited for" % deferred,
                        "; ".join([""] + differ)),
            "expected": "the same lines, more than 300 MiB of each"}


def written(name, cases, cuda, differ):
    """A program that copies and writes, natively and at that level; what is wrong is added to `differ`."""
    program, env = victim(name)
    dirs = [os.path.join(os.environ["GPU_TMP"], d) for d in (name + "-native", name)]
    for d in dirs:
        os.makedirs(d, exist_ok=True)
    n, r = (run([program, d] + list(cases), level, env) for d, level in zip(dirs, (None, cuda)))
    run([os.path.join(os.environ["BUILD"], "fastckpt"), "wait"])
    if (n.returncode, n.stdout) != (r.returncode, r.stdout) or n.returncode:
        differ.append("%s: %r, natively %r" % (name, *((d.returncode, d.stdout[-300:]) for d in (r, n))))
    _, wrong, missing = filecmp.cmpfiles(*dirs, os.listdir(dirs[0]), shallow=False)
    differ.extend("%s: %s differs" % (name, f) for f in wrong + missing)
    for d in dirs:
        shutil.rmtree(d)
    return r


# ---------------------------------------------------------------------------------------------------- 6

def torch_saves():
    """A checkpoint as large as there is room for, in all ways; every file compared with the native one."""
    need_torch()
    tmp, build = os.environ["GPU_TMP"], os.environ["BUILD"]
    room = int(re.search(r"MemAvailable: *(\d+)", open("/proc/meminfo").read())[1]) // 1024
    size = min(int(os.environ.get("GPU_SIZE", 8192)), room // 4, shutil.disk_usage(tmp).free // MIB // 4)
    figures, same = {}, True
    for crc in (1, 0):
        for cuda in (None, "off", "bounce", "auto") + (("defer",) if guarded() else ()):
            path = os.path.join(tmp, "m.pt")
            begun = time.monotonic()
            os.environ["FASTCKPT_CUDA_SCRATCH"] = "%dM" % (size + 64) # of defer: for all
            saved, done = child("save", path, size, crc, cuda=cuda, timeout=120)
            if cuda:
                run([os.path.join(build, "fastckpt"), "wait"], timeout=120)
            key = "%s_%s" % (cuda or "native", "crc" if crc else "plain")
            figures[key] = {"held": saved["held"], "process": round(time.monotonic() - begun, 2), "mib": bounced(done),
                            "straight": straight(done)}
            if cuda is None:
                os.rename(path, path + ".native")
            else:
                same = same and filecmp.cmp(path, path + ".native", shallow=False)
                os.unlink(path)
    gain = {k: round(figures["native_" + k]["held"] / figures["bounce_" + k]["held"], 2) for k in ("crc", "plain")}
    copies_gain = round(figures["off_plain"]["held"] / figures["bounce_plain"]["held"], 2)
    adopted = round(figures["off_plain"]["held"] / figures["auto_plain"]["held"], 2)
    deferred = round(figures["off_plain"]["held"] / figures["defer_plain"]["held"], 2) if guarded() else None
    ok = (same and figures["bounce_crc"]["mib"] > 0.9 * size and copies_gain > 1.3 and adopted > copies_gain
          and (deferred is None or deferred > adopted))
    held = ", ".join("%s %.2f" % (k, v["held"]) for k, v in figures.items())
    return {"ok": ok, "figures": figures, "size_mib": size, "gain": gain,
            "value": "%d MiB, files %s; held (s): %s; native / bounce %s; without checksums off / bounce %.2f, "
                     "off / auto %.2f, off / defer %s" % (size, "the same" if same else "DIFFER", held, gain,
                                                          copies_gain, adopted, deferred),
            "expected": "the same files; off / bounce without checksums more than 1.3, off / auto more than that, "
                        "off / defer (where there is a userfaultfd for it) more again"}


def save(path, mib, crc):
    import torch
    if hasattr(torch.serialization, "set_crc32_options"):
        torch.serialization.set_crc32_options(crc == "1")
    torch.manual_seed(1)
    piece = min(256, int(mib))
    state = {str(i): torch.empty(piece * MIB // 4, dtype=torch.int32, device="cuda").random_()
             for i in range(int(mib) // piece)}
    torch.save({"0": state["0"][:MIB * 4].clone()}, path + ".warm")
    os.unlink(path + ".warm")
    torch.cuda.synchronize()
    begun = time.monotonic()
    torch.save(state, path)
    print(json.dumps({"held": round(time.monotonic() - begun, 3)}))


# ---------------------------------------------------------------------------------------------------- 7 and 8

def graph_beside():
    need_torch()
    r, done = child("graph", cuda="auto")
    ok = r["valid"] and r["copies"] and r["replayed"] == 3 and bounced(done) + straight(done) > 100
    return {"ok": ok, "value": str(r),
            "expected": "valid, copies right, replayed 3"}


def graph():
    import torch
    x = torch.ones(1000, device="cuda")
    begun, copied, valid = threading.Event(), threading.Event(), []
    wanted = torch.arange(16 * MIB, dtype=torch.int32)
    source = wanted.cuda()
    graphs = torch.cuda.CUDAGraph()

    def capture():
        try:
            with torch.cuda.graph(graphs, capture_error_mode="thread_local"):
                begun.set()
                copied.wait(20)
                x.fill_(3)
            valid.append(True)
        except RuntimeError as e:
            valid.append(str(e))
    thread = threading.Thread(target=capture)
    thread.start()
    begun.wait(20)
    with torch.cuda.stream(torch.cuda.Stream()):
        right = all(torch.equal(source.cpu(), wanted) for _ in range(4))
    copied.set()
    thread.join()
    graphs.replay()
    torch.cuda.synchronize()
    print(json.dumps({"valid": valid == [True], "copies": right, "replayed": x[5].item(), "said": str(valid)}))


def kernels_beside():
    need_torch()
    native, _ = child("kernels")
    ours, done = child("kernels", cuda="auto")
    share = [round(r["beside"] / r["alone"], 2) for r in (native, ours)]
    return {"ok": share[1] > 0.9 * share[0] and bounced(done) + straight(done) > 100, "native": native, "ours": ours,
            "value": "kernels keep %.2f of their rate beside copies, natively %.2f; copies %.2f GB/s, natively %.2f"
                     % (share[1], share[0], ours["gb_per_s"], native["gb_per_s"]),
            "expected": "no less than 0.9 of native"}


def kernels():
    import torch
    data = torch.zeros(64 * MIB, device="cuda")
    source = torch.zeros(64 * MIB, device="cuda")
    state = {"count": 0, "stop": False}

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            while not state["stop"]:
                for _ in range(8):
                    data.mul_(1.0)
                torch.cuda.current_stream().synchronize()
                state["count"] += 8
    thread = threading.Thread(target=work)
    thread.start()
    rates, copied = {}, 0
    for name, seconds in (("warm", 0.5), ("alone", 2), ("beside", 2)):
        before, begun = state["count"], time.monotonic()
        while time.monotonic() - begun < seconds:
            if name == "beside":
                source.cpu()
                copied += source.numel() * 4
            else:
                time.sleep(0.01)
        took = time.monotonic() - begun
        rates[name] = round((state["count"] - before) / took, 1)
    rates["gb_per_s"] = round(copied / took / 1e9, 2)
    state["stop"] = True
    thread.join()
    print(json.dumps(rates))


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        try:
            print(json.dumps({5: copies, 6: torch_saves, 7: graph_beside, 8: kernels_beside}[int(sys.argv[1])]()))
        except NotHere as e:
            print(json.dumps({"ok": None, "value": str(e)}))
    else:
        {"save": save, "graph": graph, "kernels": kernels}[sys.argv[1]](*sys.argv[2:])
