#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# backends: uring threads
# timeout: 300
#
# Proves that `fastckpt bench` measures what disks do, alone and together: throttled ones of 100, 100 and 40 MB/s, and
# one of 5 MB/s that is not worth a stripe. How: its figures against the throttle's, within 15 % where a measurement
# lasts for a second. Cannot see: fast disks, whose truth nobody knows.

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from disks import LoopFS  # noqa: E402

BASE = "/dev/shm/fastckpt-%d" % os.getpid()
RATES = (100, 100, 40, 5)


def together():
    box = Box("box")
    disks = [LoopFS("disk%d" % i, 320, base=BASE) for i in range(len(RATES))]
    for disk, rate in zip(disks, RATES):
        disk.throttle(rate * 10 ** 6)
    size = ["--size", "128M"]
    r = box.command("bench", "--json", *size, *[d.at for d in disks], timeout=240)
    assert r.rc == 0, r
    found = json.loads(r.out)
    mb = 2 ** 30 / 10 ** 6
    for d, rate in zip(found["directories"], RATES):
        assert d["worth"] == (rate != 5), d
        assert abs(d["alone"] * mb / rate - 1) < (0.15 if rate != 5 else 1), "%d MB/s: %r" % (rate, d)
        assert rate == 5 or abs(d["in_the_set"] * mb / rate - 1) < 0.15, "%d MB/s: %r" % (rate, d)
    assert abs(found["together"] * mb / 240 - 1) < 0.15, found["together"] * mb
    for disk in disks:
        assert os.listdir(disk.at) == ["lost+found"], os.listdir(disk.at)
        disk.free()
    shutil.rmtree(BASE)


run_cases([("together", together)])
