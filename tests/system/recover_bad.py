#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 120
#
# Proves that a stripe which fails, becomes read-only, is full or is removed while it is used costs no file and undoes
# nothing, then or when it is back; and what `fastckpt recover` and the next engine say where there is nothing, too
# much, or something that cannot be had.
# How: a stripe behind a server that fails on demand, an aborted ext4, a filler; killed pairs; limits of descriptors.
# Cannot see: a device that hangs.

import contextlib
import errno
import os
import resource
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from disks import BrokenFS, mount, umount  # noqa: E402
from fc import *  # noqa: E402,F403
from recover import SLOW, kill_pair, leave, log_text, recover, safe, start  # noqa: E402
from stripes import SAVER, disk, lie, made, run_some, saves, slow_target, whole  # noqa: E402


def count_lines(box, text):
    return box.engine_log().count(text)


def stripe_fails():
    """A stripe that fails while it is written, data and log: one line for each; everything arrives, and what is saved
    from then on is safe by the other one."""
    a, b = BrokenFS("sa", 300), disk("sb", 300, "xfs")
    made.append(a)
    target, box = slow_target("fails", [a, b], bps=SLOW)
    leave(box, "-p", "before-%d", "-s", str(12 << 20), "-n", "2")
    safe(box)
    a.faults(errno.EIO)
    leave(box, "-p", "failing-%d", "-s", str(24 << 20), "-n", "1")
    eventually("the stripe's failure", lambda: "is not used" in box.engine_log(), 20)
    leave(box, "-p", "after-%d", "-s", str(12 << 20), "-n", "2")
    assert box.command("wait", "--safe").rc == 0
    kept = box.status()["safe_files"]
    kill_pair(box, target)
    rc, lines = recover(box)
    log = box.engine_log()
    assert log.count("is not used") == 1 and log.count("the log on stripe number 1 cannot be written") == 1, log
    assert rc == 0 and kept >= 1 and sum(l.startswith("recovered: after-") for l in lines) >= 1, (lines, kept, log)
    names = sorted(os.listdir(box.d))
    assert "before-1" in names and "before-2" in names, (names, lines)
    whole(box, names)


def log_is_full():
    """No room for the log: one line, nothing is lost or held up, nothing more is safe."""
    a = disk("sa", 150)
    target, box = slow_target("logfull", [a], bps=40 << 20)
    leave(box, "-p", "first-%d", "-s", str(9 << 20), "-n", "1")
    with contextlib.suppress(OSError), open(a.at + "/filler", "wb", buffering=0) as f:
        while True:
            f.write(bytes(1 << 16))
    r = saves(box, "-s", str(20 << 20), "-n", "6", "-k", "2", "-l", "latest", "-f")
    assert r.rc == 0 and r.failures() == 0, r
    whole(box, ["ckpt-5.pt", "ckpt-6.pt", "first-1"])
    assert count_lines(box, "the log on stripe number 1 cannot be written: No space left on device") == 1, \
        box.engine_log()
    assert "cannot be written" in box.command("status").out


def stripe_is_removed():
    """The directory of a stripe is deleted under the engine: it goes on with what it has open."""
    disks, target, box = start("removed")
    p = box.start([SAVER, "-s", str(12 << 20), "-n", "3", "-t", "200"])
    eventually("a log", lambda: log_text(box), 20)
    for d in disks:
        shutil.rmtree(os.path.join(d.at, "fastckpt-0"))
    target.throttle(0)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0 and "lost" not in err, err
    whole(box, ["ckpt-1.pt", "ckpt-2.pt", "ckpt-3.pt"])
    assert recover(box) == (0, [])


