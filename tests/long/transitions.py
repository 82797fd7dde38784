#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
#
# Proves what tests/system/transitions.py proves, at many passings of each break point and on both backends: the engine
# dies in another place of another save each time. Cannot see deaths at places that have no break point.

import os
import sys

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path[:0] = [os.path.join(TESTS, "lib"), os.path.join(TESTS, "system")]
from fc import run_cases  # noqa: E402
from transitions import all_points  # noqa: E402

run_cases([("every-transition", lambda: all_points((1, 2, 3, 4, 6, 9, 14, 20), ("uring", "threads"), 3))])
