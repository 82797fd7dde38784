#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 120
#
# Proves that files which were closed and lie on the stripes come back after keeper and engine are killed: whole, in
# order, with owner, mode and xattrs; by the next engine or by `fastckpt recover`, which may be killed itself; that what
# cannot be had, or has been changed since, is named and left alone, and nothing else held up.
# How: savers behind a slow target, both killed, stripes damaged or taken away.
# Cannot see: power cuts of stripes and target at one instant.

import os
import random
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fc import *  # noqa: E402,F403
from stripes import SAVER, disk, lie, run_some, saves, slow_target, stripe_file, whole, written  # noqa: E402

SLOW = 4 << 20


def kill_pair(box, target):
    s = box.status()
    for pid in (s["keeper_pid"], s["engine_pid"]):
        os.kill(pid, signal.SIGKILL)
    eventually("both are gone", lambda: not alive(s["engine_pid"]) and not alive(s["keeper_pid"]))
    target.throttle(0)
    eventually("its locks are free", lambda: "in use" not in box.command("recover", "--dry-run").out)


def recover(box, *args):
    r = box.command("recover", *args)
    return r.rc, [l.replace(box.d + "/", "") for l in r.out.splitlines()]


def safe(box, names):
    """Waits until all of them could be recovered, by what the logs say."""
    logs = box.config["STRIPES"].split(":")

    def there():
        d = os.path.join(logs[0], "fastckpt-%d" % os.geteuid())
        text = b""
        for n in os.listdir(d):
            if n.endswith(".log"):
                with open(os.path.join(d, n), "rb") as f:
                    text += f.read()
        return all(n.encode() in text for n in names)
    eventually("records of %s" % names, there, 20)


def start(name, stripes=2, **kw):
    disks = [disk("s%d" % i, 300, "xfs" if i else "ext4") for i in range(stripes)]
    target, box = slow_target(name, disks, bps=SLOW, **kw)
    return disks, target, box


def leave(box, *options):
    r = saves(box, *options, env={"FASTCKPT_EXIT": "leave"})
    assert r.rc == 0, r


def everything():
    """New names and old ones, large files and small ones, twice under one name; then again: nothing is left to do."""
    disks, target, box = start("all")
    saves(box, "-p", "ckpt-2.pt", "-s", "1000", "-n", "1", shim=False)
    os.chmod(box.d + "/ckpt-2.pt", 0o640)
    os.chown(box.d + "/ckpt-2.pt", 1234, 4321)
    os.setxattr(box.d + "/ckpt-2.pt", "user.note", b"kept")
    leave(box, "-s", str((40 << 20) + 4321), "-w", "1500001", "-n", "3", "-l", "latest")
    safe(box, ["ckpt-1.pt", "ckpt-2.pt", "ckpt-3.pt", "latest"])
    time.sleep(0.5)
    kill_pair(box, target)
    assert box.leftovers() == [] and os.listdir(box.d) == ["ckpt-2.pt"]
    rc, lines = recover(box, "--dry-run")
    assert rc == 0 and len(lines) == 6 and all(l.startswith("to be recovered: ") for l in lines), lines
    assert os.listdir(box.d) == ["ckpt-2.pt"]
    rc, lines = recover(box)
    assert rc == 0 and len(lines) == 6 and all(l.startswith("recovered: ") for l in lines), lines
    whole(box, ["ckpt-1.pt", "ckpt-2.pt", "ckpt-3.pt"])
    with open(box.d + "/latest") as f:
        assert f.read().strip() == "3"
    st = os.stat(box.d + "/ckpt-2.pt")
    assert (st.st_mode & 0o7777, st.st_uid, st.st_gid) == (0o640, 1234, 4321), st
    assert os.getxattr(box.d + "/ckpt-2.pt", "user.note") == b"kept"
    assert recover(box) == (0, []) and not box.leftovers()
    assert not any(os.listdir(os.path.join(d.at, "fastckpt-0")) for d in disks), "the stripes are not empty"


def by_the_next_engine():
    disks, target, box = start("next")
    leave(box, "-s", str(40 << 20), "-n", "2")
    safe(box, ["ckpt-1.pt", "ckpt-2.pt"])
    time.sleep(0.3)
    kill_pair(box, target)
    leave(box, "-p", "later.pt", "-s", str(8 << 20), "-n", "1")
    eventually("both are back", lambda: len(os.listdir(box.d)) == 3, 20)
    box.wait()
    whole(box, ["ckpt-1.pt", "ckpt-2.pt", "later.pt"])
    assert "recovered: " + box.d + "/ckpt-2.pt" in box.engine_log(), box.engine_log()


def killed_itself():
    disks, target, box = start("again")
    for i in (1, 3):
        saves(box, "-p", "ckpt-%d.pt" % i, "-s", "1000", "-n", "1", shim=False)
    leave(box, "-s", str(40 << 20), "-n", "4")
    safe(box, ["ckpt-%d.pt" % i for i in (1, 2, 3, 4)])
    time.sleep(0.5)
    kill_pair(box, target)
    kills = 0
    for ms in (5, 15, 30, 50, 80, 120, 170):
        p = box.start([BIN, "recover"], shim=True, env={"LD_PRELOAD": ""})
        time.sleep(ms / 1000)
        kills += p.poll() is None
        p.kill()
        p.wait()
        states = check_saves([os.path.join(box.d, "ckpt-%d.pt" % i) for i in (1, 2, 3, 4)])
        assert all(s in ("whole", "absent") for s, _ in states.values()), states
    assert kills >= 3, kills
    rc, lines = recover(box)
    assert rc == 0 and not any(l.startswith(("left", "not")) for l in lines), lines
    whole(box, ["ckpt-%d.pt" % i for i in (1, 2, 3, 4)])
    assert {v for _, (s, v) in check_saves([box.d + "/ckpt-%d.pt" % i for i in (1, 2, 3, 4)]).items()} == {1, 2, 3, 4}
    assert not box.leftovers(), box.leftovers()


