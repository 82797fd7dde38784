#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 240
#
# Proves that checksums of torch.save are computed by us where PyTorch takes them, are right, and that every other call
# of that function goes where it would go natively, unchanged. How: libraries made for it that say what they were called
# with; Debian's PyTorch and the newest (BUILD/venv, by `make clients`) natively and under the shim: bytes compared,
# zipfile asked, the shim's debug line read. Cannot see other versions: tests/long/torch_zip.py runs what is there.

import glob
import os
import sys
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

OWN = os.path.join(TMP, "own")
GIVEN = 0x80000
SIZE = 9 * MIB + 5
CONSTRUCTOR = "_ZN6caffe29serialize19PyTorchStreamWriterC1ESt8functionIFmPKvmEE"
VENVS = sorted(glob.glob(os.path.join(os.environ.get("BUILD", os.path.join(ROOT, "build")), "venv*", "bin", "python")))

CALLER = """
import ctypes, sys
size = %d
buf = ctypes.create_string_buffer((bytes(range(251)) * (size // 251 + 1))[:size], size)
def show(n):
    print(out.value.decode(), n)
out = ctypes.create_string_buffer(300)
%%s
""" % SIZE
CRC = zlib.crc32((bytes(range(251)) * (SIZE // 251 + 1))[:SIZE])


def library(name, *flags):
    os.makedirs(OWN, exist_ok=True)
    path = os.path.join(OWN, "lib%s.so" % name)
    if not os.path.exists(path):
        sh("gcc", "-O1", "-shared", "-fPIC", "-DNAME=" + name, os.path.join(ROOT, "tests", "lib", "zip_writer.c"),
           "-o", path, *flags)
    return path


def newer(end="b"):
    return library("knows" + end, "-DKNOWS=" + CONSTRUCTOR + end)


def calls(text, **config):
    """What the program prints natively and under the shim."""
    box = Box("calls")
    argv = [PYTHON, "-c", CALLER % text]
    n = box.native(argv)
    r = box.run(argv, env={"FASTCKPT_" + k: v for k, v in config.items()})
    assert n.rc == 0 and r.rc == 0 and n.out, (n, r)
    return n.out.splitlines(), r.out.splitlines()


def given(line, flags="flags 0 full 0 crc 0"):
    assert flags in line, line
    return line.replace(flags, "flags %x full 0 crc %x" % (GIVEN, CRC))


LARGE = "show(l.call(out, buf, size, 0, 0))\n"


def takes():
    """From PyTorch 2.6 on: the flag is set, the checksum is right, all else is as it was."""
    for end in ("b", "bm"):
        text = "l = ctypes.CDLL(%r)\n" % newer(end) + LARGE
        n, r = calls(text)
        # the line is longer, and that is what the function returns
        assert r[0].rpartition(" ")[0] == given(n[0]).rpartition(" ")[0], (n, r)
        for config in ({"CRC": "off"}, {"PATHS": ""}, {"DISABLE": "1"}):
            assert calls(text, **config)[1] == n, config


def not_ours():
    """Calls of the same function that want something else."""
    text = "l = ctypes.CDLL(%r)\n" % newer() + """
show(l.call(out, buf, 65535, 0, 0))      # small
show(l.call(out, None, size, 0, 0))      # from nowhere
show(l.call(out, None, 0, 0, 0))
for flags in (1, 6, 9, 10, 0x80000, 0x80006, 0x400, -1):
    show(l.call(out, buf, size, flags, 77))
"""
    n, r = calls(text)
    assert n == r and len(n) == 11, (n, r)


def older():
    n, r = calls("l = ctypes.CDLL(%r)\n" % library("older", "-DKNOWS=" + CONSTRUCTOR) + LARGE)
    assert n == r, (n, r)


def elsewhere():
    """Writer and constructor in different libraries: it is the writer that has to know."""
    older_too = library("older", "-DKNOWS=" + CONSTRUCTOR)
    user = library("user", "-DNO_WRITER", "-DKNOWS=" + CONSTRUCTOR + "b", older_too)
    n, r = calls("l = ctypes.CDLL(%r)\n" % user + LARGE)
    assert n == r and n[0].startswith("older "), (n, r)
    # and a caller without a writer reaches the one that it needs
    user = library("user2", "-DNO_WRITER", newer())
    n, r = calls("l = ctypes.CDLL(%r)\n" % user + LARGE)
    assert n[0].startswith("knowsb ") and r[0].rpartition(" ")[0] == given(n[0]).rpartition(" ")[0], (n, r)


def several():
    """Each calls its own, or the one that comes first for all."""
    libs = [newer(), library("older", "-DKNOWS=" + CONSTRUCTOR), library("plain")]
    for mode in ("RTLD_LOCAL", "RTLD_GLOBAL"):
        for order in (libs, libs[::-1]):
            text = "ls = [ctypes.CDLL(p, ctypes.%s) for p in %r]\n" % (mode, order)
            n, r = calls(text + "for l in ls * 2:\n    " + LARGE)
            names = [l.split()[0] for l in n]
            assert names == [l.split()[0] for l in r], (n, r)
            assert len(set(names)) == (3 if mode == "RTLD_LOCAL" else 1), names
            for a, b in zip(n, r):
                ours = a.startswith("knowsb ")
                assert (b.rpartition(" ")[0] == given(a).rpartition(" ")[0]) if ours else a == b, (a, b)


def many_places():
    """More places that call than we remember."""
    text = "l = ctypes.CDLL(%r)\nfor i in range(20): print(getattr(l, 'call_%%d' %% (i %% 10))(out, buf, size) > 1, " \
           "out.value.decode())\n" % newer()
    n, r = calls(text)
    assert [given(l) for l in n] == r and len(r) == 20, (n, r)


# ---------------------------------------------------------------------------------------------------- PyTorch

def torch_saves(python, *kinds, lib=None, timeout=120, **config):
    """The two boxes' results of tests/clients/torch_zip.py; the caller compares."""
    box = Box("torch", STAGING="512M", LOG="debug", **config)
    argv = [python, os.path.join(CLIENTS, "torch_zip.py")] + list(kinds)
    n = box.native(argv, timeout=timeout)
    r = box.run(argv, env={"LD_PRELOAD": lib} if lib else None, timeout=timeout)
    assert n.rc == 0 and r.rc == 0, (n, r)
    assert box.wait().rc == 0
    return box, n.out.startswith("takes checksums"), n, r


def torch_case(python, *kinds, **kw):
    def run():
        box, knows, n, r = torch_saves(python, *kinds, **kw)
        assert n.out == r.out and "None" in n.out, (n, r)
        compare_trees(box.native_d, box.d)
        ours = knows and kw.get("CRC") != "off"
        assert ("its checksums are ours" if ours else "its checksums are left to it") in r.err, r
    return run


def no_venv():
    raise Skip("needs BUILD/venv*: make clients")


KINDS = ("sizes", "writers", "script", "without")

if __name__ == "__main__":
    cases = [(f.__name__, f) for f in (takes, not_ours, older, elsewhere, several, many_places)]
    cases.append(("torch-debian", torch_case(PYTHON, "sizes")))
    cases += [("torch-venv", torch_case(p, *KINDS, COPY_THREADS="4")) for p in VENVS[:1]] or [("venv", no_venv)]
    run_cases(cases)
