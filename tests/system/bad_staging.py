#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
# backends: uring threads
#
# Proves that a full staging budget never deadlocks: more open files than chunks, a stopped client that holds them all,
# and many clients at once. How: FASTCKPT_STAGING=64M (16 chunks) and programs that keep partial chunks. Cannot see
# starvation over hours.

import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

SAVER = victim("saver")


def seventeen_files():
    """17 open files, each with a partial chunk, and 16 chunks: written in turns, closed in another order."""
    ops = ["o:%d:wct:644:f%d.pt" % (i, i) for i in range(17)]
    for turn in range(4):
        ops += ["W:%d:1700003:%d" % ((i * 5 + turn) % 17, i + turn) for i in range(17)]
    ops += ["c:%d" % ((i * 7) % 17) for i in range(17)]
    box = Box("seventeen", STAGING="64M")
    box.ops(*ops, shim=False, cwd=box.native_d)
    r = box.ops(*ops, timeout=40)
    # One that found no chunk may have been written by the kernel.
    assert r.rc == 0 and sum(r.classes()[:2]) == 17 and r.classes()[0] >= 16, repr(r)
    box.wait()
    compare_trees(box.native_d, box.d)
    assert r.seconds < 35, "%.1f s" % r.seconds


def stopped_client():
    """A client that is stopped with all chunks in its hands: another's save goes by the kernel, and ends."""
    box = Box("stopped", STAGING="64M")
    hold = [victim("ops")] + ["o:%d:wct:644:held%d.pt" % (i, i) for i in range(17)]
    hold += ["W:%d:2500000:%d" % (i, i) for i in range(17)] + ["y:holding", "i"] + ["c:%d" % i for i in range(17)]
    a = box.start(hold, stdin=-1)
    while True:
        l = a.stdout.readline()
        assert l, "the holder ended"
        if l.strip() == "holding":
            break
    s = box.status()
    os.kill(a.pid, signal.SIGSTOP)
    try:
        r = box.run([SAVER, "-p", "b-%d.pt", "-s", "24M", "-n", "3"], timeout=40)
        assert r.rc == 0, repr(r)
        assert r.seconds < 35, "%.1f s" % r.seconds
    finally:
        os.kill(a.pid, signal.SIGCONT)
    assert s and s["staging_used"] >= 48 * MIB, "the stopped client holds only %s" % s
    a.stdin.write("\n")
    a.stdin.close()
    out = a.stdout.read()
    assert a.wait(30) == 0 and out.count("close=0") == 17, out
    box.wait()
    got = check_saves(os.path.join(box.d, "b-%d.pt" % i) for i in (1, 2, 3))
    assert sorted(v for v in got.values()) == [("whole", 1), ("whole", 2), ("whole", 3)], got
    for i in range(17):
        assert os.path.getsize(os.path.join(box.d, "held%d.pt" % i)) == 2500000


def many_clients():
    """Six clients that save at once through one budget of 64 MiB."""
    box = Box("many", STAGING="64M")
    ps = [box.start([SAVER, "-p", "c%d-%%d.pt" % i, "-s", "40M", "-n", "2"]) for i in range(6)]
    for p in ps:
        out, err = p.communicate(timeout=60)
        assert p.returncode == 0, out + err
    box.wait()
    got = check_saves(os.path.join(box.d, "c%d-%d.pt" % (i, k)) for i in range(6) for k in (1, 2))
    assert len(got) == 12 and all(v[0] == "whole" for v in got.values()), got
    s = box.status()
    assert s is None or s["staging_bytes"] <= 64 * MIB, s


def killed_holder():
    """The chunks of a client that was killed come back."""
    box = Box("killed", STAGING="64M")
    for _ in range(3):
        hold = [victim("ops")] + ["o:%d:wct:644:held%d.pt" % (i, i) for i in range(17)]
        a = box.start(hold + ["W:%d:2500000:%d" % (i, i) for i in range(17)] + ["y:holding", "i"], stdin=-1)
        while a.stdout.readline().strip() != "holding":
            assert a.poll() is None
        a.kill()
        a.wait()
    r = box.run([SAVER, "-p", "m.pt", "-s", "60M", "-n", "2"], timeout=30)
    assert r.rc == 0 and r.classes() == (2, 0, 0), repr(r)
    eventually("all chunks are free", lambda: (box.status() or {"staging_used": 0})["staging_used"] == 0)
    box.wait()
    assert sorted(os.listdir(box.d)) == ["m.pt"], os.listdir(box.d)


run_cases([(f.__name__, f) for f in (seventeen_files, stopped_client, many_clients, killed_holder)])
