#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 200
#
# Proves that deletions and renames are queued behind what was closed before them, that the job sees names as they will
# be meanwhile, with the kernel's errors, and that nobody else sees them early. How: a job in whose directory a large
# save is on its way to a slow disk, against the same job run natively. Cannot see orders after a power cut (powercut).

import errno
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from disks import disk_box  # noqa: E402

# Steps of a job, each a name and a function of no arguments. What it says is compared with the native run's.
JOB = r'''
import errno, os, shutil, sys, time

def save(name, mib, fill=b"x"):
    with open(name, "wb") as f:
        for _ in range(mib):
            f.write(fill * (1 << 20))

def small(name, fill=b"x"): # more would wait in the kernel for the slow disk, natively as well
    with open(name, "wb") as f:
        f.write(fill * 5000)

def of(call, *args, **kw):
    try:
        r = call(*args, **kw)
        return r if isinstance(r, (int, bool, str, bytes, type(None))) else type(r).__name__
    except OSError as e:
        return errno.errorcode.get(e.errno, e.errno)

def size(name):
    return of(lambda: os.stat(name).st_size)

def prepare():
    for n in "a.pt b.pt c.pt d.pt e.pt".split():
        save(n, 2, n[:1].encode())
    os.mkdir("dir"), save("dir/x.pt", 2), save("dir/y.pt", 2), os.mkdir("dir/sub"), save("dir/sub/z.pt", 1)
    os.mkdir("keep"), save("keep/x.pt", 1)
    os.mkdir("empty")
    os.symlink("b.pt", "link")
    os.symlink("nowhere", "dangling")
    os.link("c.pt", "c2.pt")
    open("lock", "w").close()
    save("mine.txt", 1)

STEPS = [
    ("unlink", lambda: of(os.unlink, "a.pt")),
    ("is gone", lambda: [os.path.exists("a.pt"), size("a.pt"), of(os.lstat, "a.pt"), of(os.access, "a.pt", os.R_OK)]),
    ("by any call", lambda: [of(os.chmod, "a.pt", 0o600), of(os.truncate, "a.pt", 0), of(os.utime, "a.pt"),
                             of(os.open, "a.pt", os.O_RDONLY), of(os.open, "a.pt", os.O_RDWR),
                             of(os.open, "a.pt", os.O_PATH), of(os.getxattr, "a.pt", "user.x"),
                             of(os.readlink, "a.pt"), of(os.unlink, "a.pt"), of(os.rename, "a.pt", "z"),
                             of(os.link, "a.pt", "z"), of(os.rmdir, "a.pt"), of(os.statvfs, "a.pt")]),
    ("saved again", lambda: [small("a.pt", b"A"), size("a.pt"), open("a.pt", "rb").read(3)]),
    ("and deleted", lambda: [of(os.remove, "a.pt"), os.path.exists("a.pt")]),
    ("rename", lambda: [of(os.rename, "b.pt", "b2.pt"), size("b.pt"), size("b2.pt"), open("b2.pt", "rb").read(3)]),
    ("and on", lambda: [of(os.rename, "b2.pt", "b3.pt"), size("b2.pt"), size("b3.pt"), of(os.stat, "link")]),
    ("over", lambda: [of(os.replace, "d.pt", "e.pt"), size("d.pt"), open("e.pt", "rb").read(3)]),
    ("tmp", lambda: [small("t.tmp", b"t"), of(os.replace, "t.tmp", "e.pt"), size("t.tmp"), size("e.pt")]),
    ("one inode", lambda: [of(os.rename, "c.pt", "c2.pt"), size("c.pt"), size("c2.pt")]),
    ("links", lambda: [of(os.unlink, "link"), os.path.lexists("link"), of(os.readlink, "link"),
                       of(os.unlink, "dangling"), os.path.lexists("dangling")]),
    ("link again", lambda: [small("link", b"l"), os.path.islink("link"), size("link"), size("b3.pt")]),
    ("not empty", lambda: [of(os.rmdir, "dir"), of(os.unlink, "dir")]),
    ("emptied", lambda: [of(os.unlink, "dir/x.pt"), of(os.rmdir, "dir"), of(os.unlink, "dir/y.pt"),
                         of(os.rmdir, "dir")]),
    ("deeper", lambda: [of(os.unlink, "dir/sub/z.pt"), of(os.rmdir, "dir/sub"), os.path.exists("dir/sub"),
                        of(os.rmdir, "dir")]),
    ("dir is gone", lambda: [os.path.exists("dir"), os.path.exists("dir/"), os.path.exists("dir/."), size("dir/x.pt"),
                             of(open, "dir/new.pt", "wb"), of(os.mkdir, "dir/new"), of(os.chdir, "dir"),
                             of(os.rmdir, "dir"), of(os.rename, "c.pt", "dir/c.pt"),
                             of(os.path.realpath, "dir", strict=True)]),
    ("made in it", lambda: [small("keep/new.pt"), of(os.unlink, "keep/x.pt"), of(os.rmdir, "keep")]),
    ("empty things", lambda: [of(os.rmdir, "empty"), os.path.exists("empty"), of(os.unlink, "lock")]),
    ("noreplace", lambda: [of(os.unlink, "nothing"), of(os.rmdir, "nothing"), of(os.rename, "nothing", "z")]),
]
LATE = [ # what may wait: space for staged bytes; a name that has to be gone for the kernel
    ("staged", lambda: [save("t.tmp", 3, b"T"), of(os.replace, "t.tmp", "e.pt"), size("t.tmp"), size("e.pt")]),
    ("directory", lambda: [of(os.mkdir, "full"), small("full/x"), of(os.rename, "keep", "full")]),
    ("exclusive", lambda: [of(os.unlink, "c2.pt"),
                           of(os.open, "c2.pt", os.O_CREAT | os.O_EXCL | os.O_WRONLY) != "EEXIST"]),
    ("mkdir", lambda: [of(os.unlink, "e.pt"), of(os.mkdir, "e.pt"), os.path.isdir("e.pt"), of(os.rmdir, "e.pt")]),
    ("symlink", lambda: [of(os.symlink, "b3.pt", "dangling"), size("dangling")]),
    ("tree", lambda: [shutil.rmtree("keep"), os.path.exists("keep")]),
]

prepare()
print("prepared", flush=True)
sys.stdin.readline()
save("big.pt", int(sys.argv[1]))
for name, step in STEPS:
    t = time.monotonic()
    said = step()
    print("%s|%s|%.1f" % (name, said, (time.monotonic() - t) * 1e3), flush=True)
print("pending||0", flush=True)
for name, step in LATE:
    print("%s|%s|0" % (name, step()), flush=True)
'''


