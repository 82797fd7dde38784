#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
# timeout: 400
#
# Proves that each program of clients.tsv leaves the same bytes, modes, owners and times as without the shim, and that
# its file reaches the class stated there. How: each runs natively and under the shim in directories of the same layout;
# the class is read from the report and from the inode. Cannot see who wrote the bytes within a class, nor timing.

import os
import re
import shlex
import stat
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
import fc  # noqa: E402

BACKENDS = ("uring", "threads")
VENV = os.path.join(BUILD, "venv", "bin", "python")  # scripts/clients


def rows():
    with open(os.path.join(ROOT, "tests", "clients.tsv")) as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                yield line.rstrip("\n").split("\t")


def words(command):
    return [w.replace("{V}", VICTIMS).replace("{C}", CLIENTS).replace("{PY}", PYTHON).replace("{VENV}", VENV)
            for w in shlex.split(command)]


def make_sources(top):
    """The files that programs copy from: the same beside both checkpoint directories."""
    src = os.path.join(top, "src")
    os.makedirs(src + "/dir", exist_ok=True)
    write_file(src + "/big", 12 * MIB + 77, 5)
    os.chmod(src + "/big", 0o640)
    os.utime(src + "/big", (1e9, 1.1e9))
    for n, size in (("dir/one", 3 * MIB), ("dir/two", 100), ("three", 2 * MIB + 1)):
        write_file(os.path.join(src, n), size, size)
        os.utime(os.path.join(src, n), (1e9, 1.2e9))
    subprocess.run(["tar", "cf", "t.tar", "--mtime=@1234567890", "dir/one", "dir/two", "three"], cwd=src, check=True)


def prepare(d, old):
    """Makes a directory with an old file. A descriptor of that keeps its inode's number from being used again."""
    os.makedirs(d)
    if old == "-":
        return None
    p = os.path.join(d, old)
    write_file(p, 0 if old == "state" else 3 * MIB + 11, 9)
    os.chmod(p, 0o640)
    return os.open(p, os.O_PATH)


def check_times(native, shim, began, ended):
    for n in tree(native):
        a, b = os.lstat(os.path.join(native, n)), os.lstat(os.path.join(shim, n))
        if not stat.S_ISREG(a.st_mode):
            continue
        if a.st_mtime < began - 1000:  # set by the program: tar, cp -p, rsync
            assert a.st_mtime_ns == b.st_mtime_ns, "%s: mtime %d, natively %d" % (n, b.st_mtime_ns, a.st_mtime_ns)
        else:
            assert began - 0.1 <= b.st_mtime <= ended + 0.1, "%s: mtime %.3f is not from the run" % (n, b.st_mtime)


def check_class(box, name, cls, counts, old, held, r):
    if counts != "-":
        got = "%d/%d/%d" % r.classes()
        assert r.reports, "no report; " + repr(r)
        assert got == counts, "staged/captured/followed are %s, not %s; %s" % (got, counts, r.err[-300:])
    if held is not None:
        another = os.stat(os.path.join(box.d, name, old)).st_ino != os.fstat(held).st_ino
        os.close(held)
        assert another == (cls in ("staged", "captured")), \
            "%s is %s inode: that is not %s" % (old, "another" if another else "the same", cls)
    assert r.failures() == 0, r.err


def run_row(box, native_results, row):
    name, cls, counts, old, kind, command = row
    held = prepare(os.path.join(box.d, name), old)
    began = time.time()
    r = box.run(words(command), cwd=os.path.join(box.d, name), timeout=60)
    ended = time.time()
    n = native_results[name]
    assert r.rc == n.rc, "exit status %s, natively %s; %s" % (r.rc, n.rc, r.err[-400:])
    assert r.out == n.out, "printed %r, natively %r" % (r.out[-300:], n.out[-300:])
    w = box.wait()
    assert w.rc == 0, "fastckpt wait: %s; %s" % (w.err, box.command("status").out[-600:])
    compare_trees(os.path.join(box.native_d, name), os.path.join(box.d, name))
    check_times(os.path.join(box.native_d, name), os.path.join(box.d, name), began, ended)
    check_class(box, name, cls, counts, old, held, r)


def run_natively(box, todo):
    """name -> result. The Python programs of a script in one process: it imports torch once."""
    out = {}
    batches = {}
    for name, _, _, old, kind, command in todo:
        prepare(os.path.join(box.native_d, name), old)
        if kind == "py":
            python, script, program = words(command)
            batches.setdefault((python, script), []).append((name, program))
        else:
            out[name] = box.native(words(command), cwd=os.path.join(box.native_d, name))
    for (python, script), batch in batches.items():
        argv = ["%s@%s" % (program, os.path.join(box.native_d, name)) for name, program in batch]
        r = box.native([python, script] + argv, timeout=240)
        assert r.rc == 0, "natively: %r" % r
        texts = re.split("^@.*\n", r.out, flags=re.M)[1:]
        for (name, _), text in zip(batch, texts):
            out[name] = fc.Result(0, text, "", 0)
    return out


def installed(todo):
    """Without the rows whose interpreter is not there, which are skipped by name."""
    there = [r for r in todo if os.path.exists(words(r[5])[0]) or not r[5].startswith("{VENV}")]
    for r in todo:
        if r not in there:
            skip(r[0], "needs build/venv: make clients")
    return there


def run_rows(todo, staging="256M"):
    boxes = {b: Box("box-" + b, io=b, STAGING=staging) for b in BACKENDS}
    native_box = boxes["uring"]
    os.umask(0o022)
    for b in boxes.values():
        make_sources(b.top)
        if os.path.dirname(b.d) != b.top:  # on another file system (TEST_BASE), so that cp copies and does not clone
            os.symlink(b.top + "/src", os.path.dirname(b.d) + "/src")
    make_sources(os.path.dirname(native_box.native_d))
    native = run_natively(native_box, todo)
    boxes["threads"].native_d = native_box.native_d
    turn = 0
    for row in todo:
        if row[4] == "py":
            backends = (BACKENDS[turn % 2],)
            turn += 1
        else:
            backends = BACKENDS
        for b in backends:
            with case("%s-%s" % (row[0], b)):
                run_row(boxes[b], native, row)
    return boxes.values()


def main():
    if "--native" in sys.argv:  # checks the programs of the table without the shim: two runs give the same bytes
        fc.only.remove("--native")
        a, b = Box("a"), Box("b")
        todo = [r for r in rows() if wanted(r[0])]
        for x in (a, b):
            make_sources(os.path.dirname(x.native_d))
            for n, r in run_natively(x, todo).items():
                print(n, r.rc, r.out.strip()[:200], r.err)
        compare_trees(a.native_d, b.native_d)
        return
    run_rows(installed([r for r in rows() if wanted(r[0])]))
    finish()


if __name__ == "__main__":
    main()
