# SPDX-License-Identifier: MIT
#
# disks: what tests that prepare as root put a checkpoint directory on: file systems on loop devices that can be full,
# slow or broken, other mounts, and memory cgroups. All of it is undone at exit.

import atexit
import contextlib
import os
import re
import subprocess
import time

from fc import MIB, TMP, Box, Skip, eventually, need, need_root, sh, victim

_mounts = []


def mount(*argv, at):
    os.makedirs(at, exist_ok=True)
    sh("mount", *argv, at)
    return mounted(at)


def mounted(at):
    """Something has been mounted at `at`: it is gone by umount(at), as what mount() has mounted."""
    _mounts.append(at)
    return at


def umount(at):
    if at in _mounts:
        for _ in range(50):
            if subprocess.run(["umount", at], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        else:
            subprocess.run(["umount", "-l", at], capture_output=True)
        _mounts.remove(at)


class LoopFS:
    """A file system in a file on a loop device: `at` is where it is mounted."""

    def __init__(self, name, mib, fs="ext4", base=None, mkfs=(), options="defaults", mode=0o1777):
        need_root()
        need("losetup"), need("mkfs." + fs)
        self.dir = os.path.join(base or TMP, name)
        os.makedirs(self.dir, exist_ok=True)
        self.image = os.path.join(self.dir, "image")
        self.at = os.path.join(self.dir, "mnt")
        self.loop = self.key = None
        self.fs, self.options = fs, options
        with open(self.image, "wb") as f:
            f.truncate(mib * MIB)
        self.make(mkfs)
        self.prepare_image()
        try:
            self.loop = sh("losetup", "-f", "--show", self.image).strip()
        except RuntimeError as e:
            raise Skip("no loop device: %s" % e)
        atexit.register(self.free)
        with contextlib.suppress(Skip):
            self.throttle(0)  # the number may have been that of a test that was ended
        mount("-o", options, self.loop, at=self.at)
        subprocess.run(["losetup", "-d", self.loop], capture_output=True)  # detaches by itself when it is unmounted
        os.chmod(self.at, mode)
        self.before = self._counter()

    def _counter(self):
        with open("/sys/block/%s/stat" % os.path.basename(self.loop)) as f:
            return int(f.read().split()[6]) * 512

    def written(self):
        """Bytes that the device has been given since it was mounted: the counter is the number's, whatever is on it."""
        return self._counter() - self.before

    def make(self, mkfs):
        if self.fs == "ext4":
            lazy = "lazy_itable_init=0,lazy_journal_init=0"
            sh("mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-E", lazy, *mkfs, self.image)
        else:
            sh("mkfs." + self.fs, "-q", *mkfs, self.image)

    def prepare_image(self):
        pass

    def throttle(self, bps):
        """Limits writes to the device (0: no limit). Raises Skip where there is no such controller."""
        v1 = "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device"
        if not os.path.exists(v1):
            raise Skip("no blkio controller (cgroup v1)")
        self.key = "%d:%d" % (os.major(os.stat(self.loop).st_rdev), os.minor(os.stat(self.loop).st_rdev))
        with open(v1, "w") as f:
            f.write("%s %d" % (self.key, bps))

    def free_bytes(self):
        st = os.statvfs(self.at)
        return st.f_bavail * st.f_frsize

    def free(self):
        if self.loop:
            if self.key:
                with contextlib.suppress(OSError, Skip):
                    self.throttle(0)
            umount(self.at)
            self.loop = None
            with contextlib.suppress(OSError):
                os.unlink(self.image)


@contextlib.contextmanager
def disk_box(name, mib=400, **config):
    """A file system of its own and a box on it, (fs, box), which are gone in the end, whatever was throttled."""
    fs = LoopFS(name + "-fs", mib)
    box = Box(name, base=os.path.join(fs.at, "b"), **config)
    try:
        yield fs, box
    finally:
        if fs.key:
            fs.throttle(0)
        box.close()
        fs.free()


class BrokenFS(LoopFS):
    """ext4 whose device fails on demand for data blocks (victims/faulty.c), while its metadata goes on working."""

    def __init__(self, name, mib=256, **kw):
        need_root()
        if not os.path.exists("/dev/fuse"):
            raise Skip("no /dev/fuse")
        self.server = None
        super().__init__(name, mib, **kw)

    def prepare_image(self):
        """Puts the faulty server, which is told which blocks are free, in front of the image."""
        self.backing = self.image + ".backing"
        os.rename(self.image, self.backing)
        free = os.path.join(self.dir, "free")
        with open(free, "w") as f:
            for line in sh("dumpe2fs", self.backing).splitlines():
                if line.strip().startswith("Free blocks:"):
                    for r in line.split(":", 1)[1].replace(",", " ").split():
                        a, _, b = r.partition("-")
                        f.write("%d %d\n" % (int(a), int(b or a) - int(a) + 1))
        self.control = os.path.join(self.dir, "control")
        self.front = os.path.join(self.dir, "front")
        os.makedirs(self.front)
        self.faults()
        self.server = subprocess.Popen([victim("faulty"), self.front, self.backing, self.control, free])
        self.image = os.path.join(self.front, "image")
        atexit.register(self.free)
        eventually("the faulty disk", lambda: os.path.exists(self.image) or self.server.poll() is not None)
        if self.server.poll() is not None:
            raise Skip("no FUSE mount here")
        mounted(self.front)

    def faults(self, err=0, hold_ms=0):
        """From now on writes to new data blocks fail with `err` (0: succeed), and none ends within `hold_ms`, or until
        the next call of this."""
        fd = os.open(self.control, os.O_WRONLY | os.O_CREAT, 0o644)
        os.pwrite(fd, b"%-8d %-16d" % (err, time.monotonic() * 1000 + hold_ms if hold_ms else 0), 0)  # never empty
        os.close(fd)

    def free(self):
        if self.server is None:
            return
        self.faults()
        super().free()
        umount(self.front)  # surely: a mount whose server is dead fails every mkfs.btrfs on the machine
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.server.wait(5)
        self.server.kill()
        self.server = None
        with contextlib.suppress(OSError):
            os.unlink(self.backing)


class SlowGroup:
    """A blkio cgroup (v1) in which writes to the device of `fs` are slow: processes are moved into it."""

    def __init__(self, name, fs, bps):
        need_root()
        self.path = "/sys/fs/cgroup/blkio/fastckpt-test-%d-%s" % (os.getpid(), name)
        if not os.path.exists("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device"):
            raise Skip("no blkio controller (cgroup v1)")
        os.mkdir(self.path)
        atexit.register(self.remove)
        self.key = "%d:%d" % (os.major(os.stat(fs.loop).st_rdev), os.minor(os.stat(fs.loop).st_rdev))
        self.limit(bps)

    def limit(self, bps):
        with open(self.path + "/blkio.throttle.write_bps_device", "w") as f:
            f.write("%s %d" % (self.key, bps))

    def take(self, pid):
        with open(self.path + "/cgroup.procs", "w") as f:
            f.write(str(pid))

    def remove(self):
        for _ in range(50):
            try:
                os.rmdir(self.path)
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.1)


