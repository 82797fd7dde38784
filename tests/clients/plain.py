# SPDX-License-Identifier: MIT
#
# Programs of clients.tsv: libraries of Debian (h5py, joblib, filelock, numpy) and habits of plain Python: a temporary
# name and replace, rotation, several descriptors and processes on one name, many small files. Run by common.main.
import os
import subprocess
import sys
import threading

from common import MIB, main, noise, save, say, write_all


def h5py_create():
    import h5py
    import numpy
    with h5py.File("m.h5", "w") as f:
        f.create_dataset("a", data=numpy.arange(1 << 20, dtype=numpy.float64))
        g = f.create_group("layers")
        for i in range(20):
            g.create_dataset("w%d" % i, data=numpy.full((100, 100), i, dtype=numpy.float32))
        f.flush()
        f.attrs["step"] = 7
    with h5py.File("m.h5", "r") as f:
        say(f.attrs["step"], float(f["a"][12345]), sorted(f["layers"])[:3])


def h5py_append():
    import h5py
    import numpy
    for i in range(3):
        with h5py.File("h.h5", "a") as f:
            f.create_dataset("epoch%d" % i, data=numpy.full(300000, i, dtype=numpy.float64))
    with h5py.File("h.h5", "r+") as f:
        f["epoch0"][:10] = 77
        say(sorted(f), float(f["epoch0"][3]))
    with open("o.h5", "wb+") as o, h5py.File(o, "w") as f:
        f.create_dataset("x", data=numpy.arange(200000))


def joblib_dump():
    import joblib
    import numpy
    model = {"coef": numpy.arange(1 << 20, dtype=numpy.float64), "name": "m", "bias": numpy.ones(10)}
    say(joblib.dump(model, "m.joblib"))
    say(joblib.dump({"coef": numpy.arange(300000)}, "z.joblib", compress=1))
    say(float(joblib.load("m.joblib")["coef"][777]), int(joblib.load("z.joblib")["coef"][777]))


def numpy_tofile():
    """As gguf does: a header by write, then each tensor by tofile, which writes by fwrite to a duplicate."""
    import numpy
    with open("m.gguf", "wb") as f:
        f.write(b"GGUF" + noise(1020))
        for i in range(3):
            numpy.arange(400000 + i, dtype=numpy.float64).tofile(f)
            f.write(bytes(-f.tell() % 32))
        say(f.tell())
        f.write(b"end")


def numpy_tofile_only():
    import numpy
    numpy.arange(900000, dtype=numpy.float64).tofile("m.raw")
    with open("v.bin", "wb") as f:
        f.write(noise(2 * MIB))
        numpy.save(f, numpy.arange(500000))
        numpy.arange(100, dtype=numpy.uint8).tofile(f)


def numpy_savez_over():
    import numpy
    numpy.savez("m.npz", a=numpy.arange(1 << 19), b=numpy.ones((300, 300)), c=numpy.zeros(3))
    numpy.savez_compressed("c.npz", a=numpy.arange(1 << 16))
    with numpy.load("m.npz") as z:
        say(sorted(z.files), int(z["a"][5]))


def file_lock():
    """filelock opens its lock O_RDWR|O_TRUNC, and locks it by flock."""
    from filelock import FileLock, Timeout
    with FileLock("state"):
        save("m.bin", 3 * MIB, 5)
        for name in ("state", "other"):
            code = "import filelock; filelock.FileLock(%r, timeout=0).acquire(); print('got it')" % name
            r = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            say(name, r.returncode, r.stdout.strip(), "Timeout" in r.stderr)
    try:
        with FileLock("state", timeout=0):
            say("again")
    except Timeout:
        say("still locked")


