#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
# timeout: 100
#
# Proves that a process which opens a file that another one is writing sees all bytes of the calls that have returned,
# also those that the other one still holds, running or stopped; and that what it writes or cuts off there stays. How:
# pairs of processes that make the same calls in turn, natively and under the shim; and a reader that comes at any
# instant of a writer's calls. Cannot see a file before the program's own call has returned.

import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

PLAYER = """
import hashlib, os, sys
fds = {}
def do(op, *a):
    if op == 'open':
        slot, path, flags = a
        fds[slot] = os.open(path, flags, 0o644)
        return None
    if op == 'close':
        return os.close(fds.pop(a[0]))
    if op == 'write':
        return os.write(fds[a[0]], (b'%07d.' % a[2]) * (a[1] // 8))
    if op == 'pwrite':
        return os.pwrite(fds[a[0]], (b'%07d.' % a[3]) * (a[2] // 8), a[1])
    if op == 'read':
        got = b''
        while True:
            more = os.pread(fds[a[0]], 1 << 20, len(got))
            if not more:
                return len(got), hashlib.md5(got).hexdigest()
            got += more
    if op == 'size':
        return os.fstat(fds[a[0]]).st_size
    if op == 'stat':
        return os.stat(a[0]).st_size
    if op == 'end':
        return os.lseek(fds[a[0]], 0, os.SEEK_END)
    if op == 'cut':
        return os.ftruncate(fds[a[0]], a[1])
    if op == 'cut_name':
        return os.truncate(a[0], a[1])
    if op == 'link':
        return os.link(*a)
    if op == 'mode':
        return os.chmod(*a)
    if op == 'fork':
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        return os.waitpid(pid, 0)[1]
for line in sys.stdin:
    try: r = do(*eval(line))
    except OSError as e: r = e.strerror
    except KeyError: r = 'no such slot'
    print(repr(r), flush=True)
"""
W, R, RW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC, os.O_RDONLY, os.O_RDWR


class Player:
    """A process that makes one call for each line."""

    def __init__(self, box, shim):
        self.p = box.start([PYTHON, "-c", PLAYER], cwd=box.d if shim else box.native_d, shim=shim, stdin=-1)

    def do(self, *op):
        self.p.stdin.write(repr(op) + "\n")
        self.p.stdin.flush()
        said = self.p.stdout.readline()
        assert said, "%r: %s" % (op, self.p.communicate()[1][-400:])
        return said.strip()

    def end(self):
        out, err = self.p.communicate()
        assert self.p.returncode == 0, err
        return err


def play(box, shim, ops, hook=None):
    """The answers of two players, A and B."""
    players = {"A": Player(box, shim), "B": Player(box, shim)}
    said = []
    for i, (who, *op) in enumerate(ops):
        if hook:
            hook(i, players)
        said.append(players[who].do(*op))
    err = "".join(p.end() for p in players.values())
    return said, [l for l in err.splitlines() if "fastckpt" in l and " held " not in l]


def both(box, ops, hook=None):
    """The same natively and under the shim."""
    for d in (box.d, box.native_d):
        for n in os.listdir(d):
            os.unlink(os.path.join(d, n))
    native, _ = play(box, False, ops)
    here, messages = play(box, True, ops, hook)
    for op, a, b in zip(ops, native, here):
        assert a == b, "%r: %s, natively %s" % (op, b, a)
    assert not messages, messages
    w = box.wait()
    assert w.rc == 0, repr(w)
    compare_trees(box.native_d, box.d)
    assert not box.leftovers(), box.leftovers()


def seen():
    """At once, whatever the owner does; its size by name as well."""
    box = Box("seen")
    both(box, [("A", "open", 0, "f.pt", W), ("A", "write", 0, 3 * MIB, 1), ("B", "stat", "f.pt"),
               ("A", "pwrite", 0, 9 * MIB, 200000, 2), ("B", "stat", "f.pt"), ("B", "open", 0, "f.pt", R),
               ("B", "size", 0), ("B", "read", 0), ("A", "size", 0), ("A", "write", 0, 2 * MIB, 3), ("B", "read", 0),
               ("A", "close", 0), ("B", "read", 0), ("B", "close", 0)])
    assert box.status()["staging_used"] == 0, box.status()


