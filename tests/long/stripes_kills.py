#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 3500
#
# Proves P3 and P4 against KILLS counting kills (1,000) of everything while chunks drain from stripes and rotations are
# pending, and of recoveries in the middle: one counts if something was pending then. A fifth and more are recoveries.
# How: tests/system/recover_kills.py, a batch of 50 at a time. What was done adds up in build/long.json: a run goes on
# from there, and ends after 50 minutes. Cannot see power cuts (stripes_cut.py).

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import recover_kills  # noqa: E402
from fc import run_cases, say  # noqa: E402
from rotation import Sum  # noqa: E402
from stripes import free_all  # noqa: E402

WANTED = int(os.environ.get("KILLS") or 1000)
SEED = os.environ.get("SEED") or "0"
BATCH = 50


def main():
    total, end = Sum("stripes_kills"), time.monotonic() + 3000
    sums = total.add(counted=0, batches=0)
    while sums["counted"] < WANTED and time.monotonic() < end:
        try:
            n = recover_kills.kills(min(BATCH, WANTED - sums["counted"]), end - time.monotonic(),
                              "%s %d" % (SEED, sums["batches"]))
        finally:
            free_all()
        sums = total.add(batches=1, **n)
    say("# kills so far: %s" % sums)
    assert sums["counted"] >= WANTED, "%d of %d so far: run it again" % (sums["counted"], WANTED)
    assert 5 * (sums["recovery"] + sums["next"]) >= WANTED <= 3 * sums["drain"], sums


if __name__ == "__main__":
    run_cases([("kills", main)])