def becomes_read_only(name, end):
    """ext4 stops writing to a stripe, data and log, and what is on it can still be read. `end`(box, target) ends the
    pair. What the log there says is old from then on: when it can be written again, nothing comes back."""
    a, b = disk("sa", 300), disk("sb", 300, "xfs")
    target, box = slow_target(name, [a, b], bps=10 << 20)
    leave(box, "-p", "before-%d", "-s", str(9 << 20), "-n", "2")
    safe(box)
    sh("mount", "-o", "remount,abort", a.at)
    leave(box, "-p", "after-%d", "-s", str(9 << 20), "-n", "3")
    assert box.command("wait", "--safe").rc == 0 and box.status()["safe_files"] >= 1
    end(box, target)
    log = box.engine_log()
    assert log.count("number 1 is not used: Read-only file system") == 1, log
    assert count_lines(box, "the log on stripe number 1 cannot be written: Read-only file system") == 1, log
    rc, lines = recover(box)
    names = ["before-1", "before-2", "after-1", "after-2", "after-3"]
    assert rc == 0 and sorted(os.listdir(box.d)) == sorted(names), (lines, os.listdir(box.d), log)
    whole(box, names)
    for n in names[:4]:
        os.unlink(os.path.join(box.d, n))
    assert recover(box) == (0, []), "done already"
    umount(a.at)
    eventually("nobody has it mounted", lambda: not sh("losetup", "-j", a.image).strip(), 60)
    mount("-o", "loop", a.image, at=a.at)
    assert recover(box) == (0, []) and os.listdir(box.d) == names[4:], os.listdir(box.d)
    left = [os.listdir(os.path.join(d.at, "fastckpt-0")) for d in (a, b)]
    assert all(n.startswith("sums") for names in left for n in names), left


def ends_cannot_be_noted():
    """Stripes that can only be read when it comes to recovery: what is behind an end that is not written waits."""
    disks, target, box = start("unnoted")
    for i in (1, 2):
        saves(box, "-p", "old-%d" % i, "-s", "1000", "-n", "1", shim=False)
    leave(box, "-s", str(20 << 20), "-n", "1")
    code = "import os; os.unlink('old-1'); os.unlink('old-2')"
    assert box.run([PYTHON, "-c", code], env={"FASTCKPT_EXIT": "leave"}).rc == 0
    eventually("a record of the deletions", lambda: b"old-2" in log_text(box), 20)
    kill_pair(box, target)
    saves(box, "-p", "ckpt-1.pt", "-s", "1000", "-n", "1", shim=False)
    for d in disks:
        sh("mount", "-o", "remount,ro", d.at)
    rc, lines = recover(box)
    assert rc == 1 and lines == ["left alone: ckpt-1.pt: it has changed since", "deleted: old-1",
                                 "not deleted: old-2: an earlier file could not be recovered"], lines
    for d in disks:
        sh("mount", "-o", "remount,rw", d.at)
    rc, lines = recover(box)
    assert rc == 1 and lines[1:] == ["deleted already: old-1", "deleted: old-2"], lines


def drained(box, target):
    target.throttle(0)
    box.wait()
    s = box.status()
    eventually("it leaves", lambda: not alive(s["engine_pid"]), 20)


def said():
    """Lines for whoever looks in the wrong place, or too early, or while it goes on."""
    disks, target, box = start("said")
    dirs = [d.at for d in disks]
    for command in ("recover", "verify"):
        r = box.run([BIN, command, "x"][:2 + (command == "verify")], shim=False)
        assert r.rc == 2 and "FASTCKPT_STRIPES: nowhere to look" in r.err, r
    r = box.run([BIN, "serve", "--dir", box.rt], shim=False)
    assert r.rc == 2 and "serve is called by the library: it needs --dir and --key" in r.err, r
    r = box.command("recover", dirs[0])
    assert (r.rc, r.out) == (0, "") and r.err == "fastckpt: %s: %s\n" % (
        dirs[0], "no logs of user 0 are there: nothing to recover"), r
    leave(box, "-s", str(24 << 20), "-n", "1")
    safe(box)
    rc, lines = recover(box)
    assert rc == 0 and len(lines) == 1 and lines[0].startswith("in use by a running engine: "), lines
    time.sleep(0.3)
    kill_pair(box, target)
    lie(disks[0], 0)
    saves(box, "-p", "other", "-s", "100", "-n", "1", env={"FASTCKPT_EXIT": "leave"})
    note = "1 files on the stripes could not be recovered: fastckpt recover --dry-run names them"
    eventually("the note", lambda: note in box.command("status").out)
    assert not os.path.exists(box.d + "/ckpt-1.pt")


