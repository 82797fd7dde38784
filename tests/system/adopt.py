#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: user
# timeout: 200
#
# Proves that memory which a copy from a device has been adopted into is the program's own in every way, and that files
# have what it was when it was written. How: tests/victims/cuda_adopt.c and cuda_uses.c on the simulated runtime,
# natively and under the shim: same lines, same files; the report says that bytes went straight, and without a copy.
# Cannot see what a real device does: scripts/gpu-check.

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from cudas import *  # noqa: E402,F403

PROGRAMS = ("cudaMalloc", "cudaMemset", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaGetLastError")  # its own calls


def same(name, *ranges, program="cuda_adopt", staging="512M", more=None, env=None, tag="", stripes=0, says=None,
         **config):
    """The victim's case. ranges: (least, most) MiB that go straight, and that are handed over without a copy."""
    def run():
        box = Box(name + tag, STAGING=staging, **config)
        for i in range(stripes):
            os.mkdir("%s/stripe%d" % (box.top, i))
            box.own("%s/stripe%d" % (box.top, i))
            box.config["STRIPES"] = ":".join("%s/stripe%d" % (box.top, k) for k in range(i + 1))
        n = box.native([victim(program), box.native_d] + (more or [name]), env=sim_env())
        r = box.run([victim(program), box.d] + (more or [name]), env=dict(sim_env(), **(env or {})))
        assert (n.rc, n.out) == (r.rc, r.out), "%r, natively %r" % (r, n)
        said = r.messages()
        assert [m for m in said if says and says in m] == said and (said or not says), r.err
        assert box.wait().rc == 0
        for f in sorted(os.listdir(box.native_d)):
            assert same_bytes(os.path.join(box.native_d, f), os.path.join(box.d, f)), "%s: other bytes" % f
        for got, (least, most) in zip(straight(r), ranges):
            assert least <= got <= most, "%s MiB, not %s to %s: %s" % (got, least, most, r.err)
        assert not box.leftovers(), box.leftovers()
        return r
    return run


def kept():
    """The arena is too small for all buffers, and they are written when all are there: none was adopted in vain."""
    r = same("kept", (40, 130), staging="256M")()
    went, written = straight(r)
    assert abs(went / 40 - written / 9) < 0.1 and copies(r)[0] > 100, r.err


def seeds(*numbers):
    return same("seeds", (1, 9999), (1, 9999), staging="256M", more=[str(n) for n in numbers])


def failing(variable, error):
    """Every call, or piece of work, fails in turn, until a run has no failure: the native error, or none and the right
    bytes."""
    box = Box("failing%d" % error, STAGING="512M", EXIT="leave")
    for n in range(1, 100):
        trace = os.path.join(box.top, "trace")
        r = box.run([victim("cuda_adopt"), box.d, "save"], env=dict(sim_env(trace=trace), **{variable: str(n)}))
        failed = [c.name for c in read_trace(trace) if c.error]
        os.unlink(trace)
        good = "save: error 0, last 0, other bytes 0\n"
        if not failed:
            assert n > 2 and r.out == good and straight(r)[0] > 30, r
            return
        bad = "error %d, last %d" % (error, error)
        assert r.rc == 0 and (r.out == good or bad in r.out or failed[0] in PROGRAMS), (n, failed, r)
        assert box.wait().rc == 0
    raise AssertionError("no end")


def deaths(*who):
    """They die while memory is adopted and bytes are on their way."""
    def run():
        box = Box("deaths" + "".join(who), STAGING="512M")
        n = box.native([victim("cuda_adopt"), box.native_d, "paused"], env=sim_env())
        p = box.start([victim("cuda_adopt"), box.d, "paused"], env=sim_env(), stdin=subprocess.PIPE)
        assert p.stdout.readline() == "paused\n"
        s = box.status()
        for sig in (signal.SIGSTOP, signal.SIGKILL):
            for w in who:
                os.kill(s[w], sig)
        out, err = p.communicate("\n", timeout=60)
        assert (p.returncode, "paused\n" + out) == (0, n.out), (p.returncode, out, err)
        assert box.wait().rc == 0
        assert same_bytes(box.native_d + "/paused", box.d + "/paused"), "other bytes: %s" % err
    return run


def restarts(seed):
    """The engine is killed again and again, whatever it does with references."""
    def run():
        box, rng, kills = Box("restarts%d" % seed, STAGING="512M"), random.Random(seed), 0
        argv = [victim("cuda_adopt"), box.native_d, str(seed), str(seed + 1)]
        n = box.native(argv, env=sim_env())
        p = box.start(argv[:1] + [box.d] + argv[2:], env=sim_env())
        while p.poll() is None and kills < 8:
            time.sleep(rng.uniform(0.02, 0.25))
            pid = (box.status() or {}).get("engine_pid")
            if pid and p.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
        out, err = p.communicate(timeout=60)
        assert (p.returncode, out) == (0, n.out) and kills > 3, (p.returncode, kills, out, err)
        assert box.wait().rc == 0
        for f in os.listdir(box.native_d):
            assert same_bytes(os.path.join(box.native_d, f), os.path.join(box.d, f)), "%s: other bytes" % f
        assert straight(err)[0] > 80, err
    return run


def ranks():
    """Several processes at once, each with a share of the budget and files of its own."""
    box = Box("ranks", STAGING="512M")
    argv = [[victim("cuda_adopt"), "", str(seed)] for seed in range(41, 45)]
    native = [box.native(a[:1] + [box.native_d] + a[2:], env=sim_env()).out for a in argv]
    started = [box.start(a[:1] + [box.d] + a[2:], env=sim_env()) for a in argv]
    done = [p.communicate(timeout=150) for p in started]
    assert [out for out, _ in done] == native and not any(p.returncode for p in started), done
    assert box.wait().rc == 0
    for f in os.listdir(box.native_d):
        assert same_bytes(os.path.join(box.native_d, f), os.path.join(box.d, f)), "%s: other bytes" % f
    assert all(straight(err)[0] > 0 for _, err in done), [err for _, err in done]


READER = "import hashlib, sys; d = open(sys.argv[1], 'rb').read(); print(len(d), hashlib.sha1(d).hexdigest())"


def looked_at():
    """Another process reads the file while it is being written: it sees what was written, by reference or not."""
    box = Box("looked", STAGING="512M")
    seen = []
    for d, shim in ((box.native_d, False), (box.d, True)):
        p = box.start([victim("cuda_adopt"), d, "paused"], env=sim_env(), stdin=subprocess.PIPE, shim=shim)
        assert p.stdout.readline() == "paused\n"
        r = (box.run if shim else box.native)([PYTHON, "-c", READER, d + "/paused"])
        out, err = p.communicate("\n", timeout=60)
        seen.append((p.returncode, out, r.out))
    assert seen[0] == seen[1] and r.out, seen
    assert box.wait().rc == 0 and same_bytes(box.native_d + "/paused", box.d + "/paused"), "other bytes"


ONE = {  # of the victim's cases with one buffer: MiB that are handed over without a copy
    "plain": (79, 81), "after": (8, 10), "some": (25, 35), "again": (8, 10), "freed": (0, 0), "over": (6, 8),
    "moved": (0, 18), "zeros": (5, 7), "middle": (16, 19), "locked": (8, 10), "reset": (17, 19), "advice": (4, 9),
    "filled": (4, 7)}
USES = ["shrunk", "grown", "protected", "once_more", "pinned", "by_others", "poked", "tracked", "direct", "spliced",
        "advised", "holed"]  # of cuda_uses
CASES = [
    ("one", same("one", (560, 610), (170, 220), more=list(ONE))),
    ("many", same("many", (80, 450), (15, 100), staging="256M")),
    ("child", same("child", (80, 330), (40, 95), staging="256M")),
    ("threads", same("threads", (40, 361), (9, 74), staging="1G")),
    ("killed", same("killed")),
    ("looked-at", looked_at),
    ("engine-dies", deaths("engine_pid")),
    ("both-die", deaths("engine_pid", "keeper_pid")),
]
LONG = [("one-" + name, same(name, (40, 121), written)) for name, written in ONE.items()]
LONG += [
    ("kept", kept),
    ("elsewhere", same("elsewhere", (40, 201), (10, 38), staging="256M")),
    ("execs", same("execs")),
    ("uses", same("uses", (500, 800), (300, 600), program="cuda_uses", more=USES, staging="1G")),
    ("uses-seeds", same("uses-seeds", (200, 9999), (100, 9999), program="cuda_uses", more=list("123456"),
                        staging="256M")),
    ("cloned", same("cloned", (40, 41), (8, 10))),
    ("stripes", same("plain", (80, 81), (79, 81), tag="-stripes", stripes=1)),
    ("aio", same("aio", (40, 41), (40, 41), says="io_uring or aio")),
    ("ranks", ranks),
    ("restarts", restarts(51)),
    # Three fit, and three more in the place of those that are freed: none is broken away from the program for others.
    ("direct", same("direct", (40, 245), (9, 60), staging="256M")),
    ("little", same("plain", (0, 0), (0, 0), tag="-little", staging="64M", says="less than 64 MiB")),
    ("bounce", same("plain", (0, 0), (0, 0), tag="-bounce", CUDA="bounce")),
    ("failing-call", lambda: failing("SIMCUDA_FAIL", 999)),
    ("failing-work", lambda: failing("SIMCUDA_FAIL_WORK", 700)),
]

if __name__ == "__main__":
    run_cuda_cases(CASES + (LONG if sys.argv[1:] else []))
