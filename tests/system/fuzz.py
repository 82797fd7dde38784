#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
# timeout: 110
#
# Proves P1 and P2: random sequences of calls have the same results, offsets, errors, metadata and bytes as without the
# shim. How: tests/lib/callfuzz.py, the scripts of every difference found so far and some seconds of new seeds, on both
# backends. Cannot see crashes, times that no script has set, directories' times, or calls that fuzz_ops does not make.
#   fuzz.py SEED...   these seeds        fuzz.py FILE...   these scripts        fuzz.py -p SEED   prints the script

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
args, sys.argv[1:] = sys.argv[1:], []
from fc import *  # noqa: E402,F403
import callfuzz  # noqa: E402
import fuzzing  # noqa: E402

SECONDS = 10.0  # for each backend, kept scripts not counted
SEEDS = 75
FIRST = int(os.environ.get("SEED") or 0) * 1000000 + (500000 if os.environ.get("TEST_AS") == "user" else 1)


def kept(io, fuzzer):
    bad = []
    for name, script in fuzzing.kept(callfuzz.SEEDS).items():
        how = fuzzer.fails(script)
        if how:
            bad.append("%s: %s" % (name, how))
    assert not bad, "; ".join(bad)


def seeds(io, fuzzer):
    end = time.monotonic() + SECONDS
    first = FIRST + (0 if io == "uring" else SEEDS)
    done, found = fuzzing.hunt(fuzzer, range(first, first + SEEDS), stop=lambda *_: time.monotonic() > end)
    say("%s: %d sequences from seed %d" % (io, done, first))
    for f in found:
        say(fuzzing.show(*f))
    assert not found, "; ".join("seed %s: %s" % f[:2] for f in found)


def fuzzers():
    for io in ("uring", "threads"):
        yield io, callfuzz.CallFuzzer("fuzz-" + io, io=io)


def main():
    if args:
        fuzzing.by_hand(args, callfuzz.generate, fuzzers())
        return
    for io, fuzzer in fuzzers():
        with case("fuzz_kept_" + io):
            kept(io, fuzzer)
        with case("fuzz_seeds_" + io):
            seeds(io, fuzzer)
        fuzzer.box.close()
    finish()


main()
