#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 600
# serial
#
# Proves that a program is held by the stripes and not by the target, half as long by two as by one, that a slow
# stripe takes less, the drain's rate, and what is left when both are killed, or a recovery, or a stripe fails.
# How: the cases of tests/system/stripes.py, recover.py and recover_bad.py that take long. Cannot see: what they cannot.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import recover  # noqa: E402
import recover_bad  # noqa: E402
import stripes  # noqa: E402

stripes.run_some(stripes.LONG + recover.LONG + recover_bad.LONG + [("killed-more", stripes.engine_killed, 20)])
