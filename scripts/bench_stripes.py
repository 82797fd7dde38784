# SPDX-License-Identifier: MIT
"""The rows of scripts/bench about stripes: how fast a save larger than staging is on disks that are throttled.

Disks are loop devices over files in memory, limited by the blkio controller. A save is timed until its bytes are on the
stripes, by the devices' own counters of completed writes; the target is slower than one stripe all the while.
"""

import os
import shutil
import subprocess
import tempfile
import time
from statistics import median

from bench_lib import Failed, Program, Skip

SPEED = 100_000_000  # bytes a second of one disk
SAVE_MIB = 1024
STAGING_MIB = 64
ROUNDS = 3  # at most: they take half a minute each
THROTTLE = "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device"


def command(*argv):
    r = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if r.returncode:
        raise Skip(f"{argv[0]}: {r.stdout.strip()[-200:]}")
    return r.stdout.strip()


class Disk:
    """ext4 on a loop device over a file in memory."""

    def __init__(self, top, name, mib):
        self.image, self.at = os.path.join(top, name), os.path.join(top, name + ".mnt")
        self.loop = None
        with open(self.image, "wb") as f:
            f.truncate(mib << 20)
        os.mkdir(self.at)
        command("mkfs.ext4", "-qF", "-m0", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.image)
        self.loop = command("losetup", "-f", "--show", self.image)
        command("mount", self.loop, self.at)
        subprocess.run(["losetup", "-d", self.loop], stderr=subprocess.DEVNULL)  # once it is unmounted
        dev = os.stat(self.loop).st_rdev
        self.key = f"{os.major(dev)}:{os.minor(dev)}"

    def throttle(self, bytes_s):
        with open(THROTTLE, "w") as f:
            f.write(f"{self.key} {bytes_s}")

    def written(self):
        with open(f"/sys/block/{os.path.basename(self.loop)}/stat") as f:
            return int(f.read().split()[6]) * 512

    def close(self):
        self.throttle(0)
        for options in ([], [], ["-l"]):
            if subprocess.run(["umount", *options, self.at], stderr=subprocess.DEVNULL).returncode == 0:
                return
            time.sleep(0.2)


class Disks:
    """The target and eight stripes."""

    def __enter__(self):
        if os.geteuid():
            raise Skip("needs root, for loop devices and their limits")
        if not os.path.exists(THROTTLE):
            raise Skip("no blkio controller (cgroup v1)")
        self.top = tempfile.mkdtemp(prefix="fastckpt-bench.", dir="/dev/shm")
        self.made = []
        try:
            self.target = self.add("target", 2 * SAVE_MIB)
            self.stripes = [self.add(f"stripe{i}", 2 * SAVE_MIB) for i in range(8)]
        except Skip:
            self.__exit__()
            raise
        return self

    def add(self, name, mib):
        self.made.append(Disk(self.top, name, mib))
        return self.made[-1]

    def __exit__(self, *_):
        for disk in self.made:
            disk.close()
        shutil.rmtree(self.top, ignore_errors=True)


class Saver:
    """A program that saves to the target by some of the stripes, with an engine of its own."""

    def __init__(self, b, disks, name, n, slowest=SPEED, target=SPEED // 4):
        self.target, self.stripes, self.limit = disks.target, disks.stripes[:n], target
        self.speeds = [slowest] + [SPEED] * (n - 1)
        self.env = dict(b.engine_env("stripes-" + name), FASTCKPT_STAGING=f"{STAGING_MIB}M",
                        FASTCKPT_STRIPES=":".join(s.at for s in self.stripes))
        argv = [b.victim("bench_save"), str(SAVE_MIB), b.tool, "wait"]
        self.program = Program([b.tool, "run", "--paths", self.target.at + "/*", "--", *argv], self.env, True)
        self.b, self.rates, self.held, self.saves = b, [], [], 0

    def save(self, counts):
        """One save, timed until its bytes are on the stripes. Then the target may be as fast as it can."""
        size = (SAVE_MIB - 1) << 20  # its first MiB goes to the file itself
        for stripe, speed in zip(self.stripes, self.speeds):
            stripe.throttle(speed)
        self.target.throttle(self.limit)
        before = sum(s.written() for s in self.stripes)
        start = time.monotonic()
        held = self.program.ask("save " + os.path.join(self.target.at, "a"))[0]
        while sum(s.written() for s in self.stripes) - before < size:
            time.sleep(0.002)
            if time.monotonic() - start > 120:
                raise Failed("what was saved has not come to the stripes")
        seconds = time.monotonic() - start
        self.target.throttle(0)
        self.b.run_tool("wait", env=self.env)
        os.remove(os.path.join(self.target.at, "a"))
        self.saves += 1
        if counts:
            self.rates.append(size / seconds)
            self.held.append(held)

    def finish(self):
        self.program.finish(staged=self.saves)

    def close(self):
        self.program.__exit__()
        self.b.end_engines([self.env])


def measure(b, disks, name, *args, **options):
    """Bytes a second, and seconds that the program was held: medians."""
    s = Saver(b, disks, name, *args, **options)
    try:
        for i in range(1 + min(b.rounds, ROUNDS)):
            s.save(i > 0)
        s.finish()
    finally:
        s.close()
    return median(s.rates), median(s.held)


def stripes(b):
    """Not in turn: the speed of each disk is the kernel's doing."""
    rate, held = {}, {}
    with Disks() as disks:
        for n in (1, 2, 4, 8):
            rate[str(n)], held[f"held_s_{n}"] = measure(b, disks, str(n), n)
        rate["fast target"], _ = measure(b, disks, "fast", 2, target=0)
        rate["half"], _ = measure(b, disks, "half", 4, slowest=SPEED // 2)
    gib = {k: r / 2**30 for k, r in rate.items()}
    return {
        "stripes": ({n: gib[n] for n in ("1", "2", "4", "8")}, held),
        "stripes_slow_target": (gib["2"] / gib["fast target"],
                                {"slow_target_gib_s": gib["2"], "fast_target_gib_s": gib["fast target"]}),
        "stripes_one_at_half": (rate["half"] / (3.5 * SPEED),
                                {"gib_s": gib["half"], "sum_gib_s": 3.5 * SPEED / 2**30}),
    }
