# SPDX-License-Identifier: MIT
#
# cutting: power cuts under the frameworks' rotations, on ext4, xfs and btrfs. The file system lies in a file on xfs; a
# reflink of that file while a job runs is one instant. A series takes some of them from a running job, and then mounts
# one after the other (a clone of btrfs cannot be mounted beside its original) and checks it.

import os
import random
import subprocess
import time

from disks import LoopFS, mount, umount
from fc import TMP, Box, need, sh
from kills import pending
from rotation import KINDS, RANKS, Rotation, check

CLONES = 10  # instants of one series
SIZE = {"ext4": 320, "xfs": 320, "btrfs": 320}  # MiB: mkfs.xfs makes nothing smaller than 300


class Series:
    """`done` cuts, of which `counted` had something pending; `lasts`: the last complete save at each."""

    def __init__(self, name, host, fs, seed, io=None, clones=CLONES, **config):
        need("mkfs." + fs)
        self.rng = random.Random("cuts %s" % seed)
        self.name, self.host, self.fs, self.io, self.clones, self.config = name, host, fs, io, clones, config
        self.kind, self.ranks = self.rng.choice(KINDS), self.rng.choice(RANKS)
        self.done = self.counted = 0
        self.lasts = []

    def what(self):
        return "%s, %s x %d" % (self.fs, self.kind, self.ranks)

    def run(self, shim=True):
        """What was wrong, one line a cut."""
        disk = LoopFS("disk", SIZE[self.fs], fs=self.fs, base=self.host.at,
                      options="defaults" if shim else "commit=1")  # natively nothing else makes names durable
        config = dict({"FSYNC": self.rng.choice(("wait", "defer")), "STAGING": "128M"}, **self.config)
        box = Box(self.name, base=os.path.join(disk.at, "b"), io=self.io, **config)
        taken = []
        try:
            r = Rotation(box, "j", self.kind, self.ranks, shim=shim)
            taken = self.take(box, disk, r, shim)
            assert r.p.poll() is None, "the job ended: %s %s" % (r.said.lines[-2:], r.p.stderr.read()[-300:])
            assert not r.said.failed(), r.said.failed()
            r.kill()
            r.said.join()
        finally:
            box.close()
            disk.free()
        return [w for w in (self.look(clone, n) for n, clone in enumerate(taken)) if w]

    def take(self, box, disk, r, shim):
        taken = []
        end = time.monotonic() + 20
        while not r.said.begin and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(0 if shim else 1.5)
        while len(taken) < self.clones:
            time.sleep(self.rng.uniform(0, 0.06))
            before = box.status() if shim else {"pending_files": 1}
            if not pending(before) and self.rng.random() < 0.95 and time.monotonic() < end:
                continue
            clone = os.path.join(self.host.at, "%s-%d" % (self.name, len(taken)))
            sh("cp", "--reflink=always", disk.image, clone)
            taken.append(clone)
            self.counted += bool(pending(before))
        self.done = len(taken)
        return taken

    def mount(self, clone, at):
        """A test beside this one may hold the original in a mount namespace of its own: btrfs refuses a clone then."""
        end = time.monotonic() + 30
        while True:
            try:
                return mount("-o", "loop" + (",nouuid" if self.fs == "xfs" else ""), clone, at=at)
            except RuntimeError:
                if self.fs != "btrfs" or time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def look(self, clone, n):
        at = os.path.join(TMP, self.name + "-at")
        try:
            self.mount(clone, at)
        except RuntimeError as e:
            os.unlink(clone)
            return "%s, cut %d: cannot be mounted: %s" % (self.what(), n, e)
        try:
            d = os.path.join(at, "b", "ckpt", "j", "ckpt")
            last = check(self.kind, self.ranks, d, late=self.fs == "btrfs") if os.path.isdir(d) else 0
            assert last >= max(self.lasts, default=0), "save %s was there, now the last is %d" % (self.lasts[-1:], last)
            self.lasts.append(last)
            return None
        except AssertionError as e:
            return "%s, cut %d: %s" % (self.what(), n, e)
        finally:
            umount(at)
            os.unlink(clone)
            if self.fs == "btrfs":
                subprocess.run(["btrfs", "device", "scan", "--forget"], capture_output=True)


def host(name, mib=3000):
    """Where clones are cheap."""
    return LoopFS(name, mib, fs="xfs")
