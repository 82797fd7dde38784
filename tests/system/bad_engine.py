#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
#
# Proves that an engine that is stopped, that strangers talk nonsense to, or that ends early costs no bytes and no hang.
# How: SIGSTOP, random and nearly right datagrams (with descriptors) into its socket, SIGTERM in mid-save. Cannot see
# attacks by the same user with a debugger.

import errno
import os
import random
import re
import signal
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

SAVER = victim("saver")


def started(box):
    r = box.run([SAVER, "-p", "first.pt", "-s", "8M", "-n", "1"])
    assert r.rc == 0 and r.classes() == (1, 0, 0), repr(r)
    s = box.status()
    assert s, "no engine"
    return s


def stopped():
    """Opens go native within 2 s; who waits says for what; the engine goes on afterwards."""
    box = Box("stopped")
    p = box.start([victim("ops"), "o:0:wct:644:wait.pt", "W:0:9M:1", "y:go", "i", "f:0", "c:0"], stdin=-1)
    while p.stdout.readline().strip() != "go":
        assert p.poll() is None
    known = box.start([victim("ops"), "o:0:wct:644:first.pt", "c:0", "y:go", "i", "o:0:wct:644:later.pt", "c:0"],
                      stdin=-1)
    while known.stdout.readline().strip() != "go":
        assert known.poll() is None
    s = box.status()
    for pid in (s["engine_pid"], s["keeper_pid"]):
        os.kill(pid, signal.SIGSTOP)
    try:
        for x in (p, known):
            x.stdin.write("\n"), x.stdin.flush()
        r = box.ops("T", "o:0:wct:644:native.pt", "T", "W:0:9M:2", "c:0", "S:native.pt", "o:0:wct:644:again.pt", "T",
                    timeout=30)
        assert r.rc == 0 and r.lines()[1:3] == ["writes=%d" % (9 * MIB), "close=0"], repr(r)
        assert r.ms()[1] < 5000, "the open took %d ms" % r.ms()[1]
        assert r.classes() == (0, 0, 0), r.err
        assert os.path.getsize(box.d + "/native.pt") == 9 * MIB, "it is not there natively"
        assert r.messages(), "nothing says why it is native"
        eventually("who was its client opens natively, too", lambda: os.path.exists(box.d + "/later.pt"))
        said = ""  # after ten seconds
        while "wait" not in said:
            said = p.stderr.readline()
            assert said, "no line says what it waits for: %r" % p.stdout.read()
        assert "fastckpt" in said and p.poll() is None, "fsync did not wait: %r %r" % (said, p.stdout.read())
    finally:
        for pid in (s["engine_pid"], s["keeper_pid"]):
            os.kill(pid, signal.SIGCONT)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0 and "fsync=0" in out and "close=0" in out, (p.returncode, out, err)
    out, err = known.communicate(timeout=60)
    assert known.returncode == 0, (out, err)
    assert err.count("later.pt: opened natively") == 1, "nothing says why it is native: %r" % err
    box.wait()
    assert os.path.getsize(box.d + "/wait.pt") == 9 * MIB
    r = box.run([SAVER, "-p", "m.pt", "-s", "8M", "-n", "1"])
    assert r.classes() == (1, 0, 0), "not captured any more: %s" % r.err


def sockets(box):
    found = [n for n in os.listdir(box.rt) if n.endswith(".sock")]
    assert found, os.listdir(box.rt)
    return found


def talk(box, datagrams, fds=()):
    """Sends datagrams, each batch of eight on a connection of its own. Names are relative: sun_path is short."""
    here = os.getcwd()
    os.chdir(box.rt)
    try:
        for name in sockets(box):
            s = None
            for i, d in enumerate(datagrams):
                if i % 8 == 0:
                    s and s.close()
                    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    s.settimeout(30)
                    s.connect(name)
                try:
                    if fds and i % 3 == 0:
                        socket.send_fds(s, [d], list(fds))
                    else:
                        s.send(d)
                except OSError:  # it hung up on us, as it should
                    s.close()
                    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    s.settimeout(30)
                    s.connect(name)
            s and s.close()
    finally:
        os.chdir(here)


def protocol():
    with open(os.path.join(ROOT, "core", "protocol.h")) as f:
        return f.read()


def magic():
    """protocol.h's MSG_MAGIC."""
    return int(re.search(r"MSG_MAGIC\s+(0x[0-9a-fA-F]+)", protocol()).group(1), 16)


def garbage():
    box = Box("garbage")
    before = started(box)
    rng = random.Random(11)
    sizes = (1, 3, 4, 8, 40, 47, 48, 49, 100, 500, 1000, 4000, 20000, 100000)
    data = [rng.randbytes(n) for n in sizes for _ in range(3)]
    data += [b"\0" * n for n in (1, 48, 200)] + [b"\xff" * n for n in (1, 48, 200)]
    # Nearly right: the magic and each type, the length of a body or any, and random contents.
    m = magic()
    for t in range(40):
        for n in (0, 16, 56, 300, 312, 600, 1000):
            data.append(struct.pack("<IHH", m, t, rng.randrange(4)) + rng.randbytes(n))
            data.append(struct.pack("<IHH", m, t, 0) + b"\0" * n)
    null = os.open("/dev/null", os.O_RDWR)
    talk(box, data)
    talk(box, data, fds=(null, null, null))
    os.close(null)
    after = box.status()
    assert after and after["engine_pid"] == before["engine_pid"], "the engine died: %s, before %s" % (after, before)
    r = box.run([SAVER, "-p", "m-%d.pt", "-s", "8M", "-n", "3"])
    assert r.rc == 0 and r.classes() == (3, 0, 0), repr(r)
    box.wait()
    got = check_saves(os.path.join(box.d, n) for n in ("first.pt", "m-1.pt", "m-2.pt", "m-3.pt"))
    assert all(v[0] == "whole" for v in got.values()), got
    eventually("only real clients are left", lambda: box.status()["clients"] <= 1)
    fds = len(os.listdir("/proc/%d/fd" % after["engine_pid"]))
    assert fds < 100, "%d descriptors are left in the engine" % fds