def lines(text):
    return [l.split("|") for l in text.splitlines() if "|" in l]


def seen_as_natively(who, io):
    """Every answer is the kernel's, soon, while the large save is pending."""
    with disk_box("queued-%s-%s" % (who, io), uid=WHO[who], io=io, STAGING="192M") as (fs, box):
        native = box.native([PYTHON, "-c", JOB, "8"])
        assert native.rc == 0, repr(native)
        p = box.start([PYTHON, "-c", JOB, "64"], stdin=subprocess.PIPE)
        assert p.stdout.readline() == "prepared\n", p.stderr.read()
        box.wait()
        fs.throttle(8 * MIB)
        p.stdin.write("\n"), p.stdin.flush()
        out, early = "", []
        for line in p.stdout:
            out += line
            if line.startswith("pending"):
                there = os.listdir(box.d)
                early = [n for n in ("a.pt", "b.pt", "d.pt", "dir", "link") if n not in there]
                still = "big.pt" not in there
                fs.throttle(0)
        rc, err = p.wait(60), p.stderr.read()
        assert rc == 0 and " 0 failures" in err, err
        want, got = lines(native.out), lines(out)
        for w, g in zip(want, got):
            assert w[:2] == g[:2], "%s: natively %s, here %s" % (w[0], w[1], g[1])
        assert len(want) == len(got)
        slow = [(g[0], g[2]) for g in got if float(g[2]) > 1500]
        assert not slow, "waited for the disk: %s" % slow
        assert still, "the large save was published before the steps were done: nothing was queued"
        assert not early, "changed before what was closed before: %s" % early
        assert box.wait().rc == 0
        compare_trees(box.native_d, box.d, ignore=("big.pt",))
        assert not box.leftovers(box.d), box.leftovers(box.d)


