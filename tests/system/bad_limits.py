#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
#
# Proves that a job under narrow limits (file size, descriptors, locked memory, no io_uring), with bad configuration, or
# in a pipeline gets the native bytes and results. How: the same calls natively and under the shim; an engine of its own
# starts under the limit each time. Cannot see limits that an administrator changes while it runs.

import os
import re
import resource
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

SAVE = ("o:0:wct:644:m.pt", "W:0:9M:1", "p:0:2M:300000:2", "c:0", "S:m.pt")


def limit(what, value):
    return lambda: resource.setrlimit(what, (value, value))


def both(box, ops, same=True, **kw):
    n = box.ops(*ops, shim=False, cwd=box.native_d, **kw)
    r = box.ops(*ops, **kw)
    if same:
        assert (r.rc, r.lines()) == (n.rc, n.lines()), "rc %s, printed %s, natively %s %s; %s" % (
            r.rc, r.lines(), n.rc, n.lines(), r.err[-300:])
        box.wait()
        compare_trees(box.native_d, box.d)
    return r


def file_size():
    """A short write at the limit, then EFBIG, or SIGXFSZ."""
    for name, ops in (("write", ["w:0:4M:1", "w:0:4M:2", "w:0:4M:3"]),
                      ("pwrite", ["p:0:5M:4M:1", "p:0:6M:4M:2", "p:0:1M:1M:2"])):
        ops = ["G:25", "o:0:wct:644:m.pt", *ops, "c:0", "S:m.pt"]
        box = Box("fsize-" + name)
        both(box, ops, preexec=limit(resource.RLIMIT_FSIZE, 6 * MIB + 1000))
    box = Box("fsize-killed")
    ops = ["o:0:wct:644:m.pt", "w:0:4M:1", "w:0:4M:2", "w:0:4M:3", "c:0"]
    n = box.ops(*ops, shim=False, cwd=box.native_d, preexec=limit(resource.RLIMIT_FSIZE, 6 * MIB))
    r = box.ops(*ops, preexec=limit(resource.RLIMIT_FSIZE, 6 * MIB))
    assert r.rc == n.rc == -signal.SIGXFSZ, "ended with %s, natively with %s" % (r.rc, n.rc)


def file_size_engine():
    """The engine of a job with a small limit serves another job without one."""
    box = Box("fsize-engine")
    box.ops("o:0:wct:644:a.pt", "W:0:3M:1", "s:10", "c:0", preexec=limit(resource.RLIMIT_FSIZE, 4 * MIB))
    both(box, ["o:0:wct:644:m.pt", "W:0:20M:1", "c:0", "S:m.pt", "u:a.pt"], same=False)
    box.wait()
    assert os.path.getsize(box.d + "/m.pt") == 20 * MIB


def descriptors_64():
    box = Box("nofile-64", STAGING="64M")
    ops = list(SAVE)
    for i in range(3, 30):
        ops.append("o:%d:wct:644:f%d.pt" % (i, i))
    for i in range(3, 30):
        ops.append("W:%d:1500000:%d" % (i, i))
    for i in range(3, 30):
        ops.append("c:%d" % i)
    box.ops("y:nothing", "o:0:wct:644:first.pt", "c:0", "u:first.pt")  # an engine that may have more
    r = both(box, ops, preexec=limit(resource.RLIMIT_NOFILE, 64))
    assert r.classes()[0] > 10 and sum(r.classes()) == 28, r.err


def descriptor_table_full():
    """The last free number goes to the save: it works as natively, whatever class it gets, and the engine's too."""
    for n in (32, 256):
        box = Box("table-%d" % n)
        r = both(box, ["N", "B", *SAVE, "o:1:wct:644:n.pt"], same=False, preexec=limit(resource.RLIMIT_NOFILE, n))
        assert r.rc == 0 and r.lines()[2:6] == ["open=0", "writes=%d" % (9 * MIB), "pwrite=300000", "close=0"], repr(r)
        assert r.seconds < 20, r.seconds
        box.wait()
        os.path.exists(box.native_d + "/n.pt") and os.unlink(box.native_d + "/n.pt")
        os.path.exists(box.d + "/n.pt") and os.unlink(box.d + "/n.pt")
        compare_trees(box.native_d, box.d)
        box = Box("table-after-%d" % n)  # the table fills up while the file is open
        r = box.ops("o:0:wct:644:m.pt", "w:0:3M:1", "N", "W:0:9M:2", "f:0", "c:0", "S:m.pt",
                    preexec=limit(resource.RLIMIT_NOFILE, n))
        assert "writes=%d" % (9 * MIB) in r.lines() and "fsync=0" in r.lines() and "close=0" in r.lines(), repr(r)
        box.wait()
        assert os.path.getsize(box.d + "/m.pt") == 12 * MIB


def locked_memory_0():
    for io in ("auto", "uring", "threads"):
        box = Box("memlock-" + io, io=io)
        r = both(box, list(SAVE), preexec=limit(resource.RLIMIT_MEMLOCK, 0))
        assert r.classes() == (1, 0, 0), r.err


def io_uring_refused():
    for err in ("EPERM", "ENOSYS"):
        for io in ("auto", "uring"):
            box = Box("seccomp-%s-%s" % (err, io), io=io)
            box.ops(*SAVE, shim=False, cwd=box.native_d)
            r = box.run([victim("seccomp_wrap"), err, victim("ops"), *SAVE])
            if r.rc == 77:
                raise Skip("no seccomp filters here")
            assert r.rc == 0 and r.classes() == (1, 0, 0), repr(r)
            box.wait()
            compare_trees(box.native_d, box.d)
            assert "io_uring" in box.engine_log() + r.err, "nothing says why it is slower"


