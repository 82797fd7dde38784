#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# Proves that ten thousand files of 1 KiB, more than the engine has slots for, arrive whole and all, natively alike; the
# short form is the row many_files of tests/clients.tsv. How: the same program natively and under the shim, the trees
# compared. Cannot see: how long the program was held, which is bench's.
# backends: uring threads
# timeout: 600
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import fc  # noqa: E402

FILES = 10000


def many():
    box = fc.Box("many", uid=fc.USER)
    argv = [fc.PYTHON, os.path.join(fc.CLIENTS, "plain.py"), "many_files"]
    n = box.native(argv, env={"MANY": FILES}, timeout=300)
    r = box.run(argv, env={"MANY": FILES}, timeout=300)
    assert n.rc == 0 and r.rc == 0 and r.out == n.out == "%d\n" % FILES, (n, r)
    assert r.classes() == (0, FILES, 0) and r.failures() == 0, r
    assert box.wait(120).rc == 0
    fc.compare_trees(box.native_d, box.d)
    assert not box.leftovers(), box.leftovers()


fc.run_cases([("many-files", many)])
