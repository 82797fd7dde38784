#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 240
#
# Proves P3 to P6 under the rotations of the Hugging Face Trainer, DCP, Orbax, Lightning and DeepSpeed with 1, 2 and 8
# processes: after kills of job, engine and keeper, and after power cuts on ext4, xfs and btrfs. How: the short form of
# tests/long/kills.py and cuts.py; natively the same cuts find wrong names. Cannot see disks that lose completed writes.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
import cutting  # noqa: E402
from cutting import Series  # noqa: E402
from killing import Batch  # noqa: E402

SEED = os.environ.get("SEED") or "short"


def kills(io, user):
    b = Batch("kills-" + io, 15, "%s %s" % (SEED, io), io, user)
    wrong = b.run()
    assert not wrong, wrong
    assert b.counted * 2 > b.done, "only %d of %d kills had something pending" % (b.counted, b.done)
    say("%d kills, %d counted: %s" % (b.done, b.counted, b.by))


def cuts(fs):
    need_disk(4000)
    host = cutting.host("host-" + fs)
    try:
        s = Series("cuts-" + fs, host, fs, "%s %s" % (SEED, fs), clones=6)
        wrong = s.run()
    finally:
        host.free()
    assert not wrong, " || ".join(wrong)
    assert s.counted * 2 > s.done, "%s: only %d of %d cuts had something pending" % (s.what(), s.counted, s.done)
    say("%s: %d cuts, %d counted, last saves %s" % (s.what(), s.done, s.counted, s.lasts))


def canary():
    """Natively, without fsync, some cut of a few series finds a broken save."""
    host = cutting.host("host-canary")
    try:
        for k in range(6):
            s = Series("canary%d" % k, host, "ext4", "canary %d" % k, clones=6)
            s.kind, s.ranks = ("deepspeed", "hf")[k % 2], 2
            if s.run(shim=False):
                return
    finally:
        host.free()
    raise AssertionError("natively nothing was ever wrong")


if __name__ == "__main__":
    run_cases([("kills-uring-root", lambda: kills("uring", False)),
               ("kills-threads-user", lambda: kills("threads", True)), ("canary", canary)] +
              [("cuts-" + fs, lambda fs=fs: cuts(fs)) for fs in ("ext4", "xfs", "btrfs")])
