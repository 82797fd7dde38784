#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 200
#
# Proves that `fastckpt verify` knows of chunks that found no place on the stripes, of files of an engine that died, of
# what a recovery has published and renamed, and of files on xfs. How, and what it cannot see: tests/system/verify.py.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import verify  # noqa: E402

verify.run_some(verify.LONG)
