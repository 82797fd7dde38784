#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 2400
#
# Proves that tests/system/adopt.py can see, its longer cases, and what is left when somebody dies while adopted bytes
# are on their way. How: libraries of FASTCKPT_BREAK=19 to 21 (what is mapped where bytes were adopted is not looked at,
# nor which pages have been changed; a child has no such memory) must fail the cases made for them, and only these;
# the tests of deaths and of stripes with tests/victims/cuda_saver.c as their saver. Cannot see a real device.

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from fc import *  # noqa: E402,F403
from cudas import *  # noqa: E402,F403
import adopt  # noqa: E402

CANARIES = {19: "over", 20: "some again filled", 21: "locked child"}
ONE = list(adopt.ONE) + ["child"]


def canary(n, blind):
    def run():
        out = os.path.join(TMP, "break-%d" % n)
        sh("make", "-s", "-j2", "-C", ROOT, "B=" + out, "BREAK=%d" % n, out + "/libfastckpt.so")
        seen = []
        for name in ONE:
            try:
                adopt.same(name, env={"LD_PRELOAD": out + "/libfastckpt.so"}, tag="-%d" % n, ENGINE=BIN)()
            except AssertionError:
                seen.append(name)
        assert seen == blind.split(), "fault %d was seen by %s" % (n, seen)
    return run


def with_saver(script, *words):
    """A test whose saver's bytes come from a device."""
    def run():
        top = os.path.join(TMP, "with-" + script)
        env = dict(os.environ, **sim_env(), SAVER=victim("cuda_saver"), RATE="20", TEST_TMP=top, TEST_AS="root",
                   BUILD=BUILD, FASTCKPT_RUNTIME_DIR=top + "-run")
        os.makedirs(top)
        os.makedirs(top + "-run", 0o700)
        path = os.path.join(ROOT, "tests", "system", script + ".py")
        r = subprocess.run([PYTHON, path, *words], env=env, capture_output=True, text=True)
        bad = [line for line in r.stdout.splitlines() if line.startswith(("not ok", "skip"))]
        assert r.returncode == 0 and "ok " in r.stdout and not bad, "%s %s" % (bad, r.stderr[-500:])
    return run


def saver_is_adopted():
    """Are the bytes of that saver what those tests take them for?"""
    box = Box("saver", STAGING="512M")
    r = box.run([victim("cuda_saver"), "-p", box.d + "/ck-%d.pt", "-s", "20M", "-n", "8"], env=sim_env())
    assert r.rc == 0 and all(mib > 50 for mib in straight(r)), r


SCRIPTS = ("kill_job", "kill_engine", "kill_keeper", "deaths", "stripes", "recover", "recover_kills")
CASES = [("saver", saver_is_adopted)] + [(name, with_saver(name)) for name in SCRIPTS]
CASES += [("canary-%d" % n, canary(n, names)) for n, names in CANARIES.items()] + adopt.LONG
CASES += [("seeds-%d" % n, adopt.seeds(*range(n, n + 10))) for n in range(100, 200, 10)]

if __name__ == "__main__":
    run_cuda_cases(CASES)
