#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# serial
#
# Proves P3 to P6 against KILLS counting kills (10,000) of job, engine and keeper under the frameworks' rotations: one
# counts if something was pending at that instant. How: many batches of tests/lib/killing.py at a time, each in a box of
# its own, as root and as another user, on both backends. What was done adds up in build/long.json: a run goes on from
# there, and ends after 50 minutes. Cannot see power cuts (cuts.py).

import concurrent.futures
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from killing import batch  # noqa: E402
from rotation import Sum  # noqa: E402

WANTED = int(os.environ.get("KILLS") or 10000)
SEED = os.environ.get("SEED") or "0"
LANES = 2 * (os.cpu_count() or 1)
BATCH = 40
SECONDS = 3000


def main():
    total = Sum("kills")
    sums = total.add(counted=0, done=0, batches=0, failed=0)
    end, wrong = time.monotonic() + SECONDS, []
    with concurrent.futures.ProcessPoolExecutor(LANES) as pool:
        waiting = {}
        number = sums["batches"]
        while (sums["counted"] < WANTED and time.monotonic() < end and len(wrong) < 5) or waiting:
            while len(waiting) < LANES and sums["counted"] + BATCH * len(waiting) < WANTED and time.monotonic() < end:
                number += 1
                seed = "%s %d" % (SEED, number)
                args = ("k%d" % number, BATCH, seed, ("uring", "threads")[number % 2], number % 4 > 1)
                waiting[pool.submit(batch, args)] = seed
            for f in concurrent.futures.wait(waiting, return_when="FIRST_COMPLETED").done:
                seed = waiting.pop(f)
                bad, done, counted, by = f.result()
                sums = total.add(counted=counted, done=done, batches=1, failed=bool(bad), **by)
                if bad:
                    wrong.append("seed %s: %s" % (seed, bad))
                    say(wrong[-1])
    say("kills so far: %s" % sums)
    assert not wrong, " || ".join(wrong)
    assert sums["counted"] * 2 > sums["done"], "under half of the kills had something pending: %s" % sums
    assert sums["counted"] >= WANTED, "%d of %d so far: run it again" % (sums["counted"], WANTED)


if __name__ == "__main__":
    run_cases([("kills", main)])
