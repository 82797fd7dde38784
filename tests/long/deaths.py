#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# backends: uring threads
# timeout: 3600
#
# Proves what tests/system/deaths.py does, with each case on both backends and KILLS (25) deaths that count in each; and
# what tests/system/ranks.py does, over 10,000 barriers. Cannot see what those cannot.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
os.environ["KILLS"] = os.environ.get("KILLS") or "25"
from fc import *  # noqa: E402,F403
import deaths  # noqa: E402
import ranks  # noqa: E402

io = os.environ.get("FASTCKPT_IO") or "uring"
cases = [(f, (io,)) for f in deaths.CASES + [ranks.fair, ranks.stopped]] + [(ranks.barriers, (io, 5000))]
run_cases([("%s-%s" % (f.__name__, io), lambda f=f, args=args: f(*args)) for f, args in cases])
