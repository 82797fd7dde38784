# SPDX-License-Identifier: MIT
#
# The scenes of names.py: names_job.py SCENE runs one in the current directory and prints what it sees. Natively and
# under the shim the same lines must come, and the same files be left. Times and inode numbers are never printed.
import ctypes
import os
import random
import shutil
import stat
import sys
import time

MIB = 1 << 20
BIG = 3 * MIB + 123


def noise(n, seed=1):
    block = random.Random(seed).randbytes(min(n, MIB) or 1)
    return (block * (n // len(block) + 1))[:n]


def say(*what):
    print(*what, flush=True)


def save(path, size=BIG, seed=1, mode=0o666, **kw):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode, **kw)
    data = noise(size, seed)
    done = 0
    while done < size:
        done += os.write(fd, data[done:done + MIB])
    os.close(fd)


def look(path, **kw):
    try:
        st = os.stat(path, **kw)
    except OSError as e:
        return say(repr(path)[-30:], "->", e.strerror)
    fresh = 0 <= time.time() - st.st_mtime < 60
    say(repr(path)[-30:], oct(st.st_mode), st.st_nlink, st.st_uid, st.st_gid, st.st_size, fresh)


def digest(path):
    with open(path, "rb") as f:
        d = f.read()
    say(repr(path)[-30:], len(d), hash_of(d))


def hash_of(d):
    import hashlib
    return hashlib.blake2b(d).hexdigest()[:16]


def umask_077():
    os.umask(0o077)
    save("m.pt")
    look("m.pt")
    save("n.pt", mode=0o640)
    look("n.pt")


def mode_kept():
    save("m.pt", 100)
    os.chmod("m.pt", 0o640)
    save("m.pt")
    look("m.pt")
    os.chmod("m.pt", 0o600)
    look("m.pt")
    save("m.pt", seed=2)
    look("m.pt")
    digest("m.pt")


def setgid_directory():
    os.mkdir("d")
    os.chown("d", -1, (os.getgroups() or [os.getgid()])[-1])
    os.chmod("d", 0o2775)
    save("d/m.pt")
    look("d/m.pt")
    save("d/m.pt", seed=3)
    look("d/m.pt")


def acl():
    os.mkdir("d")
    # The default ACL u::rwx,u:4242:rw-,g::r-x,m::rwx,o::---
    entries = ((1, 7, -1), (2, 6, 4242), (4, 5, -1), (16, 7, -1), (32, 0, -1))
    value = (2).to_bytes(4, "little") + b"".join(
        t.to_bytes(2, "little") + p.to_bytes(2, "little") + (i & 0xffffffff).to_bytes(4, "little")
        for t, p, i in entries)
    os.setxattr("d", "system.posix_acl_default", value)
    for mode in (0o666, 0o600):
        name = "d/m%o.pt" % mode
        os.umask(0o022)
        save(name, mode=mode)
        look(name)
        say(os.getxattr(name, "system.posix_acl_access").hex())
        save(name, mode=mode, seed=4)
        look(name)
        say(os.getxattr(name, "system.posix_acl_access").hex())
    save("m.pt", 10)
    os.setxattr("m.pt", "system.posix_acl_access", value)
    save("m.pt")
    look("m.pt")
    say(os.getxattr("m.pt", "system.posix_acl_access").hex())


def xattr():
    save("m.pt", 10)
    os.setxattr("m.pt", "user.origin", b"run 7")
    os.setxattr("m.pt", "user.empty", b"")
    save("m.pt")
    say(sorted((n, os.getxattr("m.pt", n)) for n in os.listxattr("m.pt") if n.startswith("user.")))
    os.setxattr("m.pt", "user.after", b"1")
    save("m.pt", seed=2)
    say(sorted((n, os.getxattr("m.pt", n)) for n in os.listxattr("m.pt") if n.startswith("user.")))


def owner():
    save("m.pt", 10)
    os.chown("m.pt", 4242, 4343)
    os.chmod("m.pt", 0o6755)
    save("m.pt")
    look("m.pt")
    os.chown("m.pt", 1, 2)
    look("m.pt")
    digest("m.pt")


def symlink():
    os.mkdir("real")
    save("real/m.pt", 10)
    os.symlink("real/m.pt", "last.pt")
    save("last.pt")
    say(os.readlink("last.pt"), stat.S_ISLNK(os.lstat("last.pt").st_mode))
    look("last.pt")
    digest("real/m.pt")
    os.symlink("last.pt", "again.pt")
    save("again.pt", seed=2)
    digest("real/m.pt")
    os.symlink("real", "dir")
    save("dir/n.pt", seed=3)
    digest("real/n.pt")
    say(sorted(os.listdir(".")), sorted(os.listdir("real")))


def dangling():
    os.symlink("target.pt", "last.pt")
    save("last.pt")
    say(os.readlink("last.pt"))
    digest("target.pt")
    os.symlink("no/such", "bad.pt")
    os.symlink("loop.pt", "loop.pt")
    for n in ("bad.pt", "loop.pt"):
        try:
            save(n)
        except OSError as e:
            say(n, e.strerror)
    say(sorted(os.listdir(".")))


def long_names():
    name = "x" * 252 + ".pt"
    save(name)
    look(name)
    digest(name)
    save(name, seed=2)
    digest(name)
    try:
        save("y" + name)
    except OSError as e:
        say(e.strerror)
    say(sorted(len(n) for n in os.listdir(".")))


def odd_names():
    for i, name in enumerate(("模型.pt", "a b\nc.pt", "-m.pt", "émoji🙂.pt", b"bad\xff\xfe.pt", "*.pt", "m.pt:x")):
        save(name, seed=i)
        digest(name)
        save(name, seed=i + 10)
        digest(name)
    say(sorted(os.listdir(b".")))


def relative():
    os.mkdir("a")
    os.mkdir("b")
    os.chdir("a")
    fd = os.open("m.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, noise(2 * MIB))
    os.chdir("../b")
    os.write(fd, noise(MIB, 2))
    os.close(fd)
    save("n.pt", seed=3)
    os.chdir("..")
    digest("a/m.pt")
    say(sorted(os.listdir("a")), sorted(os.listdir("b")))


def dirfd():
    os.mkdir("a")
    fd = os.open("a", os.O_RDONLY)
    os.mkdir("b")
    os.chdir("b")
    save("m.pt", dir_fd=fd)
    save("../a/n.pt", seed=2)
    look("m.pt", dir_fd=fd)
    os.rename("../a", "../c")
    save("m.pt", seed=3, dir_fd=fd)
    os.chdir("..")
    digest("c/m.pt")
    say(sorted(os.listdir("c")), sorted(os.listdir(".")))


def dots():
    os.makedirs("a/b")
    os.symlink("a/b", "s")
    save("a//b/../b/.///m.pt")
    digest("a/b/m.pt")
    save("s/../n.pt", seed=2)  # that is a/n.pt
    digest("a/n.pt")
    save(os.path.abspath("a") + "/../a/b//o.pt", seed=3)
    digest("a/b/o.pt")
    for bad in ("a/b/m.pt/", "a/b/m.pt/x", "a/b/", "", "nodir/m.pt"):
        try:
            save(bad)
        except OSError as e:
            say(repr(bad), e.strerror)
    say(sorted(os.listdir("a/b")))


def directory_mtime():
    """The order of directories by mtime is the order in which names were made in them, not that of late publishes."""
    for n in ("first", "second"):
        os.mkdir(n)
        save(n + "/m.pt", 8 * MIB)
        fd = os.open(n, os.O_RDONLY)
        os.fsync(fd)  # the name is there from here on, however slow the engine is
        os.close(fd)
        time.sleep(0.05)
    t = os.stat("second").st_mtime_ns
    save("second/m.pt", 8 * MIB, seed=2)  # natively that does not touch the directory
    while os.stat("second").st_mtime_ns != t and time.time_ns() - t < 2 * 10**9:  # put back some µs after the rename
        time.sleep(0.05)
    say("unchanged", os.stat("second").st_mtime_ns == t)
    time.sleep(0.05)
    os.mkdir("third")
    say(sorted(("first", "second", "third"), key=lambda n: os.stat(n).st_mtime_ns))
    time.sleep(0.7)
    say(sorted(("first", "second", "third"), key=lambda n: os.stat(n).st_mtime_ns))
    say("unchanged", os.stat("second").st_mtime_ns == t)


def times():
    with open("src", "wb") as f:
        f.write(noise(BIG))
    os.utime("src", ns=(10**18 + 5, 11 * 10**17 + 7))
    shutil.copy2("src", "m.pt")
    st = os.stat("m.pt")
    say(st.st_mtime_ns)
    fd = os.open("n.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, noise(2 * MIB))
    os.utime(fd, ns=(12 * 10**17, 13 * 10**17))
    os.close(fd)
    say(os.stat("n.pt").st_mtime_ns, os.stat("n.pt").st_atime_ns)  # pending
    os.utime("n.pt", ns=(14 * 10**17, 15 * 10**17))
    say(os.stat("n.pt").st_mtime_ns)
    time.sleep(0.6)
    say(os.stat("n.pt").st_mtime_ns, os.stat("m.pt").st_mtime_ns)


def readonly_directory():
    """A directory is closed right after its files are: they are in it."""
    os.mkdir("d")
    with open("big.pt", "wb") as f:
        f.write(noise(BIG))
    save("d/m.pt")
    os.chmod("d", 0o555)
    say(os.listdir("d"), os.path.getsize("d/m.pt"))
    try:
        say(os.unlink("d/m.pt"))
    except OSError as e:
        say(e.errno)
    os.chmod("d", 0o755)


def read_back():
    save("m.pt")
    digest("m.pt")
    look("m.pt")
    say(os.path.exists("m.pt"), os.path.isfile("m.pt"), os.access("m.pt", os.R_OK), os.path.getsize("m.pt"))
    save("m.pt", 20 * MIB, seed=2)
    say(os.listdir("."), [(e.name, e.is_file(), e.stat().st_size) for e in os.scandir(".")])
    fd = os.open("m.pt", os.O_RDONLY)
    say(hash_of(os.pread(fd, 5 * MIB, 14 * MIB)), os.fstat(fd).st_size, os.lseek(fd, 0, os.SEEK_END))
    os.close(fd)
    say(os.path.realpath("m.pt") == os.path.realpath(".") + "/m.pt")
    for i in range(10):
        save("r-%d.pt" % i, 2 * MIB, seed=i)
        digest("r-%d.pt" % i)
    say(sorted(os.listdir(".")))
    with open("m.pt", "r+b") as f:
        f.seek(2 * MIB)
        f.write(b"patched")
    digest("m.pt")
    with open("m.pt", "ab") as f:
        f.write(b"appended")
    digest("m.pt")


def torch_load():
    import torch
    torch.manual_seed(1)
    m = {"w": torch.randn(1 << 20), "b": torch.arange(77)}
    for i in range(3):
        m["step"] = i
        torch.save(m, "m.pt")
        n = torch.load("m.pt")
        say(n["step"], torch.equal(n["w"], m["w"]), os.path.getsize("m.pt"))


def over_and_over():
    for i in range(12):
        save("m.pt", BIG + i, seed=i)
        if i % 4 == 0:
            look("m.pt")
    digest("m.pt")
    save("m.pt", 10)
    save("m.pt", 0)
    look("m.pt")
    save("m.pt", 2 * MIB)
    digest("m.pt")


def hard_link():
    save("m.pt", 100)
    os.link("m.pt", "n.pt")
    save("m.pt")
    look("m.pt")
    digest("n.pt")
    say(os.path.samefile("m.pt", "n.pt"))
    save("o.pt", seed=5)
    os.link("o.pt", "p.pt")
    look("p.pt")
    digest("p.pt")
    say(os.path.samefile("o.pt", "p.pt"))


def copy_after():
    save("m.pt", 12 * MIB)
    shutil.copyfile("m.pt", "last.pt")
    digest("last.pt")
    shutil.copy2("m.pt", "best.pt")
    digest("best.pt")
    say(os.system("cmp m.pt last.pt && cat m.pt best.pt | wc -c"))


def rmtree_after():
    for i in range(3):
        os.mkdir("ck-%d" % i)
        for k in range(3):
            save("ck-%d/m%d.pt" % (i, k), 6 * MIB, seed=k)
        if i:
            shutil.rmtree("ck-%d" % (i - 1))
        say(sorted(os.listdir(".")))
    os.rename("ck-2", "final")
    say(sorted(os.listdir(".")), sorted(os.listdir("final")))
    digest("final/m2.pt")
    shutil.rmtree("final")
    say(os.listdir("."))
    os.mkdir("final")
    save("final/m.pt")
    digest("final/m.pt")


def rename_after():
    save("m.tmp", 6 * MIB)
    os.rename("m.tmp", "m.pt")
    say(sorted(os.listdir(".")))
    digest("m.pt")
    save("m.tmp", 6 * MIB, seed=2)
    os.replace("m.tmp", "m.pt")
    digest("m.pt")
    save("gone.pt")
    os.unlink("gone.pt")
    look("gone.pt")
    fd = os.open("open.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, noise(2 * MIB))
    os.rename("open.pt", "opened.pt")
    os.write(fd, noise(2 * MIB, 2))
    os.close(fd)
    digest("opened.pt")
    fd = os.open("drop.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, noise(2 * MIB))
    os.unlink("drop.pt")
    os.write(fd, noise(2 * MIB, 2))
    os.close(fd)
    say(sorted(os.listdir(".")))


def special_files():
    os.mkfifo("fifo.pt")
    fd = os.open("fifo.pt", os.O_RDWR)
    os.write(fd, b"through")
    say(os.read(fd, 100))
    os.symlink("/dev/null", "null.pt")
    save("null.pt")
    os.symlink("/dev/full", "full.pt")
    try:
        save("full.pt")
    except OSError as e:
        say(e.strerror)
    say(sorted((n, stat.S_IFMT(os.lstat(n).st_mode)) for n in os.listdir(".")))


def truncate_and_chmod():
    fd = os.open("m.pt", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, noise(BIG))
    os.close(fd)
    fd = os.open("m.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, noise(6 * MIB))
    os.ftruncate(fd, 5 * MIB)
    os.fchmod(fd, 0o600)
    say(os.fstat(fd).st_size, oct(os.fstat(fd).st_mode))
    os.ftruncate(fd, 9 * MIB)
    os.write(fd, b"end")
    os.close(fd)
    look("m.pt")
    os.truncate("m.pt", 4 * MIB)
    look("m.pt")
    os.chmod("m.pt", 0o644)
    look("m.pt")
    digest("m.pt")


def holes():
    fd = os.open("m.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.lseek(fd, 10 * MIB + 1, 0)
    os.write(fd, b"x")
    os.lseek(fd, 20 * MIB, 0)
    os.write(fd, noise(100000))
    os.pwrite(fd, noise(2 * MIB), 4 * MIB + 3)
    os.lseek(fd, 30 * MIB, 0)
    say(os.fstat(fd).st_size, os.lseek(fd, 0, 1))
    os.close(fd)
    look("m.pt")
    digest("m.pt")


def bad_pointer():
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open("m.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, noise(2 * MIB))
    ctypes.set_errno(0)
    say(libc.write(fd, ctypes.c_void_p(8), ctypes.c_size_t(100000)), os.strerror(ctypes.get_errno()))
    os.write(fd, b"end")
    os.close(fd)
    digest("m.pt")


def wild_pointers():
    libc = ctypes.CDLL(None, use_errno=True)
    wild, st, argv = ctypes.c_void_p(8), ctypes.create_string_buffer(512), (ctypes.c_char_p * 2)(b"true", None)
    fd = os.open("o.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for name, args in (("execve", (b"/bin/true", argv, wild)), ("execve", (wild, argv, None)),
                       ("fstatat", (fd, wild, st, 0x1000)), ("fstatat", (-100, wild, st, 0)),
                       ("statx", (fd, wild, 0x1000, 0x7ff, st)), ("stat", (wild, st)), ("open", (wild, 0)),
                       ("readlink", (wild, st, 100)), ("readlink", (b"/proc/self/fd/%d" % fd, wild, 100))):
        ctypes.set_errno(0)
        say(name, getattr(libc, name)(*args), os.strerror(ctypes.get_errno()))
    os.close(fd)


def below_a_file():
    fd = os.open("o.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for closed in (False, True):
        for path in ("o.pt/x", "o.pt/", "o.pt/.", "o.pt/x/y", "o.pt//", os.path.abspath("o.pt/x")):
            for call in (os.stat, os.lstat, lambda p: os.open(p, os.O_RDONLY), lambda p: os.open(p, os.O_RDWR),
                         lambda p: os.open(p, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
                try:
                    say(path[-8:], call(path))
                except OSError as e:
                    say(path[-8:], e.strerror)
        closed or os.close(fd)


def descriptor_links():
    save("old.pt", 3000)
    for name in ("new.pt", "old.pt"):
        with open(name, "wb") as f:
            for n in ("/proc/self/fd/%d", "/dev/fd/%d", "/proc/thread-self/fd/%d", "/proc/%d/fd/" % os.getpid() + "%d"):
                n %= f.fileno()
                say([p == os.path.abspath(name) for p in (os.readlink(n), os.path.realpath(n))])
            libc = ctypes.CDLL(None)
            libc.realpath.restype = ctypes.c_char_p
            say(libc.realpath(b"/proc/self/fd/%d" % f.fileno(), None) == os.fsencode(os.path.abspath(name)))


globals()[sys.argv[1]]()
