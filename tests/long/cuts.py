#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# serial
#
# Proves P3 and P4 against CUTS counting power cuts (1,000) under the frameworks' rotations on ext4, xfs and btrfs: a
# cut counts if something was pending at that instant. How: many series of tests/lib/cutting.py. What was done adds up
# in build/long.json: a run goes on from there, and ends after 50 minutes. FS="btrfs": only of these. Cannot see disks
# that lose completed writes.

import concurrent.futures
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
import cutting  # noqa: E402
from cutting import Series  # noqa: E402
from rotation import Sum  # noqa: E402

WANTED = int(os.environ.get("CUTS") or 1000)
SEED = os.environ.get("SEED") or "0"
LANES = 2
SECONDS = 3000
FILE_SYSTEMS = (os.environ.get("FS") or "ext4 xfs btrfs").split()


def series(seed, number):
    """For a pool of processes: (what was wrong, done, counted, file system)."""
    fs = FILE_SYSTEMS[number % len(FILE_SYSTEMS)]
    host = cutting.host("host%d" % number)
    try:
        s = Series("c%d" % number, host, fs, seed, ("uring", "threads")[number % 2])
        try:
            wrong = s.run()
        except (AssertionError, RuntimeError) as e:
            wrong = ["%s: %s" % (s.what(), e)]
        return wrong, s.done, s.counted, fs
    finally:
        host.free()


def main():
    need_disk(8000)
    total = Sum("cuts")
    sums = total.add(counted=0, done=0, series=0, failed=0)
    end, wrong = time.monotonic() + SECONDS, []
    with concurrent.futures.ProcessPoolExecutor(LANES) as pool:
        waiting, number = {}, sums["series"]
        while (sums["counted"] < WANTED and time.monotonic() < end and len(wrong) < 5) or waiting:
            while len(waiting) < LANES and sums["counted"] < WANTED and time.monotonic() < end:
                number += 1
                seed = "%s %d" % (SEED, number)
                waiting[pool.submit(series, seed, number)] = seed
            for f in concurrent.futures.wait(waiting, return_when="FIRST_COMPLETED").done:
                seed = waiting.pop(f)
                bad, done, counted, fs = f.result()
                sums = total.add(counted=counted, done=done, series=1, failed=len(bad), **{fs: counted})
                for b in bad:
                    wrong.append("seed %s: %s" % (seed, b))
                    say(wrong[-1])
    say("cuts so far: %s" % sums)
    assert not wrong, " || ".join(wrong[:5])
    assert sums["counted"] * 2 > sums["done"], "under half of the cuts had something pending: %s" % sums
    assert sums["counted"] >= WANTED, "%d of %d so far: run it again" % (sums["counted"], WANTED)


if __name__ == "__main__":
    run_cases([("cuts", main)])