def damaged():
    """A stripe that is missing, then one with wrong bytes: named, nothing of it published, new names not held up."""
    disks, target, box = start("bad")
    saves(box, "-p", "ckpt-1.pt", "-s", "1000", "-n", "1", shim=False)
    saves(box, "-p", "small", "-s", "800", "-n", "1", shim=False)
    leave(box, "-s", str(40 << 20), "-n", "1")
    leave(box, "-p", "small", "-s", "2000", "-n", "1")
    leave(box, "-p", "new", "-s", "3000", "-n", "1")
    safe(box, ["ckpt-1.pt", "small", "new"])
    time.sleep(0.3)
    kill_pair(box, target)
    hidden = stripe_file(disks[1])
    os.rename(hidden, hidden + ".away")
    rc, lines = recover(box)
    assert rc == 1 and lines == ["not recovered: ckpt-1.pt: stripe number 2 is missing",
                                 "not recovered: small: an earlier file could not be; the old one stays",
                                 "recovered: new, 3000 bytes"], lines
    os.rename(hidden + ".away", hidden)
    lie(disks[0], 0)
    rc, lines = recover(box)
    assert rc == 1 and len(lines) == 2 and "ckpt-1.pt: stripe number 1: wrong checksum of chunk" in lines[0], lines
    sizes = {n: os.path.getsize(os.path.join(box.d, n)) for n in os.listdir(box.d)}
    assert sizes == {"ckpt-1.pt": 1000, "small": 800, "new": 3000}, sizes


def changed_since():
    disks, target, box = start("changed")
    leave(box, "-s", str(12 << 20), "-n", "3")
    safe(box, ["ckpt-1.pt", "ckpt-2.pt", "ckpt-3.pt"])
    time.sleep(0.3)
    kill_pair(box, target)
    saves(box, "-p", "ckpt-2.pt", "-s", "1000", "-n", "1", shim=False)
    rc, lines = recover(box)
    assert rc == 1 and lines[1] == "left alone: ckpt-2.pt: it has changed since", lines
    assert [l.split(",")[0] for l in (lines[0], lines[2])] == ["recovered: ckpt-1.pt", "recovered: ckpt-3.pt"], lines
    assert os.path.getsize(box.d + "/ckpt-2.pt") == 1000


def nothing_comes_back():
    """What was deleted after it was published, or dropped before, is not brought back, whatever dies then."""
    disks, target, box = start("gone")
    target.throttle(0)
    r = saves(box, "-s", str(20 << 20), "-n", "6", "-k", "2")
    assert r.rc == 0, r
    for _ in range(3):
        target.throttle(SLOW)
        p = box.start([SAVER, "-s", str(12 << 20), "-n", "4", "-k", "1", "-F", "7"])
        time.sleep(0.7)
        kill_pair(box, target)
        p.communicate(timeout=60)
        before = set(os.listdir(box.d))
        rc, lines = recover(box)
        new = {l.split(" ")[1].rstrip(",") for l in lines if l.startswith("recovered")}
        assert set(os.listdir(box.d)) == before | new, (before, lines)
        assert not any("ckpt-%d.pt" % i in n for i in (1, 2, 3, 4) for n in os.listdir(box.d)), os.listdir(box.d)


def at_random(rounds=3):
    """Both are killed at any time of a rotation: what is there then is whole, and `latest` names a save that is."""
    disks, target, box = start("random", uid=USER)  # and as an unprivileged user
    rng = random.Random(int(os.environ.get("SEED", "1")))
    first, back = 1, 0
    for i in range(rounds):
        target.throttle(rng.choice([SLOW, 20 << 20, 60 << 20]))
        p = box.start([SAVER, "-s", str(rng.choice([3, 12, 30]) << 20), "-n", "8", "-k", "2", "-l", "latest", "-F",
                       str(first), *rng.choice([(), ("-f",)]), "-t", str(rng.choice([0, 100]))])
        time.sleep(rng.uniform(0.3, 2.5))
        if not box.status():
            p.communicate(timeout=60)
            continue
        p.kill()
        kill_pair(box, target)
        rc, lines = recover(box)
        back += len(lines)
        said = "round %d: %s, %s" % (i, lines, sorted(os.listdir(box.d)))
        assert rc == 0, said
        saved = [n for n in os.listdir(box.d) if n.startswith("ckpt-")]
        states = check_saves(os.path.join(box.d, n) for n in saved)
        assert all(state == "whole" for state, _ in states.values()), (said, states)
        if os.path.exists(box.d + "/latest"):
            with open(box.d + "/latest") as f:
                assert "ckpt-%s.pt" % f.read().strip() in saved, said
        first += 8
    say("# %d files came back in %d rounds" % (back, rounds))
    assert back >= rounds / 2, back


SHORT = [("everything", everything), ("next-engine", by_the_next_engine), ("killed-itself", killed_itself),
         ("damaged", damaged), ("changed-since", changed_since), ("nothing-comes-back", nothing_comes_back),
         ("random", at_random)]
if __name__ == "__main__":
    run_some(SHORT)
