#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 300
#
# Proves that the simulated CUDA runtime (tests/lib/simcuda.c), on which all else about CUDA is tested, has the rules
# that the real one is known to have, and that a real PyTorch runs on it. How: programs that ask for one rule each;
# the names and versions that it exports; PyTorch (BUILD/venv, by `make clients`) trains, saves in every way and
# loads, and its calls, by the trace, are those that are known of it. Cannot see whether NVIDIA's runtime has these
# rules: that takes a GPU.

import concurrent.futures
import os
import re
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from cudas import KINDS, read_trace, run_cuda_cases  # noqa: E402

RULES = {
    "cuda_rules": ["bytes", "ranges", "touch", ("limit", {"MEMORY": 64}), "in_order", "registered", "attributes",
                   ("pinned_limit", {"PINNED": 4}), "hole", ("rates", {"SCALE": 0.02}), "order", "own", "queued",
                   "events"],
    "cuda_errors": ["captured", "forbidden", "implicit", "threads", "joined", "last", ("sticky", {"FAIL_WORK": 2}),
                    ("ordered", {"FAIL": "cudaStreamSynchronize:2:46"}), ("third", {"FAIL": 3}), "reset", "stub",
                    ("devices", {"DEVICES": 2}), "forks", "unloading"],
}
box = Box("box")
running = concurrent.futures.ThreadPoolExecutor(2)


def ask(program, rule, **config):
    # At the end of the library's path, so that its name is what is found: not preloaded.
    env = dict(simcuda(False, SCALE=config.pop("SCALE", 0), **config), LD_PRELOAD="",
               LD_LIBRARY_PATH=os.path.dirname(SIMCUDA[1]))
    return box.native([victim(program), rule], env=env, timeout=60)


def rule_case(name, result):
    def run():
        r = result.result()
        special = {"touch": touched, "hole": hole, "rates": rates, "stub": stub, "unloading": unloading}
        special.get(name, fine)(r)
    return run


def fine(r):
    assert (r.rc, r.out, r.err) == (0, "ok\n", ""), r


def touched(r):
    assert (r.rc, r.out) == (-signal.SIGSEGV, "now\n"), r


def hole(r):
    assert (r.rc, r.out) == (0, "ok\n") and "pages were taken away" in r.err, r


def stub(r):
    assert (r.rc, r.out, r.err) == (0, "ok\n", "simcuda: no cudaGraphCreate here\n"), r


def unloading(r):
    assert (r.rc, r.out, r.err) == (0, "ok\n4\n", ""), r


def rates(r):
    """8 MiB at 0.1 and at 0.5 GB/s, in µs: never faster, and not much slower than this machine's load makes it."""
    assert r.rc == 0, r
    pageable, back, pinned = map(int, r.out.split("\n")[0].split())
    assert pageable >= 83886 and pinned >= 16777 and back < pinned, r.out
    assert pageable > 2 * pinned or pinned > 33554, r.out


def names():
    """Everything that the real one exports, under its version, and nothing else."""
    simcuda()
    with open(os.path.join(ROOT, "tests", "lib", "cudart-13.txt")) as f:
        wanted = sorted(line.strip() + "@@libcudart.so.13" for line in f if not line.startswith("#"))
    found = [l.split() for l in sh("nm", "-D", "--defined-only", "--with-symbol-versions", SIMCUDA[1]).splitlines()]
    assert sorted(w[2] for w in found if w[1] == "T") == wanted
    for lib in SIMCUDA:
        assert "SONAME" in sh("readelf", "-d", lib) and os.path.basename(lib) in sh("readelf", "-d", lib)


def trace():
    """One line a call, whatever it returns."""
    path = os.path.join(TMP, "trace")
    fine(ask("cuda_errors", "last", TRACE=path))
    calls = [(c.name, c.error) for c in read_trace(path)]
    assert calls[:5] == [("cudaMalloc", 0), ("cudaHostAlloc", 0), ("cudaMemcpy", 21), ("cudaPeekAtLastError", 0),
                         ("cudaFree", 1)], calls


# ---------------------------------------------------------------------------------------------------- PyTorch

LETTERS = {"cudaStreamIsCapturing": "c", "cudaStreamSynchronize": "s", "cudaDeviceSynchronize": "d",
           "cudaHostAlloc": "a", "cudaHostRegister": "r"}
# What a save of the tensors calls; of each stream of copies the letters above, p for a pageable copy, P for a pinned.
PAGEABLE = "(cps)+"
CALLED = {"m.pt": PAGEABLE, "volatile.pt": PAGEABLE, "without.pt": PAGEABLE, "safetensors": PAGEABLE,
          "async": PAGEABLE, "cpu": PAGEABLE, "pinned.pt": "(c?a?c?Pss?)+", "dcp": "((c?a?c?P)+s)+",
          "stager": "(c?rc?P)+s", "non_blocking": "(c?a?c?P)+d", "item": "c?a?c?Ps"}


def letters(calls):
    """Of the threads that copy."""
    text = ""
    copying = {c.thread for c in calls if c.name == "cudaMemcpyAsync"}
    for c in calls:
        assert c.error == 0, c
        if c.thread not in copying:
            continue
        if c.name == "cudaMemcpyAsync":
            assert c.what.startswith(("D2H pageable", "D2H pinned")), c
            text += "p" if c.what.startswith("D2H pageable") else "P"
        text += LETTERS.get(c.name, "")
    return text.rstrip("c")  # questions of the allocator, as it gets memory back


def pytorch():
    if not os.path.exists(VENV):
        raise Skip("needs BUILD/venv: make clients")
    path = os.path.join(TMP, "torch.trace")
    env = dict(simcuda(False, SCALE=0, TRACE=path), TENSORS="300000,40000,1000,7")
    r = box.native([VENV, os.path.join(CLIENTS, "cuda_saves.py")] + list(KINDS), env=env, timeout=280)
    assert r.rc == 0 and "False" not in r.out and "simcuda" not in r.err, r
    assert "captured 1.0 True\nreplayed 3.0\n" in r.out, r
    saves = [l[2:] for l in r.lines() if l.startswith("- ")]
    calls = read_trace(path)
    begins = [i for i, c in enumerate(calls) if c.name == "cudaProfilerStart"]
    ends = [i for i, c in enumerate(calls) if c.name == "cudaProfilerStop"]
    assert set(saves) == set(CALLED) and len(begins) == len(ends) == len(saves), saves
    for save, a, b in zip(saves, begins, ends):
        text = letters(calls[a:b])
        assert re.fullmatch(CALLED[save], text), (save, text)


if __name__ == "__main__":
    cases = []
    if all(map(os.path.exists, SIMCUDA)):
        torch = running.submit(pytorch) if wanted("torch") else None
        cases = [(n if isinstance(n, str) else n[0], p, {} if isinstance(n, str) else n[1])
                 for p, rules in RULES.items() for n in rules]
        cases = [(n, rule_case(n, running.submit(ask, p, n, **config))) for n, p, config in cases if wanted(n)]
        cases += [("names", names), ("trace", trace), ("torch", lambda: torch.result())]
    run_cuda_cases(cases)