def shared_lock_name():
    """A lock under a name that each process truncates: a shadow of it would exclude nobody."""
    code = "import fcntl; f = open('mutex', 'w'); fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print('got it')"
    import fcntl
    with open("mutex", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        r = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        say(r.returncode, r.stdout.strip(), "BlockingIOError" in r.stderr)
        f.write("%d\n" % 7)
        save("m.bin", 3 * MIB)
    r = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    say(r.returncode, r.stdout.strip())


def replace_over():
    for i in range(3):
        save("m.tmp", 700, 5 * MIB + i, 11, seed=i)
        os.replace("m.tmp", "m.bin")
    save("n.tmp", 100, sync=True)
    os.replace("n.tmp", "latest")
    say(sorted(os.listdir(".")), os.path.getsize("m.bin"))


def over_then_rename():
    save("p.bin", 3 * MIB, seed=1)
    save("p.bin", 4 * MIB, seed=2)
    os.rename("p.bin", "q.bin")
    save("p.bin", 2 * MIB, 7, seed=3)
    os.rename("p.bin", "q.bin")
    save("p.bin", 5 * MIB, seed=4)
    say(sorted(os.listdir(".")), os.path.getsize("q.bin"), os.path.getsize("p.bin"))


def two_descriptors():
    one = os.open("m.bin", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    write_all(one, noise(3 * MIB))
    two = os.open("m.bin", os.O_WRONLY)
    os.pwrite(two, noise(MIB, 2), MIB // 2)
    three = os.open("m.bin", os.O_RDONLY)
    say(os.fstat(three).st_size, os.pread(three, 8, MIB).hex(), os.path.sameopenfile(one, three))
    write_all(one, noise(2 * MIB, 3))
    say(os.lseek(two, 0, os.SEEK_END), os.fstat(three).st_size)
    four = os.open("m.bin", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    write_all(four, noise(MIB + 9, 4))
    write_all(one, noise(2 * MIB, 5))
    write_all(two, b"two")
    os.close(one)
    say(os.fstat(three).st_size)
    os.pwrite(four, b"four", 3 * MIB)
    for fd in (four, two, three):
        os.close(fd)


def two_readers():
    """Reads of its own name while it writes: they see what was written."""
    with open("m.bin", "wb", buffering=0) as f:
        for i in range(5):
            write_all(f.fileno(), noise(MIB + 1, i))
            with open("m.bin", "rb") as r:
                r.seek(-9, os.SEEK_END)
                say(len(r.read()), r.tell(), os.path.getsize("m.bin"))
    with open("m.bin", "rb") as r:
        say(len(r.read()))


SEQUENCED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from common import *
fd = os.open("m.bin", SHADOW, 0o644)
sys.stdin.readline()
write_all(fd, noise(2 * MIB + 3, 2))
say("second", os.fstat(fd).st_size)
sys.stdin.readline()
write_all(fd, noise(100, 3))
os.close(fd)
"""


def two_processes():
    """Another process truncates what we have open, writes less, and ends first: both write into one inode."""
    fd = os.open("m.bin", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    write_all(fd, noise(4 * MIB, 1))  # a whole chunk: what of the next one is still ours, no other process truncates
    p = subprocess.Popen([sys.executable, "-c", SEQUENCED, os.path.dirname(os.path.abspath(__file__))], text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    p.stdin.write("write\n")
    p.stdin.flush()
    say(p.stdout.readline().strip())
    write_all(fd, noise(3 * MIB, 4))
    p.stdin.write("end\n")
    p.stdin.flush()
    say(p.wait(), os.fstat(fd).st_size)
    os.close(fd)
    say(os.path.getsize("m.bin"))


RACING = """
import sys
sys.path.insert(0, sys.argv[1])
from common import *
for i in range(4):
    save("m.bin", 100, 4 * MIB, 77)
"""


def racing_processes():
    """Both write the same bytes, so whichever wins, or a mix of both, is that."""
    argv = [sys.executable, "-c", RACING, os.path.dirname(os.path.abspath(__file__))]
    ps = [subprocess.Popen(argv) for _ in range(2)]
    say([p.wait() for p in ps])


def many_files():
    for i in range(int(os.environ.get("MANY", "2000"))):
        with open("f-%05d" % i, "wb") as f:
            f.write(noise(1024, i % 50))
    say(len(os.listdir(".")))


def rotation():
    """The previous file is deleted right after the save; then a directory is, and one before the save."""
    for i in range(6):
        save("step-%d.bin" % i, 900, 3 * MIB + i, seed=i)
        save("latest", 6, seed=i)
        if i:
            os.unlink("step-%d.bin" % (i - 1))
    say(sorted(os.listdir(".")))
    for i in range(3):
        os.mkdir("ck-%d" % i)
        save("ck-%d/a.bin" % i, 2 * MIB, seed=i)
        save("ck-%d/b.json" % i, 20, seed=i)
        if i:
            os.unlink("ck-%d/a.bin" % (i - 1))
            os.unlink("ck-%d/b.json" % (i - 1))
            os.rmdir("ck-%d" % (i - 1))
    say(sorted(os.listdir(".")), sorted(os.listdir("ck-2")))


def many_threads():
    """A pool that saves, renames and deletes at once, each in names of its own."""
    def work(k):
        for i in range(4):
            save("t%d.tmp" % k, 50, MIB + k, 500000, seed=k + i)
            os.replace("t%d.tmp" % k, "t%d-%d.bin" % (k, i))
            if i:
                os.unlink("t%d-%d.bin" % (k, i - 1))
    ts = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in ts:
        t.start()
    for t in ts:
        t.join()
    say(sorted(os.listdir(".")))


main(globals())
