#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# Proves what a watcher without the shim (inotify on the directory) notices of saves under it, and that a reader with it
# sees an open file grow. Natively a new file comes as IN_CREATE, IN_MODIFY, IN_CLOSE_WRITE, a renamed one as
# IN_MOVED_TO. Under the shim a new name comes as IN_CREATE and a replaced one as IN_MOVED_TO, once, with all its bytes.
# IN_CLOSE_WRITE of a replaced one follows that; of a new one it has a name like "#1234". Cannot see: fanotify, watches
# on the file itself.
# backends: uring threads
import ctypes
import os
import re
import select
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import fc  # noqa: E402

IN_CLOSE_WRITE, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x8, 0x80, 0x100, 0x200
WATCHED = IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE | IN_DELETE
libc = ctypes.CDLL(None, use_errno=True)

SAVER = """
import os, sys, time
def save(path, n, byte):
    with open(path, "wb") as f:
        f.write(byte * n)
def pause():
    time.sleep(float(sys.argv[1]))
save("new.bin", 3000000, b"a")
pause()
save("small.json", 30, b"b")
pause()
save("old.bin", 3000001, b"c")
pause()
save("t.tmp", 3000002, b"d")
os.rename("t.tmp", "renamed.bin")
pause()
save("latest", 7, b"e")
pause()
os.unlink("gone.bin")
pause()
save("last.bin", 10, b"f")
"""
COMPLETE = {"new.bin": (3000000, b"a"), "small.json": (30, b"b"), "old.bin": (3000001, b"c"), "latest": (7, b"e"),
            "renamed.bin": (3000002, b"d"), "last.bin": (10, b"f")}


class Watch:
    def __init__(self, d):
        self.d, self.seen, self.hidden = d, [], set()
        self.fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self.fd >= 0 and libc.inotify_add_watch(self.fd, d.encode(), WATCHED) >= 0

    def content(self, name):
        try:
            with open(os.path.join(self.d, name), "rb") as f:
                b = f.read()
        except FileNotFoundError:
            return None
        return (len(b), b[:1]) if b == b[:1] * len(b) else "mixed"

    def look(self, seconds):
        """Adds (mask, name, content at that moment) of what comes."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        b = os.read(self.fd, 1 << 16)
        at = 0
        while at < len(b):
            _, mask, _, n = struct.unpack_from("iIII", b, at)
            name = b[at + 16:at + 16 + n].rstrip(b"\0").decode()
            at += 16 + n
            if name.startswith(".fastckpt"):
                self.hidden.add(name)
            elif not name.startswith("#"):
                self.seen.append((mask & WATCHED, name, self.content(name)))
        return True

    def until(self, process, closed):
        """Until the last file is there, the program has ended, and `closed` has been closed by whoever writes it."""
        def last():
            return any(n == "last.bin" and (m != IN_CREATE or c == COMPLETE[n]) for m, n, c in self.seen)
        end = time.monotonic() + 30
        while not last() or closed not in self.notices(IN_CLOSE_WRITE):
            self.look(0.1)
            assert time.monotonic() < end, "last.bin, or the close of %s, is never noticed: %s" % (closed, self.seen)
        process.wait(20)
        while self.look(0.2):
            pass

    def notices(self, mask):
        return [n for m, n, _ in self.seen if m & mask]


def watched(box, shim, pause):
    d = box.d if shim else box.native_d
    for n in ("old.bin", "gone.bin"):
        fc.write_file(os.path.join(d, n), 100)
        box.own(os.path.join(d, n))
    w = Watch(d)
    p = box.start([fc.PYTHON, "-c", SAVER, str(pause)], cwd=d, shim=shim)
    w.until(p, "old.bin" if shim else "last.bin")  # the engine closes it when it gets to it, behind later names, too
    return w


def natively(box):
    w = watched(box, False, 0)
    closed = [n for n in w.notices(IN_CLOSE_WRITE)]
    assert closed == ["new.bin", "small.json", "old.bin", "t.tmp", "latest", "last.bin"], closed
    assert w.notices(IN_CREATE) == ["new.bin", "small.json", "t.tmp", "latest", "last.bin"], w.seen
    assert w.notices(IN_MOVED_TO) == ["renamed.bin"], w.seen


def each_noticed(box, pause):
    """Each name once, complete at that moment, in the order of the program."""
    w = watched(box, True, pause)
    assert w.notices(IN_MOVED_TO) == ["old.bin", "renamed.bin"], w.seen
    created = [n for n in w.notices(IN_CREATE) if n != "t.tmp"]
    assert created == ["new.bin", "small.json", "latest", "last.bin"], w.seen
    assert w.notices(IN_DELETE) == ["gone.bin"], w.seen
    assert w.hidden and all(re.fullmatch("\\.fastckpt-[0-9a-f]+", n) for n in w.hidden), w.hidden
    for m, n, content in w.seen:
        if m & (IN_CREATE | IN_MOVED_TO) and n != "t.tmp":
            assert content == COMPLETE[n], "%s is noticed with %s, not %s" % (n, content, COMPLETE[n])
    closed = [(n, c) for m, n, c in w.seen if m & IN_CLOSE_WRITE and n != "t.tmp"]
    assert closed == [("old.bin", COMPLETE["old.bin"])], "IN_CLOSE_WRITE: %s; all: %s" % (closed, w.seen)
    order = [n for m, n, _ in w.seen if m & (IN_CREATE | IN_MOVED_TO) and n != "t.tmp"]
    assert order == ["new.bin", "small.json", "old.bin", "renamed.bin", "latest", "last.bin"], order


WATCH_OWN = """
import ctypes, os, select
libc = ctypes.CDLL(None, use_errno=True)
with open("m.bin", "wb") as f:
    f.write(b"m" * 3000000)
