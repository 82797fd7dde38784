#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
# timeout: 200
#
# Proves that names, modes, owners, ACLs, xattrs, times, links and what a program sees of its own saves are as natively.
# How: the scenes of clients/names_job.py run natively and under the shim, alternating backends; the same lines must be
# printed and the same tree be left. Cannot see what other processes observe in between, but for the four last cases.

import os
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

JOB = os.path.join(CLIENTS, "names_job.py")
SCENES = ("umask_077 mode_kept setgid_directory acl xattr symlink dangling long_names odd_names relative dirfd dots "
          "directory_mtime times read_back torch_load over_and_over hard_link copy_after rmtree_after rename_after "
          "special_files truncate_and_chmod readonly_directory holes bad_pointer wild_pointers below_a_file "
          "descriptor_links").split()
if IS_ROOT:
    SCENES.append("owner")
boxes = {}
turn = 0


def box_of(io):
    if io not in boxes:
        boxes[io] = Box("box-" + io, io=io, STAGING="128M")
    return boxes[io]


def scene(name):
    global turn
    turn += 1
    box = box_of(("uring", "threads")[turn % 2])
    native, shim = os.path.join(box.native_d, name), os.path.join(box.d, name)
    for d in (native, shim):
        os.makedirs(d)
    n = box.native([PYTHON, JOB, name], cwd=native)
    assert n.rc == 0, "natively: %r" % n
    r = box.run([PYTHON, JOB, name], cwd=shim)
    assert r.rc == 0, repr(r)
    a, b = n.out.splitlines(), r.out.splitlines()
    for i in range(max(len(a), len(b))):
        x, y = (a[i] if i < len(a) else None), (b[i] if i < len(b) else None)
        assert x == y, "line %d: %r, natively %r" % (i + 1, y, x)
    box.wait()
    compare_trees(native, shim)
    assert r.failures() == 0 and not r.messages(), r.err
    left = [x for x in tree(shim) if os.path.basename(x).startswith(".fastckpt")]
    assert not left, left


def reader_keeps_old():
    """A reader that has the old file open goes on reading it, and a stranger sees old or new, never a mix."""
    box = box_of("uring")
    p = write_file(os.path.join(box.d, "reader.pt"), 5 * MIB, 3)
    old = checksum(p)
    with open(p, "rb") as f:
        r = box.ops("o:0:wct:644:reader.pt", "W:0:9M:1", "c:0")
        assert r.rc == 0 and r.classes() == (1, 0, 0), repr(r)
        f.seek(0)
        import hashlib
        assert hashlib.blake2b(f.read()).hexdigest() == old, "the open reader does not see the old file any more"
    assert os.path.getsize(p) == 9 * MIB


def old_until_published():
    """While a save runs, strangers see the old file whole; a new name is not there before its content is."""
    box = box_of("threads")
    d = os.path.join(box.d, "until")
    os.makedirs(d)
    first = os.path.join(d, "m.pt")
    assert box.run([victim("saver"), "-p", "m.pt", "-s", "8M", "-n", "1"], cwd=d).rc == 0
    seen = set()
    stop = threading.Event()

    def look():
        for p, (state, seq) in check_saves([first, os.path.join(d, "n.pt")]).items():
            seen.add((os.path.basename(p), state, seq))

    def watch():
        while not stop.is_set():
            look()
            time.sleep(0.02)

    look()
    t = threading.Thread(target=watch)
    t.start()
    try:
        for name in ("m.pt", "n.pt"):
            r = box.run([victim("saver"), "-p", name, "-s", "24M", "-n", "2", "-F", "2", "-d", "60", "-w", "6M"], cwd=d)
            assert r.rc == 0, repr(r)
    finally:
        stop.set()
        t.join()
    look()
    torn = [s for s in seen if s[1] == "torn"]
    assert not torn, "a stranger saw %s" % torn
    assert ("m.pt", "whole", 1) in seen and ("m.pt", "whole", 3) in seen and ("n.pt", "absent", None) in seen, seen


def other_process_sees():
    """Another process with the shim sees a closed, unpublished save as its program does, and a child reads it whole."""
    box = box_of("uring")
    d = os.path.join(box.d, "others")
    os.makedirs(d)
    assert box.native([victim("ops"), "o:0:wct:644:n.pt", "W:0:24M:4", "c:0"], cwd=d).rc == 0
    r = box.run(["sh", "-c", "%s o:0:wct:644:m.pt W:0:24M:4 c:0 >/dev/null && cmp m.pt n.pt && wc -c < m.pt" %
                 victim("ops")], cwd=d)
    assert r.rc == 0 and r.out.strip() == str(24 * MIB), repr(r)
    r = box.run([victim("ops"), "o:0:wct:644:o.pt", "W:0:24M:4", "c:0", "X:cmp o.pt n.pt && stat -c %s o.pt"], cwd=d)
    assert "system=0" in r.out and str(24 * MIB) in r.out, repr(r)
    code = """if 1:
        import os, subprocess, sys
        for i, run in enumerate((subprocess.run, lambda a, env: os.waitpid(os.posix_spawn(a[0], a, env), 0))):
            name = "p%d.pt" % i
            with open("n.pt", "rb") as a, open(name, "wb") as b:
                b.write(a.read())
            run(["/usr/bin/cmp", name, "n.pt"], env={})"""
    r = box.run([PYTHON, "-c", code], cwd=d)
    assert r.rc == 0 and "cmp" not in r.out + r.err, "a child without the shim, right after the save: %r" % r


def child_counts_links():
    """A child's first question is for a file that gets its name just then: it has one, before and after."""
    code = """if 1:
        import os, time
        bad = 0
        for i in range(25):
            with open("n%d.pt" % i, "wb") as f:
                f.write(b"x" * 5000)
            fd = os.open("n%d.pt" % i, os.O_RDONLY)
            for k in range(6):
                if os.fork() == 0:
                    time.sleep(k * 0.003)
                    os._exit(os.fstat(fd).st_nlink != 1)
            bad += sum(os.wait()[1] != 0 for _ in range(6))
        print(bad)"""
    box = box_of("uring")
    r = box.run([PYTHON, "-c", code])
    assert r.rc == 0 and r.out == "0\n", repr(r)


run_cases([(s, lambda s=s: scene(s)) for s in SCENES] +
          [(f.__name__, f) for f in (reader_keeps_old, old_until_published, other_process_sees, child_counts_links)])
