#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
# timeout: 3600
#
# Proves what tests/system/fuzz.py does, with 20,000 sequences: 5,000 for each user and backend, from SEED on. Prints
# each difference with its shortest script, to be kept in tests/lib/fuzz_seeds once it is fixed.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
import callfuzz  # noqa: E402
import fuzzing  # noqa: E402

SEQUENCES = 5000
MOST = 10  # differences, then it gives up
FIRST = 10000000 + int(os.environ.get("SEED") or 0) * 100000 + (50000 if os.environ.get("TEST_AS") == "user" else 0)


def hunt(io, first):
    fuzzer = callfuzz.CallFuzzer("long-" + io, io=io)
    done, found = fuzzing.hunt(fuzzer, range(first, first + SEQUENCES), stop=lambda _, found: len(found) >= MOST)
    say("%s: %d sequences from seed %d, %d differ" % (io, done, first, len(found)))
    for f in found:
        say(fuzzing.show(*f))
    fuzzer.box.close()
    assert not found, "; ".join("seed %s: %s" % f[:2] for f in found)


run_cases([("fuzz_long_uring", lambda: hunt("uring", FIRST)),
           ("fuzz_long_threads", lambda: hunt("threads", FIRST + SEQUENCES))])
