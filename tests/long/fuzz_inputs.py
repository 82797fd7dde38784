#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
#
# Proves what tests/system/fuzz_inputs.py proves, for ten minutes each. SEED=n fuzzes otherwise.

import os
import sys

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path[:0] = [os.path.join(TESTS, "lib"), os.path.join(TESTS, "system")]
from fuzz_inputs import main  # noqa: E402

main(600)