def many():
    """Logs of more pairs than there are descriptors for: one line, and what can be done is done, some at a time."""
    disks, target, box = start("many")
    d = os.path.join(disks[0].at, "fastckpt-0")
    os.mkdir(d, 0o700)
    names = ["1-%x.0.log" % i for i in range(400)]
    for n in names:
        open(os.path.join(d, n), "w").close()
    left = len(names)
    r = box.run([BIN, "recover", disks[0].at], shim=False,
                preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60)))
    left = len(os.listdir(d))
    assert r.rc == 1 and r.out == "not looked at: %d logs: Too many open files; once more when this is done\n" % left, r
    assert 300 < left < 400, left
    assert box.run([BIN, "recover", disks[0].at], shim=False).out == "" and os.listdir(d) == [], os.listdir(d)


def simple_target(*lacks):
    """A target that has no unnamed files, and renames without flags: new names and old ones come back there, too."""
    disks, target, box = start("simple")
    saves(box, "-p", "ckpt-2.pt", "-s", "1000", "-n", "1", shim=False)
    leave(box, "-s", str(9 << 20), "-n", "3", "-l", "latest")
    safe(box)
    time.sleep(0.3)
    kill_pair(box, target)
    r = box.run([w for l in lacks for w in (victim("seccomp_wrap"), l)] + [BIN, "recover"], env={"LD_PRELOAD": ""})
    assert r.rc == 0 and all(l.startswith("recovered: ") for l in r.out.splitlines()), r
    whole(box, ["ckpt-1.pt", "ckpt-2.pt", "ckpt-3.pt"])
    assert not box.leftovers() and recover(box) == (0, []) and len(os.listdir(box.d)) == 4, os.listdir(box.d)


def starts_beside():
    """An engine starts, slowly, while recoveries go on: none takes the files that it is just making for left behind."""
    need("strace")
    disks, target, box = start("beside")
    dirs = [d.at for d in disks]
    slowly = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fcntl", "-e", "inject=fcntl:delay_enter=100000",
              "-E", "LD_PRELOAD=" + LIB]
    box.start([*slowly, SAVER, "-p", "x", "-s", "100", "-n", "2", "-t", "20000"], env={"LD_PRELOAD": ""})
    looks, end = 0, time.monotonic() + 20

    def files(kind):
        return [n for d in dirs if os.path.isdir(d + "/fastckpt-0") for n in os.listdir(d + "/fastckpt-0")
                if n.endswith(kind)]
    while len(files(".data")) < 2 and time.monotonic() < end:
        looks += box.command("recover").rc == 0
    eventually("the engine", box.status)
    assert len(files(".log")) == 2 and "not used" not in box.engine_log() and looks > 10, (looks, box.engine_log())


SHORT = [("stripe-fails", stripe_fails), ("read-only", becomes_read_only, "ro", kill_pair), ("said", said),
         ("many", many), ("simple-target", simple_target, "O_TMPFILE", "RENAME_FLAGS"),
         ("beside", starts_beside), ("unnoted", ends_cannot_be_noted)]
LONG = [("hidden", simple_target, "O_TMPFILE"), ("no-flags", simple_target, "RENAME_FLAGS"),
        ("log-full", log_is_full), ("removed", stripe_is_removed), ("read-only-drained", becomes_read_only, "ro-left",
                                                                    drained)]
if __name__ == "__main__":
    run_some(SHORT + (LONG if sys.argv[1:] else []))  # by name: any of them