def makes_room(io):
    """A save that has room only when what was deleted before it is gone arrives."""
    code = """if 1:
        import os
        for i in range(5):
            with open("s%d.pt" % i, "wb") as f:
                for _ in range(70):
                    f.write(b"r" * (1 << 20))
            if i > 0:
                os.unlink("s%d.pt" % (i - 1))"""
    with disk_box("room-" + io, 200, io=io, STAGING="256M") as (fs, box):
        r = box.run([PYTHON, "-c", code])
        assert r.rc == 0 and " 0 failures" in r.err, repr(r)
        assert os.listdir(box.d) == ["s4.pt"] and os.path.getsize(box.d + "/s4.pt") == 70 * MIB


def by_others():
    """A child deletes and renames what its parent has open; another process sees what is queued."""
    box = Box("others")
    code = """if 1:
        import os, sys
        f, g, h = open("f.pt", "wb"), open("g.pt", "wb"), open("h.pt", "wb")
        for x in (f, g, h):
            x.write(b"1" * (2 << 20)); x.flush()
        if os.fork() == 0:
            os.unlink("f.pt"); os.rename("g.pt", "g2.pt"); os.replace("h.pt", "old.pt")
            print([os.path.exists(n) for n in ("f.pt", "g.pt", "g2.pt", "h.pt")], os.stat("old.pt").st_size)
            sys.stdout.flush(); os._exit(0)
        os.wait()
        print([os.path.exists(n) for n in ("f.pt", "g.pt", "g2.pt", "h.pt")], os.stat("old.pt").st_size)
        print(os.fstat(f.fileno()).st_nlink)
        for x in (f, g, h):
            x.write(b"2" * (2 << 20)); x.close()
        print(sorted(os.listdir(".")), os.stat("g2.pt").st_size, os.stat("old.pt").st_size)"""
    write_file(box.d + "/old.pt", 100)
    write_file(box.native_d + "/old.pt", 100)
    want, got = box.native([PYTHON, "-c", code]), box.run([PYTHON, "-c", code])
    assert want.rc == 0 and (got.rc, got.out) == (0, want.out), "%r, natively %r" % (got, want)
    compare_trees(box.native_d, box.d)


def stranger_in_between():
    """What another has put in the name's place meanwhile is left alone, and a directory that is not empty any more."""
    code = """if 1:
        import os, sys
        for n in ("a.pt", "b.pt", "d/x.pt"):
            os.makedirs(os.path.dirname(n) or ".", exist_ok=True)
            open(n, "wb").write(b"o" * 3000000)
        sys.stdin.readline()
        open("big.pt", "wb").write(b"b" * (64 << 20))
        os.unlink("a.pt"); os.rename("b.pt", "c.pt"); os.unlink("d/x.pt"); os.rmdir("d")
        print("queued", flush=True); sys.stdin.readline()"""
    with disk_box("stranger", STAGING="192M") as (fs, box):
        p = box.start([PYTHON, "-c", code], stdin=subprocess.PIPE)
        eventually("the first saves are there", lambda: os.path.exists(box.d + "/d/x.pt"))
        box.wait()
        fs.throttle(8 * MIB)
        p.stdin.write("\n"), p.stdin.flush()
        assert p.stdout.readline() == "queued\n"
        assert not os.path.exists(box.d + "/big.pt"), "nothing was pending"
        for n in ("a.pt", "b.pt"):
            write_file(box.d + "/new", 10)
            os.rename(box.d + "/new", os.path.join(box.d, n))
        write_file(box.d + "/d/stays", 10)
        fs.throttle(0)
        p.stdin.write("\n"), p.stdin.flush()
        assert p.wait(60) == 0 and " 0 failures" in p.stderr.read()
        assert sorted(os.listdir(box.d)) == ["a.pt", "b.pt", "big.pt", "d"]
        assert os.listdir(box.d + "/d") == ["stays"]
        assert [os.path.getsize(os.path.join(box.d, n)) for n in ("a.pt", "b.pt")] == [10, 10]


