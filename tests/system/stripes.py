#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 120
#
# Proves that with FASTCKPT_STRIPES files arrive as they were written, whatever the target's speed, whichever stripe is
# slow, full, missing or lies, and whoever is killed; that bytes go to all stripes, and a slow one takes less of them.
# How: ext4 and xfs on loop devices as stripes, ext4 and btrfs as targets, throttled by the blkio controller; shares are
# read from the loop devices' own counters; speeds are in tests/long/stripes.py.
# Cannot see what a real NVMe does, nor more than two stripes.

import contextlib
import os
import re
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from disks import *  # noqa: E402,F403
from fc import *  # noqa: E402,F403

SAVER = os.environ.get("SAVER") or victim("saver")  # cuda_saver: long/adopt.py
SHM = "/dev/shm/fastckpt-test-%d" % os.getpid()  # images: what they hold is memory, so that only the throttle is slow
atexit.register(shutil.rmtree, SHM, True)


made = []


def disk(name, mib=400, fs="ext4"):
    made.append(LoopFS(name, mib, fs, base=SHM))
    return made[-1]


def slow_target(name, stripes, bps=30 << 20, fs="ext4", mib=900, **config):
    target = disk(name + "-t", mib, fs)
    if bps:
        target.throttle(bps)
    made.append(Box(name, base=target.at, STRIPES=":".join(s.at for s in stripes), STAGING="64M", **config))
    return target, made[-1]


def saves(box, *options, timeout=60, **kw):
    return box.run([SAVER, *options], timeout=timeout, **kw)


def whole(box, names, old=()):
    """All are whole and of this run; `old`: names that may be absent."""
    got = check_saves(os.path.join(box.d, n) for n in names)
    for path, (state, what) in got.items():
        assert state == "whole" or os.path.basename(path) in old, "%s: %s %s" % (path, state, what)
    v = box.command("verify", *got)
    assert v.out.count("\n") == len(got) and "torn: " not in v.out, v


def free_all():
    for thing in reversed(made):
        thing.close() if isinstance(thing, Box) else thing.free()
    made.clear()


def alone(fn, *args):
    try:
        fn(*args)
    finally:
        free_all()


def run_some(cases):
    run_cases([(c[0], lambda c=c: alone(*c[1:])) for c in cases])


def bytes_arrive(io, fs):
    a, b = disk("sa"), disk("sb", fs="xfs")
    target, box = slow_target("arrive-" + io, [a, b], bps=0, fs=fs, io=io)
    r = saves(box, "-s", str((70 << 20) + 12345), "-n", "4", "-w", "3000001")
    assert r.rc == 0 and r.failures() == 0, r
    assert r.classes()[0] == 4, r.err
    whole(box, ["ckpt-%d.pt" % i for i in range(1, 5)])
    shares = [a.written() >> 20, b.written() >> 20]
    assert min(shares) > 80 and sum(shares) > 270, "the stripes were given %s MiB of 280" % shares
    assert not box.leftovers() and not box.status()["failures"]


def idle_ones_take_turns():
    """Saves of a chunk or two, one after the other: no stripe is ever busy, and each gets its share all the same."""
    a, b = disk("sa"), disk("sb")
    target, box = slow_target("turns", [a, b], bps=0)
    for i in range(10):
        assert saves(box, "-p", "s-%d.pt" % i, "-s", str(6 << 20), "-n", "1").rc == 0 and box.wait().rc == 0
    shares = [a.written() >> 20, b.written() >> 20]
    assert min(shares) * 4 >= sum(shares) > 40, "the stripes were given %s MiB" % shares


def hold_is_the_stripes():
    """A save four times the staging memory: its program is held by the stripes, not by the target."""
    a, b = disk("sa"), disk("sb", fs="xfs")
    target, box = slow_target("hold", [a, b], bps=20 << 20)
    r = saves(box, "-s", str(256 << 20), "-n", "1", env={"FASTCKPT_EXIT": "leave"})
    assert r.rc == 0, r
    assert r.seconds < 6, "held for %.1f s; the target alone takes 9.6 s beyond staging" % r.seconds
    assert box.status()["pending_files"] == 1
    target.throttle(0)
    box.wait()
    whole(box, ["ckpt-1.pt"])


