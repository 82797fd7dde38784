# SPDX-License-Identifier: MIT
#
# What the programs of clients.tsv in this folder share: bytes that are the same in each run, plain saves, and main(),
# which runs the programs that the command line names: SCRIPT KIND..., "KIND@DIR" runs in that directory and says so.
import os
import random
import sys

MIB = 1 << 20
SHADOW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def noise(n, seed=1):
    block = random.Random(seed).randbytes(min(n, MIB) or 1)
    return (block * (n // len(block) + 1))[:n]


def say(*what):
    print(*what, flush=True)


def write_all(fd, data):
    view = memoryview(data)
    while len(view):
        view = view[os.write(fd, view):]


def save(path, *sizes, seed=1, flags=SHADOW, mode=0o666, sync=False, **kw):
    """A file of one write a size."""
    fd = os.open(path, flags | os.O_CLOEXEC, mode, **kw)
    for i, n in enumerate(sizes):
        write_all(fd, noise(n, seed + i))
    if sync:
        os.fsync(fd)
    os.close(fd)


def main(programs):
    for arg in sys.argv[1:]:
        kind, _, where = arg.partition("@")
        if where:
            os.chdir(where)
            say("@" + kind)
        programs[kind]()
