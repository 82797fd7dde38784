#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 120
#
# Proves that programs of clients.tsv leave the same bytes, modes, owners and times as natively when what they save goes
# by two stripes, on ext4 and xfs, to a btrfs; that it does go there, and that the stripes are empty at the end.
# How: clients.py with TEST_STRIPES and TEST_BASE on loop devices; staging is small, so that chunks are read back.
# Cannot see who wrote the bytes within a class; all programs are in tests/long/clients_stripes.py.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import clients  # noqa: E402
from disks import LoopFS  # noqa: E402
from fc import *  # noqa: E402,F403

SHORT = ("dd_over", "c_pieces", "foreign_middle", "cp_p_new")


def left_on(stripe):
    return [n for _, _, names in os.walk(stripe.at) for n in names if n.endswith((".data", ".log"))]


def run(rows, target_mib, staging="48M"):
    """The rows, and two results about the stripes."""
    stripes = [LoopFS("stripe-" + fs, 1200, fs) for fs in ("ext4", "xfs")]
    target = LoopFS("target", target_mib, "btrfs")
    os.environ.update(TEST_STRIPES=":".join(s.at for s in stripes), TEST_BASE=target.at)
    boxes = clients.run_rows(rows, staging)
    with case("both-stripes-take-part"):
        mib = [s.written() >> 20 for s in stripes]
        need_mib = sum(4 for r in rows if r[1] == "staged")
        assert min(mib) > need_mib / 2, "the stripes were given %s MiB by %d programs" % (mib, len(rows))
        say("# the stripes were given %s MiB" % mib)
    for b in boxes:
        b.close()
    with case("stripes-are-left-empty"):
        assert not any(map(left_on, stripes)), [left_on(s) for s in stripes]
    finish()


if __name__ == "__main__":
    run([r for r in clients.rows() if r[0] in SHORT], 1500)
