# SPDX-License-Identifier: MIT
"""The rows of scripts/bench for rotations: what a save of five frameworks holds their program, with what it deletes.

The programs are victims/rotate, which makes the calls of each framework; the two that sync what they write (DCP, Orbax)
do so here as well, so that they wait for the disk on both sides.
"""

import os
import shutil
import statistics
import subprocess

from bench_lib import Failed

KINDS = ("hf", "dcp", "orbax", "lightning", "deepspeed")
SAVES, KEEP, PAUSE_MS = 6, 2, 300
PART = 96 << 20  # of each large file


def held(b, kind, fast):
    """Seconds a save, median of those that delete an older one."""
    top = b.path(kind)
    d = os.path.join(top, "ckpt")
    os.makedirs(d)
    os.mkdir(os.path.join(top, "tmp"))
    argv = [b.victim("rotate"), kind, "-m", "-n", str(SAVES), "-k", str(KEEP), "-s", str(PART), "-t", str(PAUSE_MS), d]
    if fast:
        argv = [b.tool, "run", "--paths", d + "/*", "--", *argv]
    r = subprocess.run(argv, env=b.main if fast else b.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       timeout=300)
    lines = [line.split() for line in r.stdout.splitlines() if line.startswith("held ")]
    if r.returncode or len(lines) != SAVES or "failed" in r.stdout or (fast and " 0 failures" not in r.stderr):
        raise Failed(f"rotate {kind}: exit status {r.returncode}\n{r.stdout[-500:]}{r.stderr[-500:]}")
    shutil.rmtree(top)
    return statistics.median(float(line[2]) for line in lines[KEEP:])


def row(kind):
    def measure(b):
        native, ours = [], []
        for _ in range(min(b.rounds, 3)):
            native.append(held(b, kind, False))
            ours.append(held(b, kind, True))
        n, o = statistics.median(native), statistics.median(ours)
        return {"rotate_" + kind: (n / o, {"native_s": n, "ours_s": o})}
    return measure
