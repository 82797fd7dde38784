#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
#
# Proves that what the program may not do fails as natively, and that what it may do without being able to replace the
# name (directory not writable or append-only, foreign owner) goes natively. How: the same calls natively and under the
# shim, as root and as a user, in directories prepared by root. Cannot see refusals by security modules.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from disks import mount, umount  # noqa: E402


def both(box, *ops):
    """Runs natively and under the shim; the lines must be equal. Returns the shim's result."""
    n = box.ops(*ops, shim=False, cwd=box.native_d)
    r = box.ops(*ops)
    assert (r.rc, r.lines()) == (n.rc, n.lines()), "printed %s, natively %s; %s" % (r.lines(), n.lines(), r.err[-300:])
    return r


def each(box, fn):
    return fn(box.d), fn(box.native_d)


def read_only_mount(who):
    box = Box("ro-" + who, uid=WHO[who])
    each(box, lambda d: write_file(d + "/m.pt", 3 * MIB))
    each(box, lambda d: os.chmod(d + "/m.pt", 0o666))
    for d in (box.d, box.native_d):
        mount("--bind", d, at=d)
        sh("mount", "-o", "remount,ro,bind", d)
    try:
        r = both(box, "o:0:wct:644:m.pt", "o:1:wct:644:n.pt", "S:m.pt", "o:2:r:0:m.pt", "c:2")
        assert r.classes() == (0, 0, 0), r.err
    finally:
        umount(box.d), umount(box.native_d)


def directory_0555(who):
    """A user gets EACCES for a new name; root may, as natively."""
    box = Box("dir-" + who, uid=WHO[who])
    each(box, lambda d: os.chmod(d, 0o555))
    both(box, "o:0:wct:644:n.pt", "W:0:3M:1", "c:0", "S:n.pt")
    box.wait()
    compare_trees(box.native_d, box.d)
    assert not box.leftovers()


def file_in_closed_directory(who):
    box = Box("file-" + who, uid=WHO[who])

    def prepare(d):
        write_file(d + "/m.pt", 3 * MIB)
        box.own(d + "/m.pt")
        os.chmod(d, 0o555)
        return os.stat(d + "/m.pt").st_ino

    ino = each(box, prepare)[0]
    r = both(box, "o:0:wct:644:m.pt", "W:0:9M:1", "z:0", "c:0", "S:m.pt")
    box.wait()
    compare_trees(box.native_d, box.d)
    if who == "user":
        assert r.classes()[:2] == (0, 0), "captured where it cannot be replaced: %s" % r.err
        assert os.stat(box.d + "/m.pt").st_ino == ino


def foreign_owner(who):
    """A file of somebody else's, writable for all: its owner must stay, so for a user the inode must."""
    box = Box("owner-" + who, uid=WHO[who])

    def prepare(d):
        write_file(d + "/m.pt", 3 * MIB)
        os.chown(d + "/m.pt", 4242, 4343)
        os.chmod(d + "/m.pt", 0o666)
        return os.stat(d + "/m.pt").st_ino

    ino = each(box, prepare)[0]
    r = both(box, "o:0:wct:644:m.pt", "W:0:9M:1", "c:0", "S:m.pt")
    box.wait()
    compare_trees(box.native_d, box.d)
    if who == "user":
        assert r.classes()[:2] == (0, 0), r.err
        assert os.stat(box.d + "/m.pt").st_ino == ino


def sticky_directory(who):
    """Like /tmp: a file of another's may be written, but not replaced."""
    box = Box("sticky-" + who, uid=WHO[who])

    def prepare(d):
        os.chown(d, 0, 0)
        os.chmod(d, 0o1777)
        write_file(d + "/m.pt", 3 * MIB)
        os.chown(d + "/m.pt", 4242, 4343)
        os.chmod(d + "/m.pt", 0o666)

    each(box, prepare)
    both(box, "o:0:wct:644:m.pt", "W:0:9M:1", "c:0", "S:m.pt", "o:0:wct:644:n.pt", "W:0:9M:1", "c:0", "S:n.pt")
    box.wait()
    compare_trees(box.native_d, box.d)


