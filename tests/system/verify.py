#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 120
#
# Proves that `fastckpt verify` says whole of what is whole and torn of one wrong byte anywhere, also after a rename by
# the program; that what was changed, or was never saved so, is unknown; and that it covers small files, rewritten
# chunks, and files that their program synced.
# How: bytes are flipped below the file system, in the image of the loop device; more in tests/long/verify.py.
# Cannot see wrong bytes of a page cache.

import fcntl
import os
import signal
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import recover  # noqa: E402
from fc import *  # noqa: E402,F403
from stripes import SAVER, disk, run_some, saves, slow_target  # noqa: E402

FIBMAP = 1
SIZE = (21 << 20) + 12345


def flip(fs, path, at):
    """Changes one byte of the file on the disk, and nothing that the file system knows of."""
    with open(path, "rb") as f:
        os.fsync(f.fileno())
        block = struct.unpack("i", fcntl.ioctl(f.fileno(), FIBMAP, struct.pack("i", at // 4096)))[0]
    assert block > 0, "%s has no block at %d" % (path, at)
    with open(fs.image, "r+b", buffering=0) as image:
        image.seek(block * 4096 + at % 4096)
        byte = image.read(1)[0]
        image.seek(block * 4096 + at % 4096)
        image.write(bytes([byte ^ 0x20]))


def verify(box, *names):
    """Exit code, and what it says of each."""
    r = box.command("verify", *(os.path.join(box.d, n) for n in names))
    lines = [l.replace(box.d + "/", "") for l in r.out.splitlines()]
    assert len(lines) == len(names) and not r.err, r
    return (r.rc, *lines)


def one(box, name):
    return verify(box, name)[1]


def start(name, mib=400, fs="ext4", **kw):
    disks = [disk("s%d" % i, mib, "xfs" if i and mib > 300 else "ext4") for i in range(2)]
    target, box = slow_target(name, disks, bps=kw.pop("bps", 0), fs=fs, **kw)
    return disks, target, box


def save(box, name, size=SIZE, *options, **kw):
    r = saves(box, "-p", name, "-s", str(size), "-n", "1", *options, **kw)
    assert r.rc == 0 and r.failures() == 0, r


def torn(fs="ext4"):
    disks, target, box = start("torn-" + fs, fs=fs)
    save(box, "a.pt", SIZE, "-w", "1500001")
    save(box, "small", 3000)
    assert verify(box, "a.pt", "small") == (0, "whole: a.pt", "whole: small")
    a = box.d + "/a.pt"
    for at in (0, MIB - 1, MIB, (4 << 20) - 1, 4 << 20, (13 << 20) + 77, (20 << 20) + 4096, os.path.getsize(a) - 1):
        flip(target, a, at)
        rc, said = verify(box, "a.pt")
        first = int(re.match(r"torn: a.pt: from byte (\d+) on it is not what was saved$", said).group(1))
        assert rc == 1 and first <= at < first + (4 << 20), "byte %d: %s" % (at, said)
        flip(target, a, at)
    assert verify(box, "a.pt") == (0, "whole: a.pt")
    flip(target, box.d + "/small", 2999)
    assert verify(box, "a.pt", "small")[:2] == (1, "whole: a.pt") and one(box, "small").startswith("torn: small: ")


def changed():
    """Changed with its times put back, overwritten, longer, and others that were never saved so."""
    disks, target, box = start("changed")
    for n in ("a.pt", "b.pt", "c.pt"):
        save(box, n)
    a = box.d + "/a.pt"
    st = os.stat(a)
    with open(a, "r+b") as f:
        f.seek(5 << 20)
        f.write(b"other")
    os.utime(a, ns=(st.st_atime_ns, st.st_mtime_ns))
    with open(box.d + "/b.pt", "ab") as f:
        f.write(b"more")
    os.rename(box.d + "/c.pt", box.d + "/c2.pt")
    os.link(box.d + "/c2.pt", box.d + "/c3.pt")
    os.symlink("c2.pt", box.d + "/c4.pt")
    os.chmod(box.d + "/c2.pt", 0o400)
    shutil.copy(box.d + "/c2.pt", box.d + "/copy.pt")
    os.mkfifo(box.d + "/fifo")
    since, nothing = "it has changed since it was saved", "the stripes know nothing of it"
    assert verify(box, "a.pt", "b.pt", "c2.pt", "c3.pt", "c4.pt", "copy.pt", "fifo", "none") == (
        3, "unknown: a.pt: " + since, "unknown: b.pt: " + since, "whole: c2.pt", "whole: c3.pt", "whole: c4.pt",
        "unknown: copy.pt: " + nothing, "unknown: fifo: it is no regular file",
        "unknown: none: No such file or directory")
    flip(target, box.d + "/c2.pt", 6 << 20)  # what is wrong may be meant: its ctime is another one
    assert one(box, "c2.pt") == "unknown: c2.pt: " + since
    own = [os.path.join(d.at, "fastckpt-0") for d in disks]
    for d in own:  # what another user has put there under our name is not believed
        os.chown(d, USER, -1)
    assert one(box, "c3.pt") == "unknown: c3.pt: " + nothing, one(box, "c3.pt")
    for d in own:
        os.chown(d, 0, -1)
    assert box.command("verify").rc == 2
    box.config["STRIPES"] = None
    assert box.command("verify", a).rc == 2


def renamed():
    """By the program, right behind its close: the kernel changes the ctime, and that is known."""
    disks, target, box = start("renamed", bps=60 << 20)
    r = box.ops("o:0:wct:644:tmp", "W:0:21M:1", "c:0", "m:tmp:a.pt", "o:0:wct:644:tmp", "W:0:9M:2", "c:0", "m:tmp:b.pt")
    assert r.rc == 0 and box.wait().rc == 0, r
    assert verify(box, "a.pt", "b.pt") == (0, "whole: a.pt", "whole: b.pt")
    flip(target, box.d + "/a.pt", 13 << 20)
    rc, said = verify(box, "a.pt")
    assert rc == 1 and said.startswith("torn: a.pt"), said


def recovered():
    """What a recovery publishes and renames is known as what the engine does."""
    disks, target, box = start("recovered", bps=4 << 20)
    r = box.ops("o:0:wct:644:tmp", "W:0:21M:1", "c:0", "m:tmp:a.pt", "o:0:wct:644:b.pt", "W:0:3M:1", "c:0",
                env={"FASTCKPT_EXIT": "leave"})
    assert r.rc == 0 and box.command("wait", "--safe").rc == 0, r
    recover.kill_pair(box, target)
    rc, lines = recover.recover(box)
    assert rc == 0 and len(lines) == 3 and os.path.exists(box.d + "/a.pt"), lines
    assert verify(box, "a.pt", "b.pt") == (0, "whole: a.pt", "whole: b.pt")
    flip(target, box.d + "/a.pt", 5 << 20)
    assert one(box, "a.pt").startswith("torn: a.pt: from byte 4194304 on"), one(box, "a.pt")


def no_place():
    """Stripes with less room than one file, and an engine that dies meanwhile."""
    disks, target, box = start("full", mib=60, bps=100 << 20)
    p = box.start([SAVER, "-s", str(150 << 20), "-n", "2"])
    died = 0
    for _ in range(2):
        s = eventually("another engine has something pending",
                       lambda: (x := box.status()) and x["pending_files"] and x["engine_pid"] != died and x, 20)
        died = s["engine_pid"]
        os.kill(died, signal.SIGKILL)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0 and box.wait().rc == 0, err
    assert verify(box, "ckpt-1.pt", "ckpt-2.pt") == (0, "whole: ckpt-1.pt", "whole: ckpt-2.pt")
    flip(target, box.d + "/ckpt-2.pt", 149 << 20)
    assert one(box, "ckpt-2.pt").startswith("torn: ckpt-2.pt")


def own_ways():
    """fsync; rewritten chunks; bytes written behind an fsync; a hole that is not read; an old file that is replaced."""
    disks, target, box = start("ways")
    r = box.ops("o:0:wct:644:synced", "W:0:21M:1", "f:0", "c:0",
                "o:0:wct:644:again", "W:0:21M:1", "p:0:5M:3M:2", "p:0:9000001:77:3", "c:0",
                "o:0:wct:644:behind", "W:0:21M:1", "f:0", "p:0:5M:3M:2", "c:0",
                "o:0:wct:644:hole", "W:0:9M:1", "p:0:60M:1M:2", "c:0",
                "o:0:wct:644:cut", "W:0:21M:1", "t:0:9M", "c:0")
    assert r.rc == 0 and box.wait().rc == 0, r
    said = verify(box, "synced", "again", "behind", "hole", "cut")
    assert said[1:4] == ("whole: synced", "whole: again", "whole: behind") and said[5] == "whole: cut", said
    assert re.match(r"partly: hole: of 61.0 MiB 2\d.\d MiB have checksums, and are what was saved$", said[4]), said
    assert said[0] == 3
    for name in ("synced", "again", "behind"):
        flip(target, os.path.join(box.d, name), 6 << 20)
        assert one(box, name).startswith("torn: " + name), one(box, name)
    flip(target, box.d + "/cut", 6 << 20)
    assert re.match("unknown: cut: .* its program wrote to it in other ways, too$", one(box, "cut")), one(box, "cut")


def many():
    """More files than are open at once; as another user, who has other records."""
    disks, target, box = start("many", uid=USER)
    r = saves(box, "-p", "f-%d", "-s", str(40000), "-n", "600")
    assert r.rc == 0, r
    save(box, "large.pt", 90 << 20)
    names = ["f-%d" % i for i in range(1, 601)] + ["large.pt"]
    assert verify(box, *names) == (0, *("whole: " + n for n in names))
    for n in ("f-7", "f-300", "f-600", "large.pt"):
        flip(target, os.path.join(box.d, n), 20000)
    bad = [l for l in verify(box, *names)[1:] if not l.startswith("whole")]
    assert [l.split(":")[1] for l in bad] == [" f-7", " f-300", " f-600", " large.pt"], bad
    assert all(l.startswith("torn: ") for l in bad), bad
    kept = os.stat(os.path.join(disks[0].at, "fastckpt-%d" % USER, "sums"))
    assert kept.st_size < 200000 and kept.st_mode & 0o777 == 0o600, kept


SHORT = [("torn", torn), ("changed", changed), ("renamed", renamed), ("own-ways", own_ways), ("many", many)]
LONG = [("torn-xfs", torn, "xfs"), ("no-place", no_place), ("recovered", recovered)]
if __name__ == "__main__":
    run_some(SHORT)