def published_meanwhile():
    """A file that is published between the program's look at its name and the engine's turn is what is meant. strace
    keeps each of the program's questions back for longer than the disk needs."""
    code = """if 1:
        import os, sys
        open("c.pt", "wb").write(b"c" * 200000)
        os.unlink("c.pt") if sys.argv[1] == "unlink" else os.rename("c.pt", "d.pt")
        print(os.path.exists("c.pt"))"""
    need("strace")
    late = ["strace", "-o", "/dev/null", "-e", "inject=sendmsg:delay_enter=400000"]
    with disk_box("meanwhile") as (fs, box):
        write_file(box.d + "/c.pt", 100)
        fs.throttle(2 * MIB)
        for what, left in (("unlink", []), ("rename", ["d.pt"])):
            write_file(box.d + "/c.pt", 100)
            r = box.run(late + [PYTHON, "-c", code, what])
            assert r.rc == 0 and r.out == "False\n", repr(r)
            box.wait()
            assert sorted(os.listdir(box.d)) == left, "%s: %s; %s" % (what, os.listdir(box.d), box.engine_log())
        assert os.path.getsize(box.d + "/d.pt") == 200000


def published_under_an_open_one():
    """The same for a name of which the saver has a newer file open: both go."""
    saver = """if 1:
        import os
        open("first.pt", "wb").close()
        print(0, flush=True)
        input()
        open("c.pt", "wb").write(b"c" * 200000)
        f = open("c.pt", "wb")
        f.write(b"n" * 10)
        print(os.path.exists("c.pt"), flush=True)
        input()
        print(os.path.exists("c.pt"), os.fstat(f.fileno()).st_nlink, flush=True)"""
    cleaner = "import os; os.path.exists('c.pt'); print(1, flush=True); input(); os.unlink('c.pt')"
    late = ["strace", "-o", "/dev/null", "-e", "inject=sendmsg:delay_enter=400000"]
    with disk_box("under") as (fs, box):
        s = box.start([PYTHON, "-c", saver], stdin=subprocess.PIPE)
        assert s.stdout.readline() == "0\n"
        c = box.start(late + [PYTHON, "-c", cleaner], stdin=subprocess.PIPE)
        assert c.stdout.readline() == "1\n"
        fs.throttle(2 * MIB)
        s.stdin.write("\n"), s.stdin.flush()
        assert s.stdout.readline() == "True\n"
        out, err = c.communicate("\n", timeout=60)
        assert c.returncode == 0 and " 0 failures" in err, err
        out, err = s.communicate("\n", timeout=60)
        assert s.returncode == 0 and out == "False 0\n", "%s %s" % (out, err)
        box.wait()
        assert os.listdir(box.d) == ["first.pt"], os.listdir(box.d)


