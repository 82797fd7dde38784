# SPDX-License-Identifier: MIT
#
# The fuzzer of calls on descriptors, FILEs and the names they lead to: scripts of tests/victims/fuzz_ops, and what
# differs by design. The rest is fuzzing.py's.

import os
import re

import fuzzing
from fc import MIB, VICTIMS
from fuzzing import Rng

SEEDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fuzz_seeds")
FILES = [("a.ck", 8), ("b.ck", 4), ("l.ck", 1), ("x.tx", 3), ("y.tx", 1), ("l.tx", 1), ("d/c.ck", 2), ("d/z.tx", 1),
         ("e/c.ck", 1), ("e.ck/c.ck", 1)]
DIRS = [(".", 4), ("d", 3), ("e", 1), ("e.ck", 2)]
EDGES = [0, 1, 2, 7, 511, 512, 4095, 4096, 4097, 65536, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB + 5, 4 * MIB - 1,
         4 * MIB, 4 * MIB + 1, 5 * MIB + 4095, 6 * MIB]
SMALL = [0, 1, 5, 100, 4096, 5000]
FLAGS = [("wct", 12), ("wt", 4), ("wcx", 2), ("bct", 3), ("bc", 3), ("b", 3), ("wc", 3), ("w", 2), ("wca", 3),
         ("ba", 1), ("bcta", 1), ("wcta", 1), ("bcx", 1), ("r", 6), ("rc", 1), ("rn", 1), ("rt", 1), ("rd", 1),
         ("wctn", 1), ("wcts", 1), ("wcte", 1)]
MODES = ["644", "600", "666", "640", "444", "200", "755"]


