#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# Proves the rule of logs (design 4): a new name below 1 MiB that was written 16 times in three different seconds is
# there while its program goes on, and stays after SIGKILL; one that replaces an older file moves at close, and what
# was written counts if the program dies; what is no log by the rule keeps the old file. How: small writers looked at
# from a process without the shim. Cannot see: streams that libc flushes by itself, which count as no writes.
# backends: uring threads
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import fc  # noqa: E402

WRITER = """
import sys, time
name, lines, pause, how = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
f, began = open(name, "w"), time.monotonic()
for i in range(lines):
    f.write("line %d\\n" % i)
    f.flush()
    time.sleep(pause)
print("written in %d s" % (time.monotonic() - began), flush=True)
sys.stdin.readline()
f.write("more\\n")
f.flush()
print("more", flush=True)
sys.stdin.readline()
"""


def start(box, name, lines, pause):
    import subprocess
    p = box.start([fc.PYTHON, "-c", WRITER, os.path.join(box.d, name), str(lines), str(pause), ""],
                  stdin=subprocess.PIPE)
    return p


def go_on(p):
    p.stdin.write("\n")
    p.stdin.flush()
    return p.stdout.readline()


def read(box, name):
    try:
        with open(os.path.join(box.d, name)) as f:
            return f.read()
    except FileNotFoundError:
        return None


def all_of_it():
    box = fc.Box("logs", uid=fc.USER)
    old = {"replaced": "old\n", "replaced_few": "old\n"}
    for n, text in old.items():
        with open(os.path.join(box.d, n), "w") as f:
            f.write(text)
        box.own(os.path.join(box.d, n))
    lines = {"log": (20, 0.15), "few": (10, 0.3), "fast": (40, 0.0), "replaced": (20, 0.15), "replaced_few": (5, 0.6)}
    ps = {n: start(box, n, *a) for n, a in lines.items()}
    took = {}
    for n, p in ps.items():
        said = p.stdout.readline()
        assert said.startswith("written in "), (n, p.stderr.read() if p.poll() is not None else "")
        took[n] = int(said.split()[2])
    no_logs = ["few"] + ["fast"] * (took["fast"] < 1)  # more would be three different seconds on a slow machine
    text = {n: "".join("line %d\n" % i for i in range(a[0])) for n, a in lines.items()}
    with fc.case("logs-linked"):
        fc.eventually("the log has its name", lambda: read(box, "log") == text["log"])
    with fc.case("logs-not-by-few-writes"):
        assert [read(box, n) for n in no_logs] == [None] * len(no_logs), [read(box, n) for n in no_logs]
    with fc.case("logs-replacing-moves-later"):
        assert read(box, "replaced") == "old\n", read(box, "replaced")
    for n, p in ps.items():  # with more to it, "fast" would be a log on a machine on which it was not so fast
        assert n == "fast" or go_on(p) == "more\n", n
    with fc.case("logs-goes-on"):
        assert read(box, "log") == text["log"] + "more\n", read(box, "log")
    for p in ps.values():
        p.send_signal(signal.SIGKILL)
        p.wait()
    with fc.case("logs-after-kill"):
        assert read(box, "log") == text["log"] + "more\n", read(box, "log")
        fc.eventually("what replaces counts", lambda: read(box, "replaced") == text["replaced"] + "more\n")
    with fc.case("logs-others-after-kill"):
        box.wait()
        assert read(box, "replaced_few") == "old\n", read(box, "replaced_few")
        assert [read(box, n) for n in no_logs] == [None] * len(no_logs), [read(box, n) for n in no_logs]
    with fc.case("logs-no-leftovers"):
        assert not box.leftovers(), box.leftovers()


def dropped():
    """Unlinked, renamed and fsynced while it is being linked."""
    script = """
import os, sys, time
fs = []
for n in ("gone", "moved", "synced", "closed"):
    fs.append((n, open(n, "w")))
for i in range(17):
    for n, f in fs:
        f.write("line %d\\n" % i)
        f.flush()
    time.sleep(0.14 if i < 16 else 0)
os.unlink("gone")
os.rename("moved", "there")
os.fsync(fs[2][1].fileno())
fs[3][1].close()
print(sorted(os.listdir(".")))
for n, f in fs[:3]:
    f.write("end\\n")
    f.close()
print([(n, os.path.getsize(n)) for n in sorted(os.listdir("."))])
"""
    box = fc.Box("logs2", uid=fc.USER)
    here = box.run([fc.PYTHON, "-c", script])
    native = box.native([fc.PYTHON, "-c", script])
    assert here.rc == 0 and here.out == native.out, (here, native)
    fc.compare_trees(box.native_d, box.d)


all_of_it()
with fc.case("logs-changed"):
    dropped()
fc.finish()
