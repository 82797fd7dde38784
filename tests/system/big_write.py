#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: user
# timeout: 200
#
# Proves that one write of more than 2 GiB returns what the kernel would (0x7ffff000), and that the rest follows. How:
# the same 64 MiB of memory mapped 35 times, written natively and under the shim. Cannot see more than 4 GiB.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

OPS = ("o:0:wct:644:m.pt", "w:0:2200M:1", "w:0:30M:1", "z:0", "c:0", "S:m.pt")


def big(io):
    need_disk(8 << 10)
    box = Box("big-" + io, io=io, STAGING="128M")
    n = box.ops(*OPS, shim=False, cwd=box.native_d, timeout=90)
    assert n.lines()[1] == "write=%d" % 0x7ffff000, n
    r = box.ops(*OPS, timeout=90)
    assert (r.rc, r.lines()) == (n.rc, n.lines()), "printed %s, natively %s; %s" % (r.lines(), n.lines(), r.err)
    assert r.classes() == (1, 0, 0), r.err
    box.wait()
    compare_trees(box.native_d, box.d)
    for d in (box.d, box.native_d):
        os.unlink(d + "/m.pt")


run_cases([("big-" + io, lambda io=io: big(io)) for io in ("uring", "threads")])
