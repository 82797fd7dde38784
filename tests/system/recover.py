#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 120
#
# Proves that files which were closed and lie on the stripes come back after keeper and engine are killed: whole, in
# order, with owner, mode and xattrs; by the next engine or by `fastckpt recover`; that what cannot be had, or has been
# changed since, is named and left alone, and nothing else held up.
# How: savers behind a slow target, both killed, stripes damaged or taken away.
# Cannot see: recoveries that die (recover_kills.py, tests/unit/test_crash_stripes.c, one case of
# tests/long/stripes.py), power cuts of stripes and target at one instant (tests/long/stripes_cut.py), stripes that fail
# while they are used (recover_bad.py).

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fc import *  # noqa: E402,F403
from stripes import SAVER, disk, made, lie, run_some, saves, slow_target, stripe_file, whole  # noqa: E402

SLOW = 4 << 20


def kill_pair(box, slow=None):
    """`slow`: a disk that is fast from then on."""
    box.kill_pair()
    if slow:
        slow.throttle(0)
    eventually("its locks are free", lambda: "in use" not in box.command("recover", "--dry-run").out)


def recover(box, *args):
    r = box.command("recover", *args)
    return r.rc, [l.replace(box.d + "/", "") for l in r.out.splitlines()]


def safe(box):
    """Waits until all that was closed could be recovered."""
    r = box.command("wait", "--safe")
    assert r.rc == 0, r


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
    safe(box)
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
    left = [os.listdir(os.path.join(d.at, "fastckpt-0")) for d in disks]
    assert left == [["sums"]] * 2, left
    r = box.command("verify", *(os.path.join(box.d, n) for n in os.listdir(box.d)))
    assert r.rc == 0 and r.out.count("whole: ") == 4, r  # what came back is known, too


def by_the_next_engine():
    disks, target, box = start("next")
    leave(box, "-s", str(40 << 20), "-n", "2")
    safe(box)
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
    safe(box)
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
    safe(box)
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
    safe(box)
    kill_pair(box, target)
    saves(box, "-p", "ckpt-2.pt", "-s", "1000", "-n", "1", shim=False)
    rc, lines = recover(box)
    assert rc == 1 and lines[1] == "left alone: ckpt-2.pt: it has changed since", lines
    assert [l.split(",")[0] for l in (lines[0], lines[2])] == ["recovered: ckpt-1.pt", "recovered: ckpt-3.pt"], lines
    assert os.path.getsize(box.d + "/ckpt-2.pt") == 1000


def log_text(box):
    text = b""
    for at in box.config["STRIPES"].split(":"):
        d = os.path.join(at, "fastckpt-%d" % (box.uid or 0))
        for n in os.listdir(d) if os.path.isdir(d) else ():
            if n.endswith(".log"):
                with open(os.path.join(d, n), "rb") as f:
                    text += f.read()
    return text


def rotation():
    """Deletions are carried out, in their place: behind the saves that were closed before them, and no others."""
    disks, target, box = start("rotation")
    saves(box, "-p", "ckpt-%d.pt", "-s", "1000", "-n", "2", "-F", "90", shim=False)
    code = "import os; os.unlink('ckpt-90.pt')"
    leave(box, "-s", str(9 << 20), "-n", "5", "-k", "2", "-l", "latest")
    r = box.run([PYTHON, "-c", code], env={"FASTCKPT_EXIT": "leave"})
    assert r.rc == 0, r
    eventually("a record of the last deletion", lambda: b"ckpt-90.pt" in log_text(box), 20)
    assert len(os.listdir(box.d)) <= 3, os.listdir(box.d)  # all that is not published yet, and what is to be deleted
    kill_pair(box, target)
    before = sorted(os.listdir(box.d))
    assert "ckpt-90.pt" in before
    rc, dry = recover(box, "--dry-run")
    assert rc == 0 and sorted(os.listdir(box.d)) == before, dry
    rc, lines = recover(box)
    assert rc == 0 and len(dry) == len(lines), (dry, lines)
    assert "deleted: ckpt-90.pt" in lines and "to be deleted: ckpt-90.pt" in dry, (dry, lines)
    assert lines.index("deleted: ckpt-3.pt") > [l[:21] for l in lines].index("recovered: ckpt-5.pt,"), lines
    assert sorted(os.listdir(box.d)) == ["ckpt-4.pt", "ckpt-5.pt", "ckpt-91.pt", "latest"], os.listdir(box.d)
    whole(box, ["ckpt-4.pt", "ckpt-5.pt"])
    assert recover(box) == (0, []) and not box.leftovers()


