#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 110
#
# Proves that two processes and their children see, while deletions, renames and new files are queued, the names, errors
# and content that they would see natively, and leave the same tree. How: tests/lib/namefuzz.py with an engine that
# publishes nothing before it is waited for (FASTCKPT_BREAK=9), as root and another user. Cannot see races, crashes.
#   namefuzz.py SEED...   these seeds   namefuzz.py FILE...   these scripts   namefuzz.py -p SEED   prints the script

import glob
import os
import platform
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
args, sys.argv[1:] = sys.argv[1:], []
from fc import *  # noqa: E402,F403
from canaries import engine  # noqa: E402
import fuzzing  # noqa: E402
import namefuzz  # noqa: E402

LIBZ = glob.glob("/usr/lib/*/libz.so.1")[0]
GETCWD = {"x86_64": 79, "aarch64": 17}[platform.machine()]
SECONDS = 4.0  # of new seeds for each of two variants
SEEDS = 200
FIRST = int(os.environ.get("SEED") or 0) * 1000000 + 1


def holds(held):
    """What is closed has no name yet, and what is deleted still has one, for who is not of the job."""
    box = Box("held", ENGINE=held)
    write_file(box.d + "/old.pt", 9)
    code = """if 1:
        import os, sys
        open("new.pt", "wb").write(b"x" * 9)
        os.unlink("old.pt")
        print([os.path.exists(n) for n in ("new.pt", "old.pt")], flush=True)
        sys.stdin.readline()"""
    p = box.start([PYTHON, "-c", code], stdin=subprocess.PIPE)
    assert p.stdout.readline() == "[True, False]\n"
    assert os.listdir(box.d) == ["old.pt"], "something was done before it was waited for"
    p.communicate("\n", timeout=20)
    assert p.returncode == 0 and os.listdir(box.d) == ["new.pt"]
    box.close()


# Names that the C library finds by itself, while their change is queued.
BY_LIBC = """
import ctypes, os, shutil, sys
libc = ctypes.CDLL(None, use_errno=True)
for f in (libc.mkdtemp, libc.getcwd, libc.get_current_dir_name):
    f.restype = ctypes.c_char_p
def of(call, *args):
    try:
        return call(*args)
    except OSError as e:
        return type(e).__name__
def emptied(name):
    os.mkdir(name)
    with open(name + "/f", "wb") as f: f.write(b"x")
    d = os.open(name, os.O_RDONLY)
    os.fsync(d)
    os.close(d)
    with open("before", "wb") as f: f.write(b"x")
    os.unlink(name + "/f")
emptied("d")
os.rmdir("d")
template = ctypes.create_string_buffer(b"d/XXXXXX")
print(libc.mkdtemp(template), ctypes.get_errno(), os.listdir("."))
shutil.copyfile(sys.argv[1], "tmp")
os.replace("tmp", "lib.so")
print(ctypes.CDLL("./lib.so").zlibVersion() != 0)
shutil.copyfile("/bin/true", "tmp")
os.chmod("tmp", 0o755)
os.replace("tmp", "program")
print(of(os.posix_spawn, "program", ["program"], os.environ) != "FileNotFoundError", os.wait()[1])
emptied("e")
os.chdir("e")
os.rmdir("../e")
os.environ["PWD"] = "/nowhere"
print(of(os.getcwd), libc.get_current_dir_name(), libc.syscall(%d, template, 9), ctypes.get_errno())
print(of(os.listdir, "."))
""" % GETCWD


def by_libc(held):
    box = Box("by-libc", ENGINE=held)
    n, r = (box.run([PYTHON, "-c", BY_LIBC, LIBZ], cwd=d, shim=s, timeout=60)
            for s, d in ((False, box.native_d), (True, box.d)))
    assert n.rc == r.rc == 0 and n.out == r.out, "%r, natively %r" % (r, n)
    box.close()


def kept(fuzzer):
    scripts = fuzzing.kept(namefuzz.SEEDS)
    hit = fuzzer.compare(list(scripts.values()))
    assert not hit, "%s: %s" % (list(scripts)[hit[0]], hit[1])


def seeds(fuzzer, first):
    end = time.monotonic() + SECONDS
    done, found = fuzzing.hunt(fuzzer, range(first, first + SEEDS), stop=lambda *_: time.monotonic() > end)
    say("%d sequences from seed %d" % (done, first))
    for f in found:
        say(fuzzing.show(*f))
    assert not found, "; ".join("seed %s: %s" % f[:2] for f in found)


def fuzzers(held):
    for i, (io, uid, everything) in enumerate(namefuzz.VARIANTS):
        yield "%s-%s" % (io, "user" if uid else "root"), FIRST + SEEDS * i, namefuzz.NameFuzzer(
            "names-%d" % i, io=io, uid=uid, everything=everything, ENGINE=held)


def main():
    if args:
        fuzzing.by_hand(args, namefuzz.generate, ((name, f) for name, _, f in fuzzers(engine(9))))
        return
    held = engine(9)
    with case("names_held"):
        holds(held)
    with case("names_by_libc"):
        by_libc(held)
    for name, first, fuzzer in list(fuzzers(held))[:2]:
        with case("names_kept_" + name):
            kept(fuzzer)
        with case("names_seeds_" + name):
            seeds(fuzzer, first)
        fuzzer.box.close()
    finish()


main()
