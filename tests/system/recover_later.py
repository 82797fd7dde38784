#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 120
#
# Proves P3 and P4 where a job goes on, or comes again and saves under the same names, after keeper and engine were
# killed: what was left on the stripes never takes the place of what was saved later, no name has another's content, and
# nothing is deleted or pointed to for what is not there; an engine gives no name before what was left has its own.
# How: rotations by one name, by a temporary one, and with `latest`, whose bytes tell which save they are; slow targets.
# Cannot see: targets without birth times of inodes, where numbers that are used again look the same.

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fc import *  # noqa: E402,F403
from recover import kill_pair, leave, recover, safe, start  # noqa: E402
from stripes import lie, made, run_some, saves, whole  # noqa: E402

SIZE = 5 << 20
JOB = """
import os, sys, time
kind, first, last, stop = sys.argv[1], *map(int, sys.argv[2:])

def put(name, data):
    with open(name, 'wb') as f:
        f.write(data)

def save(k):
    data = bytes([k]) * %d
    if kind == 'over':
        return put('ck.pt', data)
    put('tmp.pt', data)
    if kind == 'tmp':
        return os.replace('tmp.pt', 'ck.pt')
    os.rename('tmp.pt', 'step-%%d.pt' %% k)
    put('latest', b'step-%%d.pt' %% k)
    if os.path.exists('step-%%d.pt' %% (k - 2)):
        os.unlink('step-%%d.pt' %% (k - 2))

for k in range(first, last + 1):
    for _ in range(4):
        try:
            save(k)
            break
        except OSError:
            pass
    if k == stop:
        print('there', flush=True)
        sys.stdin.readline()
""" % SIZE


def job(box, kind, first, last, stop=0):
    p = box.start([PYTHON, "-c", JOB, kind, str(first), str(last), str(stop)], stdin=subprocess.PIPE)
    if stop:
        assert p.stdout.readline() == "there\n"
    return p


def step_of(box, name):
    """Which save a file is of; it has to be whole."""
    with open(os.path.join(box.d, name), "rb") as f:
        data = f.read()
    assert len(data) == SIZE and data == data[:1] * SIZE, (name, len(data), set(data))
    return data[0]


def holds(box, kind, last):
    """The last save is there, and all is what its name says."""
    names, log = sorted(os.listdir(box.d)), box.engine_log()
    if kind != "steps":
        assert step_of(box, "ck.pt") == last, (step_of(box, "ck.pt"), names, log)
    else:
        steps = {n: step_of(box, n) for n in names if n.startswith("step-")}
        assert all(n == "step-%d.pt" % k for n, k in steps.items()), (steps, log)
        with open(box.d + "/latest") as f:
            latest = f.read()
        assert latest in steps and latest == "step-%d.pt" % last, (latest, steps, log)
        assert "step-%d.pt" % (last - 1) in steps, (steps, log)


def comes_again(kind):
    """Everything is killed, and the job started once more."""
    disks, target, box = start("again-" + kind)
    p = job(box, kind, 1, 6, 6)
    safe(box)
    p.kill()
    kill_pair(box, target)
    target.throttle(40 << 20)
    out, err = job(box, kind, 20, 24).communicate(timeout=100)
    assert not err.replace("fastckpt: ", "").strip().startswith("Traceback"), err
    box.wait()
    recover(box)
    holds(box, kind, 24)


def goes_on(kind):
    """Keeper and engine are killed; the job is told by one error, and goes on."""
    disks, target, box = start("on-" + kind)
    p = job(box, kind, 1, 11, 6)
    safe(box)
    kill_pair(box, target)
    target.throttle(40 << 20)
    p.communicate("\n", timeout=100)
    box.wait()
    recover(box)
    holds(box, kind, 11)


def overwritten():
    """What natively took the name, and the inode's number, is not what was to be renamed."""
    disks, target, box = start("overwritten")
    p = job(box, "steps", 1, 6, 6)
    safe(box)
    p.kill()
    kill_pair(box, target)
    with open(box.d + "/tmp.pt", "wb") as f:
        f.write(bytes([7]) * SIZE)
    was = sorted(os.listdir(box.d))
    rc, lines = recover(box)
    names = sorted(os.listdir(box.d))
    said = (rc, lines, was, names, box.engine_log())
    assert rc == 1 and step_of(box, "tmp.pt") == 7, said
    for n in names:
        assert not n.startswith("step-") or n == "step-%d.pt" % step_of(box, n), said
    assert any(n.startswith("step-") for n in names) >= any(n.startswith("step-") for n in was), said
    rc, lines = recover(box, "--discard")
    assert rc == 0 and any(l.startswith("discarded: ") for l in lines), lines
    assert sorted(os.listdir(box.d)) == names and recover(box) == (0, []), names
    if "latest" in was:  # new names are made behind what cannot be done; nothing is replaced
        with open(box.d + "/latest") as f:
            assert f.read() in names, said