def stays():
    """What the other one writes, appends or cuts off in the owner's hands, whatever the owner does next."""
    box = Box("stays")
    all_of_them = int(os.environ.get("TURNS", 3)) > 3
    thens = ([], [("A", "write", 0, 100000, 4)], [("A", "fork"), ("A", "write", 0, 8 * MIB, 4)],
             [("A", "size", 0), ("A", "end", 0), ("A", "write", 0, 80, 5)], [("A", "cut", 0, 3 * MIB)])
    whats = ([("B", "pwrite", 0, 2 * MIB, 100000, 3)], [("B", "cut", 0, 2 * MIB + 5000)],
             [("B", "cut_name", "f.pt", 1 * MIB + 4096)],
             [("B", "end", 0), ("B", "write", 0, 50000, 9), ("B", "cut", 0, 100)])
    for k, then in enumerate(thens):
        for what in whats if all_of_them else [whats[k % 4]]:
            both(box, [("A", "open", 0, "f.pt", W), ("A", "write", 0, 3 * MIB, 1), ("B", "open", 0, "f.pt", RW)] +
                 what + [("B", "read", 0)] + then + [("B", "read", 0), ("A", "close", 0), ("B", "close", 0)])
    assert box.status()["staging_used"] == 0, box.status()


def turns(seed):
    """A sequence of calls: A makes files and writes them, B opens each at some time, and both go on with it."""
    r, n, ops = random.Random(seed), 0, [("A", "open", 9, "other.pt", W)]

    def calls(who, slot, name, kinds):
        nonlocal n
        for _ in range(r.randrange(1, 9)):
            n += 1
            w, kind = r.choice(who), r.choice(kinds)
            at = r.choice((0, MIB - 4096, MIB, r.randrange(12 * MIB) & ~7))
            size = r.choice((8, 4096, 100000, r.randrange(1, 3 * MIB) & ~7, 5 * MIB))
            ops.append({"write": (w, "write", slot, size, n), "pwrite": (w, "pwrite", slot, at, size, n),
                        "other": ("A", "write", 9, size, n), "cut": (w, "cut", slot, at),
                        "stat": (w, "stat", name), "cut_name": (w, "cut_name", name, at),
                        "fork": (w, "fork")}.get(kind, (w, kind, slot)))
    for k in range(4):
        slot, name = k, "f%d.pt" % (k % 2)
        ops.append(("A", "open", slot, name, W))
        calls("A", slot, name, ("write", "write", "write", "pwrite", "pwrite", "cut", "size", "fork", "other"))
        calls("B", slot, name, ("stat",))
        ops.append(("B", "open", slot, name, r.choice((R, RW, RW))))
        calls("ABB", slot, name, ("write", "pwrite", "pwrite", "read", "read", "size", "stat", "end", "cut", "cut_name",
                                  "fork", "other"))
        ops.append(("A", "close", slot))
        calls("B", slot, name, ("write", "pwrite", "read", "cut", "stat"))
        ops.append(("B", "close", slot))
    return ops + [("A", "close", 9)]


def in_turns():
    """Any calls, in turn; the engine dies now and then."""
    seed, end = int(os.environ.get("SEED", time.time_ns() % 1000000)), int(os.environ.get("TURNS", 3))
    box = Box("turns")
    for k in range(seed, seed + end):
        die = random.Random(-k).randrange(100)

        def hook(i, players):
            s = box.status() if i == die else None
            if s:
                os.kill(s["engine_pid"], signal.SIGKILL)
        try:
            both(box, turns(k), hook)
        except AssertionError as e:
            raise AssertionError("SEED=%d TURNS=1: %s" % (k, e))
    assert box.status()["staging_used"] == 0, box.status()


def met(name, shim=True, rounds=None, stop=False, limit=80, **config):
    """A reader that comes at any instant of the owner's calls, each round before the last of them."""
    rounds = rounds or int(os.environ.get("ROUNDS", 4))
    box = Box(name, **config)
    shared = os.path.join(box.top, "shared")
    with open(shared, "wb") as f:
        f.write(bytes(4096))
    box.own(shared)
    d = box.d if shim else box.native_d
    seed = os.environ.get("SEED", str(time.time_ns() % 1000000))
    args = [d, shared, str(rounds)]
    owner = box.start([victim("hands"), "own"] + args, cwd=d, shim=shim)
    looker = box.start([victim("hands"), "look"] + args + [seed] + ["stop"] * stop, cwd=d, shim=shim)
    try:
        out, err = looker.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise AssertionError("the reader waits for ever; %s" % box.status())
    if looker.returncode == 0:
        owner.communicate(timeout=60)
    if shim and looker.returncode == 0:
        w = box.wait()
        assert w.rc == 0 and box.status()["staging_used"] == 0, "%r %s" % (w, box.status())
        assert not box.leftovers(), box.leftovers()
    assert looker.returncode == 0 and owner.returncode == 0, "SEED=%s: %s %s" % (seed, out[-900:], err[-300:])
    assert out.count("looked at") == rounds, out


