#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 120
#
# Proves what several processes of one job may expect: they find one engine across leaf cgroups and mount namespaces
# (two users never), a file closed before a barrier is there before the other rank's `latest` names it, and one budget
# is shared fairly, with a stopped process too. How: two ranks, a stranger that looks at the names all the time, an
# engine stopped and continued at random; eight savers at once. Cannot see power cuts (powercut.py).

import atexit
import glob
import json
import os
import random
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from disks import LoopFS, disk_box  # noqa: E402
from groups import Group  # noqa: E402
from kills import SAVER, latest_of  # noqa: E402

RANKS = victim("ranks")
STEPS = 1000
SAVERS, EACH, BUDGET = 8, 200 * MIB, 256 * MIB
TRIES = 3  # who is held unfairly is so each time; other programs take the cores from one of eight now and then


def holds(path, word):
    """Is this file the word again and again?"""
    block = struct.pack("<Q", word) * (MIB // 8)
    with open(path, "rb", buffering=0) as f:
        size = 0
        while True:
            text = f.read(MIB)
            if text != block and text != block[:len(text)]:
                return False
            size += len(text)
            if not text:
                return size >= 8 and size % 8 == 0


# ---------------------------------------------------------------------------------------------------- one engine

def engines(box):
    """The status of each engine in the runtime directory."""
    return [json.loads(line) for line in box.command("status", "--json").out.splitlines()]


def leaves():
    """Two tasks of a Slurm step, each in a leaf cgroup and a mount namespace of its own; and one of another step."""
    step = "job_1/step_0/user/"
    tasks = [Group(step + "task_0"), Group(step + "task_1")]
    other = Group("job_1/step_1/user/task_0")
    box = Box("leaves")
    unshare = ["unshare", "-m", "--propagation", "private"]
    need("unshare")
    try:
        ps = [box.start(unshare + [SAVER, "-p", "t%d-%%d.pt" % i, "-s", "4M", "-n", "2", "-t", "2500"], preexec=g.enter)
              for i, g in enumerate(tasks)]
        for p in ps:  # what its program was before the exec may count as a client for as long as the process lives
            while "closed 1 " not in (line := p.stdout.readline()):
                assert line, p.stderr.read()
        assert len(engines(box)) == 1 and engines(box)[0]["clients"] >= 2, engines(box)
        r = box.run([SAVER, "-p", "u-%d.pt", "-s", "4M", "-n", "1"], preexec=other.enter)
        assert r.rc == 0 and r.classes() == (1, 0, 0), r
        assert len(engines(box)) == 2, "another step has the same engine"
        for p in ps:
            out, err = p.communicate(timeout=30)
            assert p.returncode == 0 and " 0 failures" in err, out + err
        assert {n: v[0] for n, v in named(box).items()} == dict.fromkeys(
            ["t0-1.pt", "t0-2.pt", "t1-1.pt", "t1-2.pt", "u-1.pt"], "whole"), named(box)
    finally:
        stop_pair([s[k] for s in engines(box) for k in ("keeper_pid", "engine_pid")])
        box.close()
        for g in (other, tasks[1], tasks[0]):
            g.remove()


def named(box):
    return {os.path.basename(p): v for p, v in check_saves(glob.glob(box.d + "/*")).items()}


TWO_USERS = """
mount -t tmpfs none /tmp
for u in 12345 12346; do
    setpriv --reuid $u --regid $u --clear-groups env LD_PRELOAD=$LIB FASTCKPT_PATHS="$D/*" FASTCKPT_REPORT=1 \
        $SAVER -p $D/u$u.pt -s 4M -n 1 &
done
wait
ls /tmp/fastckpt-12345/*.sock /tmp/fastckpt-12346/*.sock
for u in 12345 12346; do
    setpriv --reuid $u --regid $u --clear-groups $BIN status --json
done
"""


def users():
    """Two users in one cgroup, with the default directories, on a /tmp of their own; and one sent to another's."""
    need("setpriv"), need("unshare")
    if TMP.startswith("/tmp/"):
        raise Skip("this test's own directory would be hidden: it lies in /tmp")
    box = Box("users", uid=USER)
    os.chmod(box.d, 0o1777)
    env = {k: v for k, v in os.environ.items() if not k.startswith("FASTCKPT_")}
    env.update(LIB=LIB, BIN=BIN, SAVER=SAVER, D=box.d, LC_ALL="C")
    r = subprocess.run(["unshare", "-m", "--propagation", "private", "sh", "-c", TWO_USERS], env=env, text=True,
                       capture_output=True, timeout=60, cwd=box.d)
    pids = [int(n) for n in re.findall(r'"(?:keeper|engine)_pid": *(\d+)', r.stdout)]
    try:
        assert r.stdout.count("closed 1") == 2 and r.stderr.count("(1 staged") == 2, r
        assert r.stdout.count(".sock") == 2 and len(set(pids)) == 4, "not an engine each: %s" % r
    finally:
        stop_pair(pids)
    a = box.run([SAVER, "-p", "a.pt", "-s", "4M", "-n", "1"])
    box.uid = USER + 1
    b = box.run([SAVER, "-p", "b.pt", "-s", "4M", "-n", "1"])
    box.uid = USER
    assert a.classes() == (1, 0, 0) and b.rc == 0 and b.classes() == (0, 0, 0), (a, b)
    assert "must belong to user %d" % (USER + 1) in b.err, b
    assert all(v == ("whole", 1) for v in named(box).values()) and len(named(box)) == 4, named(box)
    box.close()


# ---------------------------------------------------------------------------------------------------- the order

class Stranger(threading.Thread):
    """Looks at the names without the shim: what `latest` says is there, whole."""

    def __init__(self, d):
        super().__init__(daemon=True)
        self.d, self.seen, self.wrong, self.end = d, set(), [], False

    def run(self):
        while not self.end:
            n = latest_of(self.d)
            if n is None or n in self.seen:
                time.sleep(0.0005)
                continue
            self.seen.add(n)
            path = os.path.join(self.d, "s-%d.pt" % n)
            try:
                if not holds(path, n):
                    self.wrong.append("latest says %d, whose shard is torn" % n)
            except OSError as e:
                self.wrong.append("latest says %d: %s" % (n, e))


def stop_at_random(pid, p, rng):
    """Stops and continues the engine until p ends. How often."""
    stops = 0
    while p.poll() is None:
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(rng.uniform(0.001, 0.03))
        finally:
            os.kill(pid, signal.SIGCONT)
        stops += 1
        time.sleep(rng.uniform(0.01, 0.2))
    return stops


def barriers(io, steps=STEPS):
    name = "barriers-" + io
    box = Box(name, io=io)
    shared = os.path.join(box.top, "shared")
    with open(shared, "wb") as f:
        f.truncate(4096)
    stranger = Stranger(box.d)
    stranger.start()
    ps = [box.start([RANKS, "step", shared, str(rank), str(steps)]) for rank in (0, 1)]
    try:
        pid = eventually("an engine", box.status)["engine_pid"]
        stops = stop_at_random(pid, ps[0], random.Random(name))
        for p in ps:
            out, err = p.communicate(timeout=60)
            assert p.returncode == 0 and " 0 failures" in err, out + err
        assert box.wait().rc == 0
        time.sleep(0.05)
    finally:
        stranger.end = True
        stranger.join(10)
        box.close()
    say("# %s: %d stops, the stranger saw %d of %d steps" % (name, stops, len(stranger.seen), steps))
    assert not stranger.wrong, "%d times: %s" % (len(stranger.wrong), stranger.wrong[0])
    assert len(stranger.seen) >= steps // 10 and stops >= 10, "%d stops, %d seen" % (stops, len(stranger.seen))
    assert latest_of(box.d) == steps and len(os.listdir(box.d)) == steps + 1
    bad = [n for n in range(1, steps + 1) if not holds(os.path.join(box.d, "s-%d.pt" % n), n)]
    assert not bad, "not whole: %s" % bad[:5]
    assert not box.leftovers()


# ---------------------------------------------------------------------------------------------------- one budget

def shm_disk(name, mib):
    """A disk whose speed is ours to say: in memory, throttled."""
    base = "/dev/shm/fastckpt-test-%d" % os.getpid()
    need_disk(mib, "/dev/shm")
    os.makedirs(base, exist_ok=True)
    atexit.register(shutil.rmtree, base, True)
    return LoopFS(name, mib, base=base)


def resident(pid):
    """Bytes of shared memory that the kernel has mapped for this process, less what is not staging."""
    with open("/proc/%d/status" % pid) as f:
        kib = int(re.search(r"^RssShmem:\s+(\d+)", f.read(), re.M).group(1))
    return (kib << 10) - 16 * MIB


class Most(threading.Thread):
    """The most staging that the engine says it has, or that the kernel says."""

    def __init__(self, box):
        super().__init__(daemon=True)
        self.box, self.bytes, self.looks, self.end = box, 0, 0, False

    def run(self):
        while not self.end:
            s = self.box.status()
            if s:
                self.looks += 1
                self.bytes = max(self.bytes, s["staging_bytes"], resident(s["engine_pid"]))
            time.sleep(0.05)


def at_once(box, n, size, stop=None):
    """n processes that save `size` at the same moment; nanoseconds that each was held. `stop` is told of the first."""
    for path in glob.glob(box.d + "/h*.pt"):  # there is not room for two of each
        os.unlink(path)
    ps = [box.start([RANKS, "hold", "h%d.pt" % i, str(size)], stdin=subprocess.PIPE) for i in range(n)]
    for p in ps:
        assert p.stdout.readline() == "ready\n"
    for p in ps:
        p.stdin.write("\n")
        p.stdin.flush()
    if stop:
        stop(ps[0])
    held = []
    for p in ps[1:] + ps[:1]:
        if stop and p is ps[0]:
            os.kill(p.pid, signal.SIGCONT)
        out, err = p.communicate(timeout=100)
        assert p.returncode == 0, out + err
        held.append(int(out.split()[-1]) / 1e9)
    return held


def even(held, within):
    """Was each held as long as the others?"""
    middle = statistics.median(held)
    return all(abs(h - middle) <= within * middle for h in held)


def fair(io):
    """Eight processes save 200 MB each at once, through 256 MiB: each is held for the same time."""
    fs = shm_disk("fair-fs-" + io, 3500)
    box = Box("fair-" + io, io=io, base=os.path.join(fs.at, "b"), STAGING=BUDGET)
    most = Most(box)
    try:
        fs.throttle(480 * MIB)
        box.run([SAVER, "-p", "first.pt", "-s", "4M", "-n", "1"])  # the engine is there
        most.start()
        for k in range(TRIES):
            held = at_once(box, SAVERS, EACH)
            if even(held, 0.2):
                break
        fs.throttle(0)
        box.wait()
        for i in range(SAVERS):
            p = os.path.join(box.d, "h%d.pt" % i)
            assert os.path.getsize(p) == EACH and holds(p, EACH), "h%d.pt" % i
    finally:
        most.end = True
        if most.is_alive():
            most.join(20)
        fs.throttle(0)
        box.close()
        fs.free()
    middle = statistics.median(held)
    text = "held %s s, median %.2f, staging %d MiB (%d looks)" % (
        " ".join("%.2f" % h for h in sorted(held)), middle, most.bytes >> 20, most.looks)
    say("# fair: " + text)
    assert most.looks > 3 and 0 < most.bytes <= BUDGET, text
    assert max(held) > 1, "the budget never was scarce: " + text
    assert even(held, 0.2), text


def stopped(io):
    """One of eight is stopped with chunks in its hands: the others end, and so does it when it goes on."""
    fs = shm_disk("stopped-fs-" + io, 700)
    box = Box("stopped-" + io, io=io, base=os.path.join(fs.at, "b"), STAGING="64M")
    try:
        fs.throttle(200 * MIB)
        box.run([SAVER, "-p", "first.pt", "-s", "4M", "-n", "1"])

        def stop(p):
            eventually("it has opened its file", lambda: any(
                os.path.realpath("/proc/%d/fd/%s" % (p.pid, n)).startswith(box.d)
                for n in os.listdir("/proc/%d/fd" % p.pid)), step=0.005)
            time.sleep(0.1)
            os.kill(p.pid, signal.SIGSTOP)

        for k in range(TRIES):
            t = time.monotonic()
            held = at_once(box, SAVERS, 60 * MIB, stop)
            if even(held[:-1], 0.25):
                break
        text = "held %s s in %.1f s" % (" ".join("%.2f" % h for h in held), time.monotonic() - t)
        say("# stopped: " + text)
        fs.throttle(0)
        box.wait()
        assert held[-1] > max(held[:-1]) - 0.2, "nobody was stopped in mid-save: " + text
        assert even(held[:-1], 0.25), text
        for i in range(SAVERS):
            assert holds(os.path.join(box.d, "h%d.pt" % i), 60 * MIB), "h%d.pt" % i
    finally:
        fs.throttle(0)
        box.close()
        fs.free()


FORKED = """if 1:
    import os
    pids = []
    for i in range(8):
        if (pid := os.fork()) == 0:
            piece = b"f" * (1 << 20)
            with open("f%d.pt" % i, "wb") as f:
                for _ in range({mib}):
                    f.write(piece)
            os._exit(0)
        pids.append(pid)
    print([os.waitpid(p, 0)[1] for p in pids])"""


def forked(io):
    """Who forks its writers and saves nothing itself waits for them at its end; they fit where they fit natively,
    whatever each reserves beyond its need."""
    with disk_box("forked-" + io, 600, io=io, STAGING="256M") as (fs, box):
        mib = (fs.free_bytes() // MIB - 16) // 8
        r = box.run([PYTHON, "-c", FORKED.format(mib=mib)])
        there = {n: os.path.getsize(os.path.join(box.d, n)) for n in os.listdir(box.d)}
        assert r.rc == 0 and r.out == "%s\n" % ([0] * 8), repr(r)
        assert there == {"f%d.pt" % i: mib * MIB for i in range(8)}, there


if __name__ == "__main__":
    run_cases([("leaves", leaves), ("users", users)] +
              [("%s-%s" % (f.__name__, io), lambda f=f, io=io: f(io))
               for f, io in ((barriers, "threads"), (fair, "uring"), (stopped, "threads"), (forked, "uring"))])