def born_later():
    """What has the number, the size and the time of what was to be renamed, and was born later, is not it."""
    disks, target, box = start("born")
    p = job(box, "steps", 1, 1, 1)
    safe(box)
    r = box.run([PYTHON, "-c", "import os; s = os.stat('step-1.pt'); print(s.st_ino, s.st_mtime_ns)"])
    number, at = map(int, r.out.split())
    p.kill()
    kill_pair(box, target)
    for i in range(64):  # until the number is used again
        with open(box.d + "/tmp.pt", "wb") as f:
            f.write(bytes([7]) * SIZE)
        os.utime(box.d + "/tmp.pt", ns=(at, at))
        if os.stat(box.d + "/tmp.pt").st_ino == number:
            break
        os.rename(box.d + "/tmp.pt", box.native_d + "/%d" % i)
    rc, lines = recover(box)
    names = os.listdir(box.d)
    assert rc == 1 and "step-1.pt" not in names and step_of(box, "tmp.pt") == 7, (rc, lines, names)


def directory_gone():
    """What was to be renamed out of a directory that somebody has deleted since is not pointed to."""
    disks, target, box = start("gone")
    os.mkdir(box.d + "/sub")
    with open(box.d + "/latest", "w") as f:
        f.write("none")
    code = ("import os\nopen('sub/tmp.pt', 'wb').write(b'x' * %d)\nos.rename('sub/tmp.pt', 'step-1.pt')\n"
            "open('latest', 'w').write('step-1.pt')" % SIZE)
    assert box.run([PYTHON, "-c", code], env={"FASTCKPT_EXIT": "leave"}).rc == 0
    safe(box)
    kill_pair(box, target)
    os.rmdir(box.d + "/sub")
    rc, lines = recover(box)
    assert rc == 1 and lines == ["not recovered: sub/tmp.pt: its directory: No such file or directory",
                                 "left alone: sub/tmp.pt to step-1.pt: its directory is gone",
                                 "not recovered: latest: an earlier file could not be; the old one stays"], lines
    with open(box.d + "/latest") as f:
        assert f.read() == "none" and sorted(os.listdir(box.d)) == ["latest"]


def before_its_own():
    """The next engine gives no name, on any disk, while it recovers what was saved before."""
    disks, target, box = start("before")
    leave(box, "-s", str(8 << 20), "-n", "2")
    safe(box)
    kill_pair(box)  # the target stays slow: recovering takes seconds
    later = Box("before-later", STRIPES=box.config["STRIPES"])
    made.append(later)
    r = saves(later, "-s", "1000", "-n", "1")  # which waits until that is on its disk
    assert r.rc == 0 and r.failures() == 0, r
    names = sorted(os.listdir(box.d))
    assert names == ["ckpt-1.pt", "ckpt-2.pt"], (names, later.engine_log())
    target.throttle(0)
    whole(box, names)
    whole(later, ["ckpt-1.pt"])


def only_the_way():
    """Behind what cannot be had no name is made which is the way to another one: nobody would take it there."""
    disks, target, box = start("way", stripes=1)
    leave(box, "-p", "first.pt", "-s", str(8 << 20), "-n", "1")
    code = "import os\nopen('tmp', 'wb').write(b'x' * 2000)\nos.rename('tmp', 'second.pt')"
    assert box.run([PYTHON, "-c", code], env={"FASTCKPT_EXIT": "leave"}).rc == 0
    safe(box)
    kill_pair(box, target)
    lie(disks[0], 0)
    rc, lines = recover(box)
    assert rc == 1 and os.listdir(box.d) == [], (lines, os.listdir(box.d))


CASES = [(f.__name__.replace("_", "-") + "-" + kind, f, kind)
         for kind in ("over", "steps", "tmp") for f in (comes_again, goes_on)] + [
             ("overwritten", overwritten), ("born-later", born_later), ("directory-gone", directory_gone),
             ("before-its-own", before_its_own), ("only-the-way", only_the_way)]
if __name__ == "__main__":
    run_some(CASES)
