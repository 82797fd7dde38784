#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# Proves that files of torch.save that need the large form of zip (a tensor of over 4 GiB, more than 65,535 records)
# are the same natively and under the shim, checksums and copies in several threads; the short form is
# tests/system/torch_crc.py. How: every PyTorch in BUILD/venv*, and Debian's; bytes compared, zipfile asked. Cannot see
# versions that are not there.
# run-as: root
# timeout: 3000
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from fc import *  # noqa: E402,F403
from torch_crc import VENVS, name_of, no_venv, torch_case  # noqa: E402


def large(python):
    def run():
        need_disk(10 << 10)
        torch_case(python, "large", COPY_THREADS="4", timeout=600)()
    return run


def cases():
    if not VENVS:
        yield "venv", no_venv
    for p in [PYTHON] + VENVS:
        yield "many-" + name_of(p), torch_case(p, "many", COPY_THREADS="4", timeout=600)
        yield "large-" + name_of(p), large(p)


run_cases(list(cases()))