def at_any_instant():
    met("natively", shim=False)
    for stop in (False, True):
        met("met-%d" % stop, stop=stop)


def without_shim():
    """Who has no shim sees the old file until the new one is there."""
    box = Box("plain")
    path = os.path.join(box.d, "f.pt")
    a, b = Player(box, True), Player(box, False)
    a.do("open", 0, path, W), a.do("write", 0, 2 * MIB, 1), a.do("close", 0)
    box.wait()
    a.do("open", 0, path, W), a.do("write", 0, 3 * MIB, 2)
    assert b.do("stat", path) == str(2 * MIB)
    a.do("close", 0)
    box.wait()
    assert b.do("stat", path) == str(3 * MIB)
    a.end(), b.end()


def named():
    """The name that another process's call gives to the file shows all of it, also to who has no shim."""
    box = Box("named")
    for k, call in enumerate((("link", "f.pt", "g.pt"), ("mode", ".", 0o755))):
        a, b, plain = Player(box, True), Player(box, True), Player(box, False)
        name = os.path.join(box.d, "f.pt" if k else "g.pt")
        a.do("open", 0, "f.pt", W), a.do("write", 0, 3 * MIB, 1)
        assert b.do(*call) == "None"
        assert plain.do("stat", name) == str(3 * MIB), call
        plain.do("open", 0, name, RW), plain.do("pwrite", 0, 2 * MIB, 80, 7)
        said = plain.do("read", 0)
        assert a.do("write", 0, 800, 2) == "800" and a.do("close", 0) == "None"
        plain.do("cut", 0, 3 * MIB)
        assert plain.do("read", 0) == said, call
        for p in (a, b, plain):
            p.end()
        box.wait()
        for n in os.listdir(box.d):
            os.unlink(os.path.join(box.d, n))


def killed():
    """The owner, the reader and the engine, in the middle."""
    box = Box("killed")
    for who in ("owner", "reader", "engine", "engine and owner"):
        a, b = Player(box, True), Player(box, True)
        a.do("open", 0, "f.pt", W), a.do("write", 0, 3 * MIB, 1)
        a.p.send_signal(signal.SIGSTOP)
        b.p.stdin.write(repr(("open", 0, "f.pt", RW)) + "\n" + repr(("read", 0)) + "\n")
        b.p.stdin.flush()
        time.sleep(random.random() * 0.01)
        if "engine" in who:
            os.kill(box.status()["engine_pid"], signal.SIGKILL)
        if who == "reader":
            b.p.kill()
        if "owner" in who:
            a.p.kill()
        a.p.send_signal(signal.SIGCONT)
        if who != "reader":
            said = b.p.stdout.readline().strip(), b.p.stdout.readline().strip()
            whole = said[0] == "None" and said[1].startswith("(%d," % (3 * MIB))
            assert whole or ("owner" in who and said[0] == "'No such file or directory'"), "%s: %s" % (who, said)
            b.p.kill()
        if "owner" not in who:
            assert a.do("write", 0, 800, 2) == "800"
            assert a.do("close", 0) == "None"
            a.end()
        w = box.wait()
        assert w.rc == 0, repr(w)
        there = os.path.exists(os.path.join(box.d, "f.pt"))
        assert there == ("owner" not in who), "%s: %s" % (who, there)
        eventually("nobody holds a chunk", lambda: box.status()["staging_used"] == 0)
        if there:
            assert os.path.getsize(os.path.join(box.d, "f.pt")) == 3 * MIB + 800, who
            os.unlink(os.path.join(box.d, "f.pt"))


if __name__ == "__main__":
    run_cases([("hands-" + f.__name__, f) for f in
               (seen, stays, in_turns, at_any_instant, without_shim, named, killed)])
