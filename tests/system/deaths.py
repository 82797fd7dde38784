#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 240
#
# Proves what is left when several die at once, in a restart, slowed down, or all of them: the rows of ARCHITECTURE's
# table that kill_job, kill_engine and kill_keeper have not. How: as those, at random instants of saves on a throttled
# loop device, the engine slow or starved by a cgroup where a case says so. KILLS is how many must count in each case.
# Cannot see deaths of the machine (powercut.py).

import contextlib
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from disks import LoopFS, SlowGroup  # noqa: E402
from groups import Group, Starved  # noqa: E402
from kills import RATE, SAVER, Counter, Said, check_history, check_named, pending, rotated  # noqa: E402

KILLS = int(os.environ.get("KILLS") or 2)
KEEP = 2


class Stage:
    """A throttled disk, a box on it, a counter, and a directory for each run."""

    def __init__(self, name, io, **config):
        name += "-" + io
        self.fs = LoopFS(name, 700)
        self.box = Box(name, base=os.path.join(self.fs.at, "b"), io=io, STAGING="192M", **config)
        self.count = Counter(KILLS, name + os.environ.get("SEED", ""))
        self.rng = self.count.rng
        self.slowed, self.runs = [], 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.fs.throttle(0)
        for s in self.slowed:
            if isinstance(s, SlowGroup):
                s.limit(0)
        self.box.close()
        self.fs.free()
        for s in self.slowed:
            s.remove()
        if exc[0] is None:
            self.count.verdict()

    def slow(self, group):
        self.slowed.append(group)
        return group

    def begin(self, rate=RATE):
        """A directory for the next run, and the disk slow."""
        self.runs += 1
        self.d = os.path.join(self.box.d, "run%d" % self.runs)
        os.makedirs(self.d)
        self.fs.throttle(rate)
        return self.d

    def saver(self, *more, prefix="ck", **kw):
        p = self.box.start([SAVER, "-p", prefix + "-%d.pt", "-s", "20M"] + list(more), cwd=self.d, **kw)
        said = Said(p)
        said.starts()
        return p, said

    def nap(self, least=0.1, most=0.6):
        time.sleep(self.rng.uniform(least, most))

    def pair(self):
        return eventually("an engine", self.box.status)

    def settle(self):
        """The disk is fast again; everything pending arrives."""
        self.fs.throttle(0)
        w = self.box.wait()
        assert w.rc == 0, "fastckpt wait: %r" % w

    def from_disk(self):
        """What a dead engine had in flight is on the disk now, and is read from there."""
        sync_disk(self.fs.at)
        sh("sh", "-c", "echo 1 > /proc/sys/vm/drop_caches")

    def clear(self):
        assert not self.box.leftovers(self.d), self.box.leftovers(self.d)
        sh("rm", "-rf", self.d)


def send(sig, *pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sig)


def end_of(p, said, status):
    try:
        rc = p.wait(60)
    except subprocess.TimeoutExpired:
        raise AssertionError("the job hangs: %s, status %s" % (said.now(), status()))
    said.join()
    return rc, p.stderr.read()


def check_dead_job(stage, said):
    """All that the dead job had closed is there, in a state of its history."""
    last = check_history(stage.d, KEEP)
    assert said.closed <= last <= said.begin, "last is %d, %s, there %s" % (last, said.now(), rotated(stage.d))


# ---------------------------------------------------------------------------------------------------- several at once

def engine_and_client(io):
    """The engine and one of two clients: what it had closed arrives, the other notices nothing."""
    with Stage("ec", io) as st:
        while st.count.more():
            st.begin()
            a, said_a = st.saver("-n", "12", "-k", str(KEEP), "-l", "latest")
            b, said_b = st.saver("-n", "5", "-t", "20", prefix="other")
            st.nap()
            s = st.pair()
            send(signal.SIGKILL, *((a.pid, s["engine_pid"]) if st.runs % 2 else (s["engine_pid"], a.pid)))
            st.count.add(pending(s))
            a.wait()
            said_a.join()
            st.fs.throttle(0)
            rc, err = end_of(b, said_b, st.box.status)
            assert rc == 0 and not said_b.failed() and " 0 failures" in err, (said_b.failed(), err[-500:])
            st.settle()
            check_dead_job(st, said_a)
            assert rotated(st.d, "other-") == {n: "whole" for n in range(1, 6)}, rotated(st.d, "other-")
            st.clear()


