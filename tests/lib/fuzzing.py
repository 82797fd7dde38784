# SPDX-License-Identifier: MIT
#
# What the differential fuzzers share (callfuzz.py, namefuzz.py): scripts of calls, made from seeds, are run natively
# and under the shim by a program of tests/victims; what both printed and left is compared, and what differs is shrunk.
# The generators have a PRNG of their own, so a seed means the same script everywhere, for as long as its generator does
# not change; what failed is kept as a script.

import os
import re
import shutil
import subprocess

from fc import Box, say, torn

MASK = (1 << 64) - 1


class Rng:
    """splitmix64."""

    def __init__(self, seed):
        self.x = seed
        self.x = self.next()  # far from that of the next seed

    def next(self):
        self.x = self.x + 0x9E3779B97F4A7C15 & MASK
        z = self.x
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        return z ^ z >> 31

    def below(self, n):
        return self.next() % n

    def chance(self, percent):
        return self.below(100) < percent

    def pick(self, items):
        return items[self.below(len(items))]

    def weighted(self, pairs):
        at = self.below(sum(w for _, w in pairs))
        for item, w in pairs:
            at -= w
            if at < 0:
                return item


# ---------------------------------------------------------------------------------------------------- comparing

def difference(native, shim, script, normal):
    """The first line that differs, or None."""
    unseen = bool(re.search(r"^(fork|spawnx?|exec|fdopen|fnw) ", script, re.M))
    a, b = [normal(l, unseen) for l in native], [normal(l, unseen) for l in shim]
    for x, y in zip(a, b):
        if x != y:
            return "native: %s | shim: %s" % (x, y)
    if len(a) != len(b):
        longer, who = (a, "shim") if len(a) > len(b) else (b, "native")
        return "%s ends before: %s" % (who, longer[min(len(a), len(b))])
    return None


def parts(lines):
    """The lines of each sequence of a trace."""
    out = []
    for line in lines:
        if line.startswith("@ "):
            out.append([])
        elif out:
            out[-1].append(line)
    return out


def kind_of(how):
    """The call in which two runs differ first: a shrunk script has to differ in the same one."""
    m = re.match(r"native:\s+(?:fork |thread )*(\S+)", how)
    word = m.group(1) if m else how.split(":")[0]
    return "names" if word.endswith(":") or word == "outside" else word


