# SPDX-License-Identifier: MIT
#
# killing: kills under the frameworks' rotations. One batch is a box of its own in which jobs run while their engine,
# keeper and ranks are killed at random instants; after each kill the directory must be a state of the jobs' history,
# and what was closed must arrive.

import os
import random
import shutil
import signal
import time

from fc import USER, Box, alive
from kills import kill, pending, until_dead
from rotation import KINDS, RANKS, Rotation

ENDS_JOB = ("job", "engine+job", "keeper+engine")
WHO = ("engine",) * 5 + ("keeper",) * 3 + ENDS_JOB
SAVES = 10


class Batch:
    """`wanted` counting kills; `done` and `counted` say how many there were."""

    def __init__(self, name, wanted, seed, io=None, user=False):
        self.rng = random.Random("kills %s" % seed)
        self.box = Box(name, uid=USER if user else None, io=io, STAGING="128M", LOG="info",
                       FSYNC=self.rng.choice(("wait", "defer")))
        self.wanted, self.done, self.counted, self.jobs = wanted, 0, 0, 0
        self.by = {}
        self.since_keeper = 0
        self.last = ""

    def run(self):
        """What went wrong: None or text with all that is needed to see it again."""
        try:
            while self.counted < self.wanted and self.done < 10 * self.wanted:
                self.job()
        except AssertionError as e:
            return str(e)
        finally:
            self.box.close()
            shutil.rmtree(self.box.top, ignore_errors=True)
        return None

    def job(self):
        kind, ranks = self.rng.choice(KINDS), self.rng.choice(RANKS)
        self.jobs += 1
        r = Rotation(self.box, "j%d" % self.jobs, kind, ranks, SAVES)
        what = "%s x %d, job %d" % (kind, ranks, self.jobs)
        try:
            ended = self.kills(r)
            self.after(r, ended)
        except AssertionError as e:
            log = self.box.engine_log().splitlines()[-12:]
            raise AssertionError("%s, kill %d (%s): %s; said %s; log %s" % (
                what, self.done, self.last, e, r.said.lines[-4:], log))
        finally:
            r.kill()
        shutil.rmtree(r.top, ignore_errors=True)

    def choose(self):
        who = self.rng.choice(WHO)
        if who == "engine" and self.since_keeper >= 4:  # each comes later than the one before; a keeper begins anew
            who = "keeper"
        self.since_keeper = self.since_keeper + 1 if who == "engine" else 0
        return who

    def kills(self, r):
        """Kills while the job runs. Returns what ended it, or None."""
        wait = 0.05
        while r.p.poll() is None:
            time.sleep(self.rng.uniform(0, wait))
            s = self.box.status()
            if not s or not r.said.begin or not alive(s["engine_pid"]) or not alive(s["keeper_pid"]):
                continue  # the next one is on its way: who kills now kills both
            wait = 0.005
            if not pending(s) and self.rng.random() < 0.9:
                continue  # most are to meet something
            wait = 0.08
            who = self.choose()
            pids = [s[w + "_pid"] for w in ("keeper", "engine") if w in who]
            frozen = who == "keeper+engine" or (who == "engine" and self.rng.random() < 0.5)
            if frozen:  # so that nothing changes under the check
                r.kill(signal.SIGSTOP)
                if who == "engine":
                    os.kill(s["keeper_pid"], signal.SIGSTOP)
            closed = r.said.closed
            self.last = who + (" frozen" if frozen else "")
            kill(pids)
            if "job" in who:
                r.kill()
            until_dead(pids)
            self.done += 1
            counts = bool(pending(s))
            self.counted += counts
            self.by[who] = self.by.get(who, 0) + counts
            if frozen:
                self.frozen(r, s, who)
            if who in ENDS_JOB:
                return who, closed
        return None

    def frozen(self, r, s, who):
        """Job stopped, no engine: P3 and P4 of what is there."""
        try:
            r.check()
        finally:
            if who == "engine":
                os.kill(s["keeper_pid"], signal.SIGCONT)
                r.kill(signal.SIGCONT)
            else:
                r.kill()

    def after(self, r, ended):
        """Everything that was closed has arrived (P5), in order (P4), whole (P3), and nothing failed (P6)."""
        try:
            err = r.end(60)
        except Exception:
            raise AssertionError("the job hangs: %s, status %s" % (r.said.now(), self.box.status()))
        if ended and ended[0] == "keeper+engine":
            return  # checked where it stood: what was pending has gone with them
        w = self.box.wait()
        assert w.rc == 0, "fastckpt wait: %r" % w
        s = self.box.status()
        assert not s or not s["failures"], "failures: %s" % self.box.engine_log()[-600:]
        if ended:
            r.check(at_least=ended[1])
        else:
            assert r.p.returncode == 0 and not r.said.failed(), "rc %s, %s; %s" % (
                r.p.returncode, r.said.lines[-3:], err[-400:])
            assert " 0 failures" in err, err[-400:]
            r.check(exactly=SAVES)
        assert not self.box.leftovers(r.d), self.box.leftovers(r.d)


def batch(args):
    """For a pool of processes: (what went wrong, done, counted, by whom)."""
    b = Batch(*args)
    wrong = b.run()
    return wrong, b.done, b.counted, b.by
