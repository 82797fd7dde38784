#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: user
# timeout: 300
#
# Proves that copies from a CUDA device through pinned slots bring the bytes, errors and last errors that the runtime
# brings, and leave alone what they must. How: tests/victims/cuda_copy.c on the simulated runtime, natively and under
# the shim: same lines; the runtime's trace; every call and every piece of work made to fail in turn. Cannot see what a
# real device does: scripts/gpu-check.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from cudas import *  # noqa: E402,F403

LARGE = 9 * MIB + 4097
OURS = ("cudaRuntimeGetVersion cudaStreamIsCapturing cudaThreadExchangeStreamCaptureMode cudaPointerGetAttributes "
        "cudaGetDevice cudaDeviceGetAttribute cudaHostRegister cudaStreamCreateWithFlags cudaEventCreateWithFlags "
        "cudaEventRecord cudaStreamWaitEvent").split()
boxes = {}


def a_box(**config):
    key = repr(sorted(config.items()))
    if key not in boxes:
        boxes[key] = Box("box%d" % len(boxes), STAGING="128M", **config)
    return boxes[key]


def per_thread():
    return compile_own("cuda_copy_ptds", "victims/cuda_copy.c", "-DCUDA_API_PER_THREAD_DEFAULT_STREAM", "-isystem",
                       headers(), RUNTIME, "-pthread")


def both(argv, env=None, native_env=None, timeout=100, quiet=True, **config):
    """Runs it natively and under the shim: the same lines are asked. Both results, the second with its trace."""
    box = a_box(**config)
    out = []
    for shim in (False, True):
        trace = os.path.join(box.d, "..", "trace")
        if os.path.exists(trace):
            os.unlink(trace)
        more = env if shim or native_env is None else native_env
        r = (box.run if shim else box.native)(argv, env=dict(sim_env(trace=trace, devices=2), **(more or {})),
                                              timeout=timeout)
        r.trace = read_trace(trace)
        out.append(r)
    n, r = out
    unlike = [pair for pair in zip(r.lines(), n.lines()) if pair[0] != pair[1]][:3]
    assert n.rc == r.rc and n.out == r.out, "%s: %s; %r, natively %r" % (" ".join(argv[1:]), unlike, r, n)
    assert not quiet or not [m for m in r.messages() if not COPIES.search(m)], r.err
    return n, r


def case_of(*names, mib, program=None, **kw):
    """The victim's cases; `mib` must have gone through pinned memory."""
    def run():
        n, r = both([(program or (lambda: victim("cuda_copy")))()] + list(names), **kw)
        assert n.rc == 0, n
        assert abs(copies(r)[0] - mib) < 0.5, "%s MiB expected, %s" % (mib, r.err)
    return run


# ---------------------------------------------------------------------------------------------------- the trace

def copied(calls):
    return [c.text for c in calls if c.name.startswith("cudaMemcpy")]


def untouched():
    """What is not ours is called with the arguments that it came with, and nothing of ours beside small copies."""
    n, r = both([victim("cuda_copy"), "small"])
    assert [c.text for c in n.trace] == [c.text for c in r.trace], (n.trace, r.trace)
    n, r = both([victim("cuda_copy"), "places"])
    left = copied(r.trace)
    pageable = [text for text in left if "D2H pageable" in text]
    assert len(pageable) == 1, pageable  # the one from managed memory
    for text in copied(n.trace):
        if "D2H pageable" not in text:
            assert text in left, "%s was not called: %s" % (text, left)
            left.remove(text)
    # our slices, of which one was beyond the end of its allocation
    assert all("D2H pinned" in text or text.endswith("= 1") for text in left if text not in pageable), left


def off():
    for config in ({"CUDA": "off"}, {"PATHS": ""}, {"DISABLE": "1"}):
        n, r = both([victim("cuda_copy"), "sizes", "errors", "capture", "reset"], **config)
        assert [c.text for c in n.trace] == [c.text for c in r.trace], config


def values():
    for value in ("auto", "bounce"):
        n, r = both([victim("cuda_copy"), "errors"], CUDA=value)
        assert copies(r)[0] > 8, r
    n, r = both([victim("cuda_copy"), "errors"], CUDA="C", quiet=False)
    said = "fastckpt: FASTCKPT_CUDA must be auto|bounce|off|defer, not 'C'; this program runs natively"
    assert r.messages() == [said], r


def child():
    """A forked child makes the program's own calls and no other."""
    n, r = both([victim("cuda_copy"), "fork"])
    parent = r.trace[0].pid
    assert [c.text for c in r.trace if c.pid != parent] == [c.text for c in n.trace if c.pid != n.trace[0].pid], r.trace
    assert copies(r)[0] > 17, r


def ends():
    """Copies in exit handlers and destructors; no call behind the program's last one."""
    n, r = both([victim("cuda_copy"), "end"])
    assert "at exit" in n.out and n.trace[-1].text == r.trace[-1].text, (n.trace[-3:], r.trace[-3:])


