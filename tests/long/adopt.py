#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 1800
#
# Proves that tests/system/adopt.py can see, and its longer cases. How: libraries of FASTCKPT_BREAK=19 to 21 (what is
# mapped where bytes were adopted is not looked at, nor which pages have been changed; a child has no such memory) must
# fail the cases made for them, and only these. Cannot see a real device.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from fc import *  # noqa: E402,F403
from cudas import *  # noqa: E402,F403
import adopt  # noqa: E402

CANARIES = {19: "over", 20: "some again", 21: "locked child"}
ONE = list(adopt.ONE) + ["child"]


def canary(n, blind):
    def run():
        out = os.path.join(TMP, "break-%d" % n)
        sh("make", "-s", "-j2", "-C", ROOT, "B=" + out, "BREAK=%d" % n, out + "/libfastckpt.so")
        seen = []
        for name in ONE:
            try:
                adopt.same(name, env={"LD_PRELOAD": out + "/libfastckpt.so"}, tag="-%d" % n, ENGINE=BIN)()
            except AssertionError:
                seen.append(name)
        assert seen == blind.split(), "fault %d was seen by %s" % (n, seen)
    return run


CASES = [("canary-%d" % n, canary(n, names)) for n, names in CANARIES.items()] + adopt.LONG
CASES += [("seeds-%d" % n, adopt.seeds(*range(n, n + 10))) for n in range(100, 200, 10)]

if __name__ == "__main__":
    run_cuda_cases(CASES)
