#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 600
#
# Proves that the kill tests can see a restart without fence on a real kernel (the simulated disk shows it each time, in
# system/canaries.py), and that the test of a look at an open file can see what its canaries do. How: the same functions
# with an engine, or a library, that leaves it out, until they find foreign bytes. Cannot see more than that they come.

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from fc import *  # noqa: E402,F403
from canaries import without_fence  # noqa: E402


def hands(n, case):
    """A case of hands.py with what is built with fault n."""
    built(n, "victims/hands"), built(n, "libfastckpt.so")
    env = dict(os.environ, BUILD=os.path.dirname(built(n, "fastckpt")), ROUNDS="40")
    test = os.path.join(ROOT, "tests", "system", "hands.py")
    r = subprocess.run([PYTHON, test, "hands-" + case], env=env, capture_output=True, text=True, timeout=200)
    assert "not ok hands-" + case in r.stdout, "fault %d was not seen: %s %s" % (n, r.stdout[-300:], r.stderr[-300:])


run_cases([("without_fence", without_fence), ("not-seen", lambda: hands(16, "seen")),
           ("comes-over", lambda: hands(17, "stays")), ("in-the-middle", lambda: hands(18, "at_any_instant"))])