# ---------------------------------------------------------------------------------------------------- failures

def outcome(box, path, fail, shim=True):
    """(what the save said, calls that failed)"""
    trace = os.path.join(box.d, "..", "trace")
    for p in (trace, path):
        if os.path.exists(p):
            os.unlink(p)
    env = dict(sim_env(trace=trace), SAVE=path, **fail)
    r = (box.run if shim else box.native)([victim("cuda_copy"), "save"], env=env)
    assert r.rc == 0, r
    failed = [c.name for c in read_trace(trace) if c.error]
    if "bytes 0, file 0" in r.out:
        assert box.wait().rc == 0 and checksum(path) == want, "%s: other bytes" % fail
    else:
        assert not os.path.exists(path), "%s: published" % fail
    return r.out.strip(), failed


def failing(variable, error):
    """Every call, or piece of work, fails in turn, until a run has no failure."""
    def run():
        global want
        box = a_box(EXIT="leave")
        native_path, path = os.path.join(box.native_d, "f.bin"), os.path.join(box.d, "f.bin")
        with open(path, "wb") as f:
            f.write(b"\x5a" * LARGE)
        want = checksum(path)
        said = "save: error %d, last %d" % (error, error)
        good = "save: bytes 0, file 0, last 0"
        assert outcome(box, native_path, {variable: "1"}, shim=False)[0] == said
        for n in range(1, 200):
            out, failed = outcome(box, path, {variable: str(n)})
            if not failed:
                assert n > 3 and out == good
                return
            if failed[0] in ("cudaPeekAtLastError", "cudaGetLastError"):
                out = out.replace("file 0, last %d" % error, "file 0, last 0")  # an older error: it is the program's
            assert out in (good, said), "%s=%d: %s" % (variable, n, out)
            # A call of ours that fails leaves the copy to the runtime; what a slice meets on its way is said.
            if variable == "SIMCUDA_FAIL" and failed[0] in OURS:
                assert out == good, "%s fails: %s" % (failed[0], out)
        raise AssertionError("no end")
    return run


def not_registered():
    """Where the driver pins nothing, and where a device reads by the host's page tables."""
    n, r = both([victim("cuda_copy"), "sizes", "order"], env={"SIMCUDA_PINNED": "8"}, quiet=False)
    lines = [m for m in r.messages() if not COPIES.search(m)]
    assert lines == ["fastckpt: copies from CUDA devices are left to the CUDA runtime from here on: "
                     "cudaHostRegister: error 2"], r.err
    assert copies(r)[0] == 0, r
    n, r = both([victim("cuda_copy"), "sizes"], env={"SIMCUDA_ATTR": "100=1"})
    assert copies(r)[0] == 0 and not [c for c in r.trace if c.name == "cudaHostRegister"], r


def foreign():
    """A stream that is not of the device's own context: off from there on, and one line."""
    n, r = both([victim("cuda_copy"), "foreign"], quiet=False)
    lines = [m for m in r.messages() if not COPIES.search(m)]
    assert lines == ["fastckpt: copies from CUDA devices are left to the CUDA runtime from here on: "
                     "a stream of another context: error 400"] and copies(r)[0] == 0, r.err


def random(*seeds, scale=0):
    """Copies of all kinds between places of all kinds, devices, captures and errors, as the seed says."""
    def run():
        total = 0
        for seed in seeds:
            n, r = both([victim("cuda_random"), str(seed)], env={"SIMCUDA_SCALE": str(scale)})
            assert n.rc == 0 and "all:" in n.out, n
            total += copies(r)[0]
        assert total > 20 * len(seeds), "seeds %s: %s MiB through pinned memory" % (seeds, total)
    return run


CASES = [
    ("sizes", case_of("sizes", mib=263.8)),
    ("sizes-per-thread", case_of("sizes", mib=263.8, program=per_thread)),
    ("order", case_of("order", mib=144)),
    ("order-per-thread", case_of("order", mib=144, program=per_thread)),
    ("places", case_of("places", mib=10)),
    ("errors", case_of("errors", "gone", mib=9)),
    ("capture", case_of("capture", mib=9)),
    ("capture-per-thread", case_of("capture", mib=9, program=per_thread)),
    ("elsewhere", case_of("elsewhere", mib=27)),
    ("devices", case_of("devices", mib=27)),
    ("foreign", foreign),
    ("reset", case_of("reset", mib=27)),
    ("threads", lambda: both([victim("cuda_copy"), "threads"])),
    ("random", random(1, 2, 3)),
    ("untouched", untouched),
    ("off", off),
    ("values", values),
    ("child", child),
    ("ends", ends),
    ("failing-call", failing("SIMCUDA_FAIL", 999)),
    ("failing-work", failing("SIMCUDA_FAIL_WORK", 700)),
    ("not-registered", not_registered),
]

if __name__ == "__main__":
    run_cuda_cases(CASES)
