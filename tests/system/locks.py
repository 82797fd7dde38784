#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# Proves that a lock on a captured file means what it means natively to a process without the shim: taken by the
# program itself, by a forked child or by a program that inherited the descriptor (`exec 9> lock; flock 9`), on a new
# name and on one that replaces an older file that somebody has locked. How: flock(1) without the shim tries the name.
# Cannot see: two jobs that open the older file in the same instant.
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import fc  # noqa: E402

OUTSIDE = 'env -u LD_PRELOAD flock -n "$PWD/lock" true; echo "outside $?"\n'


def both(name, script, old=None):
    box = fc.Box("locks-" + name, uid=fc.USER)
    out = []
    for d, run in ((box.native_d, box.native), (box.d, box.run)):
        if old is not None:
            with open(os.path.join(d, "lock"), "w") as f:
                f.write(old)
            box.own(os.path.join(d, "lock"))
        out.append(run(["bash", "-c", script]))
    assert out[0].rc == 0 and out[0].out == out[1].out and out[1].rc == 0, out
    fc.compare_trees(box.native_d, box.d)
    assert not box.leftovers()


def python(code):
    return fc.PYTHON + " - <<'E'\nimport fcntl, os, subprocess, sys\n" + \
        "out = lambda: print(subprocess.run(['bash', '-c', %r], capture_output=True, text=True).stdout.strip(), " \
        "flush=True)\n" % OUTSIDE + code + "\nE\n"


SHELL = "exec 9> lock; flock -n 9; echo mine $?; " + OUTSIDE + "echo text >&9; exec 9>&-; " + OUTSIDE + "cat lock\n"
OWN = python("f = open('lock', 'w')\nfcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\nout()\n"
             "f.write('text')\nf.flush()\nout()\nf.close()\nout()\nprint(open('lock').read())")
CHILD = python("f = open('lock', 'w')\npid = os.fork()\nif pid == 0:\n"
               "    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    os._exit(0)\nos.waitpid(pid, 0)\nout()\n"
               "f.write('text' * 1000000)\nf.close()\nout()\n"
               "print(os.path.getsize('lock'))")
HELD = "exec 8< lock; env -u LD_PRELOAD flock -n 8; " + python(
    "f = open('lock', 'w')\nf.write('text')\nf.flush()\ntry:\n    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    "except OSError as e:\n    print(e.errno)\nout()\nf.write('more')\nf.close()\n"
    "print(open('lock').read())") + "cat <&8\n"

fc.run_cases([
    ("locks-shell-new", lambda: both("a", SHELL)),
    ("locks-own-new", lambda: both("b", OWN)),
    ("locks-own-old", lambda: both("c", OWN, "old text\n")),
    ("locks-child-new", lambda: both("d", CHILD)),
    ("locks-held-old", lambda: both("e", HELD, "old text\n")),
])
