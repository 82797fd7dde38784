# SPDX-License-Identifier: MIT
"""The figures of scripts/bench, one function a run. Each returns {key: (value, {name of a raw median: number})}.

Both sides take turns, after rounds that warm the memory and are not counted.
"""

import json
import os
import shutil
import subprocess
import time
from statistics import median

from bench_lib import Failed, Skip, cpu_seconds

WARM = 2         # rounds not counted
IDLE = 30        # seconds
IDLE_MIB = 256   # five engines at once
FILES = 10000
STEPS = 60
STEP_MIB = 64


def hold_vs_memcpy(b):
    holds, copies = [], []
    with b.saver(True) as p:
        for _ in range(WARM + 2 * b.rounds):
            copies.append(p.ask("memcpy")[0])
            holds.append(p.ask("durable " + b.path("a"))[0])
            b.clean()
        p.finish(staged=len(holds))
    hold, copy = median(holds[WARM:]), median(copies[WARM:])
    return {"hold_vs_memcpy": (hold / copy, {"hold_s": hold, "memcpy_s": copy})}


def first_hold_vs_warm(b):
    first, later = [], []
    with b.saver(True) as anchor:  # keeps the engine and its staging
        for _ in range(WARM):
            anchor.ask("durable " + b.path("a"))
        for _ in range(b.rounds):
            with b.saver(True) as p:
                holds = []
                for _ in range(4):
                    holds.append(p.ask("durable " + b.path("a"))[0])
                    b.clean()
                p.finish(staged=4)
            first.append(holds[0])
            later += holds[1:]
        anchor.finish(staged=WARM)
    a, z = median(first), median(later)
    return {"first_hold_vs_warm": (a / z, {"first_s": a, "later_s": z})}


def idle_hold_vs_warm(b):
    """Five programs with an engine each sit out the idle time together."""
    programs = [b.saver(True, b.engine_env(f"idle{i}"), IDLE_MIB) for i in range(5)]
    warm, idle = [], []
    try:
        for p in programs:
            holds = [p.ask("durable " + b.path("a"))[0] for _ in range(WARM + 3)]
            warm += holds[WARM:]
        b.clean()
        time.sleep(IDLE)
        for p in programs:
            idle.append(p.ask("durable " + b.path("a"))[0])
        for p in programs:
            p.finish(staged=WARM + 4)
    finally:
        for p in programs:
            p.__exit__()
        b.clean()
    a, z = median(idle), median(warm)
    return {"idle_hold_vs_warm": (a / z, {"idle_s": a, "warm_s": z, "mib": IDLE_MIB})}


def fio_run(b, engine, block, depth, fallocate):
    """Bytes per second of a new file."""
    path = b.path("fio")
    argv = ["fio", "--name=w", "--filename=" + path, "--rw=write", "--direct=1", f"--bs={block}", f"--iodepth={depth}",
            f"--size={b.size}M", "--ioengine=" + engine, "--fallocate=" + fallocate, "--output-format=json"]
    r = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    if os.path.exists(path):
        os.remove(path)
    if r.returncode:
        raise Failed(f"fio {engine}: {(r.stderr or r.stdout).strip()[-300:]}")
    return json.loads(r.stdout[r.stdout.index("{"):])["jobs"][0]["write"]["bw_bytes"]


def fio_engine(b):
    for engine in ("io_uring", "libaio"):
        try:
            fio_run(b, engine, "4M", 4, "none")
            return engine
        except Failed:
            pass
    raise Skip("fio can use neither io_uring nor libaio here")


def durable_vs_fio(b):
    """A look at each combination, then the best three in turn with ours."""
    if not shutil.which("fio"):
        raise Skip("fio is not installed")
    engine = fio_engine(b)
    combos = [(bs, qd, fa) for bs in ("1M", "4M") for qd in (4, 8, 16) for fa in ("native", "none")]
    combos = sorted(combos, key=lambda c: -fio_run(b, engine, *c))[:3]
    theirs = {c: [] for c in combos}
    ours = []
    with b.saver(True) as p:
        for i in range(WARM + b.rounds):
            held, durable = p.ask("durable " + b.path("a"))
            ours.append((b.size << 20) / durable)
            b.clean()
            for c in combos if i >= WARM else ():
                theirs[c].append(fio_run(b, engine, *c))
        p.finish(staged=len(ours))
    best = max(combos, key=lambda c: median(theirs[c]))
    a, z = median(ours[WARM:]) / 2**30, median(theirs[best]) / 2**30
    how = f"{engine}, {best[0]} x {best[1]}, fallocate {best[2]}"
    return {"durable_vs_fio": (a / z, {"fastckpt_gib_s": a, "fio_gib_s": z, "fio": how})}


