#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 200
# serial
#
# Proves that staging stays inside what memory the job's cgroup has: below the budget, when the limit is filled by
# page cache, and when the job itself takes all of it between saves; nobody is killed. How: memory cgroups (v1 or v2)
# with job and engine in them. Cannot see limits on ancestors outside this machine's cgroup tree.

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from disks import Cgroup  # noqa: E402

SAVER = victim("saver")


def group(name, mib):
    return Cgroup(name, mib * MIB)


def checked(box, name, seq):
    p = os.path.join(box.d, name)
    got = check_saves([p])[p]
    assert got == ("whole", seq), "%s is %s" % (name, got)


def below_budget(uid, io):
    """Limits below the budget of 1 GiB: with room for some steps of staging, and with none."""
    for limit in (320, 150):
        below(uid, io, limit)


def below(uid, io, limit):
    cg = group("below-%s-%d" % (io, limit), limit)
    box = Box("below-" + io, uid=uid, io=io, cgroup=cg, STAGING="1G")
    r = box.run([SAVER, "-p", "m-%d.pt", "-s", "100M", "-n", "5"], timeout=100)
    assert r.rc == 0, repr(r)
    box.wait()
    for i in range(1, 6):
        checked(box, "m-%d.pt" % i, i)
    assert cg.oom_kills() == 0, "the OOM killer came %d times" % cg.oom_kills()
    s = box.status()
    assert s is None or s["staging_bytes"] <= limit * MIB - 100 * MIB, s
    box.close()
    cg.remove()


def filled_by_page_cache(uid, io):
    """The limit is full of pages of files that were read: they are room, staging must grow."""
    cg = group("cache-%s" % io, 384)
    box = Box("cache-" + io, uid=uid, io=io, cgroup=cg, STAGING="192M")
    data = write_file(os.path.join(box.top, "data"), 500 * MIB)
    os.chmod(data, 0o644)
    sync_disk(data)
    sh("sh", "-c", "echo 1 > /proc/sys/vm/drop_caches")
    r = box.run(["sh", "-c", "cat %s | wc -c" % data], shim=False)
    assert r.rc == 0
    used = cg.usage()
    assert used > 300 * MIB, "only %d MiB of the limit are filled: the test shows nothing" % (used // MIB)
    r = box.run([SAVER, "-p", "m.pt", "-s", "128M", "-n", "2"], timeout=100)
    assert r.rc == 0 and r.classes() == (2, 0, 0), repr(r)
    s = box.status()
    assert s and s["staging_bytes"] >= 128 * MIB, "staging did not grow: %s" % s
    box.wait()
    checked(box, "m.pt", 2)
    assert cg.oom_kills() == 0
    box.close()
    os.unlink(data)
    cg.remove()


def job_takes_all(uid, io):
    """Between saves the job allocates up to its limit: staging goes, the job lives, and it can save again."""
    cg = group("takes-%s" % io, 512)
    box = Box("takes-" + io, uid=uid, io=io, cgroup=cg, STAGING="256M")
    p = box.start([victim("ops"), "o:0:wct:644:a.pt", "W:0:200M:1", "c:0", "y:saved", "i", "A:400M:1500", "y:allocated",
                   "i", "R", "o:0:wct:644:b.pt", "W:0:200M:2", "c:0", "o:0:wct:644:c.pt", "W:0:64M:2", "c:0"], stdin=-1)
    lines = []

    def until(text):
        while True:
            l = p.stdout.readline()
            assert l, "the job ended with %s behind %s; OOM kills: %d" % (p.wait(), lines, cg.oom_kills())
            lines.append(l.strip())
            if l.strip() == text:
                return

    until("saved")
    eventually("published", lambda: (box.status() or {}).get("pending_files") == 0, 30)
    before = box.status()["staging_bytes"]
    assert before >= 64 * MIB, "no staging is held: the test shows nothing"
    p.stdin.write("\n")
    p.stdin.flush()
    until("allocated")
    eventually("staging is given back", lambda: (box.status() or {"staging_bytes": 0})["staging_bytes"] <= 64 * MIB)
    p.stdin.write("\n")
    p.stdin.close()
    out = p.stdout.read()
    assert p.wait(60) == 0, p.returncode
    assert "writes=%d" % (200 * MIB) in out and "close=0" in out, out
    box.wait()
    assert os.path.getsize(box.d + "/b.pt") == 200 * MIB and os.path.getsize(box.d + "/c.pt") == 64 * MIB
    assert cg.oom_kills() == 0, "the OOM killer came"
    box.close()
    cg.remove()


run_cases([("%s-%s-%s" % (f.__name__, "user" if u else "root", io), lambda f=f, u=u, io=io: f(u, io))
           for f in (below_budget, filled_by_page_cache, job_takes_all)
           for u, io in ((None, "uring"), (USER, "threads"))])