class Fuzzer:
    """Two directories, one engine. A kind of fuzzer has its program `ops`, `generate`, which makes a seed's script, and
    `normal`, which takes what differs by design out of a line."""

    def __init__(self, name, io=None, uid=None, **config):
        config.setdefault("PATHS", "*.ck")
        self.box = Box(name, uid=uid, io=io, REPORT=None, **config)
        self.sides = {False: os.path.join(self.box.top, "n"), True: os.path.join(self.box.top, "s")}
        for d in self.sides.values():
            os.mkdir(d)
            self.box.own(d)

    def prepare(self, side, k, script):
        d = os.path.join(self.sides[side], "%d" % k)
        os.makedirs(d)
        self.box.own(d)
        for line in script.splitlines():
            w = line.split(" ")
            if w[0] == "pre":
                self.pre(w[1], os.path.join(d, w[2]), w[3:])

    def pre(self, what, path, w):
        """One line of a script that is done before its program starts."""
        if what == "dir":
            os.makedirs(path, exist_ok=True)
            self.box.own(path)
        elif what == "file":
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as f:
                f.write(b"old bytes of mine" * (int(w[0]) // 17) + b"x" * (int(w[0]) % 17))
            self.box.own(path)
            os.chmod(path, int(w[1], 8))

    def remove(self, d):
        for top, dirs, _ in os.walk(d):  # scripts close directories, too
            for n in dirs:
                if not os.path.islink(os.path.join(top, n)):
                    os.chmod(os.path.join(top, n), 0o755)
        shutil.rmtree(d)

    def run_side(self, side, scripts, timeout):
        """(lines of each sequence, its names as seen from outside, what is wrong with the run)."""
        for k, s in enumerate(scripts):
            self.prepare(side, k, s)
        text = "".join("@ %d\n%s" % (k, s) for k, s in enumerate(scripts))
        wrong = None
        try:
            r = self.box.run([self.ops], cwd=self.sides[side], shim=side, timeout=timeout, input=text)
            if r.rc != 0:
                wrong = "ended with %d: %s" % (r.rc, r.err.strip()[-300:])
            elif r.err.strip():
                wrong = "stderr: " + r.err.strip()[-300:]
            got = parts(r.out.splitlines())
        except AssertionError as e:
            wrong, got = str(e), []
        got += [[] for _ in range(len(scripts) - len(got))]
        dirs = [os.path.join(self.sides[side], "%d" % k) for k in range(len(scripts))]
        seen = subprocess.run([self.ops, "-d"] + dirs, stdout=subprocess.PIPE, text=True, errors="replace", check=True)
        for k, (d, lines) in enumerate(zip(dirs, parts(seen.stdout.splitlines()))):
            got[k] += ["outside " + l for l in lines]
            got[k] += [l.split(":")[-1] for l in torn(d) if side]
            got[k] += ["left behind " + n for top, _, names in os.walk(d) for n in names if n.startswith(".")]
            self.remove(d)
        return got, wrong

    def compare(self, scripts, timeout=60):
        """(number of the first sequence that differs, how), or None."""
        native, wrong = self.run_side(False, scripts, timeout)
        assert wrong is None, "natively: %s\n%s" % (wrong, scripts)
        shim, wrong = self.run_side(True, scripts, timeout)
        for k in range(len(scripts)):
            how = difference(native[k], shim[k], scripts[k], self.normal)
            if how:
                return k, how + (" (%s)" % wrong if wrong else "")
        return (0, wrong) if wrong else None

    def fails(self, script, tries=1, timeout=12, kind=None):
        for _ in range(tries):
            found = self.compare([script], timeout)
            if found and kind in (None, kind_of(found[1])):
                return found[1]
        return None

    def shrink(self, script, kind, tries=1):
        """The shortest script that still differs in the same call, by dropping lines, halves first."""
        lines = script.splitlines()
        step = max(1, len(lines) // 2)
        while True:
            at, changed = 0, False
            while at < len(lines):
                fewer = lines[:at] + lines[at + step:]
                if fewer and self.fails("\n".join(fewer) + "\n", tries, kind=kind):
                    lines, changed = fewer, True
                else:
                    at += step
            if step == 1 and not changed:
                break
            step = max(1, step // 2)
        return self.plainer(lines, kind, tries)

    def plainer(self, lines, kind, tries):
        """The same without forks and threads that do not matter."""
        for i, line in enumerate(lines):
            for prefix in ("fork thread ", "fork ", "thread "):
                if line.startswith(prefix):
                    other = lines[:i] + [line[len(prefix):]] + lines[i + 1:]
                    if self.fails("\n".join(other) + "\n", tries, kind=kind):
                        lines = other
                    break
        return "\n".join(lines) + "\n"


def kept(seeds):
    """name -> script of the differences found before."""
    out = {}
    for n in sorted(os.listdir(seeds)) if os.path.isdir(seeds) else []:
        with open(os.path.join(seeds, n)) as f:
            out[n] = f.read()
    return out


def hunt(fuzzer, seeds, at_once=10, stop=None):
    """Runs the sequences of these seeds. (how many were run, [(seed, how, shortest script)])."""
    done, found = 0, []
    seeds = list(seeds)
    for i in range(0, len(seeds), at_once):
        left = seeds[i:i + at_once]
        while left:
            hit = fuzzer.compare([fuzzer.generate(s) for s in left])
            if not hit:
                done += len(left)
                break
            k, how = hit
            done += k + 1
            script = fuzzer.generate(left[k])
            alone = fuzzer.fails(script, tries=3)
            if alone:
                script = fuzzer.shrink(script, kind_of(alone))
                found.append((left[k], fuzzer.fails(script, tries=3) or alone, script))
            else:
                found.append((left[k], how + " (in this process only: %s)" % left[:k + 1], script))
            left = left[k + 1:]
        if stop and stop(done, found):
            break
    return done, found


def show(seed, how, script):
    return "seed %s: %s\n%s" % (seed, how, "".join("    " + l + "\n" for l in script.splitlines()))


def by_hand(words, generate, fuzzers):
    """SEED...: these seeds. FILE...: these scripts. -p SEED: prints the script. By each of (name, fuzzer)."""
    if words[0] == "-p":
        say(generate(int(words[1])))
        return
    for name, fuzzer in fuzzers:
        for w in words:
            if w.isdigit():
                for f in hunt(fuzzer, [int(w)])[1]:
                    say(show(*f))
            else:
                with open(w) as f:
                    say("%s, %s: %s" % (w, name, fuzzer.fails(f.read()) or "the same"))
