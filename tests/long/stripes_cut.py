#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 400
#
# Proves that after a power cut of stripes and target at one instant, and a recovery, every name is whole, what `latest`
# names is there, what was closed a while before the cut has come back, and `fastckpt verify` calls nothing torn.
# How: two stripes and the target are parts of one file on xfs; a reflink of it under a running saver is one instant;
# each clone is mounted in the place of the first, and recovered. CUTS=, SEED=.
# Cannot see what a disk's own cache loses.

import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from disks import *  # noqa: E402,F403
from fc import *  # noqa: E402,F403
from kills import Said  # noqa: E402

SAVER = victim("saver")
PART = 320  # MiB
CUTS = int(os.environ.get("CUTS") or 12)
SEED = os.environ.get("SEED") or "1"
KINDS = ("ext4", "xfs", "ext4")  # stripe, stripe, target


class Parts:
    """Three file systems in one image."""

    def __init__(self, host):
        self.image = os.path.join(host.at, "image")
        self.at = [os.path.join(TMP, "part%d" % i) for i in range(3)]
        with open(self.image, "wb") as f:
            f.truncate(3 * PART * MIB)
        for i, loop in enumerate(self.loops(self.image)):
            sh("mkfs." + KINDS[i], "-q", *(("-F", "-m", "0") if KINDS[i] == "ext4" else ()), loop)
            sh("losetup", "-d", loop)
        self.mount(self.image)

    def loops(self, image):
        return [sh("losetup", "-f", "--show", "-o", str(i * PART * MIB), "--sizelimit", str(PART * MIB), image).strip()
                for i in range(3)]

    def mount(self, image):
        self.mounted = image
        self.loop = self.loops(image)
        try:
            for i in range(3):
                mount("-o", "defaults", self.loop[i], at=self.at[i])
        finally:
            for loop in self.loop:  # goes with its mount
                subprocess.run(["losetup", "-d", loop], capture_output=True)

    def slow(self, bps):
        key = os.stat(self.loop[2]).st_rdev
        with open("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device", "w") as f:
            f.write("%d:%d %d" % (os.major(key), os.minor(key), bps))

    def umount(self):
        for at in self.at:
            umount(at)
        # Elsewhere, too: a namespace of another test may have the mounts for a while, and would go on writing.
        eventually("its loop devices are free", lambda: not sh("losetup", "-j", self.mounted).strip(), 120)


def look(box, cut, closed, said):
    """One clone, mounted where the first was."""
    r = box.command("recover")
    assert r.rc == 0, "%s: %s" % (said, r.out)
    names = [n for n in os.listdir(box.d) if n.startswith("ckpt-")]
    states = check_saves(os.path.join(box.d, n) for n in names)
    assert all(s == "whole" for s, _ in states.values()), "%s: %s; %s" % (said, states, r.out)
    v = box.command("verify", *(os.path.join(box.d, n) for n in names)) if names else None
    assert not v or (v.out.count("\n") == len(names) and "torn: " not in v.out), "%s: %s; %s" % (said, v.out, r.out)
    latest = os.path.join(box.d, "latest")
    last = 0
    if os.path.exists(latest):
        with open(latest) as f:
            last = int(f.read())
        assert "ckpt-%d.pt" % last in names, "%s: latest is %d, %s; %s" % (said, last, sorted(names), r.out)
    assert last >= closed, "%s: latest is %d, but %d had been closed; %s" % (said, last, closed, r.out)
    return len(r.out.splitlines())


def cuts():
    if not os.path.exists("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device"):
        raise Skip("no blkio controller (cgroup v1)")
    rng = random.Random("stripes %s" % SEED)
    host = LoopFS("host", 6000, fs="xfs")
    parts = Parts(host)
    back = 0
    try:
        for n in range(0, CUTS, 4):
            back += series(parts, host, rng, min(4, CUTS - n))
    finally:
        parts.umount()
    say("# %d cuts, %d files came back, seed %s" % (CUTS, back, SEED))
    assert back >= CUTS


def series(parts, host, rng, n):
    box = Box("cut", base=parts.at[2], STRIPES=":".join(parts.at[:2]), STAGING="64M")
    shutil.rmtree(box.d)
    os.mkdir(box.d)
    for at in parts.at:
        sync_disk(at)
    parts.slow(rng.choice([2, 4, 8]) << 20)
    keep = rng.choice([(), (), ("-k", "2")])
    p = box.start([SAVER, "-s", str(rng.choice([5, 17]) << 20), "-n", "9", "-l", "latest", "-t", "150", *keep])
    said, taken = Said(p), []
    try:
        take(parts, host, rng, n, keep, said, taken)
        p.kill()
    finally:
        parts.slow(0)
    s = box.status()  # none: it has drained all, and left
    if s:
        box.kill_pair(s)
    p.wait()
    parts.umount()
    back = 0
    for clone, before in taken:
        parts.mount(clone)
        try:
            back += look(box, clone, before, "cut %s" % (os.path.basename(clone)))
        finally:
            parts.umount()
            os.unlink(clone)
    parts.mount(parts.image)
    box.command("recover")
    return back


def take(parts, host, rng, n, keep, said, taken):
    """`n` clones of what is there under the running saver, each with what has to be there in the end."""
    for i in range(n):
        time.sleep(rng.uniform(0.1, 0.6))
        # what waits for a record: 100 ms after its close, and the syncs of all before it; not behind a deletion
        before = 0 if keep else said.closed
        time.sleep(0 if keep else 5)
        clone = os.path.join(host.at, "clone-%d" % i)
        sh("cp", "--reflink=always", parts.image, clone)
        taken.append((clone, before))


run_cases([("stripes-cut", cuts)])
