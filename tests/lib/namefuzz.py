# SPDX-License-Identifier: MIT
#
# The fuzzer of names: as fuzzing.py, with scripts of tests/victims/name_ops: two processes and their children make,
# replace, rename, delete, look for and list a few names that collide all the time, by odd paths, in directories and
# links that come and go. With the engine of FASTCKPT_BREAK=9 nothing is published before a call waits for it, so that
# most calls meet names whose change is queued.

import os
import re
import subprocess

import fuzzing
from fc import MIB, USER, VICTIMS
from fuzzing import Rng

SEEDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "namefuzz_seeds")
FILES = [("a.ck", 8), ("b.ck", 6), ("l.ck", 3), ("x.tx", 2), ("d/a.ck", 4), ("d/b.ck", 2), ("d/e/a.ck", 2),
         ("f.ck", 2), ("f.ck/a.ck", 2), ("g", 1), ("g/a.ck", 1), ("d", 1), ("d/x.tx", 1)]
DIRS = [("d", 6), ("d/e", 3), ("f.ck", 3), ("g", 3), (".", 2), ("ld", 2), ("a.ck", 1), ("b.ck", 1)]
ODD = ["a.ck/", "a.ck/.", "a.ck/x.ck", "d/../a.ck", "./b.ck", "d/./a.ck", "d//a.ck", "ld/a.ck", "ld/b.ck", "ld/",
       "ld/../a.ck", "d/", "d/.", "d/e/..", "f.ck/", "none/a.ck", "loop.ck", "d/" + "n" * 256 + ".ck",
       "n" * 255, ".", "d/..", "d/e/../a.ck", "up.ck", "g/", "g/../b.ck", "s/a.ck", "r/a.ck"]
FLAGS = [("wct", 10), ("wt", 4), ("wcx", 3), ("bct", 3), ("bc", 3), ("b", 2), ("wca", 3), ("wa", 2), ("r", 5),
         ("rc", 1),
         ("rn", 2), ("rd", 2), ("p", 2), ("pn", 1), ("pd", 1), ("wctn", 1), ("bcx", 1), ("rcx", 1), ("wcts", 1),
         ("bcta", 1), ("rt", 1), ("w", 2)]
SIZES = [(0, 2), (1, 3), (5000, 6), (MIB + 9, 3)]


