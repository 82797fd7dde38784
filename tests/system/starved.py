#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
#
# Proves that calls by name give the native results, and leave the native tree, when no descriptor is left to ask the
# engine with, or only a few: what is pending is not "no such file". How: saves, a full table, and at once the calls, a
# few a process, natively and under the shim. Cannot see a system's own limit (ENFILE), nor a process that becomes a
# client when its table is full already: it is native. And that an engine without descriptors turns jobs away at once.

import os
import resource
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

LIMIT = 64
SAVES = ["o:%d:wct:644:%s" % (i, n) for i, n in enumerate(("a.pt", "b.pt", "z.pt", "sub/s.pt", "c.pt", "o.pt"))]
SAVES += ["W:%d:%s:%d" % (i, "2M" if i in (2, 5) else "100000", i + 1) for i in range(6)]
# The first of each finds everything pending: it makes the rest be published.
CALLS = (["S:a.pt"], ["S:lnk"], ["P:z.pt"], ["a:b.pt"], ["M:600:a.pt"], ["K:7:a.pt"], ["S:sub/../z.pt"],
         ["m:a.pt:a2.pt", "S:a.pt", "S:a2.pt"], ["m:z.pt:a.pt", "S:a.pt", "S:z.pt"], ["m:sub:sub2", "S:sub2/s.pt"],
         ["u:b.pt", "S:b.pt"], ["u:old.pt", "S:old.pt"], ["u:lnk", "S:lnk"], ["u:none", "S:none"],
         ["H:a.pt:a3.pt", "S:a3.pt"], ["k:c.pt"], ["k:sub/s.pt/x"], ["Y:a.pt:c.pt"], ["Y:a.pt:a4.pt", "S:a4.pt"],
         ["V:sub"], ["u:sub/s.pt", "V:sub", "S:sub"], ["S:o.pt", "w:5:1M:9", "z:5"],
         ["m:o.pt:o2.pt", "w:5:1M:9", "S:o2.pt"], ["u:o.pt", "z:5", "S:o.pt"], ["o:6:r:0:c.pt", "z:6", "c:6"],
         ["o:6:wct:644:new.pt", "w:6:2M:3", "c:6", "S:new.pt"],
         ["o:6:wc:644:c.pt", "w:6:5:1", "c:6", "S:c.pt"], ["o:6:wct:644:a.pt", "w:6:2M:3", "c:6", "S:a.pt"],
         ["o:6:wct:644:old.pt", "w:6:2M:3", "c:6", "S:old.pt"], ["o:6:wcx:644:c.pt", "c:6"])


def prepare(d):
    os.makedirs(d + "/sub")
    write_file(d + "/old.pt", 9)
    os.symlink("z.pt", d + "/lnk")


def full_table():
    """`free` numbers are left; the limit is lowered below the shim's own descriptors, or was there before them."""
    cases = (0, True), (1, True), (0, False), (1, False), (2, False), (3, False)
    for n, (free, lowered) in enumerate(cases[::2] if IS_ROOT else cases[1::2]):
        box = Box("full-%d-%d" % (free, lowered), EXIT="leave")
        preexec = None if lowered else lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, 4096))
        for i, calls in enumerate(CALLS):
            if n > 0 and i % 3 != n:
                continue  # for the time that it takes
            if calls[0][0] == "o" and not free and not lowered:
                continue  # what the shim gives back meanwhile is one more than natively
            ops = SAVES + ["o:%d:r:0:/dev/null" % (40 + k) for k in range(free)] + ["L:n:%d" % LIMIT] * lowered + ["N"]
            ops += ["c:%d" % (40 + k) for k in range(free)] + ["c:%d" % k for k in range(5)]
            out = []
            for shim, top in ((False, box.native_d), (True, box.d)):
                d = "%s/%d" % (top, i)
                prepare(d)
                # What is closed last leaves room: that is filled up again.
                r = box.ops(*ops, *["o:%d:r:0:/dev/null" % (50 + k) for k in range(5)], *calls, shim=shim, cwd=d,
                            preexec=preexec)
                assert r.rc == 0, repr(r)
                out.append([l for l in r.lines() if not l.startswith("table=")])
            assert out[0] == out[1], "%d free, %s: natively %s, here %s; %s" % (
                free, calls, out[0][-len(calls):], out[1][-len(calls):], r.err[-300:])
            assert sum(r.classes()) >= 6, "%d free, %s: nothing was captured: %s" % (free, calls, r.err)
        box.wait()
        compare_trees(box.native_d, box.d)
        box.close()


