#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 240
#
# Proves that the engine may die between any record, act and mark of its work (design 7), and again while it restarts:
# nothing is lost, torn or out of order, and no call fails. How: an engine built with FASTCKPT_BREAK=7 prints its break
# points; at each of them it is killed once under a rotation. Cannot see deaths at places that have no break point.

import concurrent.futures
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fc import *  # noqa: E402,F403
from canaries import engine  # noqa: E402
from cudas import RUNTIME, sim_env  # noqa: E402
from hands import RW, W, both  # noqa: E402
from rotation import Rotation  # noqa: E402

SAVES = 3
ADOPTED = ("arena-", "ref-", "refs-", "restart-refs")
JOBS = (("deepspeed", 2), ("hf", 1))  # the second one for what the first does not pass
KEPT = (("publish-named", 14),)  # what a long run found: a deletion has been done, and is not marked as done


def run(args):
    """Kills at the k-th passing of `point`. (point, k, what is wrong or None, was it there)"""
    binary, point, k, io, jobs = args
    name = "%s-%d-%s" % (point, k, io)
    hits = [os.path.join(TMP, name + ".hit"), os.path.join(TMP, name + ".first")]
    at = "%s:%d:%s" % (point, k, hits[0])
    if point.startswith("restart"):
        at += ",chunk-flying:1:" + hits[1]
    if point == "item-litter":
        at += ",item-placed:1:" + hits[1]
    box = Box(name, ENGINE=binary, io=io, STAGING="128M", BREAK_AT=at)
    try:
        if point.startswith(("item", "stripe", "safe", "end-")):
            return point, k, (cut_off if point == "item-unplaced" else striped)(box), os.path.exists(hits[0])
        if point.startswith(ADOPTED):
            late = point.startswith("refs-")
            return point, k, adopted(box, *(("cuda_defer", "late", "defer") if late else ())), os.path.exists(hits[0])
        if point.startswith("hands"):
            return point, k, looked_at(box), os.path.exists(hits[0])
        for n, (kind, ranks) in enumerate(jobs):
            wrong = job(box, "j%d" % n, kind, ranks)
            if wrong:
                return point, k, "%s x %d: %s" % (kind, ranks, wrong), True
            end = time.monotonic() + 0.3  # it may let something go after the last answer
            while not os.path.exists(hits[0]) and time.monotonic() < end:
                time.sleep(0.01)
            for _ in range(2):  # each answer is another turn of its loop
                box.status()
            if os.path.exists(hits[0]):
                box.wait()
                return point, k, None, True
        return point, k, None, False
    finally:
        box.close()


def adopted(box, program="cuda_adopt", name="plain", level="auto"):
    """Copies from a device that are handed over by reference; with `defer`, ahead of their bytes."""
    box.config.update(STAGING="256M", CUDA=level)
    argv = [victim(program), box.native_d, name]
    try:
        n, r = box.native(argv, env=sim_env()), box.run(argv[:1] + [box.d, name], env=sim_env(scale=0.02))
        assert (n.rc, n.out) == (r.rc, r.out), "%r, natively %r" % (r, n)
        assert box.wait().rc == 0 and same_bytes(box.native_d + "/" + name, box.d + "/" + name), "other bytes"
        time.sleep(0.3)  # for what it does when the job is gone
    except AssertionError as e:
        return "%s; log %s" % (e, box.engine_log().splitlines()[-4:])
    return None


def by_stripe(box):
    stripe = os.path.join(box.top, "stripe")
    os.mkdir(stripe)
    box.config.update(STRIPES=stripe, STAGING="64M", DRAIN_RATE="100M")


def cut_off(box):
    """A file that is truncated while its chunks are on a stripe, which is no way to have it back from then on."""
    by_stripe(box)
    ops = ("o:0:wct:644:a", "W:0:90M:1", "t:0:70000001", "W:0:9M:2", "c:0")
    native, r = box.ops(*ops, cwd=box.native_d, shim=False), box.ops(*ops)
    if (r.rc, r.out, box.wait().rc) != (0, native.out, 0):
        return "%r" % r
    return None if same_bytes(box.native_d + "/a", box.d + "/a") else "other bytes"


