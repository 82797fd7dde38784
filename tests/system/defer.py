#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
# timeout: 200
#
# Proves that copies from a device which the program does not wait for (FASTCKPT_CUDA=defer) are there for whoever
# looks, and that files have what was on the device at the call, or are never published. How: tests/victims/cuda_defer.c
# on the simulated runtime, whose copies take their time: same lines and files as natively; processes killed, copies
# failed. Where memory cannot be guarded (this test as a user): one line, and copies are adopted. Cannot see a real
# device.

import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from cudas import *  # noqa: E402,F403
from adopt import USES  # noqa: E402

SIZE = 40 * 2**20 + 12345
WHOLE = 2**20 + 77 + SIZE  # of a file of the victim's with one tensor
LOST = "a copy from a device has failed"


def deferring(name, scratch="128M", staging="1G", **config):
    return Box(name, CUDA="defer", CUDA_SCRATCH=scratch, STAGING=staging, **config)


def same(name, *cases, scale=0.05, late=(1, 9999), program="cuda_defer", says=(), tag="", env=None, **config):
    """Of the victim's cases. `late`: least and most MiB that are not waited for; `says`: its lines on stderr."""
    def run():
        box = deferring("same-%s%s" % (name, tag), **config)
        argv = [victim(program), box.native_d] + list(cases or [name])
        n = box.native(argv, env=sim_env(scale=0))
        r = box.run(argv[:1] + [box.d] + argv[2:], env=dict(sim_env(scale=scale), **(env or {})), timeout=120)
        assert (n.rc, n.out) == (r.rc, r.out), "%r, natively %r" % (r, n)
        said = [m for m in r.messages() if "device copies" not in m]
        assert len(said) == len(says) and all(s in m for s, m in zip(says, said)), r.err
        assert box.wait().rc == 0
        compare_trees(box.native_d, box.d)
        assert late[0] <= later(r) <= late[1], r.err
        assert not box.leftovers(), box.leftovers()
    return run


def old_file(box):
    path = os.path.join(box.d, "old")
    write_file(path, 4096)
    box.own(path)
    return path


def killed():
    """With bytes on the device: neither the closed file nor the open one is published, and what was deleted behind
    them stays."""
    box = deferring("killed")
    old = old_file(box)
    replaced = os.path.join(box.d, "killed")
    write_file(replaced, 1000)
    box.own(replaced)
    r = box.run([victim("cuda_defer"), box.d, "killed"], env=sim_env(scale=0.02, D2H=0.005))
    assert r.rc == -signal.SIGKILL and "unlink 0" in r.out, r
    box.wait()
    assert sorted(os.listdir(box.d)) == ["killed", "old"] and os.path.getsize(replaced) == 1000, os.listdir(box.d)
    assert os.path.exists(old) and "its program has died" in box.engine_log(), box.engine_log()


def fails():
    """While its bytes travel: EIO for the file, EFAULT for a system call, SIGBUS for who looks; nothing is published,
    nor deleted behind it."""
    box = deferring("fails", scratch="256M")
    old = old_file(box)
    r = box.run([victim("cuda_defer"), box.d, "fails"], env=sim_env(scale=0.004, FAIL_WORK=70))
    lines = r.out.splitlines()
    assert lines[:2] == ["fails: copy 0", "fails: write %d 0, error 700, fsync -1 5, close -1 5" % SIZE], r
    assert lines[2] == "fails: elsewhere -1 14" and lines[3].endswith("close -1 5"), r
    assert lines[4:] == ["fails: unlink -1", "fails: the child 7"] and r.rc == -signal.SIGBUS, r
    assert r.err.count(LOST) == 1, r.err
    box.wait()
    assert sorted(os.listdir(box.d)) == ["not-captured.log", "old"] and os.path.exists(old), os.listdir(box.d)


def gap():
    """One piece fails, and the device goes on: what comes behind it does not stand for it, in no file."""
    box = deferring("gap", scratch="256M")
    trace = os.path.join(box.top, "trace")
    r = box.run([victim("cuda_defer"), box.d, "gap"],
                env=sim_env(scale=0.01, trace=trace, FAIL="cudaMemcpyAsync:60"))
    calls = read_trace(trace)
    failed = [c for c in calls if c.error]
    assert len(failed) == 1 and failed[0].thread != calls[0].thread, failed  # not of the program's own thread
    assert re.match(r"gap: write \d+, fsync -1 5, close -1 5\ngap: again \d+ 0, close -1 5$", r.out), r
    assert r.rc == 0 and r.err.count(LOST) == 1, r
    box.wait()
    assert os.listdir(box.d) == [], os.listdir(box.d)


def pinned():
    """A driver that pins memory does not wait for what is late: all of it has come before the call."""
    box = deferring("pinned")
    trace = os.path.join(box.top, "trace")
    r = box.run([victim("cuda_uses"), box.d, "pinned"], env=sim_env(scale=0.01, trace=trace))
    calls = read_trace(trace)
    pins = [c for c in calls if c.name == "cudaHostRegister" and " %d flags" % SIZE in c.what]
    came = [c for c in calls if c.name == "cudaEventSynchronize" and c.thread != calls[0].thread]
    assert r.rc == 0 and len(pins) == 1 and later(r) > 70, (r, pins)
    assert len([c for c in came if c.number < pins[0].number]) >= SIZE // 2**20, (len(came), pins)