def of_another():
    """The file is open in another process, which goes on writing."""
    box = Box("another")
    calls = ["L:n:%d" % LIMIT, "N", "S:c.pt", "a:c.pt", "M:600:c.pt", "m:c.pt:c2.pt", "S:c2.pt", "S:c.pt", "u:d.pt"]
    out = []
    for shim, d in ((False, box.native_d), (True, box.d)):
        other = box.start([victim("ops"), "o:0:wct:644:c.pt", "W:0:3M:1", "o:1:wct:644:d.pt", "W:1:3M:1", "y:ready",
                           "i", "W:0:3M:2", "W:1:2M:3", "c:0", "c:1"], shim=shim, cwd=d, stdin=subprocess.PIPE)
        while other.stdout.readline() not in ("ready\n", ""):
            pass
        # It is a client before it has no descriptor to become one with.
        r = box.ops("o:0:wct:644:mine.pt", "W:0:2M:1", *calls, "c:0", shim=shim, cwd=d)
        other.communicate("\n", timeout=20)
        assert other.returncode == 0
        out.append(r.lines())
    assert out[0] == out[1], "natively %s, here %s" % tuple(out)
    box.wait()
    compare_trees(box.native_d, box.d)
    box.close()


def natively_at_once(box, name, preexec=None):
    r = box.ops("o:0:wct:644:" + name, "W:0:2M:1", "c:0", "S:" + name, preexec=preexec)
    assert r.rc == 0 and r.lines()[1:3] == ["writes=%d" % (2 * MIB), "close=0"], repr(r)
    assert r.classes() == (0, 0, 0) and r.seconds < 1.5, "%s, %.1f s" % (r.err, r.seconds)
    lines = [l for l in r.err.splitlines() if not l.startswith("fastckpt: 0 file")]
    assert len(lines) == 1 and "natively" in lines[0] and "Too many open files" in lines[0], r.err


def engine_too_small():
    """A hard limit under which it could serve nobody: none is started, and one line says so."""
    box = Box("small")
    for n in (30, 127):
        natively_at_once(box, "%d.pt" % n, lambda n=n: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n)))
    assert box.status() is None
    r = box.ops("o:0:wct:644:m.pt", "W:0:2M:1", "c:0",
                preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (30, 128)))
    assert r.classes() == (1, 0, 0), r.err  # it raises its own limit to the hard one
    box.close()


def engine_full():
    """Who comes when the engine has no descriptor, or one, or a few, is told so; who is its client goes on."""
    box = Box("full-engine")
    first = box.start([victim("ops"), "o:0:wct:644:a.pt", "W:0:3M:1", "y:ready", "i", "W:0:3M:2", "c:0", "S:a.pt"],
                      stdin=subprocess.PIPE)
    while first.stdout.readline() not in ("ready\n", ""):
        pass
    pid = box.status()["engine_pid"]
    has = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(n) for n in os.listdir("/proc/%d/fd" % pid)}
    least = min(n for n in range(max(taken) + 2) if n not in taken)
    for more in (0, 1, 2, 5):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (least + more, has[1]))
        for i in range(3):
            natively_at_once(box, "%d-%d.pt" % (more, i))
        r = box.command("status", timeout=20)
        assert r.seconds < 1.5 and r.rc == ("no descriptor left" in r.err) and "no engine" not in r.out, r
    out, err = first.communicate("\n", timeout=20)
    assert first.returncode == 0 and "stat=%d" % (6 * MIB) in out, (out, err)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, has)
    r = box.ops("o:0:wct:644:m.pt", "W:0:2M:1", "c:0")
    assert r.classes() == (1, 0, 0), r.err
    box.wait()
    box.close()


run_cases([(f.__name__, f) for f in (full_table, of_another, engine_too_small, engine_full)])