class Script:
    def __init__(self, seed):
        self.r = r = Rng(seed ^ 0x6E616D6573)
        self.fds = {"": [], "B ": []}
        self.lines = ["# seed %d" % seed, "pre dir d"]
        self.before()
        who = r.pick([0, 0, 15, 40])  # percent of the calls that the second process makes
        forks = r.pick([0, 4, 12])
        kinds = PROFILES[r.below(len(PROFILES))]
        for _ in range(5 + r.below(22)):
            self.who = "B " if r.chance(who) else ""
            line = getattr(self, "op_" + r.weighted(kinds))()
            self.lines.append(self.who + ("fork " if r.chance(forks) else "") + line)

    def before(self):
        r = self.r
        for name, percent in (("a.ck", 60), ("b.ck", 40), ("d/a.ck", 50), ("d/b.ck", 20), ("x.tx", 40)):
            if r.chance(percent):
                self.lines.append("pre file %s %d %s" % (name, r.pick([0, 10, 5000, 5000]), r.pick(
                    ["644", "644", "644", "600", "444", "000"])))
        for line, percent in (("pre dir d/e", 50), ("pre dir f.ck", 40), ("pre dir g", 30), ("pre link ld d", 60),
                              ("pre link l.ck a.ck", 25), ("pre link l.ck d/new.ck", 15), ("pre link l.ck f.ck", 10),
                              ("pre link loop.ck loop.ck", 15), ("pre link up.ck d/../b.ck", 15),
                              ("pre hard b.ck a.ck", 10), ("pre hard d/b.ck a.ck", 10), ("pre hard x.tx a.ck", 5),
                              ("pre sticky s", 15), ("pre dir r", 20)):
            if r.chance(percent):
                self.lines.append(line)
        for line, percent in (("pre file d/e/a.ck 5000 644", 30), ("pre file f.ck/a.ck 5000 644", 30),
                              ("pre file r/a.ck 5000 644", 60), ("pre mode r 555", 50), ("pre mode r 644", 20),
                              ("pre fixed a.ck", 4), ("pre fixed d", 4), ("pre fixed b.ck", 2)):
            words = line.split(" ")
            where = words[2].split("/")[0]
            if r.chance(percent) and (where in ("d", "a.ck", "b.ck") or "pre dir " + where in self.lines) and (
                    words[2] != "d/e/a.ck" or "pre dir d/e" in self.lines):
                self.lines.append(line)

    def name(self):
        r = self.r
        return r.pick(ODD) if r.chance(12) else r.weighted(FILES)

    def dir(self):
        return self.r.pick(ODD) if self.r.chance(8) else self.r.weighted(DIRS)

    def slot(self):
        fds = self.fds[self.who]
        return self.r.pick(fds) if fds and self.r.chance(92) else self.r.below(4)

    def dirfd(self):
        return "." if self.r.chance(30) else "%d" % self.slot()

    def opened(self):
        s = self.r.below(4)
        if s not in self.fds[self.who]:
            self.fds[self.who].append(s)
        return s

    def size(self):
        return self.r.weighted(SIZES)

    def mode(self):
        return self.r.pick(["644", "644", "600", "444", "666"])

    def op_save(self):
        return "save %s %d %d" % (self.name(), self.size(), self.r.below(1000))

    def op_open(self):
        r = self.r
        if r.chance(20):
            return "openat %d %s %s %s %s" % (self.opened(), self.dirfd(), r.weighted(FLAGS), self.mode(), self.name())
        return "open %d %s %s %s" % (self.opened(), r.weighted(FLAGS), self.mode(), self.name())

    def op_opendir(self):
        return "open %d %s 0 %s" % (self.opened(), self.r.pick(["rd", "r", "pd"]), self.dir())

    def op_use(self):
        s = self.slot()
        kind = self.r.weighted([("w", 5), ("close", 5), ("fstat", 4), ("fsync", 1)])
        if kind == "close" and s in self.fds[self.who]:
            self.fds[self.who].remove(s)
        return "w %d %d %d" % (s, self.size(), self.r.below(1000)) if kind == "w" else "%s %d" % (kind, s)

    def op_stdio(self):
        r = self.r
        return "fsave %s %s %d %d" % (r.pick(["w", "w", "w", "a", "r+", "w+", "wx", "r"]), self.name(), self.size(),
                                      r.below(1000))

    def op_temp(self):
        return "mkstemp %s %s %d" % (self.r.pick([".", "d", "f.ck"]), self.name(), self.size())

    def op_rename(self):
        r = self.r
        kind = r.weighted([("rename", 12), ("renameat", 3), ("renamex", 3)])
        if kind == "renameat":
            return "renameat %s %s %s %s" % (self.dirfd(), self.name(), self.dirfd(), self.name())
        words = "%s %s %s" % (kind, self.name(), "/dev/shm/none.ck" if r.chance(3) else self.name())
        return words + " %d" % r.pick([0, 1, 1, 1, 2, 2, 3]) if kind == "renamex" else words

    def op_unlink(self):
        r = self.r
        if r.chance(20):
            return "unlinkat %s %s %d" % (self.dirfd(), self.name(), r.below(2))
        return "%s %s" % (r.pick(["unlink", "unlink", "remove"]), self.name())

    def op_dirs(self):
        r = self.r
        kind = r.weighted([("mkdir", 6), ("rmdir", 8), ("rename", 3)])
        return "rename %s %s" % (self.dir(), self.dir()) if kind == "rename" else "%s %s" % (kind, self.dir())

    def op_link(self):
        r = self.r
        if r.chance(50):
            return "symlink %s %s" % (r.pick(["a.ck", "b.ck", "d", "d/b.ck", "../a.ck", "none.ck"]), self.name())
        return "%s %s %s" % (r.pick(["link", "link", "linkat"]), self.name(), self.name())

    def op_ask(self):
        r = self.r
        p = self.name() if r.chance(80) else self.dir()
        kind = r.below(11)
        return ["stat " + p, "lstat " + p, "stat " + p, "fstatat %s %s %d" % (self.dirfd(), p, r.below(2)),
                "statx %s %d" % (p, r.below(2)), "access %s %d" % (p, r.pick([0, 2, 4, 6])),
                "faccessat %s %s %d" % (self.dirfd(), p, r.pick([0, 2, 4])), "readlink " + p, "realpath " + p,
                "one %s %s" % (p, self.name()), "cat " + p][kind]

    def op_list(self):
        r = self.r
        return r.pick(["list " + self.dir(), "list " + self.dir(), "scandir " + self.dir(), "glob *.ck", "glob */*",
                       "glob d/*.ck", "nftw " + self.dir(), "fts " + self.dir()])

    def op_move(self):
        return self.r.pick(["chdir " + self.dir(), "fchdir %d" % self.slot(), "home", "home", "home"])

    def op_attr(self):
        r = self.r
        return r.pick(["truncate %s %d" % (self.name(), r.pick([0, 100, 7000])),
                       "chmod %s %s" % (r.weighted(FILES), self.mode()),
                       "chmod %s %s" % (r.pick(["d", "d/e", "f.ck", "g"]), r.pick(["755", "555"])),
                       "utimens %s %d" % (self.name(), 1000 + r.below(1000)), "getx " + self.name(),
                       "setx %s %d" % (self.name(), r.below(1000))])

    def op_drain(self):
        return "drain"

    def op_sleep(self):
        return "sleep %d" % self.r.pick([1, 2, 5])