RENAMES = """
import os
for i in range(3):
    with open('model.tmp', 'wb', buffering=0) as f:
        f.write(bytes([65 + i]) * (12 << 20))
    os.rename('model.tmp', 'model.pt')
    f = os.open('latest.%d' % i, os.O_CREAT | os.O_EXCL | os.O_WRONLY)  # as mkstemp
    os.write(f, b'%d' % i)
    os.close(f)
    os.rename('latest.%d' % i, 'latest')
os.rename('model.pt', 'd/last.pt')
"""


def renames(damage=False):
    """Files written beside their names and renamed, captured ones and such as the program made itself."""
    disks, target, box = start("renames")
    os.mkdir(box.d + "/d")
    box.own(box.d + "/d")
    r = box.run([PYTHON, "-c", RENAMES], env={"FASTCKPT_EXIT": "leave"})
    assert r.rc == 0, r
    eventually("a record of the last renaming", lambda: b"last.pt" in log_text(box), 20)
    kill_pair(box, target)
    assert not os.path.exists(box.d + "/d/last.pt"), "nothing is left to do"
    if damage:
        lie(disks[0], 0), lie(disks[1], 0)
    before = tree(box.d)
    rc, lines = recover(box)
    if damage:
        assert rc == 1 and any(l.startswith("not recovered: model.tmp") for l in lines), lines
        assert tree(box.d) == before, (before, lines)
        assert all(l.startswith("not ") for l in lines), lines
        return
    assert rc == 0, lines
    assert sorted(os.listdir(box.d)) == ["d", "latest"] and os.listdir(box.d + "/d") == ["last.pt"], lines
    with open(box.d + "/d/last.pt", "rb") as f:
        assert f.read() == b"C" * (12 << 20)
    with open(box.d + "/latest", "rb") as f:
        assert f.read() == b"2"
    assert recover(box) == (0, []) and not box.leftovers()


def changed_before_deletion():
    """What was to be deleted or replaced, and is another file by now, stays."""
    disks, target, box = start("other")
    for i in (1, 2, 3):
        saves(box, "-p", "old-%d" % i, "-s", "1000", "-n", "1", shim=False)
    code = "import os; os.unlink('old-1'); os.unlink('old-2'); os.rename('ckpt-1.pt', 'old-3')"
    leave(box, "-s", str(20 << 20), "-n", "1")
    assert box.run([PYTHON, "-c", code], env={"FASTCKPT_EXIT": "leave"}).rc == 0
    eventually("a record of the renaming", lambda: b"old-3" in log_text(box), 20)
    kill_pair(box, target)
    for name in ("old-1", "old-3"):
        os.rename(box.d + "/" + name, box.d + "/away-" + name)
        write_file(box.d + "/" + name, 77)
    rc, lines = recover(box)
    assert rc == 1 and lines[1:] == ["left alone: old-1: it has changed since", "deleted: old-2",
                                     "left alone: ckpt-1.pt to old-3: what it would replace has changed since"], lines
    whole(box, ["ckpt-1.pt"])
    assert os.path.getsize(box.d + "/old-1") == os.path.getsize(box.d + "/old-3") == 77
    assert not os.path.exists(box.d + "/old-2")


def not_before_drained():
    """What is on the stripes deletes nothing: the only good checkpoint stays until the next one is on the target."""
    disks, target, box = start("wait")
    saves(box, "-p", "old.pt", "-s", "1000", "-n", "1", shim=False)
    leave(box, "-p", "new.pt", "-s", str(24 << 20), "-n", "1")
    assert box.run([PYTHON, "-c", "import os; os.unlink('old.pt')"], env={"FASTCKPT_EXIT": "leave"}).rc == 0
    eventually("a record of the deletion", lambda: b"old.pt" in log_text(box), 20)
    while box.status()["pending_files"] > 1:
        assert os.path.exists(box.d + "/old.pt") or os.path.exists(box.d + "/new.pt")
        time.sleep(0.05)
    box.wait()
    assert os.listdir(box.d) == ["new.pt"]
    whole(box, ["new.pt"])


def nothing_comes_back():
    """What was deleted after it was published, or dropped before, is not brought back, whatever dies then."""
    disks, target, box = start("gone")
    target.throttle(0)
    r = saves(box, "-s", str(20 << 20), "-n", "6", "-k", "2")
    assert r.rc == 0, r
    for _ in range(3):
        target.throttle(SLOW)
        p = box.start([SAVER, "-s", str(12 << 20), "-n", "4", "-k", "1", "-F", "7"])
        eventually("a save is pending", lambda: (box.status() or {}).get("pending_files"), 20)
        time.sleep(0.3)
        kill_pair(box, target)
        p.communicate(timeout=60)
        before = set(os.listdir(box.d))
        rc, lines = recover(box)
        assert rc == 0, lines
        new = {l.split(" ")[1].rstrip(",") for l in lines if l.startswith("recovered")}
        gone = {l.split(" ")[1] for l in lines if l.startswith("deleted")}
        assert set(os.listdir(box.d)) == (before | new) - gone, (before, lines)
        assert not any("ckpt-%d.pt" % i in n for i in (1, 2, 3, 4) for n in os.listdir(box.d)), os.listdir(box.d)


