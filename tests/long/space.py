#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 300
#
# Proves what tests/system/bad_space.py does of holes and of a nearly full XFS, on each file system and both backends.
# How: that script, told to run them all. Cannot see: what that one cannot.

import os
import sys

os.environ["SPACE_ALL"] = "1"
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system", "bad_space.py")
os.execv(sys.executable, [sys.executable, path] + (sys.argv[1:] or ["holes", "xfs_nearly"]))
