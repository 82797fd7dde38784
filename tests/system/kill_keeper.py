#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 240
#
# Proves that the death of the keeper costs nothing (the engine becomes a pair again), that keeper and engine may die in
# turn, and that after the death of both the job ends rightly by itself: open files arrive, what is lost is named.
# How: as kill_engine.py. Cannot see a keeper that lives and does nothing.

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fc import *  # noqa: E402,F403
from disks import disk_box  # noqa: E402
from kill_engine import run  # noqa: E402
from kills import SAVER, Counter, Said, check_named, pending  # noqa: E402


def keeper_alone(who, io):
    run("keeper-%s-%s" % (who, io), who, io, lambda n: ("keeper_pid",), 10)


def in_turn():
    run("turn", "root", "threads", lambda n: ("keeper_pid",) if n % 2 else ("engine_pid",), 10)


def both_gone(who, io):
    """Both die at once: each name is whole or absent, each closed save is there or is named as lost, the open one
    arrives, the job goes on to its end, says EIO once, and the next job has an engine again."""
    count = Counter(4, "both" + who)
    k = 0
    with disk_box("both-%s-%s" % (who, io), 600, uid=WHO[who], io=io, STAGING="192M") as (fs, box):
        while count.more():
            k += 1
            d = os.path.join(box.d, "run%d" % k)
            os.makedirs(d)
            box.own(d)
            fs.throttle(60 * MIB)
            p = box.start([SAVER, "-p", "ck-%d.pt", "-s", "20M", "-n", "6", "-w", "2M", "-d", "10"], cwd=d)
            said = Said(p)
            said.starts(box)
            time.sleep(count.rng.uniform(0, 0.4))
            count.add(pending(box.kill_pair()))
            fs.throttle(0)
            try:
                rc = p.wait(60)
            except Exception:
                raise AssertionError("the job hangs: %s" % said.now())
            said.join()
            check_named(d, said, p.stderr.read(), rc, 6)
            sh("rm", "-rf", d)
        count.verdict()
        r = box.run([SAVER, "-p", "after.pt", "-s", "12M", "-n", "1"])
        assert r.rc == 0 and r.classes() == (1, 0, 0), "no engine for the next job: %r" % r


run_cases([("keeper-%s-%s" % (w, io), lambda w=w, io=io: keeper_alone(w, io))
           for w, io in (("root", "uring"), ("user", "threads"))] +
          [("in_turn", in_turn)] +
          [("both_gone-%s-%s" % (w, io), lambda w=w, io=io: both_gone(w, io))
           for w, io in (("root", "uring"), ("user", "threads"))])