fd = libc.inotify_init1(os.O_NONBLOCK)
print(libc.inotify_add_watch(fd, b"m.bin", 0xfff) > 0, os.strerror(ctypes.get_errno()))
with open("m.bin", "ab") as f:
    f.write(b"more")
print(select.select([fd], [], [], 5)[0] != [])
"""


def own_name(box):
    """A watch on a name that the program has just saved is one on the published inode."""
    r = box.run([fc.PYTHON, "-c", WATCH_OWN])
    assert r.rc == 0 and r.out == "True Success\nTrue\n", r


GROWING = """
import sys
f = open("grows.txt", "w")
for i in range(4):
    f.write("line %d\\n" % i * 1000)
    f.flush()
    print(f.tell(), flush=True)
    sys.stdin.readline()
"""
READER = "import sys; b = open('grows.txt').read(); print(len(b), b[-7:].strip())"


def reader_sees_it_grow(box):
    """Another process with the shim reads what is open and below 1 MiB, each time all of it; killed, the old one is."""
    import subprocess
    p = box.start([fc.PYTHON, "-c", GROWING], stdin=subprocess.PIPE)
    for i in range(4):
        size = int(p.stdout.readline())
        r = box.run([fc.PYTHON, "-c", READER])
        assert r.out == "%d line %d\n" % (size, i), (size, r)
        assert not os.path.exists(os.path.join(box.d, "grows.txt")), "without the shim it is not there yet"
        if i < 3:
            p.stdin.write("\n")
            p.stdin.flush()
    p.kill()
    p.wait()
    box.wait()
    assert not os.path.exists(os.path.join(box.d, "grows.txt")), "an unfinished file that is no log is dropped"


def main():
    box = fc.Box("watchers", uid=fc.USER)
    fc.run_cases([
        ("watch-natively", lambda: natively(box)),
        ("watch-each-noticed", lambda: each_noticed(box, 0.2)),
        ("watch-without-pauses", lambda: each_noticed(fc.Box("dense", uid=fc.USER), 0)),
        ("watch-own-name", lambda: own_name(box)),
        ("watch-reader-sees-it-grow", lambda: reader_sees_it_grow(box)),
    ])


main()