TYPES = re.findall(r"^    MSG_(\w+)", protocol().split("enum msg_type")[1].split("};")[0], re.M)
HELLO, FAILURES = TYPES.index("HELLO"), TYPES.index("FAILURES")


def head(kind):
    return struct.pack("<IHHQQIiQ", magic(), kind, 0, 1, 0, 0, 0, 0)


def hello(box, pidfd, tool):
    """Says hello with this descriptor. The connection, the answer's result, how many descriptors came with it."""
    here = os.getcwd()
    os.chdir(box.rt)
    try:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.settimeout(30)
        s.connect(sockets(box)[0])
    finally:
        os.chdir(here)
    socket.send_fds(s, [head(HELLO) + struct.pack("<IiIIQQ", magic(), os.getpid(), tool, 0, 0, 0)], [pidfd])
    answer, given, _, _ = socket.recv_fds(s, 4096, 8)
    for fd in given:
        os.close(fd)
    kind, result = struct.unpack_from("<H", answer, 4)[0], struct.unpack_from("<i", answer, 28)[0]
    assert kind == HELLO, answer[:40]
    return s, result, len(given)


def needless_descriptors():
    """Questions that have none, sent with three descriptors each: the engine keeps none of them."""
    box = Box("needless")
    before = started(box)
    fds = lambda: len(os.listdir("/proc/%d/fd" % before["engine_pid"]))  # noqa: E731
    null, pidfd = os.open("/dev/null", os.O_RDWR), os.pidfd_open(os.getpid())
    s, *answer = hello(box, pidfd, 1)
    assert answer == [0, 3], answer
    had = fds()
    for _ in range(50):
        socket.send_fds(s, [head(FAILURES) + bytes(720)], [null, null, null])
        assert struct.unpack_from("<H", s.recv(4096), 4)[0] == FAILURES
    assert fds() < had + 20, "%d descriptors, %d before" % (fds(), had)
    os.close(null), os.close(pidfd), s.close()


def nobody_unwatched():
    """Who sends something else than a pidfd is no client: of its end the engine would never hear, and stay for ever."""
    box = Box("unwatched")
    before = started(box)
    null, pidfd = os.open("/dev/null", os.O_RDWR), os.pidfd_open(os.getpid())
    for fd, want in ((null, [-errno.EPERM, 0]), (pidfd, [0, 3])):
        clients = eventually("the others are gone", lambda: (lambda s: not s["clients"] and s)(box.status()))
        s, *answer = hello(box, fd, 0)
        assert answer == want, (answer, want)
        assert box.status()["clients"] == clients["clients"] + (not want[0]), box.status()
        s.close()
    os.close(null), os.close(pidfd)
    assert box.status()["engine_pid"] == before["engine_pid"]


def idle_connections():
    """Strangers that connect and say nothing, or hang up at once, do not keep others out."""
    box = Box("idle")
    started(box)
    here = os.getcwd()
    os.chdir(box.rt)
    try:
        held = []
        for _ in range(300):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.setblocking(False)
            try:
                s.connect(sockets(box)[0])
            except OSError:
                pass
            held.append(s)
    finally:
        os.chdir(here)
    r = box.run([SAVER, "-p", "m.pt", "-s", "8M", "-n", "1"])
    assert r.rc == 0 and r.seconds < 15, repr(r)
    for s in held:
        s.close()
    r = box.run([SAVER, "-p", "n.pt", "-s", "8M", "-n", "1"])
    assert r.rc == 0 and r.classes() == (1, 0, 0), repr(r)
    box.wait()
    got = check_saves([box.d + "/m.pt", box.d + "/n.pt"])
    assert all(v[0] == "whole" for v in got.values()), got


def terminated():
    """SIGTERM, SIGINT and SIGHUP do not end it while somebody saves, and it leaves when nobody is left."""
    box = Box("terminated")
    p = box.start([SAVER, "-p", "m-%d.pt", "-s", "16M", "-n", "10", "-t", "100"])
    eventually("an engine", box.status)
    s = box.status()
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        for pid in (s["keeper_pid"], s["engine_pid"]):
            os.kill(pid, sig)
        time.sleep(0.1)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0, out + err
    got = check_saves(os.path.join(box.d, "m-%d.pt" % i) for i in range(1, 11))
    assert all(v[0] == "whole" for v in got.values()), got
    r = fc_report(err)
    assert r == (10, 0, 0), err
    eventually("both have left", lambda: not alive(s["engine_pid"]) and not alive(s["keeper_pid"]), 30)


def fc_report(err):
    import fc
    return fc.Result(0, "", err, 0).classes()


def leaves_when_idle():
    """Ten seconds without clients and work, and nothing is left but its log."""
    box = Box("leaves")
    s = started(box)
    eventually("it leaves", lambda: not alive(s["engine_pid"]) and not alive(s["keeper_pid"]), 30, 0.2)
    r = box.run([SAVER, "-p", "m.pt", "-s", "8M", "-n", "1"])
    assert r.rc == 0 and r.classes() == (1, 0, 0), repr(r)


run_cases([(f.__name__, f) for f in (garbage, needless_descriptors, nobody_unwatched, idle_connections, terminated,
                                     leaves_when_idle, stopped)])
