#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 100
#
# Proves that a program can go on with a file that is closed and not yet published (append, r+, zip and HDF5 in append
# mode, memmap, times) without a wait for what was closed before, that nothing is lost when it or the engine is killed
# meanwhile, and that a stranger's later file of such a name stays. How: jobs on a throttled disk behind a large save,
# natively and under the shim. Cannot see a machine that dies: what is written to a name that is not a whole new file
# has no such promise.

import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from disks import LoopFS  # noqa: E402

HEAD = """
import mmap, os, sys, time, zipfile
def say(*what): print(*what, flush=True)
def save(name, size):
    with open(name, 'wb', buffering=0) as f:
        for i in range(0, size, 1 << 20):
            f.write(b'%015d.' % i * (min(1 << 20, size - i) // 16))
def look(f, name):
    a, b = os.fstat(f.fileno()), os.stat(name)
    say(name, a.st_size, b.st_size, a.st_nlink, b.st_nlink, a.st_ino == b.st_ino)
"""
WAYS = HEAD + """
import h5py, numpy
for old in (False, True):
    save('big', 12 << 20)
    save('a', 800)
    with open('a', 'ab') as f:
        f.write(b'more'); look(f, 'a'); f.flush(); look(f, 'a')
        with open('a', 'r+b') as g:
            g.write(b'HEAD'); look(g, 'a')
        say(open('a', 'rb').read()[:10])
    save('b', 6 << 20)
    with open('b', 'r+b') as f:
        look(f, 'b'); f.write(b'HEAD'); f.seek(0, 2); f.write(b'tail')
        f.flush(); look(f, 'b')
    with zipfile.ZipFile('z', 'w') as z: z.writestr(zipfile.ZipInfo('one'), b'1' * 5000)
    with zipfile.ZipFile('z', 'a') as z: z.writestr(zipfile.ZipInfo('two'), b'2' * 5000)
    say(zipfile.ZipFile('z').namelist())
    numpy.arange(1000000).tofile('n')
    m = numpy.memmap('n', dtype='int64', mode='r+'); m[5] = 7; m[-1] = 8; m.flush(); say(m[5], m.sum())
    h5py.File('h0', 'w').close(); save('h', 0)
    with open('h0', 'rb') as f, open('h', 'wb') as g: g.write(f.read())
    with h5py.File('h', 'a') as h: h['x'] = numpy.arange(100)
    say(sum(h5py.File('h', 'r')['x']))
    save('t', 3 << 20); os.utime('t', (100000, 200000)); say(os.stat('t').st_mtime)
    with open('t', 'ab') as f: look(f, 't')
    say(os.stat('t').st_mtime)
    save('x', 2 << 20)
    f = open('x', 'ab'); save('x', 800); f.write(b'end'); f.close(); say(os.stat('x').st_size)
    save('y', 2 << 20)
    fd = os.open('y', os.O_RDWR | os.O_TRUNC); os.write(fd, b'short'); say(os.stat('y').st_size); os.close(fd)
    save('u', 900)
    f = open('u', 'ab'); os.unlink('u'); f.write(b'x'); f.flush(); say(os.fstat(f.fileno()).st_nlink); f.close()
    for flags in (os.O_CREAT | os.O_EXCL, os.O_DIRECTORY, os.O_NOFOLLOW):
        save('e', 900)
        try: os.close(os.open('e', os.O_RDWR | flags)); say('opened')
        except OSError as e: say(e.strerror)
    save('m', 800); os.chmod('m', 0o400)
    try: open('m', 'ab').close(); say('opened')
    except OSError as e: say(e.strerror)
    os.chmod('m', 0o600)
    save('p', 800)
    if os.fork() == 0:
        with open('p', 'ab') as f: f.write(b'child')
        os._exit(0)
    os.wait()
    with open('p', 'ab') as f: f.write(b'parent'); f.flush(); look(f, 'p')
"""
QUICK = HEAD + """
save('big', 24 << 20)
save('a', 800)
before = time.monotonic()
with open('a', 'ab') as f: f.write(b'more'); look(f, 'a')
say(time.monotonic() - before)
"""
KILLED = HEAD + """
save('big', 16 << 20)
save('a', 800)
f = open('a', 'ab', buffering=0)
f.write(b'more')
say('written')
sys.stdin.readline()
f.write(b' and more')
f.close()
"""

STRANGER = HEAD + """
for name in ('new', 'old'):
    f = open(name, 'wb'); f.write(b'first'); f.close()
save('big', 16 << 20)
for name in ('new', 'old', 'late'):
    os.path.exists(name)
    f = open(name, 'wb'); f.write(b'ours'); f.close()
f = open('before', 'wb'); f.write(b'ours')
say('closed')
sys.stdin.readline()
f.close()
"""


