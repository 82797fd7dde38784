#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
#
# Proves that file systems without O_TMPFILE, O_DIRECT, linkat or fallocate get the same bytes, with no hidden name
# left. How: the same saves natively and under the shim on overlay, tmpfs, bindfs and xfs, as root and as a user.
# Cannot see NFS or Lustre, which are not at hand.

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from disks import LoopFS, mount, mounted, umount  # noqa: E402

OPS = ("o:0:wct:644:m.pt", "W:0:9M:1", "p:0:2M:300000:2", "z:0", "c:0", "S:m.pt",
       "o:0:wct:600:n.pt", "W:0:5000001:3", "f:0", "W:0:3M:4", "c:0", "S:n.pt",
       "o:0:wct:644:m.pt", "W:0:6M:5", "c:0", "S:m.pt", "m:n.pt:o.pt", "o:0:wct:644:p.pt", "W:0:2M:6", "c:0", "u:p.pt",
       "E:20:1500:s%d.pt", "r:0:0:10")


def on(name, who, base, io):
    os.makedirs(base, exist_ok=True)
    os.chmod(base, 0o777)
    box = Box(name, base=base, uid=WHO[who], io=io, STAGING="64M")
    try:
        for d in (box.d, box.native_d):
            write_file(d + "/m.pt", 2 * MIB, 8)
            box.own(d + "/m.pt")
        n = box.ops(*OPS, shim=False, cwd=box.native_d)
        r = box.ops(*OPS)
        assert (r.rc, r.lines()) == (n.rc, n.lines()), "printed %s, natively %s; %s" % (
            r.lines(), n.lines(), r.err[-300:])
        box.wait()
        compare_trees(box.native_d, box.d)
        assert r.failures() == 0, r.err
        r = box.run([victim("saver"), "-p", "k.pt", "-s", "12M", "-n", "3"])
        assert r.rc == 0, repr(r)
        box.wait()
        assert check_saves([box.d + "/k.pt"]) == {box.d + "/k.pt": ("whole", 3)}
        assert not box.leftovers(), box.leftovers()
        return r
    finally:
        box.close()


def overlay(who, io):
    t = os.path.join(TMP, "overlay-%s-%s" % (who, io))
    for n in ("lower", "upper", "work", "mnt"):
        os.makedirs(os.path.join(t, n))
    at = os.path.join(t, "mnt")
    try:
        mount("-t", "overlay", "-o", "lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work" % (t, t, t), "overlay",
              at=at)
    except RuntimeError as e:
        raise Skip(e)
    try:
        on("o-%s-%s" % (who, io), who, at + "/b", io)
    finally:
        umount(at)


def tmpfs(who, io):
    at = mount("-t", "tmpfs", "-o", "size=200m", "tmpfs", at=os.path.join(TMP, "tmpfs-%s-%s" % (who, io)))
    try:
        r = on("t-%s-%s" % (who, io), who, at + "/b", io)
        assert r.classes()[0] == 0, "staged on a tmpfs: %s" % r.err
    finally:
        umount(at)


def bindfs(who, io):
    """FUSE: O_TMPFILE and the like are refused."""
    need("bindfs")
    t = os.path.join(TMP, "bindfs-%s-%s" % (who, io))
    os.makedirs(t + "/src")
    os.makedirs(t + "/mnt")
    r = subprocess.run(["bindfs", "-o", "allow_other", t + "/src", t + "/mnt"], capture_output=True, text=True)
    if r.returncode != 0:
        raise Skip("bindfs: " + r.stderr.strip())
    mounted(t + "/mnt")
    try:
        on("b-%s-%s" % (who, io), who, t + "/mnt/b", io)
    finally:
        umount(t + "/mnt")


def xfs(who, io):
    fs = LoopFS("xfs-%s-%s" % (who, io), 320, fs="xfs")
    try:
        r = on("x-%s-%s" % (who, io), who, fs.at + "/b", io)
        assert r.classes() == (3, 0, 0), r.err
    finally:
        fs.free()


run_cases([("%s-%s-%s" % (f.__name__, w, io), lambda f=f, w=w, io=io: f(w, io))
           for f in (overlay, tmpfs, bindfs, xfs) for w, io in (("root", "uring"), ("user", "threads"))])