class Script:
    """One sequence: knows roughly what is open, so that most calls mean something."""

    def __init__(self, seed):
        self.r = Rng(seed)
        self.fds, self.files, self.lines = [], [], ["pre dir d"]
        r = self.r
        for name in ("a.ck", "b.ck", "x.tx", "d/c.ck"):
            if r.chance(25):
                self.lines.append("pre file %s %d %s" % (name, r.pick([0, 10, 4096, MIB + 3, 5 * MIB]), r.pick(MODES)))
        profile = r.pick(list(PROFILES))
        kinds = PROFILES[profile]
        self.lines.insert(0, "# seed %d, profile %s" % (seed, profile))
        for _ in range(6 + r.below(30)):
            self.line(r.weighted(kinds))

    def line(self, kind):
        r = self.r
        how = r.weighted([("", 90), ("fork ", 4), ("thread ", 4), ("fork thread ", 1)])
        line = getattr(self, "op_" + kind)()
        if not line:
            return
        self.lines.append(how + line)

    def name(self):
        return self.r.weighted(FILES)

    def slot(self):
        r = self.r
        return r.pick(self.fds) if self.fds and r.chance(93) else r.below(5)

    def size(self):
        r = self.r
        n = r.pick(SMALL) if r.chance(45) else r.pick(EDGES)
        return n + r.below(9) if r.chance(10) and n < 6 * MIB else n

    def offset(self):
        r = self.r
        if r.chance(30):
            return r.below(8192)
        return max(0, r.pick([0, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 12 * MIB]) + r.pick([-4097, -1, 0, 0, 0, 1, 4096, 99]))

    def seed(self):
        return self.r.below(1000)

    def opened(self):
        s = self.r.below(5)
        if s not in self.fds:
            self.fds.append(s)
        return s

    def op_open(self):
        r = self.r
        if r.chance(8):
            return "creat %d %s %s" % (self.opened(), r.pick(MODES), self.name())
        return "open %d %s %s %s" % (self.opened(), r.weighted(FLAGS), r.pick(MODES), self.name())

    def op_save(self):
        name = self.r.pick(["a.ck", "a.ck", "b.ck", "d/c.ck"])
        return "open %d wct %s %s" % (self.opened(), self.r.pick(MODES), name)

    def op_close(self):
        s = self.slot()
        if s in self.fds and self.r.chance(90):
            self.fds.remove(s)
        return "close %d" % s

    def op_write(self):
        r, s = self.r, self.slot()
        kind = r.weighted([("w", 60), ("pw", 18), ("wv", 12), ("pwv", 10)])
        if kind == "w":
            return "w %d %d %d" % (s, self.size(), self.seed())
        if kind == "pw":
            return "pw %d %d %d %d" % (s, -1 if r.chance(2) else self.offset(), self.size(), self.seed())
        n = r.pick([0, 1, 2, 3, 7, 40])
        size = r.pick(SMALL + [MIB // 2, MIB + 1]) if n > 3 else self.size()
        size = min(size, 12 * MIB // max(n, 1))
        if kind == "wv":
            return "wv %d %d %d %d" % (s, n, size, self.seed())
        return "pwv %d %d %d %d %d" % (s, self.offset(), n, size, self.seed())

    def op_seek(self):
        r, s = self.r, self.slot()
        kind = r.weighted([("set", 5), ("cur", 3), ("end", 3), ("data", 1), ("hole", 1)])
        off = self.offset()
        off = off if kind in ("set", "data", "hole") else r.pick([0, 0, -1, 1, -4096, 100, MIB])
        return "seek %d %d %s" % (s, off, kind)

    def op_read(self):
        r, s = self.r, self.slot()
        if r.chance(15):
            return "map %d" % s
        if r.chance(50):
            return "r %d %d" % (s, self.size())
        return "pr %d %d %d" % (s, self.offset(), self.size())

    def op_shape(self):
        r, s = self.r, self.slot()
        if r.chance(50):
            return "trunc %d %d" % (s, self.offset())
        if r.chance(30):
            return "truncp %s %d" % (self.name(), self.offset())
        return "falloc %d %d %d %d" % (s, r.pick([0, 0, 1, 3, 16]), self.offset(), 1 + self.size())

    def op_ask(self):
        r, s = self.r, self.slot()
        return r.pick(["fstat %d" % s, "fstat %d" % s, "stat " + self.name(), "stat " + self.name(),
                       "lstat " + self.name(), "access %s %d" % (self.name(), r.pick([0, 2, 4, 6])), "getfl %d" % s,
                       "same %d %s" % (s, self.name()), "readlink " + self.name(), "list " + r.weighted(DIRS)])

    def op_dup(self):
        r, s = self.r, self.slot()
        kind = r.below(3)
        if kind == 0:
            return "dup %d %d" % (s, self.opened())
        if kind == 1:
            return "dup2 %d %d" % (s, self.slot())
        return "dupfd %d %d %d" % (s, self.opened(), 3 + r.below(20))

    def op_sync(self):
        return "%s %d" % (self.r.pick(["fsync", "fdatasync"]), self.slot())

    def op_flags(self):
        r, s = self.r, self.slot()
        return r.pick(["setfl %d a" % s, "setfl %d r" % s, "flock %d" % s, "lock %d %d" % (s, r.below(2))])

    def op_name(self):
        r = self.r
        kind = r.weighted([("rename", 8), ("unlink", 6), ("link", 3), ("symlink", 2), ("mkdir", 2), ("rmdir", 1),
                           ("remove", 1), ("dir", 1)])
        if kind in ("unlink", "remove"):
            return "%s %s" % (kind, self.name())
        if kind == "symlink":
            return "symlink %s %s" % (r.pick(["a.ck", "x.tx", "b.ck", "nowhere.ck"]), r.pick(["l.ck", "l.tx"]))
        if kind in ("mkdir", "rmdir"):
            return "%s %s" % (kind, r.pick(["e", "e.ck", "d", "a.ck"]))
        if kind == "dir":
            return "rename %s %s" % (r.pick(["d", "e", "e.ck"]), r.pick(["e", "e.ck", "d"]))
        return "%s %s %s" % (kind, self.name(), self.name())

    def op_meta(self):
        r = self.r
        return r.pick(["chmod %s %s" % (self.name(), r.pick(MODES)), "fchmod %d %s" % (self.slot(), r.pick(MODES)),
                       "futimens %d %d" % (self.slot(), 1000 + self.seed()),
                       "utimens %s %d" % (self.name(), 1000 + self.seed())])

    def op_copy(self):
        r = self.r
        n = self.size()
        if r.chance(50):
            return "sendfile %d %d %d %d" % (self.slot(), self.slot(), r.pick([-1, -1, 0, 100, MIB]), n)
        return "cfr %d %d %d %d %d" % (self.slot(), r.pick([-1, 0, 77]), self.slot(), r.pick([-1, -1, 0, MIB + 1]), n)

    def op_child(self):
        return "%s %d %d %d" % (self.r.pick(["spawn", "spawnx", "exec"]), self.slot(), self.size(), self.seed())

    def op_sleep(self):
        return "sleep %d" % self.r.pick([1, 3, 10])

    def op_fopen(self):
        r = self.r
        f = r.below(3)
        if f not in self.files:
            self.files.append(f)
        mode = r.weighted([("w", 8), ("a", 3), ("r", 3), ("r+", 3), ("w+", 3), ("wx", 1), ("a+", 1)])
        if r.chance(15) and self.fds:
            return "fdopen %d %d %s" % (f, self.slot(), mode.replace("x", ""))
        return "%s %d %s %s" % ("freopen" if r.chance(10) else "fopen", f, mode, self.name())

    def op_stream(self):
        """A FILE that a shadow stands behind."""
        r = self.r
        f = r.below(3)
        if f not in self.files:
            self.files.append(f)
        return "fopen %d w %s" % (f, r.pick(["a.ck", "a.ck", "b.ck", "d/c.ck"]))

    def op_stdio(self):
        r = self.r
        f = r.pick(self.files) if self.files else r.below(3)
        if r.chance(30):
            return self.large(f)
        kind = r.weighted([("fwrite", 12), ("fputs", 4), ("fprintf", 3), ("fseek", 5), ("ftell", 3), ("fflush", 4),
                           ("fclose", 4), ("fnw", 4), ("fnseek", 1), ("fread", 3), ("rewind", 1), ("setvbuf", 2)])
        if kind in ("ftell", "fflush", "rewind", "fclose"):
            return "%s %d" % (kind, f)
        if kind in ("fwrite", "fnw"):
            return "%s %d %d %d" % (kind, f, self.size(), self.seed())
        if kind == "fputs":
            return "fputs %d some_text" % f
        if kind == "fprintf":
            return "fprintf %d text %d" % (f, self.seed())
        if kind == "fread":
            return "fread %d %d" % (f, self.size())
        if kind == "setvbuf":
            return "setvbuf %d %s %d" % (f, r.pick(["n", "l", "f"]), r.pick([0, 64, 70000]))
        wh = r.pick(["set", "cur", "end"])
        return "%s %d %d %s" % (kind, f, self.offset() if wh == "set" else r.pick([0, 0, -1, 5, -4096]), wh)

    def large(self, f):
        """What fwrite may stage, and numpy's call before it."""
        r = self.r
        kind = r.weighted([("fwrite", 6), ("fwu", 3), ("fwn", 3), ("ffalloc", 2), ("ferror", 1), ("fwide", 1)])
        size = r.pick([65535, 65536, 65537, 69632, 200000, MIB - 1, MIB, MIB + 4097, 3 * MIB + 5, 4 * MIB, 5 * MIB])
        if kind == "ferror":
            return "ferror %d" % f
        if kind == "fwide":
            return "fwide %d %d" % (f, r.pick([-1, 0, 0, 1]))
        if kind == "ffalloc":
            return "ffalloc %d %d %d" % (f, self.offset(), size)
        if kind == "fwn":
            n = r.pick([1, 3, 8, 4096, size])
            return "fwn %d %d %d %d" % (f, n, size // n, self.seed())
        return "%s %d %d %d" % (kind, f, size, self.seed())


BASE = [("open", 8), ("write", 16), ("close", 8), ("seek", 4), ("read", 4), ("shape", 3), ("ask", 8), ("dup", 3),
        ("sync", 1), ("flags", 1), ("name", 6), ("meta", 3), ("copy", 2), ("child", 1), ("sleep", 2), ("fopen", 2),
        ("stdio", 4), ("save", 3), ("stream", 1)]


def bent(**more):
    return [(k, more.get(k, w)) for k, w in BASE]


PROFILES = {
    "mixed": BASE,
    "saves": bent(save=16, write=24, close=14, open=3, name=10, stdio=0, fopen=0, sleep=3),
    "names": bent(save=10, name=24, ask=16, close=12, write=12),
    "stdio": bent(fopen=12, stdio=40, open=3, write=4),
    "streams": bent(stream=12, fopen=2, stdio=60, open=2, write=4, name=3, copy=1, dup=4, seek=6),
    "descriptors": bent(save=10, dup=12, child=5, copy=8, flags=4, seek=8, shape=6),
}


def generate(seed):
    return "\n".join(Script(seed).lines) + "\n"


# What differs by design, taken out of both traces, each with its reason. (Three more are in the victim, where it takes
# the program's own knowledge to leave them out: replaces_under_reader, op_fstat, op_getfl.)
def normal(line, unseen):
    if re.match(r"(fork |thread )*list ", line):
        # README, "What it does not catch": an open captured file is not in its directory's listing before it is
        # complete. fuzz_ops marks the names of open files.
        line = " ".join(w for w in line.split(" ") if not w.endswith("?"))
    if unseen:
        # What a child, or the C library's own write, writes to a descriptor after futimens: where bytes were staged
        # the shim cannot know of it, and those times win.
        line = re.sub(r" m=[0-9.]+", "", line)
    return line


class CallFuzzer(fuzzing.Fuzzer):
    ops = os.path.join(VICTIMS, "fuzz_ops")
    generate = staticmethod(generate)
    normal = staticmethod(normal)
