#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 600
#
# Proves that the kill tests can see a restart without fence on a real kernel (the simulated disk shows it each time, in
# system/canaries.py). How: the same function with an engine that leaves it out, until it finds foreign bytes. Cannot
# see more than that they come.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from fc import *  # noqa: E402,F403
from canaries import without_fence  # noqa: E402

run_cases([("without_fence", without_fence)])