def striped(box):
    """Saves over a stripe, with so little staging and so slow a drain that chunks leave memory and come back."""
    by_stripe(box)
    try:
        r = box.run([victim("saver"), "-s", str(90 << 20), "-n", "2", "-w", "5000001"], timeout=60)
        assert r.rc == 0 and "lost" not in r.err, r
        w = box.wait()
        assert w.rc == 0, "fastckpt wait: %r" % w
        got = check_saves(os.path.join(box.d, "ckpt-%d.pt" % i) for i in (1, 2))
        assert all(state == "whole" for state, _ in got.values()), got
        assert not box.leftovers(), box.leftovers()
    except AssertionError as e:
        return "%s; log %s" % (e, box.engine_log().splitlines()[-4:])
    return None


def looked_at(box):
    """Another process opens the file, reads all of it and writes where the first one holds bytes; both go on."""
    try:
        both(box, [("A", "open", 0, "f.pt", W), ("A", "write", 0, 3 * MIB, 1), ("A", "pwrite", 0, 9 * MIB, 200000, 2),
                   ("B", "open", 0, "f.pt", RW), ("B", "read", 0), ("B", "pwrite", 0, 2 * MIB, 8000, 3),
                   ("A", "write", 0, 4 * MIB, 4), ("A", "close", 0), ("B", "read", 0), ("B", "close", 0)])
    except AssertionError as e:
        return "%s; log %s" % (e, box.engine_log().splitlines()[-4:])
    return None


def job(box, name, kind, ranks):
    r = Rotation(box, name, kind, ranks, SAVES)
    try:
        err = r.end(30)
        assert r.p.returncode == 0 and not r.said.failed(), "rc %s, %s; %s" % (
            r.p.returncode, r.said.failed(), err[-300:])
        w = box.wait()
        assert w.rc == 0, "fastckpt wait: %r" % w
        r.check(exactly=SAVES)
        assert not box.leftovers(r.d), box.leftovers(r.d)
        usual = ("died: signal 9", "goes on after a restart", "nothing left to do")
        said = [l for l in box.engine_log().splitlines() if not any(u in l for u in usual)]
        assert not said, said[-3:]
    except AssertionError as e:
        return "%s; log %s" % (e, box.engine_log().splitlines()[-4:])
    except subprocess.TimeoutExpired:
        return "the job hangs: %s, status %s" % (r.said.lines[-2:], box.status())
    finally:
        r.kill()
    return None


def all_points(passings, backends, processes, more=()):
    binary = engine(7)
    points = sh(binary, "break-points").split()
    assert len(points) > 30, "only %d break points" % len(points)
    if not os.path.exists(RUNTIME):  # no simulated CUDA runtime: adopt.py says so
        points = [p for p in points if not p.startswith(ADOPTED)]
    todo = [(binary, p, k, io, JOBS) for n, p in enumerate(points) for k in passings
            for io in ((backends[n % 2],) if len(passings) == 1 else backends)]
    todo += [(binary, p, k, backends[0], JOBS) for p, k in more]
    with concurrent.futures.ProcessPoolExecutor(processes) as pool:
        done = list(pool.map(run, todo))
    wrong = ["%s, passing %d: %s" % (p, k, w) for p, k, w, _ in done if w]
    assert not wrong, " || ".join(wrong)
    missed = {p for p in points if not any(there for q, _, _, there in done if q == p)}
    assert not missed, "never passed: %s" % sorted(missed)
    say("%d break points, %d kills" % (len(points), sum(there for _, _, _, there in done)))


if __name__ == "__main__":
    run_cases([("every-transition", lambda: all_points((1,), ("uring", "threads"), 6, KEPT))])
