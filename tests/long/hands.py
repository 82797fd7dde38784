#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
# backends: uring threads
# timeout: 3000
#
# Proves what system/hands.py does, with 300 sequences of calls in turn, all changes in the owner's hands, and 100 files
# that are looked at in the middle of a call. How: its cases. Cannot see what it cannot.

import os
import sys

os.environ.update(TURNS="300", ROUNDS="100")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from fc import *  # noqa: E402,F403
import hands  # noqa: E402

run_cases([("hands-long-" + f.__name__, f) for f in (hands.stays, hands.in_turns)] +
          [("hands-long-met-%d" % stop, lambda stop=stop: hands.met("met-%d" % stop, stop=stop, limit=900))
           for stop in (False, True)])
