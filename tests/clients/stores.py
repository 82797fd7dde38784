# SPDX-License-Identifier: MIT
#
# Programs of clients.tsv: the stores that keep locks, sync directories and read back (tensorstore and Orbax), and those
# that save by C stdio (TensorFlow, XGBoost, LightGBM), replayed call by call as traced. Run by common.main.
import ctypes
import fcntl
import os
import shutil
import struct
import threading

from common import MIB, SHADOW, main, noise, save, say, write_all

F_OFD_SETLKW = 38
libc = ctypes.CDLL(None, use_errno=True)
libc.fopen.restype = ctypes.c_void_p
libc.fwrite.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
libc.fwrite.restype = ctypes.c_size_t
libc.fclose.argtypes = libc.fflush.argtypes = (ctypes.c_void_p,)


# ---------------------------------------------------------------------------------------------------- tensorstore

def sync_dir(d):
    fd = os.open(d, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def ofd_lock(fd, kind):
    fcntl.fcntl(fd, F_OFD_SETLKW, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))


def locked_write(path, sizes, seed, sync=True):
    """tensorstore's default: a locked X.__lock becomes X while it is open and locked."""
    lock = path + ".__lock"
    fd = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    mine = os.fstat(fd)
    ofd_lock(fd, fcntl.F_WRLCK)
    again = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    say(os.path.samestat(mine, os.fstat(again)))
    os.close(again)
    os.writev(fd, [noise(n, seed + i) for i, n in enumerate(sizes)])
    if sync:
        os.fsync(fd)
    size = os.fstat(fd).st_size
    os.rename(lock, path)
    if sync:
        sync_dir(os.path.dirname(path) or ".")
    ofd_lock(fd, fcntl.F_UNLCK)
    os.close(fd)
    say(path, size, os.path.getsize(path))


def exclusive_write(path, lock, sizes, seed):
    """Its ways `none` (a name of its own) and `lockfile` (one name for all)."""
    fd = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    os.writev(fd, [noise(n, seed + i) for i, n in enumerate(sizes)])
    os.fsync(fd)
    st = os.fstat(fd)
    os.rename(lock, path)
    sync_dir(os.path.dirname(path) or ".")
    os.close(fd)
    now = os.stat(path)
    say(path, (st.st_ino, st.st_mtime_ns) == (now.st_ino, now.st_mtime_ns))


def tensorstore():
    os.makedirs("a/c")
    for seed in (1, 2):
        locked_write("a/zarr.json", (700,), seed)
        locked_write("a/c/0", (4083,) * 300, seed)
        locked_write("a/c/1", (65523,) * 40, seed, sync=False)
        exclusive_write("a/c/2", "a/c/2_0a1b2c.__lock", (MIB, MIB), seed)
        exclusive_write("a/c/3", "a/c/3.__lock", (2 * MIB,), seed)
        save("a/c/4", 2 * MIB, seed=seed, sync=True)  # non_atomic
    say(sorted(os.listdir("a/c")))


# ---------------------------------------------------------------------------------------------------- Orbax

def ocdbt_data(d, k, seed):
    """Opened for reading and writing, many small pieces at once, synced with its directory, read back by its tail."""
    dirfd = os.open(d, os.O_RDONLY | os.O_DIRECTORY)
    path = "%s/%032x" % (d, seed * 7919 + k)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    for i in range(2):
        os.writev(fd, [noise(4083 if j % 3 else 65523, seed + j % 5) for j in range(60)])
    os.fsync(fd)
    os.fsync(dirfd)
    size = os.fstat(fd).st_size
    os.close(fd)
    os.close(dirfd)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    tail = os.pread(fd, 273, size - 273)
    os.close(fd)
    if tail != noise(65523 if 59 % 3 == 0 else 4083, seed + 59 % 5)[-273:]:
        say("another tail", path)


def orbax_step(tmp, seed):
    os.makedirs(tmp + "/ocdbt.process_0/d")
    os.makedirs(tmp + "/array_metadatas")
    os.makedirs(tmp + "/d")
    for i in range(3):
        save(tmp + "/_CHECKPOINT_METADATA", 100 + i, seed=seed)
        with open(tmp + "/_CHECKPOINT_METADATA", "rb") as f:
            say(len(f.read()))
    pool = [threading.Thread(target=ocdbt_data, args=(tmp + "/ocdbt.process_0/d", k, seed)) for k in range(4)]
    for t in pool:
        t.start()
    for t in pool:
        t.join()
    locked_write(tmp + "/ocdbt.process_0/manifest.ocdbt", (400,), seed)
    for name, n in (("array_metadatas/process_0", 300), ("_sharding", 500), ("_METADATA", 900)):
        save(tmp + "/" + name, n, seed=seed)
    ocdbt_data(tmp + "/d", 9, seed)
    locked_write(tmp + "/manifest.ocdbt", (500,), seed)
    save(tmp + "/commit_success.txt", 52, seed=seed)


