#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 240
#
# Proves that what a closed file meets (a full disk, EIO) is tried again for FASTCKPT_RETRY seconds: the save arrives
# when the disk heals, also across a death of the engine, while other saves go on; else it fails loudly, the old file
# stays and nothing behind it that deletes or replaces is done. How: a small ext4 without fallocate, filled by a file
# that is removed, and one that fails on demand (victims/faulty.c). Cannot see EDQUOT, and failures of names: the unit
# test test_commit has those.

import errno
import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
import fc  # noqa: E402
from disks import BrokenFS, LoopFS  # noqa: E402

SAVER = victim("saver")


def whole(box, name="m.pt"):
    return check_saves([os.path.join(box.d, name)])[os.path.join(box.d, name)]


def save_argv(seq, name="m.pt", size="8M"):
    return [SAVER, "-p", name, "-s", size, "-n", "1", "-F", str(seq)]


class Full:
    """An ext4 whose space runs out only in the engine: it knows no fallocate, and nothing is reserved."""

    def __init__(self, name, io, retry, uid=None, **config):
        self.fs = LoopFS(name + "-fs", 64, mkfs=("-O", "^extent,^64bit,^metadata_csum"))
        self.box = Box(name, base=os.path.join(self.fs.at, "b"), uid=uid, io=io, STAGING="128M", RETRY=retry, **config)
        self.filler = os.path.join(self.fs.at, "filler")
        for n, seq in (("m.pt", 1), ("ck-1.pt", 1)):
            r = self.box.native(save_argv(seq, n, "1M"), cwd=self.box.d)
            assert r.rc == 0, repr(r)
        sync_disk(self.fs.at)

    def fill(self):
        """Room for what the program itself writes (the first MiB of a file), not for the rest."""
        write_file(self.filler, self.fs.free_bytes() - 4 * MIB)
        sync_disk(self.fs.at)

    def heal(self):
        os.unlink(self.filler)

    def free(self):
        self.box.close()
        self.fs.free()


def retrying(box):
    s = box.status()
    return s if s and s["retrying"] else None


def lost(box):
    return [l for l in box.engine_log().splitlines() if "is lost" in l]


def heals(f):
    p = f.box.start(save_argv(2))
    eventually("it is retried", lambda: retrying(f.box))
    time.sleep(1.2)
    assert p.poll() is None, "the process does not wait for its file: %s" % p.stderr.read()
    assert whole(f.box) == ("whole", 1), whole(f.box)
    text = f.box.command("status").out
    assert "m.pt: No space left on device" in text and "retrying" in text, text
    f.heal()
    out, err = p.communicate(timeout=20)
    assert p.returncode == 0 and "closed 2" in out, (p.returncode, out, err)
    assert fc.Result(0, out, err, 0).failures() == 0, err
    assert whole(f.box) == ("whole", 2), whole(f.box)
    log = f.box.engine_log()
    assert log.count("retrying for 60 s: m.pt: No space left on device") == 1, log
    assert log.count("m.pt: the retry has succeeded after") == 1, log
    assert not lost(f.box) and f.box.status()["failures"] == 0, log
    assert not f.box.leftovers(), f.box.leftovers()


def elsewhere(f):
    """A captured directory on another disk: one that is full holds up what is behind in the order, not the program."""
    d = os.path.join(f.box.top, "elsewhere")
    os.makedirs(d)
    f.box.own(d)
    f.box.config["PATHS"] += ":" + d + "/*"
    return d


def does_not_heal(f):
    d = elsewhere(f)
    for n in ("latest", "ck-1.pt"):
        assert f.box.native(save_argv(1, n, "1M"), cwd=d).rc == 0
    t = time.monotonic()
    r = f.box.ops("o:0:wct:644:ck-2.pt", "W:0:8M:2", "c:0", "o:1:wct:644:%s/latest" % d, "W:1:2:3", "c:1",
                  "u:%s/ck-1.pt" % d)
    took = time.monotonic() - t
    assert r.lines()[2] == "close=0", "not after close: %r" % r
    assert 1.5 < took < 30, "%.1f s" % took
    told = [l for l in r.messages() if "ck-2.pt" in l]
    assert told, r.err
    line = told[0]
    for part in (f.box.d + "/ck-2.pt: No space left on device", "retried for 2 s", "ops+0x",
                 "there is no file of that name"):
        assert part in line, "no %r in %r" % (part, line)
    assert r.failures() >= 1, r.err
    f.box.wait()
    assert whole(f.box, "ck-2.pt")[0] == "absent"
    for n in ("latest", "ck-1.pt"):
        path = os.path.join(d, n)
        assert check_saves([path])[path] == ("whole", 1), "%s was changed behind a failure: %r" % (n, r)
    s = f.box.command("status")
    assert s.rc == 1 and "ck-2.pt" in s.out, repr(s)
    f.heal()
    assert f.box.run(save_argv(5)).failures() == 0
    assert whole(f.box) == ("whole", 5), "the disk has room again: %s" % (whole(f.box),)


def no_retry(f):
    t = time.monotonic()
    r = f.box.run(save_argv(2))
    assert time.monotonic() - t < 25
    assert r.failures() == 1 or "failed 2" in r.out, repr(r)
    assert whole(f.box) == ("whole", 1), whole(f.box)
    assert "retrying" not in f.box.engine_log(), f.box.engine_log()