def slow_and_dead(io):
    """Job and engine, then keeper and engine, while the engine's writes are slow: they come after its death."""
    with Stage("slow", io) as st:
        slow = st.slow(SlowGroup("deaths-" + io, st.fs, 25 * MIB))
        while st.count.more():
            st.begin(0)
            slow.limit(25 * MIB)
            both = st.runs % 2
            p, said = st.saver(*(["-n", "6", "-w", "2M", "-d", "8"] if both else
                                 ["-n", "12", "-k", str(KEEP), "-l", "latest"]))
            s = st.pair()
            slow.take(s["engine_pid"])
            eventually("something in flight", lambda: said.closed >= 1)
            st.nap(0.05, 0.4)
            s = st.box.kill_pair() if both else st.pair()
            st.count.add(pending(s))
            if both:
                rc, err = end_of(p, said, st.box.status)
                slow.limit(0)
                st.from_disk()
                check_named(st.d, said, err, rc, 6)
            else:
                send(signal.SIGKILL, p.pid, s["engine_pid"])
                p.wait()
                said.join()
                slow.limit(0)
                st.settle()
                st.from_disk()
                check_dead_job(st, said)
            st.clear()


def starved(io):
    """The engine has a twentieth of a CPU, then it dies, or the job does."""
    with Stage("starved", io) as st:
        few = st.slow(Starved("starved", 5))
        while st.count.more():
            st.begin()
            p, said = st.saver("-n", "6", "-k", str(KEEP), "-l", "latest")
            s = st.pair()
            few.take(s["engine_pid"])
            st.nap()
            s = st.pair()
            st.count.add(pending(s))
            send(signal.SIGKILL, s["engine_pid"] if st.runs % 2 else p.pid)
            if st.runs % 2:
                rc, err = end_of(p, said, st.box.status)
                assert rc == 0 and not said.failed() and " 0 failures" in err, (said.failed(), err[-500:])
            else:
                p.wait()
                said.join()
            st.settle()
            check_dead_job(st, said)
            st.clear()


# ---------------------------------------------------------------------------------------------------- restart, stop

# Who dies, who next, within how many seconds. The next engine comes after 10 ms; an engine sees in 200 ms that its
# keeper is gone, and is a keeper then.
IN_RESTART = [("engine_pid", "job", 0.025), ("engine_pid", "keeper_pid", 0.025), ("engine_pid", "engine_pid", 0.025),
              ("keeper_pid", "engine_pid", 0.3)]


def in_restart(io):
    """One of the pair, and within its restart another: the job, the keeper, the new engine, who takes its place."""
    with Stage("restart", io) as st:
        st.count.wanted = max(KILLS, len(IN_RESTART))
        while st.count.more():
            st.begin()
            first, second, within = IN_RESTART[st.runs % len(IN_RESTART)]
            p, said = st.saver(*(["-n", "8", "-k", str(KEEP), "-l", "latest"] if second == "job" else
                                 ["-n", "6", "-w", "2M", "-d", "20"]))
            st.nap()
            s = st.pair()
            st.count.add(pending(s))
            send(signal.SIGKILL, s[first])
            time.sleep(st.rng.uniform(0, within))
            if second == first:
                s = st.pair()
            send(signal.SIGKILL, p.pid if second == "job" else s[second])
            if second == "job":
                p.wait()
                said.join()
                st.settle()
                check_dead_job(st, said)
            else:
                st.fs.throttle(0)
                rc, err = end_of(p, said, st.box.status)
                st.settle()
                lost = check_named(st.d, said, err, rc, 6)
                assert second != first or not lost, "lost %s: %s" % (lost, err[-500:])
            st.clear()


def halted(io):
    """Somebody is stopped while another dies, and goes on: the job, the keeper, the engine."""
    with Stage("halted", io) as st:
        st.count.wanted = max(KILLS, 3)
        while st.count.more():
            st.begin()
            k = st.runs % 3
            p, said = st.saver("-n", "8", "-k", str(KEEP), "-l", "latest")
            st.nap()
            s = st.pair()
            st.count.add(pending(s))
            stop, kill = ((p.pid, s["engine_pid"]), (s["keeper_pid"], s["engine_pid"]), (s["engine_pid"], p.pid))[k]
            send(signal.SIGSTOP, stop)
            send(signal.SIGKILL, kill)
            time.sleep(0.3)
            send(signal.SIGCONT, stop)
            if kill == p.pid:
                p.wait()
                said.join()
                st.settle()
            else:
                st.fs.throttle(0)
                rc, err = end_of(p, said, st.box.status)
                assert rc == 0 and not said.failed() and " 0 failures" in err, (said.failed(), err[-500:])
                st.settle()
            check_dead_job(st, said)
            st.clear()


