#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 120
#
# Proves P3 and P4 after all processes were killed while a rotation drains from stripes, and recoveries were killed,
# too. How: a saver that keeps two, at random speeds; a kill counts if something was pending, of a recovery if it was
# still at work; after each the names have to be a state of the rotation. To 1,000 in tests/long/stripes_kills.py.
# Cannot see power cuts (tests/long/stripes_cut.py, tests/unit/test_crash_stripes.c).

import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fc import *  # noqa: E402,F403
from recover import SLOW, recover, start  # noqa: E402
from stripes import SAVER, run_some  # noqa: E402


def history_holds(box, keep, said):
    """P3 and P4 of a rotation that keeps `keep`: all whole, no gap, nothing deleted for what is not there."""
    seqs = sorted(int(n[5:-3]) for n in os.listdir(box.d) if n.startswith("ckpt-"))
    states = check_saves(os.path.join(box.d, "ckpt-%d.pt" % i) for i in seqs)
    assert all(s == ("whole", i) for i, s in zip(seqs, states.values())), (said, states)
    last = 0
    if os.path.exists(box.d + "/latest"):
        with open(box.d + "/latest") as f:
            last = int(f.read() or 0)
    if not seqs:
        assert last == 0, (said, last)
        return
    assert seqs == list(range(seqs[0], seqs[-1] + 1)) and len(seqs) <= keep + 1, (said, seqs)
    assert last in (seqs[-1], seqs[-1] - 1), (said, seqs, last)  # the number is written behind each save
    assert len(seqs) >= min(keep, seqs[-1]), (said, seqs)  # the oldest goes behind the next one


def one_kill(box, target, rng, said):
    """A rotation whose processes are all killed; recoveries that are killed; one that is not. How many of the deaths
    met something to do."""
    target.throttle(rng.choice([SLOW, 10 << 20, 40 << 20]))
    for n in os.listdir(box.d):
        os.unlink(os.path.join(box.d, n))
    p = box.start([SAVER, "-s", str(rng.choice([1, 3, 6]) << 20), "-n", "30", "-k", "2", "-l", "latest", "-w",
                   "1000000", *rng.choice([(), ("-f",)]), "-t", str(rng.choice([0, 20, 60]))])
    time.sleep(rng.uniform(0.02, 0.8))
    for _ in range(200):
        s = box.status() or {}
        if s.get("pending_files") or p.poll() is not None:
            break
        time.sleep(0.005)
    if rng.random() < 0.3 and s:  # a death of the engine alone comes first
        os.kill(p.pid, signal.SIGSTOP)  # on a slow target the next one takes seconds to come: it would open natively
        os.kill(s["engine_pid"], signal.SIGKILL)
        eventually("the next engine", lambda: (box.status() or s)["engine_pid"] != s["engine_pid"], 30)
        os.kill(p.pid, signal.SIGCONT)
        time.sleep(rng.uniform(0, 0.2))
    s = box.status() or s
    counted = bool(s.get("pending_files"))
    p.kill()
    if s.get("engine_pid"):
        box.kill_pair()
    said += ": %s" % p.communicate()[1].splitlines()
    target.throttle(0)
    for _ in range(rng.choice([0, 0, 1, 2])):
        r = box.start([BIN, "recover"], shim=True, env={"LD_PRELOAD": ""})
        time.sleep(rng.uniform(0.001, 0.05))
        counted += r.poll() is None
        r.kill()
        out, _ = r.communicate()
        history_holds(box, 2, said + ": a recovery was killed: " + out)
    eventually("its locks are free", lambda: "in use" not in box.command("recover", "--dry-run").out)
    rc, lines = recover(box)
    said += ": %s" % lines
    assert rc == 0, said
    history_holds(box, 2, said)
    assert recover(box) == (0, []), said
    # The hidden name of a replacement that was killed between its two steps goes with the next save of that name.
    assert len(box.leftovers()) <= 1 and not any("recover" in n for n in box.leftovers()), (said, box.leftovers())
    return counted, len(lines)


def kills(count=4, seconds=3000, seed=os.environ.get("SEED", "1")):
    """Kills of everything, until `count` have met something pending."""
    disks, target, box = start("kills")
    rng, counted, done, back, end = random.Random("kills %s" % seed), 0, 0, 0, time.monotonic() + seconds
    while counted < count and time.monotonic() < end:
        c, n = one_kill(box, target, rng, "seed %s, kill %d" % (seed, done + 1))
        counted, back, done = counted + c, back + n, done + 1
    say("# %d kills that counted in %d runs, %d records carried out" % (counted, done, back))
    assert counted * 2 >= done, "only %d of %d runs met something" % (counted, done)
    return counted


if __name__ == "__main__":
    run_some([("kills", kills)])