def variables():
    """The names of the configuration table, as --help prints it."""
    text = subprocess.run([BIN, "--help"], capture_output=True, text=True).stdout
    return sorted(set(re.findall(r"FASTCKPT_([A-Z_]+)", text)))


def bad_values():
    """A bad value is one clear line that names the variable, and the job runs natively."""
    names = variables()
    for must in ("STAGING", "FSYNC", "EXIT", "IO", "DIRECT", "LOG", "REPORT", "ASYNC_SHARED", "DISABLE"):
        assert must in names, "%s is not in --help" % must
        for value in ("banana", "-1", "1e9", "9" * 40, " ", "\x01\xff"):
            box = Box("bad")
            r = both(box, list(SAVE), env={"FASTCKPT_" + must: value})
            assert r.classes() == (0, 0, 0), "%s=%r: %s" % (must, value, r.err)
            lines = [l for l in r.err.splitlines() if not l.startswith("fastckpt: 0 file")]
            assert len(lines) == 1 and "FASTCKPT_" + must in lines[0], "%s=%r: %r" % (must, value, r.err)
            box.close()
    for name, value in (("RUNTIME_DIR", "/nonexistent/x"), ("RUNTIME_DIR", "/dev/null"), ("RUNTIME_DIR", "relative"),
                        ("ENGINE", "/nonexistent"), ("ENGINE", "/bin/false"), ("ENGINE", "/etc/passwd"),
                        ("PATHS", "x" * 20000)):
        box = Box("bad")
        r = both(box, list(SAVE), env={"FASTCKPT_" + name: value})
        assert r.classes() == (0, 0, 0), "%s=%r: %s" % (name, value[:20], r.err)
        assert r.seconds < 20, "%s=%r took %.1f s" % (name, value[:20], r.seconds)
        lines = [l for l in r.err.splitlines() if not l.startswith("fastckpt: 0 file")]
        assert len(lines) == 1, "%s=%r should be one line: %r" % (name, value[:20], r.err)
        box.close()


def odd_patterns():
    for value in ("", ":", "!*", "*:!*", "[", "[a-", "\\", "**/**:!x", ":::!:"):
        box = Box("patterns")
        both(box, list(SAVE), env={"FASTCKPT_PATHS": value})
        box.close()


def disabled():
    box = Box("disabled", DISABLE="1")
    r = both(box, list(SAVE))
    assert r.err == "" and r.classes() == (0, 0, 0), r.err
    box = Box("no-paths", PATHS="", REPORT=None)
    r = both(box, list(SAVE))
    assert r.err == "" and box.status() is None, r.err
    box = Box("quiet", REPORT=None)  # nothing is said where nothing is wrong
    r = both(box, list(SAVE))
    assert r.err == "", r.err


def tee():
    """The pipe ends with the program, though the engine lives on."""
    box = Box("tee")
    r = box.run(["sh", "-c", "%s %s 2>&1 | tee out; echo tee is done" % (
        victim("ops"), " ".join("'%s'" % o for o in SAVE))], cwd=box.top, timeout=30,
        env={"FASTCKPT_PATHS": box.top + "/m.pt"})
    assert r.rc == 0 and "tee is done" in r.out, repr(r)
    s = box.status()
    assert s, "no engine: tee waited for its end"
    for pid in (s["keeper_pid"], s["engine_pid"]):
        for fd in (0, 1, 2):
            target = os.readlink("/proc/%d/fd/%d" % (pid, fd))
            assert "pipe" not in target and "/out" not in target, "pid %d holds %s as %d" % (pid, target, fd)
        assert os.readlink("/proc/%d/cwd" % pid) == "/"


def env_i():
    """An empty environment but for LD_PRELOAD, and a child with none at all."""
    box = Box("env-i")
    r = box.run(["env", "-i", "LD_PRELOAD=" + LIB, victim("ops"), *SAVE])
    assert r.rc == 0 and r.err == "", repr(r)
    assert os.path.getsize(box.d + "/m.pt") == 9 * MIB
    child = " ".join("'%s'" % o for o in SAVE)
    r = box.ops("o:1:wct:644:first.pt", "W:1:9M:3", "c:1",
                "X:cmp first.pt first.pt && env -i %s %s && cat m.pt > n.pt && cmp m.pt n.pt && wc -c < first.pt" % (
                    victim("ops"), child))
    assert "system=0" in r.lines() and str(9 * MIB) in r.out.split(), repr(r)
    box.wait()
    assert os.path.getsize(box.d + "/n.pt") == 9 * MIB


def closed_stdio():
    """Started without descriptors 0 to 2: they are the program's, never the shim's or the engine's."""
    box = Box("closed")

    def close_all():
        for fd in (0, 1, 2):
            os.close(fd)

    for shim, d in ((False, box.native_d), (True, box.d)):
        p = box.start([victim("ops"), "o:5:wct:644:zero.pt", "o:6:wct:644:m.pt", "W:6:9M:1", "W:5:9M:2", "f:5", "c:6",
                       "c:5"], shim=shim, cwd=d, preexec=close_all)
        rc = p.wait(60)
        if not shim:
            native = rc
        assert rc == native, "ended with %s, natively with %s" % (rc, native)
    box.wait()
    compare_trees(box.native_d, box.d)


CASES = [(f.__name__, f) for f in (
    file_size, file_size_engine, descriptors_64, descriptor_table_full, locked_memory_0, io_uring_refused, bad_values,
    odd_patterns, disabled, tee, env_i, closed_stdio)]
run_cases(CASES)
