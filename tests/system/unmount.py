#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
#
# Proves that a file system can be unmounted or made read-only by the program that has just saved on it, as natively,
# and that everything is on it then; and that what is really in use stays refused, soon. How: a loop device; libc's
# calls by their names, by syscall() and by umount(8). Cannot see: a stripe, which the engine keeps as long as it lives.

import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import fc  # noqa: E402
import disks  # noqa: E402

JOB = """
import ctypes, errno, os, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
at = sys.argv[1]
d = os.environ["CKPT"]
nr = {"x86_64": (166, 165, 442), "aarch64": (39, 40, 442)}[os.uname().machine]

def said(r):
    return "done" if r == 0 else errno.errorcode[ctypes.get_errno()]

for name in ("old", "gone"):
    with open(d + "/" + name, "wb") as f:
        f.write(bytes(3 << 20))
for i in range(4):
    with open(d + "/new%d" % i, "wb") as f:
        f.write(os.urandom(1 << 20) * 3)
os.unlink(d + "/gone")
os.rename(d + "/old", d + "/older")
held = open(d + "/new0", "rb") if "held" in sys.argv else None
CALL
if held:  # once more, with nothing on its way: no disk has a part in how long that takes
    t = time.monotonic()
    CALL
    took = time.monotonic() - t
    print("soon" if took < 3 else "late: %.1f s" % took)
"""
CALLS = {
    "umount": "print(said(libc.umount(at.encode())))",
    "umount2": "print(said(libc.umount2(at.encode(), 0)))",
    "detach": "print(said(libc.umount2(at.encode(), 2)))",
    "syscall": "print(said(libc.syscall(nr[0], at.encode(), 0)))",
    "program": "print(subprocess.call(['umount', at]))",
    "remount": "print(said(libc.mount(b'none', at.encode(), None, 33, None)))",
    "remount-syscall": "print(said(libc.syscall(nr[1], b'none', at.encode(), None, ctypes.c_ulong(33), None)))",
    "setattr": "print(said(libc.syscall(nr[2], -100, at.encode(), 0, "
               "(ctypes.c_uint64 * 4)(1, 0, 0, 0), ctypes.c_size_t(32))))",
    "fsconfig": "fs = libc.syscall(433, -100, at.encode(), 0); libc.syscall(431, fs, 0, b'ro', None, 0); "
                "print(said(libc.syscall(431, fs, 7, None, None, 0)))",
    "held": "print(said(libc.umount2(at.encode(), 0)))",
}


fs = []  # one for all


def mount_again(at):
    if not os.path.ismount(at):
        fc.sh("mount", "-o", "loop", fs[0].image, at)
    fc.sh("mount", "-o", "remount,rw", at)


def one(call):
    if not fs:
        fs.append(disks.LoopFS("unmount-fs", 300))
    at, base = fs[0].at, os.path.join(fs[0].at, call)
    said = []
    for shim in (False, True):
        mount_again(at)
        shutil.rmtree(base, ignore_errors=True)
        box = fc.Box("unmount-" + call, base=base)
        r = box.run([fc.PYTHON, "-c", JOB.replace("CALL", CALLS[call]), at, call], cwd="/", shim=shim,
                    env={"CKPT": box.d})
        assert r.rc == 0, r
        said.append(r.lines())
        mount_again(at)
        names = sorted(os.listdir(box.d))
        assert names == ["new0", "new1", "new2", "new3", "older"], names
        assert all(os.path.getsize(os.path.join(box.d, n)) == 3 * fc.MIB for n in names)
    assert r.classes()[0] == 6, r.err
    assert said[0] == said[1], "natively %s, under the shim %s" % tuple(said)
    assert call != "held" or said[1][2:] == ["soon"], said


fc.run_cases([("unmount-" + c, lambda c=c: one(c)) for c in CALLS])
