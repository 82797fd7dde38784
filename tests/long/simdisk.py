#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 3500
#
# Proves on the simulated disk what tests/unit/test_crash.c and test_crash_stripes.c do, of more histories, at every
# operation, of a recovery too. How: SIM_RUNS (4) times as many, from SIM_SEED (1) on. Cannot see: what those cannot.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

RUNS = os.environ.get("SIM_RUNS") or "4"
SEED = os.environ.get("SIM_SEED") or os.environ.get("SEED") or "1"


def unit(name):
    r = subprocess.run([os.path.join(BUILD, "unit", name), "--tap", "-j2"], capture_output=True, text=True,
                       errors="replace", env=dict(os.environ, SIM_RUNS=RUNS, SIM_SEED=SEED))
    say("# SIM_RUNS=%s SIM_SEED=%s" % (RUNS, SEED))
    assert r.returncode == 0 and r.stdout.count("\nok - ") >= 4, "SIM_SEED=%s: %s" % (SEED, r.stdout)


run_cases([(n, lambda n=n: unit(n)) for n in ("test_crash", "test_crash_stripes")])
