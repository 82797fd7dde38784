#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# Proves that a lock on a captured file means what it means natively to a process without the shim: taken by the
# program itself, by a forked child or by a program that inherited the descriptor (`exec 9> lock; flock 9`), on a new
# name and on one that replaces an older file that somebody has locked; that the program's record locks stay when it
# writes over, renames or looks at their file; and that a file which was just closed can be leased. How: flock(1), or
# Python, without the shim tries the name.
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

# A record lock goes when its process closes any descriptor of the inode: of the shim's own, too.
RECORD = "import fcntl\ntry:\n    fcntl.lockf(open('lock', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n    print('free')\n" \
    "except OSError:\n    print('locked')\n"
RECORDS = "out = lambda: print(subprocess.run(['env', '-u', 'LD_PRELOAD', %r, '-c', %r], capture_output=True, " \
    "text=True).stdout.strip(), flush=True)\n" % (fc.PYTHON, RECORD)
OVER = python(RECORDS + "r = open('lock')\nfcntl.lockf(r, fcntl.LOCK_SH)\nout()\nw = open('lock', 'w')\nout()\n"
              "w.write('text')\nw.flush()\nout()\nw.close()\nout()\nprint(r.read())")
BY_NUMBER = OVER.replace("fcntl.lockf(r, fcntl.LOCK_SH)", """import ctypes, struct
nr = {'x86_64': 72, 'aarch64': 25}[os.uname().machine]
wish = struct.pack('hhqqi4x', fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
print(ctypes.CDLL(None).syscall(nr, r.fileno(), fcntl.F_SETLK, wish))""")
BROUGHT = python(RECORDS + "os.makedirs('../other', exist_ok=True)\nf = open('../other/lock', 'w')\n"
                 "f.write('text')\nf.flush()\nfcntl.lockf(f, fcntl.LOCK_EX)\n"
                 "os.rename('../other/lock', 'lock')\nout()\nf.close()\nout()")
# Something large is before it: the rename waits in the queue.
LOOKED_AT = python(RECORDS + "os.rename('lock', 'other')\nf = open('other', 'r+')\nfcntl.lockf(f, fcntl.LOCK_EX)\n"
                   "open('large', 'wb').write(b'x' * (64 << 20))\nos.rename('other', 'lock')\n"
                   "print(os.stat('lock').st_size, os.path.exists('other'))\n"
                   "os.fsync(os.open('.', os.O_RDONLY))\nout()\nf.close()\nout()")

# Of a file that was just closed, and is opened anew: nobody has it open to write.
LEASE = python("import ctypes\nlibc = ctypes.CDLL(None)\nnr = {'x86_64': 72, 'aarch64': 25}[os.uname().machine]\n"
               "for i in range(4):\n    open('lock', 'wb').write(bytes([i]) * (3 << 20))\n    r = open('lock')\n"
               "    if i % 2:\n        print(libc.syscall(nr, r.fileno(), fcntl.F_SETLEASE, fcntl.F_RDLCK))\n"
               "    else:\n        print(fcntl.fcntl(r, fcntl.F_SETLEASE, fcntl.F_RDLCK))\n"
               "    print(fcntl.fcntl(r, fcntl.F_GETLEASE))\n    fcntl.fcntl(r, fcntl.F_SETLEASE, fcntl.F_UNLCK)\n"
               "    if i == 1:\n        os.unlink('lock')\n"
               "w = open('lock', 'r+b')\ntry:\n    fcntl.fcntl(r, fcntl.F_SETLEASE, fcntl.F_RDLCK)\n"
               "except OSError as e:\n    print(e.errno)\n")

fc.run_cases([
    ("locks-shell-new", lambda: both("a", SHELL)),
    ("locks-own-new", lambda: both("b", OWN)),
    ("locks-own-old", lambda: both("c", OWN, "old text\n")),
    ("locks-child-new", lambda: both("d", CHILD)),
    ("locks-held-old", lambda: both("e", HELD, "old text\n")),
    ("locks-record-over", lambda: both("f", OVER, "old text\n")),
    ("locks-record-by-number", lambda: both("j", BY_NUMBER, "old text\n")),
    ("locks-record-brought", lambda: both("g", BROUGHT)),
    ("locks-record-looked-at", lambda: both("h", LOOKED_AT, "old text\n")),
    ("locks-lease", lambda: both("i", LEASE)),
])