def engine_killed(f):
    p = f.box.start(save_argv(2))
    s = eventually("it is retried", lambda: retrying(f.box))
    time.sleep(0.3)
    os.kill(s["engine_pid"], signal.SIGKILL)
    s = eventually("another engine retries", lambda: (retrying(f.box) or {}).get("engine_pid", 0) not in (
        0, s["engine_pid"]) and retrying(f.box))
    assert s["restarts"] >= 1, s
    time.sleep(0.5)
    assert p.poll() is None and whole(f.box) == ("whole", 1)
    f.heal()
    out, err = p.communicate(timeout=20)
    assert p.returncode == 0 and fc.Result(0, out, err, 0).failures() == 0, (out, err)
    assert whole(f.box) == ("whole", 2), whole(f.box)
    assert not lost(f.box), f.box.engine_log()


def deadline_outlives_engine(f):
    """The seconds count from the first failure, whoever is the engine."""
    t = time.monotonic()
    p = f.box.start(save_argv(2))
    for _ in range(2):
        s = eventually("it is retried", lambda: retrying(f.box))
        os.kill(s["engine_pid"], signal.SIGKILL)
        time.sleep(0.4)
    out, err = p.communicate(timeout=20)
    assert 3.5 < time.monotonic() - t < 20, time.monotonic() - t
    assert "m.pt: No space left" in err and "an older file stays" in err, err
    assert whole(f.box) == ("whole", 1), whole(f.box)


def others_go_on(f):
    """Until staging is full, saves elsewhere are held no longer than a copy; then write waits. All of it arrives."""
    d = elsewhere(f)
    stuck = f.box.start(save_argv(2))
    eventually("it is retried", lambda: retrying(f.box))
    p = f.box.start([SAVER, "-p", d + "/n-%d.pt", "-s", "12M", "-n", "30"])
    eventually("saves go on", lambda: "closed 5" in (p.stdout.readline() or ""), 20)
    assert retrying(f.box), "nothing is held up: the test shows nothing"
    time.sleep(0.5)
    assert p.poll() is None, "360 MiB in 128 MiB of staging"
    assert not os.path.exists(d + "/n-1.pt"), "published before what was closed earlier"
    f.heal()
    for q in (stuck, p):
        out, err = q.communicate(timeout=40)
        assert q.returncode == 0 and fc.Result(0, out, err, 0).failures() == 0, (out, err)
    got = check_saves(["%s/n-%d.pt" % (d, i) for i in range(1, 31)])
    assert all(got["%s/n-%d.pt" % (d, i)] == ("whole", i) for i in range(1, 31)), got
    assert whole(f.box) == ("whole", 2), whole(f.box)


def full(name, io, fn, retry, uid=None):
    f = Full(name, io, retry, uid)
    try:
        f.fill()
        fn(f)
    finally:
        f.free()


def eio_heals(name, io):
    fs = BrokenFS(name + "-fs", 160)
    box = Box(name, base=os.path.join(fs.at, "b"), io=io, STAGING="128M", RETRY=30)
    try:
        assert box.native(save_argv(1), cwd=box.d).rc == 0
        sync_disk(fs.at)
        ops = ["o:0:wct:644:m.pt", "W:0:9M:1", "s:300", "y:now", "i", "W:0:15M:2", "c:0"]
        p = box.start([victim("ops")] + ops, stdin=-1)
        while p.stdout.readline() != "now\n":
            assert p.poll() is None, p.stderr.read()
        fs.faults(errno.EIO, 60000)  # until it has closed the file
        p.stdin.write("\n")
        p.stdin.flush()
        said = ""
        while not said.endswith("close=0\n"):
            said += p.stdout.readline()
            assert p.poll() is None, said
        fs.faults(errno.EIO)
        eventually("it is retried", lambda: retrying(box), 20)
        fs.faults()
        out, err = p.communicate(timeout=40)
        assert fc.Result(0, out, err, 0).failures() == 0, (out, err, box.engine_log())
        assert os.path.getsize(box.d + "/m.pt") == 24 * MIB
        native = box.native([victim("ops"), "o:0:wct:644:m.pt", "W:0:9M:1", "W:0:15M:2", "c:0"])
        assert native.rc == 0 and same_bytes(box.d + "/m.pt", box.native_d + "/m.pt"), "other bytes"
        assert not lost(box), box.engine_log()
    finally:
        fs.faults()
        box.close()
        fs.free()


# In a short run each on one backend, in turn; tests/long/retry.py: all on both.
CASES = []
for io in ("uring", "threads"):
    other = USER if io == "threads" else None
    CASES += [("%s-%s" % (fn.__name__, io), lambda n=fn.__name__, i=io, f=fn, r=retry, u=other: full(
        "%s-%s" % (n, i), i, f, r, u)) for fn, retry in (
            (heals, 60), (does_not_heal, 2), (no_retry, 0), (engine_killed, 60), (deadline_outlives_engine, 4),
            (others_go_on, 60))]
    CASES.append(("eio_heals-" + io, lambda i=io: eio_heals("eio_heals-" + i, i)))
half = len(CASES) // 2
run_cases(CASES if os.environ.get("RETRY_ALL") else [CASES[i + half * (i % 2)] for i in range(half)])
