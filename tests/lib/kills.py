# SPDX-License-Identifier: MIT
#
# kills: what the kill and power-cut tests share: what a saver has said so far, what its directory must hold then, and
# counting: a kill counts only if something was pending at that instant, and too few counting ones fail the run.

import contextlib
import os
import random
import signal
import threading

from fc import MIB, alive, check_saves, eventually, victim

RATE = int(os.environ.get("RATE") or 80) * MIB  # of throttled disks
SAVER = os.environ.get("SAVER") or victim("saver")  # cuda_saver: long/adopt.py


class Said:
    """Reads a saver's lines as they come: begin, synced, closed, failed."""

    def __init__(self, p):
        self.p = p
        self.begin = self.closed = self.synced = 0
        self.lines = []
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        for line in self.p.stdout:
            self.lines.append(line.rstrip("\n"))
            w = line.split()
            if w and w[0] in ("begin", "closed", "synced"):
                setattr(self, w[0], int(w[1]))

    def starts(self, box=None):
        """Waits until the first save has begun, and, of a box, there is something to lose: how long that takes is the
        machine's."""
        eventually("a save begins", lambda: self.begin or self.p.poll() is not None, 30)
        if box:
            eventually("something to lose", lambda: pending(box.status()) or self.p.poll() is not None, 30)

    def join(self):
        self.thread.join(10)

    def now(self):
        return {"begin": self.begin, "closed": self.closed, "synced": self.synced}

    def failed(self):
        return [l for l in self.lines if l.startswith(("failed", "unlink"))]


def rotated(d, prefix="ck-"):
    """seq -> state of the files PREFIX%d.pt in d."""
    names = [n for n in os.listdir(d) if n.startswith(prefix) and n.endswith(".pt")]
    got = check_saves(os.path.join(d, n) for n in names)
    out = {}
    for p, (state, v) in got.items():
        n = int(os.path.basename(p)[len(prefix):-3])
        out[n] = state if state != "whole" else ("whole" if v == n else "holds %d" % v)
        if state == "torn":
            out[n] = "torn %s" % v
    return out


def latest_of(d, name="latest"):
    """What the small file says: None if it is not there."""
    try:
        with open(os.path.join(d, name)) as f:
            text = f.read()
    except FileNotFoundError:
        return None
    if not text.endswith("\n") or not text.strip().isdigit():
        raise AssertionError("latest is torn: %r" % text)
    return int(text)


def check_history(d, keep, prefix="ck-", latest="latest"):
    """Asserts that the names in d are those after some number of steps of: save i, latest = i, unlink i - keep.
    Returns the number of the last save."""
    there = rotated(d, prefix)
    bad = {n: s for n, s in there.items() if s != "whole"}
    assert not bad, "not whole: %s" % bad
    seqs = sorted(there)
    last = seqs[-1] if seqs else 0
    assert seqs == list(range(seqs[0], last + 1)) if seqs else True, "a gap: %s" % seqs
    said = latest_of(d, latest)
    first = seqs[0] if seqs else 1
    if said == last and last > 0:  # the deletion of last - keep may be done or not
        allowed = {max(1, last - keep), max(1, last - keep + 1)}
    else:  # latest still says the save before: the deletion before that is done
        assert said == (last - 1 if last > 1 else None), "latest says %s, the saves are %s" % (said, seqs)
        allowed = {max(1, last - keep)}
    assert not seqs or first in allowed, "saves %s, latest %s: no state of the program's history" % (seqs, said)
    return last


def check_named(d, said, err, rc, count, prefix="ck-"):
    """Asserts what is left when keeper and engine are gone at once under a job of `count` saves that lives on: each
    name is whole or absent, each save is there or named as lost (an error said at its close names it too), the last
    arrives, and a loss says EIO once. Returns the numbers of those that are lost."""
    there = rotated(d, prefix)
    what = "there %s; %s; said %s; %s" % (there, said.now(), said.lines[-3:], err[-600:])
    assert all(v == "whole" for v in there.values()), what
    assert said.begin == count, "the job did not go on: " + what
    lost = [n for n in range(1, count + 1) if n not in there]
    for n in lost:
        assert "%s%d.pt" % (prefix, n) in err or any(l.startswith("failed %d " % n) for l in said.lines), \
            "%s%d.pt is neither there nor named: %s" % (prefix, n, what)
    eio = [l for l in said.lines if l.startswith("failed") and l.endswith("EIO")]
    assert not lost or eio or rc != 0 or "Input/output error" in err, "nothing says EIO: " + what
    assert count in there, "the last save is not there: " + what
    return lost


class Counter:
    """Kills wanted, done and counted."""

    def __init__(self, wanted, seed):
        self.wanted, self.done, self.counted = wanted, 0, 0
        self.rng = random.Random(seed)

    def more(self):
        return self.counted < self.wanted and self.done < 10 * self.wanted  # a busy machine leaves little to be hit

    def add(self, pending):
        self.done += 1
        self.counted += bool(pending)

    def verdict(self):
        assert self.counted >= self.wanted, "only %d of %d had something pending (%d wanted)" % (
            self.counted, self.done, self.wanted)


def kill(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def until_dead(pids):
    """On a busy machine one that dies looks alive for a while, and who kills again then has killed both."""
    eventually("the death of %s" % pids, lambda: not any(map(alive, pids)), step=0.002)


def pending(status):
    """Was there something to lose?"""
    return bool(status and (status["pending_files"] or status["pending_bytes"] or status["staging_used"]))
