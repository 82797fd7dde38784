#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 240
#
# Proves that a full disk is told by the write that hits it, that EIO is told by the next call or, after close, loudly,
# and that the old file stays in each case; and that what fits natively fits: the last MiB of XFS, files with holes.
# How: ext4 on a small loop device and on one that fails on demand (victims/faulty.c), as root and as a user, on both
# backends; small ext4, XFS and btrfs. Cannot see errors that a disk reports late or never.

import errno
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
import fc  # noqa: E402
from disks import BrokenFS, LoopFS  # noqa: E402

SAVER = victim("saver")


def whole(box, name="m.pt"):
    return check_saves([os.path.join(box.d, name)])[os.path.join(box.d, name)]


def old_save(box, name="m.pt", size="12M", seq=1):
    r = box.native([SAVER, "-p", name, "-s", size, "-n", "1", "-F", str(seq)], cwd=box.d)
    assert r.rc == 0, repr(r)
    sync_disk(box.d)


def full(name, who, io, fn):
    fs = LoopFS(name + "-fs", 96)
    box = Box(name, base=os.path.join(fs.at, "b"), uid=WHO[who], io=io, STAGING="128M")
    try:
        fn(fs, box)
        assert not box.leftovers(), box.leftovers()
    finally:
        box.close()
        fs.free()