def from_before():
    """Who was there before the engine, and captures nothing, keeps the order as well."""
    cleaner = "import os; os.path.exists('old.pt'); print(1, flush=True); input(); os.unlink('old.pt')"
    saver = "open('new.pt', 'wb').write(b'n' * (48 << 20)); print(2, flush=True); input()"
    with disk_box("before", STAGING="192M") as (fs, box):
        write_file(box.d + "/old.pt", 5000)
        c = box.start([PYTHON, "-c", cleaner], stdin=subprocess.PIPE)
        assert c.stdout.readline() == "1\n"
        time.sleep(0.3)
        fs.throttle(30 * MIB)
        s = box.start([PYTHON, "-c", saver], stdin=subprocess.PIPE)
        assert s.stdout.readline() == "2\n"
        c.stdin.write("\n"), c.stdin.flush()
        seen = set()
        while "new.pt" not in seen:
            seen = set(os.listdir(box.d))
            assert "old.pt" in seen or "new.pt" in seen, "deleted before what was closed before it was there"
        fs.throttle(0)
        s.stdin.write("\n"), s.stdin.flush()
        assert c.wait(60) == 0 and s.wait(60) == 0
        box.wait()
        assert os.listdir(box.d) == ["new.pt"]


def parent_sees():
    """Who forks a saver, and captures nothing itself, sees what it has saved when it has waited for it."""
    code = """if 1:
        import os
        os.path.exists("c.pt")
        if (pid := os.fork()) == 0:
            with open("c.pt", "wb") as f:
                f.write(b"c" * (24 << 20))
            os.unlink("old.pt"), os.rename("a.pt", "b.pt")
            os._exit(0)
        os.waitpid(pid, 0)
        print(os.fstat(os.open("c.pt", os.O_PATH)).st_size)
        print(os.path.getsize("c.pt"), [os.path.exists(n) for n in ("old.pt", "a.pt", "b.pt")], sorted(os.listdir(".")))
        print(open("c.pt", "rb").read() == b"c" * (24 << 20))"""
    with disk_box("parent", STAGING="192M") as (fs, box):
        for d in (box.d, box.native_d):
            for n in ("old.pt", "a.pt"):
                write_file(os.path.join(d, n), 3000)
        want = box.native([PYTHON, "-c", code])
        fs.throttle(20 * MIB)
        got = box.run([PYTHON, "-c", code])
        assert want.rc == 0 and (got.rc, got.out) == (0, want.out), "%r, natively %r" % (got, want)


def not_after_a_loss():
    """Keeper and engine are killed: until the program has been told, it deletes and replaces nothing."""
    code = """if 1:
        import os
        def of(call, *args):
            try:
                return call(*args)
            except OSError as e:
                return e.errno
        def save(name):
            f = open(name, "wb")
            f.write(b"s" * (2 << 20))
            return of(f.close)
        open("big.pt", "wb").write(b"b" * (48 << 20))
        print("saved", flush=True)
        input()
        print([of(os.unlink, "old.pt"), of(os.replace, "a.pt", "old.pt"), of(os.unlink, "old.pt")])
        print([save("next.pt"), of(os.unlink, "old.pt"), os.path.exists("old.pt")])"""
    with disk_box("loss", STAGING="192M") as (fs, box):
        for n in ("old.pt", "a.pt"):
            write_file(os.path.join(box.d, n), 3000)
        fs.throttle(8 * MIB)
        p = box.start([PYTHON, "-c", code], stdin=subprocess.PIPE)
        assert p.stdout.readline() == "saved\n"
        s = box.kill_pair()
        assert s["pending_files"], "nothing was pending"
        fs.throttle(0)
        out, err = p.communicate("\n", timeout=60)
        assert out == "[5, 5, 5]\n[5, None, False]\n", "%s %s" % (out, err)
        assert "lost: %s/big.pt" % box.d in err, err


run_cases([("seen-%s-%s" % (w, io), lambda w=w, io=io: seen_as_natively(w, io))
           for w, io in (("root", "uring"), ("user", "threads"))] +
          [("room-" + io, lambda io=io: makes_room(io)) for io in ("uring", "threads")] +
          [(f.__name__, f) for f in (by_others, stranger_in_between, published_meanwhile, published_under_an_open_one,
                                    from_before, parent_sees, not_after_a_loss)])