def file_flags(who):
    """Mode 0444 refuses a user and not root; an immutable file refuses both."""
    box = Box("flags-" + who, uid=WHO[who])

    def prepare(d):
        for n in ("m.pt", "i.pt"):
            write_file(os.path.join(d, n), 2 * MIB)
            box.own(os.path.join(d, n))
        os.chmod(d + "/m.pt", 0o444)
        sh("chattr", "+i", d + "/i.pt")

    need("chattr")
    each(box, prepare)
    try:
        both(box, "o:0:wct:644:m.pt", "W:0:6M:1", "c:0", "S:m.pt", "o:1:wct:644:i.pt", "S:i.pt")
        box.wait()
        compare_trees(box.native_d, box.d)
    finally:
        each(box, lambda d: sh("chattr", "-i", d + "/i.pt"))


def only_grows(who):
    """chattr +a of the directory: a new name is captured, what stands there is written over natively, and stays."""
    box = Box("grows-" + who, uid=WHO[who])

    def prepare(d):
        write_file(d + "/m.pt", 2 * MIB)
        box.own(d + "/m.pt")
        sh("chattr", "+a", d)
        return os.stat(d + "/m.pt").st_ino

    need("chattr")
    ino = each(box, prepare)[0]
    try:
        r = both(box, "o:0:wct:644:n.pt", "W:0:6M:1", "c:0", "S:n.pt")
        assert r.classes() == (1, 0, 0), "a new name: %s" % r.err
        both(box, "o:0:wct:644:m.pt", "W:0:6M:2", "c:0", "S:m.pt", "o:1:wct:644:p.pt", "W:1:3M:1", "c:1",
             "o:1:wct:644:p.pt", "W:1:2M:3", "c:1", "S:p.pt", "o:2:wct:644:q.pt", "W:2:3M:4", "u:q.pt", "c:2", "S:q.pt",
             "u:n.pt", "m:n.pt:x.pt", "m:n.pt:m.pt", "S:n.pt")
        box.wait()
        compare_trees(box.native_d, box.d)
        assert not box.leftovers() and os.stat(box.d + "/m.pt").st_ino == ino, os.listdir(box.d)
        assert box.status()["failures"] == 0, box.engine_log()
    finally:
        each(box, lambda d: sh("chattr", "-a", d))


def grows_later(who):
    """The attribute comes between the open and the publish: said, and nothing hidden is left."""
    box = Box("later-" + who, uid=WHO[who])
    write_file(box.d + "/m.pt", 2 * MIB)
    box.own(box.d + "/m.pt")
    before = checksum(box.d + "/m.pt")
    job = "f = open('m.pt', 'wb'); f.write(b'x' * 3000000); print(flush=True); input()"
    p = box.start([PYTHON, "-c", job], stdin=-1)
    p.stdout.readline()
    sh("chattr", "+a", box.d)
    try:
        _, err = p.communicate("\n", timeout=60)
        assert "m.pt is not published" in err or "m.pt" in box.engine_log(), err
        assert box.status()["failures"] == 1, box.engine_log()
        assert not box.leftovers() and checksum(box.d + "/m.pt") == before, os.listdir(box.d)
    finally:
        sh("chattr", "-a", box.d)


def runtime_dir(who, break_it):
    box = Box("rt-%s-%s" % (break_it.__name__, who), uid=WHO[who])
    break_it(box)
    r = both(box, "o:0:wct:644:m.pt", "W:0:9M:1", "c:0", "S:m.pt")
    compare_trees(box.native_d, box.d)
    assert r.classes() == (0, 0, 0), r.err
    assert len(r.messages()) == 1, "one line should say why: %s" % r.messages()
    assert r.seconds < 15, "%.1f s" % r.seconds


def others(box):
    os.chown(box.rt, 4242, 4242)


def open_to_all(box):
    os.chmod(box.rt, 0o777)


def a_file(box):
    os.rmdir(box.rt)
    open(box.rt, "w").close()


CASES = [("%s-%s" % (f.__name__, w), lambda f=f, w=w: f(w)) for w in WHO for f in (
    read_only_mount, directory_0555, file_in_closed_directory, foreign_owner, sticky_directory, file_flags,
    only_grows, grows_later)]
CASES += [("runtime-%s-%s" % (f.__name__, w), lambda f=f, w=w: runtime_dir(w, f)) for w in WHO
          for f in (others, open_to_all, a_file)]
run_cases(CASES)
