#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 400
#
# Proves what tests/system/retry.py does, with every case on both backends. How: that script, told to run them all.
# Cannot see: what that one cannot.

import os
import sys

os.environ["RETRY_ALL"] = "1"
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system", "retry.py")
os.execv(sys.executable, [sys.executable, path] + sys.argv[1:])