def failing(variable, error, numbers):
    """Each call, or piece of work, in turn: the native error, or EIO and no file, or the file."""
    box = deferring("failing%d" % error, EXIT="leave")
    path, done, late = os.path.join(box.d, "once"), 0, 0
    good = os.path.join(box.top, "good")
    with open(good, "wb") as f:
        f.write(b"h" * (2**20 + 77) + b"\x5a" * SIZE)
    for n in numbers:
        if os.path.exists(path):
            os.unlink(path)
        trace = os.path.join(box.top, "trace")
        r = box.run([victim("cuda_defer"), box.d, "once"], env=dict(sim_env(trace=trace), **{variable: str(n)}))
        failed = [c.name for c in read_trace(trace) if c.error]
        os.unlink(trace)
        box.wait()
        e, last, wrote, err, close = map(int, re.match(
            r"once: error (\d+), last (\d+), write (-?\d+) (\d+), close (-?\d+)$", r.out).groups())
        assert r.rc == 0 and (e, last) in ((0, 0), (error, error)) or failed[0] in PROGRAMS, (n, failed, r)
        if os.path.exists(path) and e == 0:
            assert same_bytes(path, good), "%d: %s, other bytes" % (n, failed)
        elif e == 0:
            assert LOST in r.err, (n, failed, r)
            late += 1
        done += 1
        if not failed:
            assert later(r) > 30 and late > 0, (late, r)
            return
    assert late > 0, "none failed late"


PROGRAMS = ("cudaMalloc", "cudaMemset", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaGetLastError")  # its own calls


def deaths(*who, case="paused", late=70, **config):
    """They die while bytes are on their way from the device to files. `late`: least MiB that are not waited for."""
    def run():
        box = deferring("deaths-" + case + "".join(who), **config)
        n = box.native([victim("cuda_defer"), box.native_d, case], env=sim_env(scale=0))
        p = box.start([victim("cuda_defer"), box.d, case], env=sim_env(scale=0.004), stdin=subprocess.PIPE)
        assert p.stdout.readline() == case + "\n"
        s = box.status()
        for sig in (signal.SIGSTOP, signal.SIGKILL):
            for w in who:
                os.kill(s[w], sig)
        eventually("their end", lambda: not any(alive(s[w]) for w in who))
        out, err = p.communicate("\n", timeout=90)
        assert (p.returncode, case + "\n" + out) == (0, n.out) and later(err) > late, (p.returncode, out, err)
        assert box.wait().rc == 0
        compare_trees(box.native_d, box.d)
    return run


def looked_at():
    """Another process reads the file while its bytes are on their way: it sees all of them."""
    box = deferring("looked")
    p = box.start([victim("cuda_defer"), box.d, "paused"], env=sim_env(scale=0.004), stdin=subprocess.PIPE)
    n = box.native([victim("cuda_defer"), box.native_d, "paused"], env=sim_env(scale=0))
    assert p.stdout.readline() == "paused\n"
    r = box.run([PYTHON, "-c", "import sys; print(len(open(sys.argv[1], 'rb').read()))", box.d + "/paused"])
    out, err = p.communicate("\n", timeout=60)
    assert int(r.out) == WHOLE and "paused\n" + out == n.out, (r, out, err)
    assert box.wait().rc == 0 and same_bytes(box.native_d + "/paused", box.d + "/paused"), "other bytes"


REFUSED = "no userfaultfd that serves the kernel"
SHORT_OF = "the device's memory is short"
CASES = [
    ("looks", same("looks", "threads", "calls", "forked", late=(200, 202))),
    ("execs", same("execed", scale=0.02, late=(0, 0))),  # and reports nothing
    ("given-back", same("shrunk", program="cuda_uses", late=(140, 141))),
    ("killed", killed),
    ("fails", fails),
]
LONG = [
    ("back", same("back", "back", "zeroed", "spawned", "moved", late=(160, 162))),
    ("uses", same("uses", *USES, program="cuda_uses", late=(500, 800))),
    ("pinned", pinned),
    ("uses-seeds", same("uses-seeds", *map(str, range(10, 16)), program="cuda_uses", staging="512M", scratch="64M")),
    ("over-late", same("once_more", program="cuda_uses", tag="-over", scale=0.01, late=(40, 81))),
    ("moved-by-number", same("moved_by_number", late=(40, 41))),
    ("full", same("full", late=(40, 41), says=[SHORT_OF])),
    ("returned", same("returned", scale=0.02, late=(80, 81))),
    ("exited", same("exited", scale=0.02, late=(80, 81))),
    ("quick", same("quick", scale=0.02, late=(80, 81))),
    ("engine-dies", deaths("engine_pid")),
    ("both-die", deaths("engine_pid", "keeper_pid")),
    ("reborn", deaths("engine_pid", "keeper_pid", case="reborn", late=79, staging="256M")),
    ("looked-at", looked_at),
    ("crowd", same("crowd", scale=0.01, late=(40, 41))),
    ("gap", gap),
    ("little-scratch", same("forked", scratch="8M", tag="-little", late=(80, 81))),
    ("no-scratch", same("forked", scratch="8G", tag="-none", late=(0, 0), says=["no scratch memory"])),
    ("failing-call", lambda: failing("SIMCUDA_FAIL", 999, [*range(1, 60), *range(60, 900, 17)])),
    ("failing-work", lambda: failing("SIMCUDA_FAIL_WORK", 700, [*range(1, 12), *range(12, 200, 7)])),
]
ADOPTED = ["plain", "after", "some", "again", "freed", "over", "moved", "zeros", "middle", "locked", "many", "child",
           "threads", "reset"]  # of the victim of adopt.py
LONG += [("adopt-" + c, same(c, program="cuda_adopt", tag="-adopt", staging="512M")) for c in ADOPTED]
WITHOUT = [("unguarded", same("forked", tag="-unguarded", late=(0, 0), says=[REFUSED]))]

if __name__ == "__main__":
    run_cuda_cases((CASES if memory_can_be_guarded() else WITHOUT) + (LONG if sys.argv[1:] else []))
