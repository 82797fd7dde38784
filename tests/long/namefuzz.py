#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 3600
#
# Proves what tests/system/namefuzz.py does, with 22,000 sequences from SEED on: 4,000 for each user and backend; 4,000
# with the ordinary engine, which publishes while they run; and 2,000 with one that sleeps now and then (FASTCKPT_BREAK
# 14). Prints each difference with its shortest script, to be kept in tests/lib/namefuzz_seeds once it is fixed.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from fc import *  # noqa: E402,F403
from canaries import engine  # noqa: E402
import fuzzing  # noqa: E402
import namefuzz  # noqa: E402

SEQUENCES = 4000
MOST = 10  # differences, then it gives up
FIRST = 20000000 + int(os.environ.get("SEED") or 0) * 100000


def hunt(i, variant, fault, most):
    io, uid, everything = variant
    first = FIRST + i * SEQUENCES
    config = {"ENGINE": engine(fault)} if fault else {}
    fuzzer = namefuzz.NameFuzzer("long-%d" % i, io=io, uid=uid, everything=everything, **config)
    done, found = fuzzing.hunt(fuzzer, range(first, first + most), at_once=20,
                               stop=lambda _, found: len(found) >= MOST)
    say("%s: %d sequences from seed %d, %d differ" % (io, done, first, len(found)))
    for f in found:
        say(fuzzing.show(*f))
    fuzzer.box.close()
    assert not found, "; ".join("seed %s: %s" % f[:2] for f in found)


CASES = [(v, "held", 9, SEQUENCES) for v in namefuzz.VARIANTS]
CASES += [(namefuzz.VARIANTS[0], "free", 0, SEQUENCES), (namefuzz.VARIANTS[1], "slow", 14, SEQUENCES // 2)]
run_cases([("names_long_%s_%s_%s" % (v[0], "user" if v[1] else "root", how),
            lambda i=i, v=v, fault=fault, most=most: hunt(i, v, fault, most))
           for i, (v, how, fault, most) in enumerate(CASES)])
