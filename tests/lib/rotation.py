# SPDX-License-Identifier: MIT
#
# rotation: what the kill and power-cut tests with the frameworks' rotations share: a job of victims/rotate in a box,
# what it has said, and the check of its directory; and adding up in build/long.json.

import json
import os
import subprocess

from fc import BUILD, ROOT, victim
from kills import Said

ROTATE = victim("rotate")
KINDS = ("hf", "dcp", "orbax", "lightning", "deepspeed")
RANKS = (1, 2, 8)
KEEP = 2


class Rotation:
    """One job: `saves` saves of `kind` by `ranks` processes into a directory of its own in the box, `name`/ckpt."""

    def __init__(self, box, name, kind, ranks, saves=1000, size=1536 << 10, pause=0, shim=True):
        self.box, self.kind, self.ranks, self.saves = box, kind, ranks, saves
        self.top = os.path.join(box.d, name)
        self.d = os.path.join(self.top, "ckpt")
        for d in (self.top, self.d, os.path.join(self.top, "tmp")):
            os.makedirs(d)
            box.own(d)
        argv = [ROTATE, kind, "-r", str(ranks), "-n", str(saves), "-k", str(KEEP), "-s", str(size), "-t", str(pause)]
        self.p = box.start(argv + [self.d], cwd=self.top, shim=shim, env={"FASTCKPT_PATHS": self.d + "/*"},
                           preexec=os.setsid)
        self.said = Said(self.p)

    def kill(self, sig=9):
        """The whole job: all its ranks."""
        try:
            os.killpg(self.p.pid, sig)
        except ProcessLookupError:
            pass

    def end(self, seconds=60):
        """Waits for its end; what it said on stderr."""
        self.p.wait(seconds)
        self.said.join()
        return self.p.stderr.read()

    def check(self, **kw):
        return check(self.kind, self.ranks, self.d, **kw)


def check(kind, ranks, d, at_least=0, exactly=0, late=False):
    """The last complete save in d. AssertionError: what is wrong (P3, P4; at_least: P5)."""
    argv = [ROTATE, kind, "-c", "-r", str(ranks), "-k", str(KEEP), "-L", str(at_least), "-E", str(exactly)]
    r = subprocess.run(argv + (["-l"] if late else []) + [d], capture_output=True, text=True, errors="replace")
    assert r.returncode == 0 and r.stdout.startswith("last "), "%s x %d: %s%s" % (
        kind, ranks, r.stdout.strip(), r.stderr.strip())
    return int(r.stdout.split()[1])


class Sum:
    """Figures of the long runs, which add up over runs: build/long.json, {name: {figure: number}}."""

    def __init__(self, name):
        self.path = os.path.join(BUILD if os.access(BUILD, os.W_OK) else os.path.join(ROOT, "build"), "long.json")
        self.name = name

    def add(self, **figures):
        try:
            with open(self.path) as f:
                everything = json.load(f)
        except (OSError, ValueError):
            everything = {}
        mine = everything.setdefault(self.name, {})
        for k, v in figures.items():
            mine[k] = mine.get(k, 0) + v
        with open(self.path + ".new", "w") as f:
            json.dump(everything, f, indent=1, sort_keys=True)
            f.write("\n")
        os.replace(self.path + ".new", self.path)
        return mine