APART = """
import os, sys
f = os.open('apart.pt', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for k in range(64):
    os.pwrite(f, bytes([k + 1]) * (68 << 10), (2 << 20) + (k << 17))
for line in sys.stdin:
    os.fsync(f)
    print('safe', flush=True)
    os.pwrite(f, b'end', 10 << 20)
"""


def in_cache(path):
    """Which pages of a file the kernel's page cache has."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    f = os.open(path, os.O_RDONLY)
    size = os.fstat(f).st_size
    at = libc.mmap(None, ctypes.c_size_t(size), 1, 2, f, ctypes.c_long(0))
    pages = (ctypes.c_ubyte * (-(-size // 4096)))()
    r = libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), pages)
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    os.close(f)
    assert r == 0, ctypes.get_errno()
    return [i for i, p in enumerate(pages) if p & 1]


def holes_are_read_alone():
    """A record has the program's own bytes: what lies between pieces on their way is read, and not a page of these.
    (One that came into the page cache beside its direct write made the next fsync fail, and the save was lost.)"""
    a = disk("sa")
    target, box = slow_target("apart", [a], bps=1 << 20)
    p = box.start([PYTHON, "-c", APART], stdin=-1)
    fds = "/proc/%d/fd/" % eventually("an engine", box.status)["engine_pid"]

    def shadow():
        for n in os.listdir(fds):
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(fds + n).startswith(box.d + "/#") and os.path.getsize(fds + n) > 9 << 20:
                    return fds + n

    def sync():
        p.stdin.write("\n"), p.stdin.flush()
        assert p.stdout.readline() == "safe\n"

    sync()
    inode = eventually("its bytes are on their way to the target", shadow)
    sync()
    assert box.status()["behind_bytes"] > 2 << 20, box.status()
    cached = set(in_cache(inode))
    holes = {page for k in range(63) for page in range(512 + 32 * k + 17, 512 + 32 * (k + 1))}
    pieces = set(range(512, 512 + 32 * 63)) - holes
    assert cached & holes, "the record has not read the holes: this shows nothing"
    assert not cached & pieces, "%d pages of what is on its way were read" % len(cached & pieces)
    target.throttle(0)
    out, err = p.communicate("", timeout=60)
    assert p.returncode == 0 and box.wait().rc == 0, err
    with open(box.d + "/apart.pt", "rb") as f:
        data = f.read()
    assert all(data[(2 << 20) + (k << 17):][:68 << 10] == bytes([k + 1]) * (68 << 10) for k in range(64))


def two_are_twice_one():
    """The time that a program is held, behind a target of 5 MB/s: by one stripe of 100 MB/s, and by two."""
    def held(n):
        stripes = [disk("s%d" % k, 500) for k in range(n)]
        for s in stripes:
            s.throttle(100_000_000)
        target, box = slow_target("speed-%d" % n, stripes, bps=5 << 20)
        r = saves(box, "-s", str(400 << 20), "-n", "1", env={"FASTCKPT_EXIT": "leave"})
        target.throttle(0)
        box.wait()
        whole(box, ["ckpt-1.pt"])
        free_all()
        return float(r.reports[0][6])

    one, two = held(1), held(2)
    say("held %.2f s by one stripe, %.2f s by two" % (one, two))
    assert one / two >= 1.9, "%.2f s with one, %.2f s with two" % (one, two)


def slower_takes_less():
    a, b = disk("sa"), disk("sb")
    a.throttle(100 << 20), b.throttle(25 << 20)
    target, box = slow_target("share", [a, b], bps=0)
    r = saves(box, "-s", str(320 << 20), "-n", "1")
    assert r.rc == 0, r
    share = a.written() / (a.written() + b.written())
    assert 0.6 < share < 0.95, "the disk of 100 MB/s beside one of 25 took %.2f" % share
    whole(box, ["ckpt-1.pt"])


def full(uid=None):
    """Stripes with less room than one file: what does not fit goes to the file at once."""
    a, b = disk("sa", 60), disk("sb", 50)
    target, box = slow_target("full", [a, b], bps=150 << 20, uid=uid)
    r = saves(box, "-s", str(150 << 20), "-n", "3", "-k", "2")
    assert r.rc == 0 and r.failures() == 0, r
    whole(box, ["ckpt-2.pt", "ckpt-3.pt"])


def missing():
    a = disk("sa")
    target, box = slow_target("missing", [a], bps=0)
    box.config["STRIPES"] = "/nowhere/at-all:%s:%s" % (a.at, a.at + "/.")
    r = saves(box, "-s", str(40 << 20), "-n", "2")
    assert r.rc == 0 and r.failures() == 0, r
    whole(box, ["ckpt-1.pt", "ckpt-2.pt"])
    log = box.engine_log()
    assert re.search("the stripe /nowhere/at-all is not used: .*No such file", log), log
    assert re.search("the stripe .* is not used: it is on the same file system as another one", log), log
    assert "/nowhere/at-all" in box.command("status").out


def engine_killed(kills_most=6):
    """The engine dies again and again while chunks are on their way to the stripes, on them only, and back."""
    a, b = disk("sa"), disk("sb", fs="xfs")
    target, box = slow_target("killed", [a, b], bps=100 << 20)
    p = box.start([SAVER, "-s", str(120 << 20), "-n", "3", "-w", "5000000"])
    kills = 0
    while p.poll() is None and kills < kills_most:
        time.sleep(0.2)
        s = box.status() or {}
        if s.get("pending_bytes", 0) or s.get("staging_used", 0):
            os.kill(s["engine_pid"], signal.SIGKILL)
            kills += 1
    out, err = p.communicate(timeout=90)
    assert p.returncode == 0 and "lost" not in err, err
    assert kills >= kills_most / 2, "only %d kills" % kills
    whole(box, ["ckpt-%d.pt" % i for i in range(1, 4)])


def pair_killed():
    """Keeper and engine at once: what was on the stripes only is named as lost, and told; names are old or whole."""
    a = disk("sa")
    target, box = slow_target("pair", [a], bps=20 << 20)
    for name in ("ckpt-1.pt", "ckpt-2.pt"):
        saves(box, "-p", name, "-s", "100", "-n", "1", shim=False)
    p = box.start([SAVER, "-s", str(150 << 20), "-n", "3", "-F", "1", "-t", "300"])
    eventually("chunks on a stripe only", lambda: (box.status() or {}).get("pending_bytes", 0) > (90 << 20), 20)
    box.kill_pair()
    target.throttle(0)
    out, err = p.communicate(timeout=60)
    assert "lost: %s/ckpt-1.pt" % box.d in err, err
    got = check_saves(os.path.join(box.d, "ckpt-%d.pt" % i) for i in (1, 2))
    assert all(state == "whole" for state, _ in got.values()), got
    assert "failed" in out or p.returncode != 0 or "lost" in err


def stripe_file(stripe, kind="data"):
    d = os.path.join(stripe.at, "fastckpt-%d" % os.geteuid())
    return next(os.path.join(d, n) for n in os.listdir(d) if n.endswith("." + kind))


def lie(stripe, first=2):
    """Changes bytes of every chunk on the stripe from number `first` on."""
    with open(stripe_file(stripe), "r+b", buffering=0) as f:
        for at in range(first << 22, os.fstat(f.fileno()).st_size, 4 << 20):
            f.seek(at + 4096)
            f.write(b"lies" * 16)
        os.fsync(f.fileno())


def wrong_checksum():
    """Bytes that have changed on the stripe are not published, and said; what comes later is not held up."""
    a = disk("sa")
    target, box = slow_target("lies", [a], bps=8 << 20)
    saves(box, "-p", "ckpt-1.pt", "-s", "100", "-n", "1", shim=False)
    p = box.start([SAVER, "-p", "ckpt-1.pt", "-s", str(120 << 20), "-n", "1"])
    eventually("chunks on the stripe", lambda: a.written() > (115 << 20), 20)
    lie(a)
    target.throttle(0)
    out, err = p.communicate(timeout=60)
    assert "ckpt-1.pt" in err and "wrong checksum" in err, err
    state, seq = list(check_saves([os.path.join(box.d, "ckpt-1.pt")]).values())[0]
    assert state == "whole" and os.path.getsize(os.path.join(box.d, "ckpt-1.pt")) < MIB, (state, seq)
    r = saves(box, "-p", "other.pt", "-s", str(20 << 20), "-n", "1")
    assert r.rc == 0, r
    whole(box, ["other.pt"])


def drain_rate():
    a = disk("sa")
    target, box = slow_target("rate", [a], bps=0, DRAIN_RATE="20M")
    r = saves(box, "-s", str(60 << 20), "-n", "1")
    assert r.rc == 0 and 2.2 < r.seconds < 9, "%.1f s for 59 MiB at 20 MiB/s" % r.seconds
    p = box.start([SAVER, "-s", str(120 << 20), "-n", "1", "-p", "b.pt"], env={"FASTCKPT_EXIT": "leave"})
    p.wait(30)
    t = time.monotonic()
    box.run(["sha1sum", os.path.join(box.d, "b.pt")])
    assert time.monotonic() - t < 3, "a reader waited %.1f s for a file that it needs" % (time.monotonic() - t)
    box.wait()
    whole(box, ["ckpt-1.pt", "b.pt"])


def status_of_stripes():
    """`wait --safe` returns long before the files are there; status says what is safe, how far each disk is and how
    long it will take; the report has both times."""
    a, b = disk("sa"), disk("sb", fs="xfs")
    target, box = slow_target("status", [a, b], bps=4 << 20)
    p = box.start([SAVER, "-s", str(24 << 20), "-n", "3"])
    eventually("all are closed", lambda: (box.status() or {}).get("pending_files", 0) == 3, 20)
    t = time.monotonic()
    r = box.command("wait", "--safe")
    waited = time.monotonic() - t
    s = box.status()
    assert r.rc == 0 and s["safe_files"] >= s["pending_files"] - 1 >= 1, (r, s)
    assert s["behind_bytes"] > 20 << 20 and waited < 8, (waited, s)
    stripes = {d["stripe"]: d["written_bytes"] for d in s["devices"]}
    assert stripes[1] + stripes[2] >= 69 << 20 and min(stripes[1], stripes[2]) > 8 << 20, s
    said = []

    def with_rate():  # what is in flight counts when it has come: there may be nothing within half a second
        said.append(box.command("status").out)
        return re.search(r"behind +[\d.]+ MiB, [\d.]+ MiB of it on the stripes only, ([\d.]+) MiB/s, ([\d.]+) s left",
                         said[-1])
    left = eventually("a rate", with_rate)
    text = said[-1]
    assert 1 < float(left[1]) < 40 and 0.5 < float(left[2]) < 60, text
    assert re.search(r"stripe 2 +%s, [\d.]+ MiB written, 0.0 MiB/s" % re.escape(b.at[-63:]), text), text
    w = box.start([BIN, "status", "--watch"], shim=True, env={"LD_PRELOAD": ""})
    lines = [w.stdout.readline() for _ in range(2)]
    w.kill()
    assert re.search(r"files pending, \d of them safe, [\d.]+ MiB to go, [\d.]+ MiB/s, stripe 1 0.0", lines[1]), lines
    target.throttle(0)
    out, err = p.communicate(timeout=60)
    safe, durable = map(float, re.search(r"safe in ([\d.]+) s, durable in ([\d.]+) s", err).groups())
    assert safe < durable / 2, err
    whole(box, ["ckpt-%d.pt" % i for i in (1, 2, 3)])


def keeper_killed():
    """The engine that takes a dead keeper's place still has its stripes: what is saved then can be verified, and when
    the pair leaves, nothing of it stays there."""
    a, b = disk("sa"), disk("sb", fs="xfs")
    target, box = slow_target("keeper", [a, b], bps=0)
    assert saves(box, "-p", "before.pt", "-s", str(24 << 20), "-n", "1").rc == 0
    s = box.status()
    os.kill(s["keeper_pid"], signal.SIGKILL)
    s = eventually("another pair", lambda: (lambda n: n and n["keeper_pid"] == s["engine_pid"] and n)(box.status()))
    assert saves(box, "-p", "after.pt", "-s", str(24 << 20), "-n", "1").rc == 0 and box.wait().rc == 0
    whole(box, ["before.pt", "after.pt"])
    v = box.command("verify", os.path.join(box.d, "after.pt"))
    assert v.rc == 0 and v.out.startswith("whole: "), v
    os.kill(s["engine_pid"], signal.SIGTERM)
    eventually("it leaves", lambda: not alive(s["engine_pid"]) and not alive(s["keeper_pid"]))
    left = [n for at in (a.at, b.at) for n in os.listdir(os.path.join(at, "fastckpt-0")) if n[:4] != "sums"]
    assert not left, left


def space_comes_back():
    """What a save took of the stripes is free again while the engine lives on, and the next save finds room."""
    a, b = disk("sa", 300), disk("sb", 300, fs="xfs")
    before = [a.free_bytes(), b.free_bytes()]
    target, box = slow_target("space", [a, b], bps=0)
    p = box.start([PYTHON, "-c", "import sys\nfor line in sys.stdin:\n    open('x', 'wb').write(bytes(150 << 20))\n"
                   "    print('saved', flush=True)"], stdin=subprocess.PIPE)
    for _ in range(2):
        p.stdin.write("go\n"), p.stdin.flush()
        assert p.stdout.readline()
        box.wait()
        assert before[0] - a.free_bytes() > 60 << 20, "the stripes were not used"
        eventually("the space of both", lambda: before[0] - a.free_bytes() < 12 << 20 and
                   before[1] - b.free_bytes() < 12 << 20, 20)  # but for the logs
        assert box.status()["engine_pid"] and box.status()["restarts"] == 0
    p.stdin.close()
    p.wait(30)
    assert os.path.getsize(box.d + "/x") == 150 << 20


def held_at_once(box, target, mib):
    """Seconds that each of eight programs is held that save at once, and the most staging there was."""
    for n in os.listdir(box.d):  # there is not room for two of each
        os.unlink(os.path.join(box.d, n))
    ps = [box.start([victim("ranks"), "hold", "%d.pt" % i, str(mib << 20)], stdin=subprocess.PIPE,
                    env={"FASTCKPT_EXIT": "leave"}) for i in range(8)]
    for p in ps:
        assert p.stdout.readline().strip() == "ready"
    target.throttle(20 << 20)
    for p in ps:
        p.stdin.write("\n"), p.stdin.flush()
    most, held = 0, []
    while any(p.poll() is None for p in ps):
        most = max(most, (box.status() or {}).get("staging_bytes", 0))
        time.sleep(0.05)
    for p in ps:
        out, err = p.communicate()
        held.append(int(re.search(r"held (\d+)", out)[1]) / 1e9)
    return held, most


def eight_at_once(mib=200, bps=100_000_000, staging=256, within=0.2):
    """Eight programs save through two stripes at once: each is held as long as the others, memory stays within the
    budget, and the names come in the order in which they were closed."""
    stripes = [disk("s%d" % k, max(320, mib * 8 // 2 + 200), ("ext4", "xfs")[k]) for k in (0, 1)]
    for s in stripes:
        s.throttle(bps)
    target, box = slow_target("eight", stripes, bps=0, mib=mib * 8 + 300)
    box.config["STAGING"] = "%dM" % staging
    for _ in range(3):  # who is held unfairly is so each time; a busy machine holds one of eight now and then
        held, most = held_at_once(box, target, mib)
        target.throttle(0)
        box.wait()
        say("# held %s s, staging at most %d MiB" % (" ".join("%.2f" % h for h in sorted(held)), most >> 20))
        middle = sorted(held)[4]
        even = all(abs(h - middle) <= within * middle for h in held)
        if even:
            break
    assert even, held
    assert 0 < most <= staging << 20, most
    for i in range(8):
        path = os.path.join(box.d, "%d.pt" % i)
        with open(path, "rb") as f:
            word = f.read(8)
            f.seek(0)
            assert all(b == word * (len(b) // 8) for b in iter(lambda: f.read(1 << 20), b"")), path
        assert os.path.getsize(path) == mib << 20, path


SHORT = [("bytes-uring-ext4", bytes_arrive, "uring", "ext4"), ("full", full, USER), ("missing", missing),
         ("turns", idle_ones_take_turns), ("keeper-killed", keeper_killed),
         ("engine-killed", engine_killed), ("wrong-checksum", wrong_checksum), ("status", status_of_stripes),
         ("holes", holes_are_read_alone),
         ("eight-small", eight_at_once, 24, 40_000_000, 64, 0.5)]  # of 16 chunks, two or three each
LONG = [("bytes-threads-btrfs", bytes_arrive, "threads", "btrfs"), ("hold", hold_is_the_stripes),
        ("speed", two_are_twice_one), ("share", slower_takes_less), ("pair-killed", pair_killed),
        ("drain-rate", drain_rate), ("eight", eight_at_once), ("space", space_comes_back)]
if __name__ == "__main__":
    run_some(SHORT + (LONG if sys.argv[1:] else []))  # by name: any of them
