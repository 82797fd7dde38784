#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# Proves that PyTorch's saves of tensors on the simulated CUDA runtime are the same bytes each time, whatever the copies
# take, and natively and under the shim; and that the runtime's rules hold under load. How: tests/clients/cuda_saves.py
# with tensors from 4 bytes to 200 MB, three times; tests/system/simcuda.py's rules, many at a time. Needs BUILD/venv.
# run-as: root
# timeout: 3000
import concurrent.futures
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from cudas import KINDS  # noqa: E402
from fc import *  # noqa: E402,F403

SHORT = os.path.join(ROOT, "tests", "system", "simcuda.py")
SIZES = os.environ.get("TENSORS", "50000000,9000001,1500000,300000,1000,7,1")


def saves():
    if not os.path.exists(VENV):
        raise Skip("needs BUILD/venv: make clients")
    box = Box("saves", STAGING="512M")
    argv = [VENV, os.path.join(CLIENTS, "cuda_saves.py")] + list(KINDS)
    again = os.path.join(box.top, "again", "ckpt")
    os.makedirs(again)
    n = box.native(argv, env=dict(simcuda(False, SCALE=0), TENSORS=SIZES), timeout=900)
    m = box.native(argv, env=dict(simcuda(False, SCALE=0.2), TENSORS=SIZES), timeout=900, cwd=again)
    r = box.run(argv, env=dict(simcuda(SCALE=0), TENSORS=SIZES), timeout=900)
    assert n.rc == 0 and "False" not in n.out and n.out == m.out == r.out, (n, m, r)
    assert box.wait(timeout=300).rc == 0
    compare_trees(box.native_d, again)
    compare_trees(box.native_d, box.d)


def rules():
    """Eight of the short form at a time, ten times."""
    simcuda()  # is it there?

    def one(i):
        env = dict(os.environ, TEST_TMP=os.path.join(TMP, "rules-%d" % i), BUILD=BUILD)
        done = subprocess.run([SHORT] + RULES, stdout=subprocess.PIPE, text=True, env=env)
        return done.stdout

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for out in pool.map(one, range(80)):
            bad = [l for l in out.splitlines() if not l.startswith("ok ")]
            assert not bad and len(out.splitlines()) >= len(RULES), out


RULES = ["bytes", "ranges", "in_order", "registered", "attributes", "order", "own", "queued", "events", "captured",
         "forbidden", "implicit", "threads", "joined", "last", "sticky", "reset", "devices", "forks"]

if __name__ == "__main__":
    run_cases([("saves", saves), ("rules", rules)])
