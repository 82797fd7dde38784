#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
# timeout: 150
#
# Proves that a directory's listing shows open and pending files as natively, each once, with the inode that stat tells,
# and does not wait for the disk. How: the scenes of victims/listing.c and Python's own calls run natively and under the
# shim, behind a large save (as root on a throttled disk, so that what follows stays pending); the same lines must be
# printed. Cannot see listings by programs that make system calls of their own.

import os
import re
import select
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from disks import LoopFS  # noqa: E402
from fc import *  # noqa: E402,F403

SCENES = ("pending opened processes rewound sought reentrant scanned globbed walked by_descriptor quick between "
          "forked threads streams").split() + ["many"] * IS_ROOT
RATE, SLOW = (64, 24) if IS_ROOT else (0, 8)  # MiB/s, MiB
LIST_MS = 2
boxes = {}
turn = 0
fs = None


def base():
    """Where saves go: as root a disk on which SLOW takes most of a second."""
    global fs
    if IS_ROOT and fs is None:
        fs = LoopFS("slow", 1024)
        with contextlib.suppress(Skip):
            fs.throttle(RATE * MIB)
    return fs.at if fs else TMP


def prepare(d, many):
    for p in (d, os.path.join(d, "sub"), os.path.join(os.path.dirname(d), "slow")):
        os.makedirs(p, exist_ok=True)
    for name in ["old.pt", "note.txt"] + ["shard-%05d-of-many-with-a-long-name.pt" % i for i in range(many)]:
        with open(os.path.join(d, name), "w") as f:
            f.write("old")


def box_of(io):
    if io not in boxes:
        boxes[io] = Box("box-" + io, io=io, base=os.path.join(base(), io), STAGING="256M")
    return boxes[io]


def both(name, argv):
    """Runs argv natively and under the shim, in directories of the same shape; (native, shimmed) results."""
    global turn
    turn += 1
    box = box_of(("uring", "threads")[turn % 2])
    native, shim = os.path.join(box.native_d, name, "here"), os.path.join(box.d, name, "here")
    many = 4700 if name == "many" else 0
    prepare(native, many), prepare(shim, many)
    n = box.native(argv, cwd=native, env={"SLOW": "1"})
    assert n.rc == 0, "natively: %r" % n
    wait = "env -u LD_PRELOAD %s wait >/dev/null" % BIN
    r = box.run(argv, cwd=shim, env={"SLOW": SLOW, "WAIT": wait}, timeout=100)
    assert r.rc == 0 and not r.messages(), repr(r)
    a, b = ([l for l in x.out.splitlines() if not l.startswith("#")] for x in (n, r))
    for i in range(max(len(a), len(b))):
        x, y = (a[i] if i < len(a) else None), (b[i] if i < len(b) else None)
        assert x == y, "line %d: %r, natively %r" % (i + 1, y, x)
    box.wait()
    if many:
        assert sorted(os.listdir(native)) == sorted(os.listdir(shim)), "other names"
    else:
        compare_trees(native, shim)
    shutil.rmtree(os.path.dirname(native)), shutil.rmtree(os.path.dirname(shim))  # the disk is small
    assert sum(r.classes()) > 0, "nothing was captured: %r" % r
    return n, r


def figure(result, key="ms"):
    return float(re.search(r"#%s ([\d.]+)" % key, result.out).group(1))


def scene(name):
    n, r = both(name, [victim("listing"), name])
    if name == "quick":
        assert figure(r) < LIST_MS, "%.3f ms for a listing, natively %.3f" % (figure(r), figure(n))
    if fs and fs.key:
        assert r.seconds > 0.3 * SLOW / RATE, "nothing was pending: the disk was not slow"


