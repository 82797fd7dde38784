#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 200
#
# Proves P5 and P3: after SIGKILL of a job at a random instant, in mid-save or after, all that was closed before
# arrives, what was open is old or absent, and only what its history deletes is gone. How: a saver that rotates names
# on a throttled loop device, until twenty kills met something pending. Cannot see deaths of the machine.

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from disks import disk_box  # noqa: E402
from kills import SAVER, Counter, Said, check_history, latest_of, pending, rotated  # noqa: E402

KEEP = 2
RATE = 70 * MIB


def one_kill(box, fs, k, count):
    d = os.path.join(box.d, "run%d" % k)
    os.makedirs(d)
    box.own(d)
    fs.throttle(RATE)
    p = box.start([SAVER, "-p", "ck-%d.pt", "-s", "20M", "-n", "9", "-k", str(KEEP), "-l", "latest", "-t", "30"], cwd=d)
    said = Said(p)
    said.starts()
    time.sleep(count.rng.uniform(0, 1))
    p.kill()
    p.wait()
    s = box.status()
    said.join()
    count.add(pending(s) or said.begin > said.closed)
    fs.throttle(0)
    w = box.wait()
    assert w.rc == 0, "fastckpt wait: %r" % w
    what = "killed at %s (%s); there: %s, latest %s" % (said.now(), s and s["pending_files"], rotated(d), latest_of(d))
    try:
        last = check_history(d, KEEP)
    except AssertionError as e:
        raise AssertionError("%s; %s" % (e, what))
    assert last >= said.closed, "closed and not there; " + what
    assert last <= said.begin, "never begun; " + what
    assert latest_of(d) is None or latest_of(d) >= said.begin - 1, what
    assert not said.begin > 1 or latest_of(d) is not None, what
    assert not box.leftovers(d), "%s; %s" % (box.leftovers(d), what)
    assert not said.failed(), said.failed()
    sh("rm", "-rf", d)


def kills(who, io):
    count = Counter(10, "job" + who + io)
    with disk_box("job-%s-%s" % (who, io), 600, uid=WHO[who], io=io, STAGING="192M") as (fs, box):
        k = 0
        while count.more():
            k += 1
            one_kill(box, fs, k, count)
        count.verdict()


def same_name(who, io):
    """The same name again and again: old or new, and never older than what was closed."""
    count = Counter(5, "same" + who + io)
    with disk_box("same-%s-%s" % (who, io), 600, uid=WHO[who], io=io, STAGING="192M") as (fs, box):
        path = os.path.join(box.d, "m.pt")
        before = 0
        while count.more():
            fs.throttle(RATE)
            p = box.start([SAVER, "-p", "m.pt", "-s", "24M", "-n", "8", "-F", str(before + 1), "-t", "40", "-w", "3M",
                           "-d", "8"])
            said = Said(p)
            said.starts()
            time.sleep(count.rng.uniform(0, 0.8))
            p.kill()
            p.wait()
            s = box.status()
            said.join()
            count.add(pending(s) or said.begin > said.closed)
            fs.throttle(0)
            box.wait()
            state, seq = check_saves([path])[path]
            closed = max(said.closed, before)
            assert state == "whole" or (state == "absent" and closed == 0), "%s %s, %s" % (state, seq, said.now())
            if state == "whole":
                assert closed <= seq <= max(said.begin, closed), "holds %s, %s" % (seq, said.now())
                before = seq
            assert os.listdir(box.d) in ([], ["m.pt"]), os.listdir(box.d)
            box.let_go("m.pt")
        count.verdict()


def canary():
    """Natively the same kills do tear a name: the check can see it."""
    box = Box("canary")
    path = os.path.join(box.d, "m.pt")
    seen = set()
    for k in range(12):
        p = box.start([SAVER, "-p", "m.pt", "-s", "24M", "-n", "50", "-w", "2M", "-d", "10"], shim=False)
        said = Said(p)
        said.starts()
        time.sleep(0.15 + 0.01 * k)
        p.kill()
        p.wait()
        said.join()
        seen.add(check_saves([path])[path][0])
        if "torn" in seen:
            return
    raise AssertionError("natively no name was torn in 12 kills: %s" % seen)


run_cases([("canary", canary)] + [("%s-%s-%s" % (f.__name__, w, io), lambda f=f, w=w, io=io: f(w, io))
                                  for f in (kills, same_name) for w, io in (("root", "uring"), ("user", "threads"))])
