#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 120
#
# Proves P3 and P4 after all processes were killed while a rotation drains from stripes, and after the recoveries of
# that were killed, too: those of `fastckpt recover`, and of the next engine.
# How: a saver that keeps two, at random speeds; a death counts if something was pending then, of a recovery if it was
# still at work and has left something to do; after each the names have to be a state of the rotation. To 1,000 in
# tests/long/stripes_kills.py.
# Cannot see power cuts (tests/long/stripes_cut.py, tests/unit/test_crash_stripes.c).

import collections
import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fc import *  # noqa: E402,F403
from kills import check_history  # noqa: E402
from recover import SLOW, log_text, recover, start  # noqa: E402
from stripes import SAVER, run_some  # noqa: E402

KEEP = 2


def history_holds(box, said):
    """P3 and P4 of the rotation."""
    try:
        check_history(box.d, KEEP, prefix="ckpt-")
    except AssertionError as e:
        raise AssertionError("%s; %s" % (e, said))


def rotate_and_die(box, rng, count):
    """A rotation whose processes are all killed. What its saver said."""
    p = box.start([SAVER, "-s", str(rng.choice([1, 3, 6]) << 20), "-n", "30", "-k", str(KEEP), "-l", "latest", "-w",
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
    count["drain"] += bool(s.get("pending_files"))
    p.kill()
    if s:
        box.kill_pair(s)
    return p.communicate()[1].splitlines()


def left_to_do(box):
    """What a recovery would do, when the locks of those that were killed are free; nothing of a name `other`."""
    lines = eventually("its locks are free", lambda: [l for l in [box.command("recover", "--dry-run").out]
                                                      if "in use" not in l])[0].splitlines()
    return [l for l in lines if "/other" not in l]


def recover_and_die(box, rng, count):
    """A recovery that is killed, counted if it was in the middle. What it said, and was left to do."""
    before, log = left_to_do(box), log_text(box)
    if rng.random() < 0.6:
        kind, r = "recovery", box.start([BIN, "recover"], shim=True, env={"LD_PRELOAD": ""})
        time.sleep(rng.uniform(0.001, 0.02 + 0.03 * len(before)))
        at_work = r.poll() is None
        r.kill()
    else:  # the next engine's own: for what its job saves it needs no stripe
        kind, r = "next", box.start([SAVER, "-p", "other", "-s", "100", "-n", "2", "-t", "3000"])
        s = eventually("the next engine", box.status, 30, 0.002)
        time.sleep(rng.uniform(0, 0.03 * len(before)))
        at_work = True
        r.kill()
        box.kill_pair(s)
    said = r.communicate()[0].splitlines()
    after = left_to_do(box)
    if at_work and after:
        count[kind] += 1
        count["begun"] += after != before or not log_text(box).startswith(log) or len(log_text(box)) > len(log)
    return "a death of %s, which said %s, and left %d of %d: %s" % (kind, said[-2:], len(after), len(before), after[:2])


def one_kill(stripes, target, box, rng, said, count):
    """A rotation whose processes are all killed; recoveries that are killed; one that is not. How many records were
    carried out."""
    target.throttle(rng.choice([SLOW, 10 << 20, 40 << 20]))
    for n in os.listdir(box.d):
        os.unlink(os.path.join(box.d, n))
    said += ": %s" % rotate_and_die(box, rng, count)
    target.throttle(rng.choice([0, 20 << 20, 60 << 20]))
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        said += "; " + recover_and_die(box, rng, count)
        history_holds(box, said)
    target.throttle(0)
    left_to_do(box)
    rc, lines = recover(box)
    said += "; at last %s" % lines
    assert rc == 0, (lines, said)
    history_holds(box, said)
    again = recover(box)
    assert again == (0, []), (again, said)
    own = "fastckpt-%d" % (box.uid or 0)
    left = [n for d in stripes for n in os.listdir(os.path.join(d.at, own)) if not n.startswith("sums")]
    assert not left, (left, said)
    # The hidden name of a replacement that was killed between its two steps goes with the next save of that name.
    assert len(box.leftovers()) <= 1 and not any("recover" in n for n in box.leftovers()), (box.leftovers(), said)
    return len(lines)


def kills(count, seconds=3000, seed=os.environ.get("SEED", "1"), uid=None):
    """Deaths, until `count` have met something pending: how many, by their kind."""
    disks, target, box = start("kills", uid=uid)
    rng, counted, done, back, end = random.Random("kills %s" % seed), collections.Counter(), 0, 0, \
        time.monotonic() + seconds
    kinds = ("drain", "recovery", "next")
    while sum(counted[k] for k in kinds) < count and time.monotonic() < end:
        done += 1
        back += one_kill(disks, target, box, rng, "seed %s, kill %d" % (seed, done), counted)
    say("# deaths that counted: %d while files drained, %d of `fastckpt recover`, %d of an engine that recovers; %d of "
        "these %d had begun. %d rounds, %d records carried out" % (
            *(counted[k] for k in kinds), counted["begun"], counted["recovery"] + counted["next"], done, back))
    assert counted["drain"] * 2 >= done, "only %d of %d rounds met something" % (counted["drain"], done)
    return {"counted": sum(counted[k] for k in kinds), **{k: counted[k] for k in (*kinds, "begun")}}


if __name__ == "__main__":
    run_some([("kills", kills, 3), ("kills-user", kills, 2, 3000, "user", USER)])