BASE = [("save", 14), ("open", 8), ("opendir", 2), ("use", 8), ("stdio", 3), ("temp", 2), ("rename", 12),
        ("unlink", 12), ("dirs", 7), ("link", 3), ("ask", 16), ("list", 1), ("move", 2), ("attr", 3), ("drain", 1),
        ("sleep", 1)]


def bent(**more):
    return [(k, more.get(k, w)) for k, w in BASE]


# Without what waits for the queue, it gets long.
PROFILES = [BASE, bent(link=0, list=0, temp=0, dirs=4), bent(link=0, list=0, temp=0, open=0, stdio=0, dirs=12, attr=0),
            bent(link=0, list=0, opendir=6, move=8, ask=20)]


def generate(seed):
    return "\n".join(Script(seed).lines) + "\n"


def normal(line, _unseen):
    """What differs by design, taken out of both traces, as in callfuzz.py: an open file is in no listing."""
    if re.match(r"(B |fork )*(list|scandir|glob|nftw|fts) ", line):
        line = " ".join(w for w in line.split(" ") if not w.endswith("?"))
    return line


# Who runs the scripts, and how the engine writes: each half is matched by its names, or by its directory.
VARIANTS = [("uring", None, True), ("threads", USER, False), ("threads", None, False), ("uring", USER, True)]


class NameFuzzer(fuzzing.Fuzzer):
    ops = os.path.join(VICTIMS, "name_ops")
    generate = staticmethod(generate)
    normal = staticmethod(normal)

    def __init__(self, name, everything=False, **kw):
        super().__init__(name, **kw)
        if everything:  # matched by their directory
            self.box.config["PATHS"] = self.sides[True] + "/*"

    def pre(self, what, path, w):
        if what == "link":
            if not os.path.lexists(path):
                os.symlink(w[0], path)
            if self.box.uid is not None:
                os.lchown(path, self.box.uid, self.box.uid)
        elif what == "hard":
            if os.path.exists(os.path.join(os.path.dirname(path), w[0])) and not os.path.lexists(path):
                os.link(os.path.join(os.path.dirname(path), w[0]), path)
        elif what == "mode":
            if os.path.exists(path):
                os.chmod(path, int(w[0], 8))
        elif what == "sticky":  # with a file in it that is the user's only if the directory is
            os.mkdir(path)
            os.chmod(path, 0o1777)
            with open(path + "/a.ck", "w") as f:
                f.write("root's")
            os.chmod(path + "/a.ck", 0o666)
        elif what == "fixed":
            if os.path.exists(path):
                subprocess.run(["chattr", "+i", path], stderr=subprocess.DEVNULL, check=False)
                self.fixed = True
        else:
            super().pre(what, path, w)

    def remove(self, d):
        if getattr(self, "fixed", False):
            subprocess.run(["chattr", "-R", "-i", d], stderr=subprocess.DEVNULL, check=False)
        super().remove(d)