def fsync_defer_speedup(b):
    native, ours = [], []
    with b.saver(False) as n, b.saver(True, FASTCKPT_FSYNC="defer") as f:
        for _ in range(WARM + b.rounds):
            native.append(n.ask("sync " + b.path("a"))[0])
            b.clean()
            ours.append(f.ask("sync " + b.path("b"))[0])
            b.wait()
            b.clean()
        n.finish()
        f.finish(staged=len(ours))
    a, z = median(native[WARM:]), median(ours[WARM:])
    return {"fsync_defer_speedup": (a / z, {"native_s": a, "fastckpt_s": z})}


class Ext4:
    """A fresh ext4 in a file, mounted below the directory of the checkpoints."""

    def __init__(self, b):
        self.image, self.mount = os.path.join(b.dir, "ext4"), b.path("mnt")

    def __enter__(self):
        with open(self.image, "wb") as f:
            for _ in range(192):
                f.write(bytes(1 << 20))
            os.fsync(f.fileno())
        os.makedirs(self.mount, exist_ok=True)
        for argv in (["mkfs.ext4", "-qF", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-N", "12000", self.image],
                     ["mount", "-o", "loop", self.image, self.mount]):
            r = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if r.returncode:
                raise Skip(f"{argv[0]}: {r.stdout.strip()[-200:]}")
        return self.mount

    def __exit__(self, *_):
        for options in ([], [], ["-l"]):
            if subprocess.run(["umount", *options, self.mount], stderr=subprocess.DEVNULL).returncode == 0:
                break
            time.sleep(0.2)
        os.remove(self.image)
        try:
            os.rmdir(self.mount)
        except OSError:
            pass


def small_files(b):
    if os.geteuid():
        raise Skip("needs root, for a file system of its own")
    native, synced, held, durable = [], [], [], []
    with b.saver(True, mib=1) as anchor:  # keeps the engine
        for _ in range(1 + 5):
            with Ext4(b) as d, b.saver(False, mib=1) as p:
                native.append(p.ask(f"files {d} {FILES}")[0])
                p.finish()
            with Ext4(b) as d, b.saver(True, mib=1) as p:
                h, t = p.ask(f"files_durable {d} {FILES}")
                held.append(h)
                durable.append(t)
                p.finish(captured=FILES)
            with Ext4(b) as d, b.saver(False, mib=1) as p:
                synced.append(p.ask(f"files_sync {d} {FILES if synced else 100}")[0])
                p.finish()
        anchor.finish()
    n, s, h, t = (median(x[1:]) for x in (native, synced, held, durable))
    return {"small_hold_vs_native": (h / n, {"hold_s": h, "native_s": n, "files": FILES}),
            "small_durable_speedup": (s / t, {"native_fsync_s": s, "durable_s": t, "files": FILES})}


def run_steps(b, p, rotate):
    """60 steps, every second one with a save: what they took, seconds held, CPU seconds of the engine."""
    for i in range(3):
        p.ask("step " + b.path(f"warm{i}"))
    b.wait()
    status = b.status()
    pids = [status["engine_pid"], status["keeper_pid"]]
    before = sum(cpu_seconds(pid) for pid in pids)
    plain, saving, held, names = [], [], [], []
    for i in range(STEPS):
        if i % 2 == 0:
            plain.append(p.ask("step")[0])
            continue
        names.append(b.path(f"step{i}"))
        old = names.pop(0) if rotate and len(names) > 2 else ""
        seconds, hold = p.ask(f"step {names[-1]} {old}")
        saving.append(seconds + hold)
        held.append(hold)
    b.wait()
    return plain, saving, held, sum(cpu_seconds(pid) for pid in pids) - before


def step_row(b, key, rotate):
    argv = [b.victim("bench_step"), "1", str(STEP_MIB)]
    with b.program(argv, True) as p:
        plain, saving, held, cpu = run_steps(b, p, rotate)
        p.finish(staged=len(held))
    b.clean()
    seconds = median(plain)
    value = 1 + (sum(held) + cpu) / len(held) / seconds
    return {key: (value, {"held_s": sum(held) / len(held), "engine_cpu_s": cpu / len(held), "step_s": seconds,
                          "wall_ratio": median(saving) / seconds,
                          "wall_noise": median(plain[0::2]) / median(plain[1::2])})}


def step_overhead(b):
    return step_row(b, "step_overhead", False)


def step_overhead_rotate(b):
    return step_row(b, "step_overhead_rotate", True)