# ---------------------------------------------------------------------------------------------------- the end of a job

LAST_WORDS = """
import os, signal, sys
def save(name):
    with open(name, 'wb', buffering=0) as f:
        for i in range(10):
            f.write(name.encode() * (2000000 // len(name)))
def last(sig, frame):
    save('final.pt')
    print('saved', flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, last)
for n in range(1000):
    save('n%d.pt' % n)
    print('closed', n, flush=True)
"""


def is_saved(path):
    name = os.path.basename(path).encode()
    with open(path, "rb") as f:
        return f.read() == name * (2000000 // len(name)) * 10


def terminated(io):
    """SIGTERM in mid-save to the whole process group, then to every process of the cgroup, ours too: the handler saves
    once more and exits, and all of it is there."""
    with Stage("term", io) as st:
        group = Group("term-" + io)
        while st.count.more():
            st.begin()

            def alone():
                os.setsid()
                group.enter()

            p = st.box.start([PYTHON, "-c", LAST_WORDS], cwd=st.d, preexec=alone)
            assert p.stdout.readline() == "closed 0\n"
            st.nap(0.1, 0.5)
            s = st.pair()
            st.count.add(pending(s))
            if st.runs % 2:
                os.killpg(p.pid, signal.SIGTERM)
            else:
                sent = group.signal(signal.SIGTERM)
                assert s["engine_pid"] in sent and s["keeper_pid"] in sent, (s, sent)
            st.fs.throttle(0)
            out, err = p.communicate(timeout=60)
            assert p.returncode == 0 and "saved" in out and " 0 failures" in err, (p.returncode, out, err[-500:])
            closed = out.count("closed") + 1
            bad = [n for n in ["final.pt"] + ["n%d.pt" % i for i in range(closed)]
                   if not is_saved(os.path.join(st.d, n))]
            assert not bad, "%s of %d closed; %s" % (bad, closed, err[-300:])
            st.clear()
            eventually("the pair has left after the SIGTERM", lambda: st.runs % 2 or not alive(s["keeper_pid"]))
        stop_pair(group.pids())
        group.remove()


def terminated_in_restart(io):
    """SIGTERM again and again while the engine takes the dead keeper's place: it does not end it."""
    with Stage("termr", io) as st:
        while st.count.more():
            st.begin()
            p, said = st.saver("-n", "8", "-k", str(KEEP), "-l", "latest")
            st.nap()
            s = st.pair()
            st.count.add(pending(s))
            send(signal.SIGKILL, s["keeper_pid"])
            end = time.monotonic() + 0.4
            while time.monotonic() < end:
                send(signal.SIGTERM, s["engine_pid"])
            st.fs.throttle(0)
            rc, err = end_of(p, said, st.box.status)
            assert rc == 0 and not said.failed() and " 0 failures" in err, (said.failed(), err[-500:])
            st.settle()
            check_dead_job(st, said)
            st.clear()


def step_end(io):
    """Every process of the cgroup is killed at one instant, every other time with slow writes in flight: what is there
    is whole and of the program's history, the content before stays, and the next job of this step is served."""
    with Stage("step", io) as st:
        group = Group("job_7/step_0/task_" + io)
        slow = st.slow(SlowGroup("step-" + io, st.fs, 25 * MIB))
        while st.count.more():
            st.begin(0)
            r = st.box.run([SAVER, "-p", "m.pt", "-s", "20M", "-n", "1", "-F", "1"], cwd=st.d, preexec=group.enter)
            assert r.rc == 0 and r.classes() == (1, 0, 0), r
            st.box.let_go(st.d + "/m.pt")
            st.fs.throttle(0 if st.runs % 2 else RATE)
            slow.limit(25 * MIB if st.runs % 2 else 0)
            if st.runs % 2:
                slow.take(st.pair()["engine_pid"])
            p, said = st.saver("-n", "40", "-k", str(KEEP), "-l", "latest", preexec=group.enter)
            q = st.box.start([SAVER, "-p", "m.pt", "-s", "20M", "-n", "40", "-F", "2"], cwd=st.d, preexec=group.enter)
            said_q = Said(q)
            said_q.starts()  # else what it replaces is newer than all that it has begun
            st.nap()
            s = st.pair()
            st.count.add(pending(s))
            sent = group.signal(signal.SIGKILL)
            assert {p.pid, q.pid, s["engine_pid"], s["keeper_pid"]} <= set(sent), (s, sent)
            p.wait(), q.wait()
            said.join(), said_q.join()
            slow.limit(0)
            st.fs.throttle(0)
            eventually("the pair is gone", lambda: not group.pids())
            st.from_disk()
            assert check_history(st.d, KEEP) <= said.begin
            m = check_saves([st.d + "/m.pt"])[st.d + "/m.pt"]
            assert m[0] == "whole" and 1 <= m[1] <= said_q.begin, "%s, %s" % (m, said_q.now())
            r = st.box.run([SAVER, "-p", "next.pt", "-s", "20M", "-n", "1"], cwd=st.d, preexec=group.enter)
            assert r.rc == 0 and r.classes() == (1, 0, 0) and not r.messages(), "the next job: %r" % r
            assert check_saves([st.d + "/next.pt"])[st.d + "/next.pt"] == ("whole", 1)
            st.clear()
        stop_pair(group.pids())
        group.remove()


# ---------------------------------------------------------------------------------------------------- PID 1

FIRST = ["unshare", "-pf", "--kill-child", "--mount-proc"]
WITH_CHILD = """
import os, subprocess, sys
with open('mine.pt', 'wb') as f:
    f.write(b'mine.pt!' * 300000)
print('is', os.getpid(), flush=True)
p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True, start_new_session=True)
for line in p.stdout:
    if line.startswith('closed 3'):
        break
"""


def child_of(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
        found = f.read().split()
    return int(found[0]) if found else None


def pid_one(io):
    """The job is PID 1 of its namespace: when it ends everything pending is there, a child's too, since the engine dies
    with it."""
    with Stage("one", io) as st:
        while st.count.more():
            st.begin()
            saver = [SAVER, "-p", "ck-%d.pt", "-s", "20M", "-n", "3"]
            child = st.runs % 2
            r = st.box.run(FIRST + ([PYTHON, "-c", WITH_CHILD] if child else []) + saver, cwd=st.d)
            there = rotated(st.d)
            durable = [float(x[8]) for x in r.reports]
            st.count.add(max(durable, default=0) > 0.2)
            assert r.rc == 0 and there == {1: "whole", 2: "whole", 3: "whole"}, "%s: %r" % (there, r)
            if child:
                assert "is 1\n" in r.out, r
                with open(os.path.join(st.d, "mine.pt"), "rb") as f:
                    assert f.read() == b"mine.pt!" * 300000
            assert st.box.status() is None
            st.clear()


def pid_one_killed(io):
    """PID 1 is killed, and all of its namespace with it: old content stays, nothing is torn, the next is served."""
    with Stage("onek", io) as st:
        while st.count.more():
            st.begin()
            r = st.box.run(FIRST + [SAVER, "-p", "ck-1.pt", "-s", "20M", "-n", "1"], cwd=st.d)
            assert r.rc == 0 and rotated(st.d) == {1: "whole"}, r
            p = st.box.start(FIRST + [SAVER, "-p", "ck-1.pt", "-s", "20M", "-n", "40", "-F", "2"], cwd=st.d)
            said = Said(p)
            eventually("a save is closed", lambda: said.closed >= 2)
            st.nap(0, 0.3)
            said_then = said.closed
            os.kill(child_of(p.pid), signal.SIGKILL)
            p.wait(60)
            said.join()
            st.fs.throttle(0)
            st.from_disk()
            got = check_saves([st.d + "/ck-1.pt"])[st.d + "/ck-1.pt"]
            assert got[0] == "whole" and 1 <= got[1] <= said.begin, "%s, %s" % (got, said.now())
            st.count.add(got[1] < max(said_then, said.closed))  # something closed was on its way
            r = st.box.run(FIRST + [SAVER, "-p", "next.pt", "-s", "20M", "-n", "1"], cwd=st.d)
            assert r.rc == 0 and r.classes() == (1, 0, 0) and os.path.exists(st.d + "/next.pt"), "the next: %r" % r
            st.clear()


CASES = [engine_and_client, slow_and_dead, starved, in_restart, halted, terminated, terminated_in_restart, step_end,
         pid_one, pid_one_killed]

if __name__ == "__main__":
    run_cases([("%s-%s" % (f.__name__, io), lambda f=f, io=io: f(io))
               for f, io in zip(CASES, ["uring", "threads"] * len(CASES))])