PYTHON_JOB = """if 1:
    import glob, os, pathlib, shutil, sys, tempfile
    def save(p, n=5):
        with open(p, "wb") as f:
            f.write(b"x" * n)
    save("../slow/big.pt", int(os.environ["SLOW"]) << 20)
    os.mkdir("checkpoint-1")
    save("checkpoint-1/model.pt", 3 << 20), save("checkpoint-1/state.json"), save("old.pt", 2 << 20)
    print(sorted(os.listdir()), sorted(os.listdir("checkpoint-1")))
    print(sorted((e.name, e.is_file(), e.is_dir(), e.stat().st_size if e.is_file() else 0,
                  e.inode() == os.stat(e.path).st_ino) for e in os.scandir("checkpoint-1")))
    print(sorted(glob.glob("**", recursive=True)))
    print(sorted(map(str, pathlib.Path(".").rglob("*"))))
    print(sorted((t, sorted(d), sorted(f)) for t, d, f in os.walk(".")))
    fd = os.open("checkpoint-1", os.O_RDONLY)
    print(sorted(os.listdir(fd)), sorted(os.listdir(fd)), sorted(e.name for e in os.scandir(fd)))
    os.close(fd)
    f = open("checkpoint-1/open.pt", "wb")
    f.write(b"y" * 100)
    print(sorted(os.listdir("checkpoint-1")))
    try:
        os.rmdir("checkpoint-1")
    except OSError as e:
        print(e)
    shutil.copytree("checkpoint-1", "copy")
    print(sorted(os.listdir("copy")))
    shutil.rmtree("checkpoint-1")
    print(sorted(os.listdir()))
    f.close()
    print(sorted(os.listdir()))
    with tempfile.TemporaryDirectory(dir=".") as d:
        save(d + "/a"), open(d + "/b", "w").write("never closed by hand")
        print(sorted(os.listdir(d)))
    seen = set()
    for i in range(100):
        save("old.pt"), seen.update(os.listdir())
    print(sorted(seen))
    os.unlink("old.pt")
    print(sorted(os.listdir()))
"""


def python_calls():
    both("python", [PYTHON, "-c", PYTHON_JOB])


CHANGES_JOB = """if 1:
    import glob, os, shutil, sys
    def save(p, n=5):
        with open(p, "wb") as f:
            f.write(b"x" * n)
    def show(*dirs):
        for d in dirs:
            try:
                print(d, sorted((e.name, e.is_dir(), e.is_dir() or e.inode() == e.stat().st_ino)
                                for e in os.scandir(d)), sorted(glob.glob(d + "/*")))
            except OSError as e:
                print(d, e.strerror)
    for n in (1, 2):
        os.mkdir("checkpoint-%d" % n)
        save("checkpoint-%d/model.pt" % n, 2 << 20), save("checkpoint-%d/state.json" % n)
    os.system(os.environ.get("WAIT", ":"))
    save("../slow/big.pt", int(os.environ["SLOW"]) << 20)
    save("a.pt"), save("b.pt")
    os.unlink("old.pt"), os.unlink("a.pt")
    show(".")
    save("old.pt")
    show(".")
    os.rename("b.pt", "c.pt"), os.rename("checkpoint-1/state.json", "checkpoint-2/other.json")
    os.replace("c.pt", "old.pt")
    save("b.pt.tmp"), os.rename("b.pt.tmp", "b.pt"), save("b.pt.tmp"), os.rename("b.pt.tmp", "b.pt")
    show(".", "checkpoint-1", "checkpoint-2")
    shutil.rmtree("checkpoint-1")
    show(".", "checkpoint-1", "checkpoint-1/.", "checkpoint-1/none", "b.pt", "note.txt")
    fd = os.open("checkpoint-2", os.O_RDONLY)
    os.unlink("checkpoint-2/model.pt")
    print(sorted(os.listdir(fd)), sorted(os.listdir(fd)))
    os.unlink("other.json", dir_fd=fd)
    print(sorted(os.listdir(fd)))
    save("checkpoint-2/model.pt"), os.rename("checkpoint-2", "checkpoint-3")
    show(".", "checkpoint-2", "checkpoint-3")
"""


def changes():
    """What is deleted and renamed behind a save that is on its way is listed as it will be."""
    both("changes", [PYTHON, "-c", CHANGES_JOB])


def tools():
    """What people use to look: in the shell that saved, right after."""
    both("tools", ["sh", "-c", """dd if=/dev/zero of=../slow/big.pt bs=1M count=$SLOW 2>/dev/null; echo a > a.pt
         echo old > old.pt; echo x > sub/x.pt; LC_ALL=C; export LC_ALL; ls -AR; echo *.pt; find . -name '*.pt' | sort
         tar cf - . | tar tf - | sort; echo b > b.pt; du -a -b | grep pt$ | sort; cp -r sub copy; ls copy
         rm -r copy sub; ls"""])


