#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# Proves that torch.save's files are the same natively and under the shim with every PyTorch in BUILD/venv*, and
# Debian's: its kinds of saves, and those that need the large form of zip (a tensor of over 4 GiB, more than 65,535
# records), checksums and copies in several threads. And that wrong checksums, of a canary, are noticed. How: as in
# tests/system/torch_crc.py, its short form. Cannot see versions that are not there.
# run-as: root
# timeout: 3000
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from fc import *  # noqa: E402,F403
from torch_crc import KINDS, VENVS, no_venv, torch_case, torch_saves  # noqa: E402


def name_of(python):
    return "debian" if python == PYTHON else os.path.basename(os.path.dirname(os.path.dirname(python)))


def canary(python):
    """Wrong checksums: both the comparison and zipfile must say so."""
    def run():
        box, knows, n, r = torch_saves(python, "sizes", lib=built(8, "libfastckpt.so"), ENGINE=BIN)
        if not knows:
            raise Skip("before 2.6: no checksum is ours")
        assert "None" in n.out and "None" not in r.out and "data/" in r.out, (n, r)
        try:
            compare_trees(box.native_d, box.d)
        except AssertionError:
            return
        raise AssertionError("the trees compare equal")
    return run


def large(python):
    def run():
        need_disk(10 << 10)
        torch_case(python, "large", COPY_THREADS="4", timeout=600)()
    return run


def cases():
    if not VENVS:
        yield "venv", no_venv
    for p in [PYTHON] + VENVS:
        yield "torch-" + name_of(p), torch_case(p, *KINDS, COPY_THREADS="4")
        yield "off-" + name_of(p), torch_case(p, "sizes", CRC="off")
        yield "many-" + name_of(p), torch_case(p, "many", COPY_THREADS="4", timeout=600)
        yield "large-" + name_of(p), large(p)
    for p in VENVS[:1]:
        yield "canary", canary(p)


run_cases(list(cases()))
