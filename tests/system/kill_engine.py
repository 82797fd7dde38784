#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 240
#
# Proves that the death of the engine costs nothing: its keeper starts another, no save fails, nothing is lost, torn or
# out of order, and a job that is killed at the same time loses nothing either. How: SIGKILL at random instants under a
# saver on a throttled loop device, until twenty met something pending. Cannot see crashes by its own faults (blame).

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from disks import LoopFS, SlowGroup, disk_box  # noqa: E402
from kills import RATE, SAVER, Counter, Said, check_history, kill, pending, rotated, until_dead  # noqa: E402

KEEP = 2


def kill_some(box, p, count, victims):
    """Kills what is named, if both live, when the job `p` has something pending, or for a second has not: on a busy
    machine that is rarely so."""
    s, end = box.status(), time.monotonic() + 1
    while s and not pending(s) and p.poll() is None and time.monotonic() < end:
        s = box.status()
    if s and alive(s["engine_pid"]) and alive(s["keeper_pid"]):
        count.add(pending(s))
        kill([s[v] for v in victims])
        until_dead([s[v] for v in victims])


def run(name, who, io, victims_of, wanted, fsync=False):
    count = Counter(wanted, name)
    runs = 0
    with disk_box(name, 700, uid=WHO[who], io=io, STAGING="192M") as (fs, box):
        while count.more():
            runs += 1
            d = os.path.join(box.d, "run%d" % runs)
            os.makedirs(d)
            box.own(d)
            fs.throttle(RATE)
            p = box.start([SAVER, "-p", "ck-%d.pt", "-s", "20M", "-n", "12", "-k", str(KEEP), "-l", "latest", "-t",
                           "20"] + (["-f"] if fsync else []), cwd=d)
            said = Said(p)
            said.starts()
            while p.poll() is None and count.more():
                time.sleep(count.rng.uniform(0.05, 0.4))
                kill_some(box, p, count, victims_of(count.done))
            fs.throttle(0)
            try:
                rc = p.wait(60)
            except Exception:
                raise AssertionError("the job hangs after %d kills: %s, status %s" % (
                    count.done, said.now(), box.status()))
            said.join()
            err = p.stderr.read()
            assert rc == 0 and not said.failed(), "rc %s, %s; %s" % (rc, said.failed(), err[-500:])
            w = box.wait()
            assert w.rc == 0, "fastckpt wait: %r" % w
            last = check_history(d, KEEP)
            assert last == 12 and sorted(rotated(d)) == [11, 12], "%s %s" % (last, rotated(d))
            assert not box.leftovers(d), box.leftovers(d)
            assert " 0 failures" in err, err
            sh("rm", "-rf", d)
        count.verdict()
        s = box.status()
        assert s is None or s["failures"] == 0, s


def engine_alone(who, io):
    run("engine-%s-%s" % (who, io), who, io, lambda n: ("engine_pid",), 10)


def engine_fsync():
    run("engine-fsync", "root", "uring", lambda n: ("engine_pid",), 6, fsync=True)


def job_and_engine():
    """Job and engine die at the same instant."""
    count = Counter(6, "job and engine")
    with disk_box("je", 600, io="uring", STAGING="192M") as (fs, box):
        k = 0
        while count.more():
            k += 1
            d = os.path.join(box.d, "run%d" % k)
            os.makedirs(d)
            fs.throttle(RATE)
            p = box.start([SAVER, "-p", "ck-%d.pt", "-s", "20M", "-n", "12", "-k", str(KEEP), "-l", "latest"], cwd=d)
            said = Said(p)
            said.starts(box)
            time.sleep(count.rng.uniform(0, 0.6))
            s = eventually("an engine", box.status)
            for pid in [p.pid, s["engine_pid"]] if k % 2 else [s["engine_pid"], p.pid]:
                os.kill(pid, 9)
            p.wait()
            said.join()
            count.add(pending(s))
            fs.throttle(0)
            w = box.wait()
            assert w.rc == 0, "fastckpt wait: %r" % w
            last = check_history(d, KEEP)
            assert said.closed <= last <= said.begin, "last is %d, %s" % (last, said.now())
            assert not box.leftovers(d), box.leftovers(d)
            sh("rm", "-rf", d)
        count.verdict()


def fenced(name, **config):
    """Writes of a dead engine that the kernel carries out later: this engine is slow, the one after it is fast, and
    uses the same chunks for other bytes meanwhile. Returns what is wrong with the files in the end."""
    fs = LoopFS(name + "-fs", 700)
    box = Box(name, base=os.path.join(fs.at, "b"), io="uring", STAGING="64M", **config)
    slow = SlowGroup(name, fs, 6 * MIB)
    wrong = []
    try:
        for k in range(3):
            p = box.start([SAVER, "-p", "k%d-%%d.pt" % k, "-s", "20M", "-n", "8"])
            s = eventually("an engine", box.status)
            slow.take(s["engine_pid"])
            said = Said(p)
            eventually("something in flight", lambda: said.closed >= 1 and pending(box.status()))
            time.sleep(0.3)
            os.kill(s["engine_pid"], 9)
            assert p.wait(60) == 0, p.stderr.read()
            box.wait()
        slow.limit(0)
        time.sleep(0.5)
        box.wait()
        sync_disk(box.d)
        sh("sh", "-c", "echo 1 > /proc/sys/vm/drop_caches")
        for path, got in check_saves(os.path.join(box.d, n) for n in os.listdir(box.d)).items():
            if got != ("whole", int(path[:-3].rsplit("-", 1)[1])):
                wrong.append("%s %s" % (os.path.basename(path), got))
        assert len(os.listdir(box.d)) == 24, os.listdir(box.d)
    finally:
        box.close()
        fs.free()
        slow.remove()
    return wrong


def fence():
    wrong = fenced("fence")
    assert not wrong, wrong


if __name__ == "__main__":
    run_cases([("engine-%s-%s" % (w, io), lambda w=w, io=io: engine_alone(w, io))
               for w, io in (("root", "uring"), ("user", "threads"))] +
              [("engine_fsync", engine_fsync), ("job_and_engine", job_and_engine), ("fence", fence)])