def hidden_names():
    """Where there are no unnamed inodes a file that is written stands under a hidden name, which no listing shows."""
    for name in ("opened", "between", "rewound"):
        both("hidden-" + name, [victim("seccomp_wrap"), "O_TMPFILE", victim("listing"), name])


@contextlib.contextmanager
def slower():
    """What is on its way now is still that when a busy machine comes to look."""
    base()
    with contextlib.suppress(Skip):
        fs.throttle(2 * MIB)
    try:
        yield
    finally:
        with contextlib.suppress(Skip):
            fs.throttle(RATE * MIB)


def after_restart():
    """A new engine answers from the same state, and with no engine left the kernel does."""
    with slower():
        restarted()


def restarted():
    box = Box("box-restart", base=os.path.join(base(), "restart"), STAGING="256M")
    prepare(os.path.join(box.d, "here"), 0)
    code = """if 1:
        import os, signal, sys, time
        def save(p, n=5):
            with open(p, "wb") as f:
                f.write(b"x" * n)
        save("../slow/big.pt", %d << 20)
        save("a.pt"), save("old.pt")
        f = open("open.pt", "wb")
        def tell():
            print(*sorted(os.listdir()), flush=True)
            sys.stdin.readline()
        tell(), tell(), tell()""" % (2 * SLOW)
    p = box._popen([PYTHON, "-c", code], os.path.join(box.d, "here"), True, None, None, stdin=subprocess.PIPE,
                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    whole = "a.pt note.txt old.pt open.pt sub\n"
    line = p.stdout.readline()
    assert line == whole, repr(line)
    s = box.status()
    assert s["pending_files"] >= 2, "nothing is pending: %s" % s
    os.kill(s["engine_pid"], signal.SIGKILL)
    eventually("a new engine", lambda: (box.status() or {}).get("restarts", 0) == 1)
    p.stdin.write("\n"), p.stdin.flush()
    assert p.stdout.readline() == whole, "after a restart"
    s = box.kill_pair()
    assert s["pending_files"] >= 2, "nothing is pending after the restart: %s" % s
    p.stdin.write("\n"), p.stdin.flush()
    line = p.stdout.readline()
    there = "note.txt old.pt sub".split()
    assert set(there) <= set(line.split()) <= set(there + ["a.pt", "open.pt"]), "with no engine: %r" % line
    with contextlib.suppress(Skip):
        fs.throttle(RATE * MIB)
    p.communicate("\n", timeout=60)


def stopped_engine():
    """An engine that is stopped holds a listing until it goes on: nobody takes names that are pending for missing."""
    box = Box("box-stopped", base=os.path.join(base(), "stopped"), STAGING="256M")
    prepare(os.path.join(box.d, "here"), 0)
    code = """if 1:
        import os, sys
        with open("a.pt", "wb") as f:
            f.write(b"x" * (int(sys.argv[1]) << 20))
        print(flush=True), sys.stdin.readline()
        print("looks", flush=True)
        print(*sorted(os.listdir()), flush=True)"""
    with slower():
        p = box.start([PYTHON, "-c", code, str(SLOW)], os.path.join(box.d, "here"), stdin=subprocess.PIPE)
        p.stdout.readline()
        s = box.status()
        assert s["pending_files"] == 1, "nothing is pending: %s" % s
        os.kill(s["engine_pid"], signal.SIGSTOP)
        try:
            p.stdin.write("\n"), p.stdin.flush()
            assert p.stdout.readline() == "looks\n"
            told = select.select([p.stdout], [], [], 2.5)[0]
        finally:
            os.kill(s["engine_pid"], signal.SIGCONT)
        assert not told, "told while the engine was stopped: %s" % p.stdout.readline()
        names = p.stdout.readline().split()
    assert names == ["a.pt", "note.txt", "old.pt", "sub"], names
    p.communicate("", timeout=60)


run_cases([(s, lambda s=s: scene(s)) for s in SCENES] +
          [(f.__name__, f) for f in (python_calls, changes, tools, hidden_names)] +
          [(f.__name__, f) for f in (after_restart, stopped_engine) if IS_ROOT])
