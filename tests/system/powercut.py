#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 240
#
# Proves P3 and P4 against power cuts: at any instant the names on the disk are a state of the program's own history,
# each file whole, and what fsync returned for is there. How: ext4 (and xfs) on a loop over a file on xfs; a reflink of
# that file under two running savers is one instant; each clone is mounted and checked. Cannot see disks that lose
# completed writes; the simulated disk of the unit tests does that.

import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from disks import LoopFS, disk_box, mount, umount  # noqa: E402
from kills import SAVER, Said, check_history, pending  # noqa: E402

KEEP = 2


def savers(box, fsync, shim=True):
    """One saver rotates names and writes latest, the other saves over one name."""
    more = ["-f"] if fsync else []
    a = box.start([SAVER, "-p", "ck-%d.pt", "-s", "12M", "-n", "100000", "-k", str(KEEP), "-l", "latest", "-t", "20"]
                  + more, shim=shim)
    b = box.start([SAVER, "-p", "same.pt", "-s", "9M", "-n", "100000", "-t", "35"] + more, shim=shim)
    return (a, b), (Said(a), Said(b))


def check_clone(clone, fs, at, said, fsync):
    """Mounts a clone (its journal is replayed) and checks what is there. Returns a summary."""
    mount("-o", "loop" + (",nouuid" if fs == "xfs" else ""), clone, at=at)
    try:
        d = os.path.join(at, "b", "ckpt")
        if not os.path.isdir(d):
            return 0
        last = check_history(d, KEEP)
        state, same = check_saves([d + "/same.pt"])[d + "/same.pt"]
        assert state == "whole" or (state == "absent" and same is None), "same.pt is %s %s" % (state, same)
        if fsync:
            assert last >= said[0]["synced"], "fsync had returned for %d, the last is %d" % (said[0]["synced"], last)
            assert (same or 0) >= said[1]["closed"] or said[1]["synced"] == 0 or (same or 0) >= said[1]["synced"] - 1, \
                "same.pt holds %s, synced %s closed %s" % (same, said[1]["synced"], said[1]["closed"])
        return last
    finally:
        umount(at)


def cuts(name, fs_type, n, fsync, io, shim=True, canary=False, **config):
    """Makes n counting cuts, or, for a canary, at most n, until one finds something. Returns what was wrong."""
    rng = random.Random(name)
    need_disk(4000)
    host = LoopFS(name + "-host", 2500, fs="xfs")
    fs = LoopFS("disk", 640, fs=fs_type, base=host.at,
                options="commit=1" if fs_type == "ext4" else "defaults")
    box = Box(name, base=os.path.join(fs.at, "b"), io=io, STAGING="128M", **config)
    wrong, counted, tried, lasts = [], 0, 0, []
    fs.throttle(120 * MIB)
    ps, said = savers(box, fsync, shim)
    try:
        for x in said:
            x.starts()
        time.sleep(0.2 if shim else 1.5)
        while counted < n and tried < 10 * n and not (canary and wrong):
            tried += 1
            time.sleep(rng.uniform(0.05, 0.35))
            s = box.status() if shim else {"pending_files": 1}
            before = [x.now() for x in said]
            clone = os.path.join(host.at, "clone")
            sh("cp", "--reflink=always", fs.image, clone)
            counted += bool(not shim or pending(s))
            try:
                lasts.append(check_clone(clone, fs_type, os.path.join(host.dir, "clone"), before, fsync))
            except AssertionError as e:
                wrong.append("cut %d, %s: %s" % (tried, before, e))
            os.unlink(clone)
            assert not said[0].failed() and not said[1].failed(), said[0].failed() + said[1].failed()
        assert all(p.poll() is None for p in ps), "a saver ended: %s" % [x.lines[-1:] for x in said]
        assert counted >= n or wrong, "only %d of %d cuts had something pending" % (counted, tried)
        if shim:
            assert lasts[-1:] > [0] or wrong, "nothing was ever durable: %s" % lasts
    finally:
        for p in ps:
            p.kill()
        fs.throttle(0)
        box.close()
        fs.free()
        host.free()
    return wrong


def shimmed(*a):
    wrong = cuts(*a)
    assert not wrong, " || ".join(wrong)


def canary():
    """Natively the same cuts do find broken names: the check can see them."""
    assert cuts("canary", "ext4", 40, False, None, shim=False, canary=True), "natively forty cuts found nothing wrong"


def fsync_behind():
    """An fsync of what is to replace an older file returns when what its program had closed before has its name."""
    with disk_box("behind", 600, io="uring", STAGING="128M") as (fs, box):
        p = box.start([victim("ops"), "o:0:wct:644:same.pt", "W:0:1:1", "c:0", "i", "o:0:wct:644:same.pt", "W:0:24M:2",
                       "c:0", "o:0:wct:644:same.pt", "W:0:5000:3", "f:0", "y:synced", "i", "c:0"], stdin=-1)
        eventually("the oldest is there", lambda: os.path.exists(box.d + "/same.pt") and not pending(box.status()))
        fs.throttle(12 * MIB)
        p.stdin.write("\n"), p.stdin.flush()
        while (line := p.stdout.readline()) != "synced\n":
            assert line, p.stderr.read()
        size = os.path.getsize(box.d + "/same.pt")
        assert size == 24 * MIB, "an fsync has returned, and what was closed before it is not there: %d bytes" % size
        fs.throttle(0)
        out, err = p.communicate("\n", timeout=60)
        assert p.returncode == 0 and box.wait().rc == 0, (out, err)
        assert os.path.getsize(box.d + "/same.pt") == 5000, out


if __name__ == "__main__":
    run_cases([("canary", canary), ("fsync-behind", fsync_behind),
               ("ext4-uring", lambda: shimmed("ext4-uring", "ext4", 5, False, "uring")),
               ("ext4-threads-fsync", lambda: shimmed("ext4-threads-fsync", "ext4", 5, True, "threads")),
               ("xfs-uring-fsync", lambda: shimmed("xfs-uring-fsync", "xfs", 3, True, "uring"))])