SYNCER = """
import os, sys, time
def save(name, n, close=True, patch=False):
    f = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    os.write(f, b'a' * (n << 20))
    t = time.monotonic()
    os.fsync(f)
    print(name, 'synced in %.2f' % (time.monotonic() - t), flush=True)
    if patch:
        os.pwrite(f, b'p' * 100, 5000000)
        os.pwrite(f, b'p' * 100, 5000)
        os.fsync(f)
        os.pwrite(f, b'q' * 100, 6000000)
    return os.close(f) if close else f
"""


def run_syncer(box, code):
    p = box.start([PYTHON, "-c", SYNCER + code + "\nprint('done', flush=True)\ntime.sleep(60)"])
    said = []
    while not said or said[-1] != "done":
        said.append(p.stdout.readline().strip())
        assert said[-1], p.stderr.read()
    return p, [float(l.split()[-1]) for l in said[:-1]]


def fsync_is_safe():
    """An fsync returns when the bytes are on the stripes: of a new name, then it is there after all have died, closed
    or not; of an older one's, then it is there when it has been closed. A directory's, when its names are safe."""
    disks, target, box = start("fsync")
    saves(box, "-p", "old-1", "-s", "1000", "-n", "1", shim=False)
    saves(box, "-p", "old-2", "-s", "1000", "-n", "1", shim=False)
    p, took = run_syncer(box, """
save('closed', 12)
save('patched', 12, patch=True)
save('open', 12, close=False)
save('old-1', 12)
save('model.tmp', 12)
os.rename('model.tmp', 'model.pt')
os.fsync(os.open('.', os.O_RDONLY))
save('old-2', 12, close=False)
save('last', 2)""")
    s = box.status()
    assert s["pending_files"] >= 4, s
    assert sum(took) < 15, took
    p.kill()
    kill_pair(box, target)
    rc, lines = recover(box)
    assert rc == 0, lines
    for name in ("closed", "open", "old-1", "model.pt", "last"):
        with open(os.path.join(box.d, name), "rb") as f:
            assert f.read() == b"a" * ((2 if name == "last" else 12) << 20), (name, lines)
    with open(box.d + "/patched", "rb") as f:
        got = f.read()
    assert len(got) == 12 << 20 and got[5000:5100] == got[5000000:5000100] == b"p" * 100, "no patch"
    assert got.count(b"p") == 200 and got.count(b"q") in (0, 100), got.count(b"q")
    assert os.path.getsize(box.d + "/old-2") == 1000, lines
    assert not box.leftovers() and not os.path.exists(box.d + "/model.tmp")


def fsync_and_die():
    """Its process dies without a close, the engine lives: what an fsync has promised is published as it stands."""
    disks, target, box = start("fsync-die")
    saves(box, "-p", "old", "-s", "1000", "-n", "1", shim=False)
    p, took = run_syncer(box, """
save('new', 20, close=False)
save('old', 20, close=False)""")
    assert sum(took) < 6, took
    p.kill()
    target.throttle(0)
    eventually("its name", lambda: os.path.exists(box.d + "/new"), 20)
    box.wait()
    with open(box.d + "/new", "rb") as f:
        assert f.read() == b"a" * (20 << 20)
    assert os.path.getsize(box.d + "/old") == 1000


def fsync_without_room():
    """Stripes that are full: an fsync waits for the file, and says so by taking as long."""
    a = disk("sa", 40)
    target, box = slow_target("fsync-full", [a], bps=60 << 20)
    p, took = run_syncer(box, "save('big', 96)")
    assert os.path.getsize(box.d + "/big") == 96 << 20 and took[0] > 0.5, took
    p.kill()


SHORT = [("everything", everything), ("next-engine", by_the_next_engine), ("damaged", damaged),
         ("changed-since", changed_since), ("nothing-comes-back", nothing_comes_back), ("rotation", rotation),
         ("renames", renames), ("fsync", fsync_is_safe)]
LONG = [("killed-itself", killed_itself), ("fsync-die", fsync_and_die), ("fsync-full", fsync_without_room),
        ("renames-behind", renames, True), ("other-since", changed_before_deletion),
        ("not-before-drained", not_before_drained)]
if __name__ == "__main__":
    run_some(SHORT + (LONG if sys.argv[1:] else []))  # by name: any of them
