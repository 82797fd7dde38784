#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 300
# serial
#
# Proves that the power-cut and kill tests and the simulated disk can see: an engine built to publish without sync (1),
# to write again after a restart without fence (2), or to publish before the bytes are there (3) must fail them. How:
# the same functions with the engine of FASTCKPT_BREAK=n under the ordinary shim, and unit/test_crash built with it.
# Cannot see faults of other kinds.

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fc import *  # noqa: E402,F403
from kill_engine import fenced  # noqa: E402
from powercut import cuts  # noqa: E402


def engine(n):
    return built(n, "fastckpt")


def on_simulated_disk():
    for n in (1, 2, 3):
        r = subprocess.run([built(n, "unit/test_crash"), "-j1"], capture_output=True, text=True, timeout=200)
        assert r.returncode != 0 and "no state of the history" in r.stderr, "fault %d was not seen: %s" % (n, r)


def without_sync():
    assert cuts("c1", "ext4", 40, False, "uring", canary=True, ENGINE=engine(1)), "forty cuts found nothing wrong"


def without_fence():
    slow = engine(2)
    # Whether a dead engine's write comes late is chance: many runs, one of which has to show it (tests/long).
    assert any(fenced("c2-%d" % i, ENGINE=slow) for i in range(40)), "forty runs found no foreign bytes"


def before_the_bytes():
    assert cuts("c3", "ext4", 40, False, "uring", canary=True, ENGINE=engine(3)), "forty cuts found nothing wrong"


if __name__ == "__main__":
    run_cases([(f.__name__, f) for f in (on_simulated_disk, without_sync, before_the_bytes)])