def full_over_old(fs, box):
    ops = ["o:0:wct:644:m.pt"] + ["w:0:8M:2"] * 16 + ["c:0"]
    old_save(box)
    before = fs.free_bytes()
    r = box.ops(*ops)
    assert r.rc == 0 and "write=ENOSPC" in r.lines(), repr(r)
    taken = sum(int(l[6:]) for l in r.lines() if l.startswith("write=") and l[6:].isdigit())
    assert taken > 0.8 * before, "ENOSPC after %d MiB, with %d MiB free" % (taken // MIB, before // MIB)
    assert not [l for l in r.lines() if l.startswith("write=E") and l != "write=ENOSPC"], r.out
    box.wait()
    assert whole(box) == ("whole", 1), whole(box)
    eventually("its space is free again", lambda: fs.free_bytes() >= before - 2 * MIB)
    assert box.run([SAVER, "-p", "m.pt", "-s", "16M", "-n", "1", "-F", "2"]).rc == 0
    box.wait()
    assert whole(box) == ("whole", 2), whole(box)


def full_new_name(fs, box):
    old_save(box, "other.pt")
    before = fs.free_bytes()
    r = box.run([SAVER, "-p", "n-%d.pt", "-s", "200M", "-n", "1", "-F", "7"])
    assert "failed 7 n-7.pt ENOSPC" in r.out, repr(r)
    box.wait()
    # Natively a part would be left under the name. Under the shim it is not there, or it is a failed save's own part.
    assert whole(box, "n-7.pt")[0] == "absent", whole(box, "n-7.pt")
    assert whole(box, "other.pt") == ("whole", 1)
    eventually("its space is free again", lambda: fs.free_bytes() >= before - 2 * MIB)


def full_then_room(fs, box):
    """The job goes on: after room is made the next save of the same process succeeds."""
    old_save(box)
    write_file(os.path.join(fs.at, "filler"), fs.free_bytes() - 12 * MIB)
    os.chmod(fs.at, 0o777)
    os.chmod(os.path.join(fs.at, "filler"), 0o666)
    filler = os.path.join(fs.at, "filler")
    r = box.ops("o:0:wct:644:m.pt", "W:0:30M:2", "c:0", "u:" + filler, "o:0:wct:644:n.pt", "W:0:30M:3", "c:0", "S:n.pt",
                "o:0:wct:644:m.pt", "W:0:20M:4", "c:0")
    l = r.lines()
    assert l[1] == "writes=ENOSPC" and l[4:7] == ["open=0", "writes=%d" % (30 * MIB), "close=0"], repr(r)
    box.wait()
    assert os.path.getsize(os.path.join(box.d, "n.pt")) == 30 * MIB
    assert os.path.getsize(os.path.join(box.d, "m.pt")) == 20 * MIB, "the save after the failed one did not arrive"


def reserved_ahead(fs, box):
    """What fits natively fits: space reserved ahead for saves that wait for a slow disk is not missing to others."""
    fs.throttle(8 * MIB)
    r = box.run([SAVER, "-p", "m-%d.pt", "-s", "9M", "-n", "7"], timeout=60)
    fs.throttle(0)
    assert "failed" not in r.out and r.rc == 0, "63 of %d MiB: %r" % (fs.free_bytes() // MIB, r)
    box.wait()
    assert all(whole(box, "m-%d.pt" % i) == ("whole", i) for i in range(1, 8))


def no_inodes(fs, box):
    """Not even an inode is left for what is to replace an older file: the open says so, and the old file stays."""
    old_save(box)
    many = os.path.join(fs.at, "many")
    os.mkdir(many)
    for i in range(os.statvfs(fs.at).f_ffree):
        os.close(os.open(os.path.join(many, str(i)), os.O_CREAT | os.O_WRONLY))
    r = box.ops("o:0:wct:644:m.pt")
    assert r.lines()[:1] == ["open=ENOSPC"], repr(r)
    assert whole(box) == ("whole", 1), whole(box)
    os.unlink(os.path.join(many, "0"))
    r = box.run([SAVER, "-p", "m.pt", "-s", "16M", "-n", "1", "-F", "2"])
    assert r.rc == 0 and box.wait().rc == 0 and whole(box) == ("whole", 2), repr(r)


FILL = """
import os, sys
f, left, piece = os.open('m.pt', os.O_WRONLY | os.O_CREAT | os.O_TRUNC), int(sys.argv[1]), os.urandom(1 << 20)
for call in ('write', 'fsync', 'close'):
    try:
        while call == 'write' and left:
            left -= os.write(f, piece[:left])
        if call == 'fsync' and sys.argv[2:]:
            os.fsync(f)
        if call == 'close':
            os.close(f)
    except OSError as e:
        print(call, e.errno)
print(int(sys.argv[1]) - left)
"""


def xfs_nearly_full(name, io):
    """XFS wants space to extend what is reserved already: what fits natively fits, and the write alone says not."""
    fs = LoopFS(name + "-fs", 320, "xfs")
    box = Box(name, base=os.path.join(fs.at, "b"), io=io, STAGING="128M", RETRY=0)

    def fill(run, d, size, *more):
        out = run([PYTHON, "-c", FILL, str(size), *more], cwd=d).out.split()
        box.wait()
        there = os.path.exists(d + "/m.pt") and os.path.getsize(d + "/m.pt")
        if there is not False:
            os.unlink(d + "/m.pt")
        sync_disk(fs.at)
        eventually("its space is free again", lambda: fs.free_bytes() >= before - MIB)
        return out, there

    try:
        before = fs.free_bytes()
        out, _ = fill(box.native, box.native_d, 1 << 40)
        assert out[:2] == ["write", str(errno.ENOSPC)] and len(out) == 3, out
        most = int(out[2])
        for less, more in ((2 * MIB, ()), (MIB, ("fsync",)), (0, ())):
            found = fill(box.run, box.d, most - less, *more)
            assert found == ([str(most - less)], most - less), "%s %s of %d: %s" % (less, more, most, found)
        out, _ = fill(box.run, box.d, 1 << 40, "fsync")
        assert out[:2] == ["write", str(errno.ENOSPC)] and len(out) == 3 and int(out[2]) > most - MIB, (out, most)
    finally:
        box.close()
        fs.free()


HOLES = """
import ctypes, os, random, subprocess, sys
libc = ctypes.CDLL(None)
def keep_size(f, off, n):
    assert libc.fallocate64(f, 1, ctypes.c_long(off), ctypes.c_long(n)) == 0
def opened(name):
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for mb in (1, 2, 3, 10, 30):
    f = opened('far-%d' % mb)
    os.pwrite(f, b'e' * 100, mb * 10 ** 6)
    os.close(f)
r = random.Random(int(sys.argv[1]))
for k in range(6):
    f = opened('many-%d' % k)
    for _ in range(r.randrange(2, 40)):
        os.lseek(f, r.randrange(12 << 20), 0)
        os.write(f, bytes([r.randrange(1, 256)]) * r.randrange(1, 1 << r.randrange(1, 21)))
    if k % 3 == 2:
        os.fsync(f)
    os.close(f)
f = opened('end')
os.write(f, b'x' * (2 << 20))
os.ftruncate(f, (9 << 20) + 5)
os.close(f)
for name, ask in (('asked', os.posix_fallocate), ('kept', keep_size)):
    f = opened(name)
    ask(f, 0, 8 << 20)
    os.pwrite(f, b'x' * 5000, (8 << 20) - 5000)
    os.close(f)
with open('old', 'wb') as f:
    f.write(b'o' * 100000)
subprocess.check_call(['cp', '--sparse=always', 'many-0', 'old'])
subprocess.check_call(['dd', 'status=none', 'if=many-1', 'of=dd', 'bs=64K', 'conv=sparse'])
"""


def holes(name, fs_name, io, stripes=False):
    """What a program has passed over takes no space, what it has asked for does, and no byte is lost for it."""
    seed = int(os.environ.get("SEED") or time.time_ns() % 1000000)
    fs = LoopFS(name + "-fs", 600, fs_name)
    if stripes:
        os.mkdir(fs.at + "/stripe")
    config = {"STRIPES": fs.at + "/stripe"} if stripes else {}
    box = Box(name, base=os.path.join(fs.at, "b"), io=io, STAGING="128M", **config)
    try:
        for run, d in ((box.native, box.native_d), (box.run, box.d)):
            r = run([PYTHON, "-c", HOLES, str(seed)], cwd=d)
            assert r.rc == 0, "SEED=%d: %r" % (seed, r)
        box.wait()
        sync_disk(box.d)
        try:
            compare_trees(box.native_d, box.d)
        except AssertionError as e:
            raise AssertionError("SEED=%d: %s; %r" % (seed, e, r))
        for n in sorted(os.listdir(box.d)):
            natively, here = (os.stat(os.path.join(d, n)).st_blocks // 2 for d in (box.native_d, box.d))
            asked = n in ("asked", "kept")
            assert natively * asked <= here <= natively + (1024 if asked else 64), \
                "SEED=%d: %s takes %d KiB, natively %d" % (seed, n, here, natively)
    finally:
        box.close()
        fs.free()


def broken(name, who, io, fn):
    fs = BrokenFS(name + "-fs", 160)
    box = Box(name, base=os.path.join(fs.at, "b"), uid=WHO[who], io=io, STAGING="128M", RETRY=1 if io == "uring" else 0)
    try:
        fn(fs, box)
    finally:
        fs.faults()
        box.close()
        fs.free()


def paused(box, fs, before, after):
    """Runs ops; between the two lists (space is reserved, the first bytes are written) the disk begins to fail, but
    answers only behind the first close: what is before that is accepted before the error is known."""
    p = box.start([victim("ops")] + before + ["s:500", "y:now", "i"] + after, stdin=-1)
    out = []
    while not out or out[-1] != "now\n":
        out.append(p.stdout.readline())
        assert out[-1], "it ended: %s %s" % (out, p.stderr.read())
    fs.faults(errno.EIO, 60000)
    p.stdin.write("\n"), p.stdin.flush()
    while not out[-1].startswith("close="):
        out.append(p.stdout.readline())
        assert out[-1], "it ended: %s %s" % (out, p.stderr.read())
    fs.faults(errno.EIO)
    rest, err = p.communicate(timeout=60)
    return fc.Result(p.returncode, "".join(out) + rest, err, 0)


def eio_after_close(fs, box):
    old_save(box)
    r = paused(box, fs, ["o:0:wct:644:m.pt", "W:0:9M:1"], ["W:0:15M:2", "c:0"])
    assert r.lines()[-2:] == ["writes=%d" % (15 * MIB), "close=0"], "not after close: %r" % r
    told = [l for l in r.messages() if "m.pt" in l and "Input/output error" in l]
    assert told, "nothing is said on stderr: %r" % r.err
    assert "ops" in " ".join(told), "it does not say where the file was opened: %s" % told
    assert r.failures() == 1, r.err
    assert whole(box) == ("whole", 1), whole(box)
    assert "m.pt" in box.engine_log(), "the engine's log does not name it"
    s = box.status()
    assert s and s["failures"] >= 1, s
    assert s["pending_files"] == 0, s
    shown = box.command("status")
    assert "m.pt" in shown.out + shown.err, "fastckpt status does not name it: %r" % shown
    fs.faults()
    r = box.run([SAVER, "-p", "m.pt", "-s", "24M", "-n", "1", "-F", "3"])
    assert r.rc == 0 and r.failures() == 0, repr(r)
    assert whole(box) == ("whole", 3), "the disk works again, the save does not: %s" % (whole(box),)


def eio_before_close(fs, box):
    old_save(box)
    fs.faults(errno.EIO)
    for n, tail in enumerate((["w:0:4M:3", "f:0", "c:0"], ["f:0", "c:0"], ["c:0"]), 1):
        p = box.start([victim("ops"), "o:0:wct:644:m.pt", "w:0:24M:2", "i", *tail], stdin=-1)
        eventually("the error is known", lambda: (box.status() or {}).get("failures", 0) >= n, 30)
        out, err = p.communicate("\n", timeout=60)
        assert [l for l in out.splitlines()[2:] if l.endswith("=EIO")], "no EIO from %s: %s %s" % (tail, out, err)
        box.wait()
        assert whole(box) == ("whole", 1), whole(box)
        box.let_go("m.pt")


def eio_then_delete(fs, box):
    """What is behind a failed save: deletions and replacements are not carried out."""
    old_save(box, "ck-1.pt")
    old_save(box, "latest", "8K")
    r = paused(box, fs, ["o:0:wct:644:ck-2.pt", "W:0:9M:1"],
               ["W:0:15M:2", "c:0", "o:1:wct:644:latest", "W:1:2:3", "c:1", "u:ck-1.pt"])
    box.wait()
    assert whole(box, "ck-1.pt") == ("whole", 1), "ck-1.pt was deleted behind a failed save: %r" % r
    assert whole(box, "latest") == ("whole", 1), "latest was replaced behind a failed save: %r" % r
    assert [l for l in r.messages() if "ck-2.pt" in l], r.err


DEAF = """
import os, shutil, sys
def save(k):
    os.mkdir('ck-%d' % k)
    for n in 'ab':
        with open('ck-%d/%s.pt' % (k, n), 'wb') as f:
            f.write(bytes([k]) * (5 << 20))
for line in sys.stdin:
    k = int(line)
    try:
        save(k)
    except OSError as e:
        print('failed', e.errno, end=' ')
    shutil.rmtree('ck-%d' % (k - 3), ignore_errors=True)
    try:
        os.unlink('old-%d.pt' % k)
    except OSError as e:
        print('unlink', e.errno, end=' ')
    print('saved', k, flush=True)
"""


def complete(box):
    """The saves of DEAF that are whole."""
    found = []
    for k in range(1, 12):
        try:
            parts = [open("%s/ck-%d/%s.pt" % (box.d, k, n), "rb").read() for n in "ab"]
        except OSError:
            continue
        if parts == [bytes([k]) * (5 << 20)] * 2:
            found.append(k)
    return found


def eio_deaf(fs, box):
    """A program that ignores errors and goes on to delete: while its saves fail, the last good ones stay."""
    p = box.start([PYTHON, "-c", DEAF], stdin=-1)

    def save(k):
        p.stdin.write("%d\n" % k)
        p.stdin.flush()
        said = p.stdout.readline()
        assert said.endswith("saved %d\n" % k), "%r %s" % (said, p.poll())
        box.wait()
        return said

    def old(k):
        return "%s/old-%d.pt" % (box.d, k)

    for k in range(1, 12):
        write_file(old(k), 4096)
        box.own(old(k))
    for k in (1, 2, 3):
        save(k)
    sync_disk(box.d)
    fs.faults(errno.EIO)
    said = [save(k) for k in (4, 5, 6)]
    os.kill(box.status()["engine_pid"], 9)
    said.append(save(7))
    assert complete(box) == [1, 2, 3], "saves %s, said %s" % (complete(box), said)
    assert all("unlink 5 " in l for l in said[1:]) and all(os.path.exists(old(k)) for k in (4, 5, 6, 7)), said
    assert box.status()["broken"] == 1, box.status()
    text = box.command("status").out
    assert "nothing is deleted or replaced until" in text and os.path.join(box.d, "ck-") in text, text
    fs.faults()
    said = save(8)
    assert "unlink" not in said and not os.path.exists(old(8)), said
    assert box.status()["broken"] == 0, box.status()
    save(9), save(10), save(11)
    assert complete(box)[-3:] == [9, 10, 11] and 8 not in complete(box), complete(box)
    log = box.engine_log()
    assert log.count("nothing is deleted or replaced") == 1 and log.count("has been saved there") == 2, log
    p.communicate(timeout=60)


def eio_kill_in_fsync(fs, box):
    old_save(box)
    fs.faults(errno.EIO, 1200)
    p = box.start([SAVER, "-p", "m.pt", "-s", "24M", "-n", "1", "-F", "2", "-f"])
    eventually("begin", lambda: p.stdout.readline())
    time.sleep(0.4)
    p.kill()
    p.wait()
    r = box.wait(timeout=90)
    s = box.status()
    assert s is None or s["pending_files"] == 0, s
    assert whole(box) == ("whole", 1), "%s %s %r" % (whole(box), s, r)


CASES = []
turn = 0
for who in WHO:
    for maker, fns in ((full, (full_over_old, full_new_name, full_then_room, reserved_ahead, no_inodes)),
                       (broken, (eio_after_close, eio_before_close, eio_then_delete, eio_deaf, eio_kill_in_fsync))):
        for fn in fns:
            for io in ("uring", "threads"):
                if who == "user" and (turn := turn + 1) % 2:
                    continue  # as a user on one backend, in turn
                name = "%s-%s-%s" % (fn.__name__, who, io)
                CASES.append((name, lambda m=maker, n=name, w=who, i=io, f=fn: m(n, w, i, f)))
ALL = "SPACE_ALL" in os.environ
for io in ("uring", "threads")[:2 if ALL else 1]:
    CASES.append(("xfs_nearly_full-" + io, lambda n="xfs-" + io, i=io: xfs_nearly_full(n, i)))
for fs_name, io in (("xfs", "uring"), ("xfs", "threads"), ("ext4", "threads"), ("btrfs", "threads"))[:4 if ALL else 1]:
    name = "holes-%s-%s" % (fs_name, io)
    CASES.append((name, lambda n=name, f=fs_name, i=io: holes(n, f, i)))
CASES.append(("holes-stripes", lambda: holes("holes-stripes", "ext4", "uring", stripes=True)))
run_cases(CASES)
