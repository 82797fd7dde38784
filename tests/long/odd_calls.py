#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 1800
#
# Proves what tests/system/odd_calls.py does, in all states, as root and as another user, with staged bytes and without,
# and with an engine that publishes nothing before it is waited for (FASTCKPT_BREAK=9). Cannot see what that cannot.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from fc import *  # noqa: E402,F403
from canaries import engine  # noqa: E402
from odd_calls import GROUPS, STAGED, compare  # noqa: E402

cases = [("%s-%s-%d-%s%s" % (program, group, size, who, "-held" if held else ""),
          lambda words=(program, group, size), uid=uid, held=held: compare(
              *words, uid=uid, **({"ENGINE": engine(9)} if held else {})))
         for program, group, *_ in GROUPS for size in (5000, STAGED) for who, uid in WHO.items() for held in (0, 1)]
run_cases(cases)