def orbax():
    for step in range(3):
        outer, inner = "%d.orbax-checkpoint-tmp" % step, "%d.orbax-checkpoint-tmp/default.orbax-checkpoint-tmp" % step
        os.mkdir(outer)
        t = threading.Thread(target=orbax_step, args=(inner, step))
        t.start()
        t.join()
        os.rename(inner, outer + "/default")
        os.rename(outer, str(step))
        if step:
            t = threading.Thread(target=shutil.rmtree, args=(str(step - 1),))
            t.start()
            t.join()
        say(sorted(os.listdir(".")), sorted(os.listdir("%d/default" % step)))


# ---------------------------------------------------------------------------------------------------- C stdio

def stdio_save(path, *pieces, seed=1, mode=b"w", flush=False):
    f = libc.fopen(path.encode(), mode)
    if not f:
        raise OSError(ctypes.get_errno(), path)
    for i, n in enumerate(pieces):
        libc.fwrite(noise(n, seed + i), 1, n, f)
        if flush:
            libc.fflush(f)
    say(path, libc.fclose(f))


def tensorflow_save(prefix, seed):
    parts = prefix + "_temp"
    os.mkdir(parts)
    data, index = parts + "/part-00000-of-00001.data-00000-of-00001", parts + "/part-00000-of-00001.index"
    stdio_save(data + ".tempstate123", 2 * MIB, 4096, 2 * MIB - 100, seed=seed)
    os.rename(data + ".tempstate123", data)
    stdio_save(index + ".tempstate456", 900, seed=seed)
    os.rename(index + ".tempstate456", index)
    fd = os.open(index, os.O_RDONLY | os.O_CLOEXEC)
    say(os.pread(fd, 4096, 0) == noise(900, seed))
    os.close(fd)
    os.rename(data, prefix + ".data-00000-of-00001")
    stdio_save(prefix + ".index", 900, seed=seed)
    os.unlink(index)
    os.rmdir(parts)


def tensorflow():
    for step in (1, 2, 3):
        tensorflow_save("ckpt-%d" % step, step)
        for k in range(2):
            stdio_save("checkpoint.tmp%016x" % (step + k), 300, seed=step)
            os.rename("checkpoint.tmp%016x" % (step + k), "checkpoint")
        if step > 1:
            old = "ckpt-%d" % (step - 1)
            os.unlink(old + ".index")
            for n in [n for n in sorted(os.listdir(".")) if n.startswith(old + ".data")]:
                os.unlink(n)
            stdio_save("checkpoint.tmp%016x" % 99, 300, seed=step)
            os.rename("checkpoint.tmp%016x" % 99, "checkpoint")
        say(sorted(os.listdir(".")))


def xgboost():
    stdio_save("m.ubj", 3 * MIB + 1234)
    stdio_save("m.ubj", 3 * MIB + 4321, seed=2)
    say(os.path.getsize("m.ubj"))


def lightgbm():
    """Saved and closed; at once opened again to append."""
    for seed in (1, 2):
        stdio_save("m.txt", 2 * MIB + 77, seed=seed)
        with open("m.txt", "a") as f:
            f.write("\npandas_categorical:null\n")
        say(os.path.getsize("m.txt"))


def flax_legacy():
    for step in (1, 2):
        say(sorted(os.listdir(".")))
        save("tmp-checkpoint", 2 * MIB, seed=step)
        os.rename("tmp-checkpoint", "checkpoint_%d" % step)
        for n in sorted(os.listdir(".")):
            if n != "checkpoint_%d" % step:
                os.unlink(n)
    say(sorted(os.listdir(".")))


def fastfilewriter():
    """DeepSpeed's: O_DIRECT without O_TRUNC, the tail appended by another open, then a sync by a third."""
    fd = os.open("m.pt", os.O_WRONLY | os.O_CREAT, 0o777)
    write_all(fd, noise(2 * MIB))
    os.close(fd)
    with open("m.pt", "ab") as f:
        f.write(noise(93))
    fd = os.open("m.pt", os.O_WRONLY | os.O_APPEND)
    os.fsync(fd)
    os.close(fd)


def tfevents():
    fd = os.open("events", SHADOW)
    write_all(fd, noise(88))
    os.close(fd)
    for i in range(10):
        with open("events", "ab") as f:
            f.write(noise(200, i))
    say(os.path.getsize("events"))


main(globals())