class Rig:
    """A box on a slow disk."""

    def __init__(self, name, io, uid):
        self.fs = LoopFS(name + "-fs", 400)
        self.box = Box(name, base=os.path.join(self.fs.at, "b"), io=io, uid=uid)
        self.fs.throttle(40 * MIB)

    def close(self):
        self.fs.throttle(0)
        self.box.close()
        self.fs.free()


def with_rig(fn, io, uid):
    rig = Rig("%s-%s" % (fn.__name__, io), io, uid)
    try:
        fn(rig, rig.box)
    finally:
        rig.close()


def ways(rig, box):
    n = box.native([PYTHON, "-c", WAYS])
    r = box.run([PYTHON, "-c", WAYS])
    assert n.rc == 0 and r.rc == 0, "natively %r, with it %r" % (n, r)
    for a, b in zip(n.out.splitlines(), r.out.splitlines()):
        assert a == b, "%r, natively %r" % (b, a)
    assert n.out == r.out and not r.messages() and r.failures() == 0, repr(r)
    rig.fs.throttle(0)
    compare_trees(box.native_d, box.d, ignore=("h0",))
    assert not box.leftovers(), box.leftovers()


def quick(rig, box):
    rig.fs.throttle(12 * MIB)  # "big" takes two seconds
    for k in range(3):
        r = box.run([PYTHON, "-c", QUICK])
        look, took = r.out.splitlines()
        assert r.rc == 0 and look == "a 800 800 1 1 True", repr(r)
        assert r.classes() == (1, 1, 1), "%s %r" % (r.classes(), r)
        if float(took) < 0.8 and r.seconds > 1.5:
            return
        box.let_go("big"), box.let_go("a")
    raise AssertionError("an append waited %s s for what was closed before" % took)


def killed(rig, box):
    """The program, or the engine, or both, between two writes to a file taken back."""
    for who in ("job", "engine", "both"):
        rig.fs.throttle(4 * MIB)
        p = box.start([PYTHON, "-c", KILLED], stdin=-1)
        assert p.stdout.readline() == "written\n", p.stderr.read()
        s = box.status()
        assert s["pending_files"] >= 2, "%s: nothing was pending: %s" % (who, s)
        if who != "job":
            os.kill(s["engine_pid"], signal.SIGKILL)
        rig.fs.throttle(0)
        if who == "engine":
            p.communicate("go\n")
        else:
            p.kill()
            p.wait()
        w = box.wait()
        assert w.rc == 0, repr(w)
        with open(os.path.join(box.d, "a"), "rb") as f:
            text = f.read()[800:]
        assert text == (b"more and more" if who == "engine" else b"more"), "%s: %r" % (who, text)
        size = os.path.getsize(os.path.join(box.d, "big"))
        assert size == 16 * MIB, "%s: %d bytes; %s" % (who, size, box.engine_log())
        for n in os.listdir(box.d):
            os.unlink(os.path.join(box.d, n))
    s = box.status()
    assert s["failures"] == 0, "%s %s" % (s, box.engine_log())


def stranger(rig, box):
    """Somebody without the shim makes a file of a name that is pending: the later one stays, as natively."""
    rig.fs.throttle(4 * MIB)
    p = box.start([PYTHON, "-c", STRANGER], stdin=-1)
    assert p.stdout.readline() == "closed\n", p.stderr.read()
    time.sleep(0.02)
    for name in ("old", "late", "before"):
        with open(os.path.join(box.d, "tmp"), "w") as f:
            f.write("theirs")
        os.rename(os.path.join(box.d, "tmp"), os.path.join(box.d, name))
    assert box.status()["pending_files"] >= 3, "nothing was pending any more"
    rig.fs.throttle(0)
    time.sleep(0.02)
    p.communicate("go\n")
    assert p.returncode == 0 and box.wait().rc == 0
    got = {}
    for name in ("new", "old", "late", "before"):
        with open(os.path.join(box.d, name)) as f:
            got[name] = f.read()
    assert got == {"new": "ours", "old": "theirs", "late": "theirs", "before": "ours"}, got
    assert "late: not published" in box.engine_log() and not box.leftovers(), box.engine_log()


run_cases([("%s-%s" % (fn.__name__, io), lambda fn=fn, io=io, uid=uid: with_rig(fn, io, uid))
           for fn in (ways, quick, killed, stranger) for io, uid in (("uring", None), ("threads", USER))])