class Cgroup:
    """A memory cgroup with a limit, v1 or v2; Skip where none can be made."""

    def __init__(self, name, limit):
        need_root()
        self.v1 = os.path.exists("/sys/fs/cgroup/memory/memory.limit_in_bytes")
        top = "/sys/fs/cgroup/memory" if self.v1 else "/sys/fs/cgroup"
        if not self.v1 and "memory" not in self._read(top + "/cgroup.subtree_control"):
            raise Skip("no memory controller")
        self.path = "%s/fastckpt-test-%d-%s" % (top, os.getpid(), name)
        try:
            os.mkdir(self.path)
            self._write("memory.limit_in_bytes" if self.v1 else "memory.max", limit)
        except OSError as e:
            raise Skip("no memory cgroup: %s" % e)
        with contextlib.suppress(OSError):
            self._write("memory.memsw.limit_in_bytes" if self.v1 else "memory.swap.max", limit if self.v1 else 0)
        atexit.register(self.remove)

    @staticmethod
    def _read(path):
        try:
            with open(path) as f:
                return f.read()
        except OSError:
            return ""

    def _write(self, name, value):
        with open(os.path.join(self.path, name), "w") as f:
            f.write(str(value))

    def usage(self):
        return int(self._read(os.path.join(self.path, "memory.usage_in_bytes" if self.v1 else "memory.current")))

    def cache(self):
        key = "inactive_file "
        for line in self._read(os.path.join(self.path, "memory.stat")).splitlines():
            if line.startswith(key):
                return int(line.split()[1])
        return 0

    def enter(self):
        with open(os.path.join(self.path, "cgroup.procs"), "w") as f:
            f.write(str(os.getpid()))

    def oom_kills(self):
        f = "memory.oom_control" if self.v1 else "memory.events"
        m = re.search(r"^oom_kill (\d+)", self._read(os.path.join(self.path, f)), re.M)
        return int(m.group(1)) if m else 0

    def remove(self):
        for _ in range(100):
            try:
                os.rmdir(self.path)
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.05)
