#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 300
#
# Proves that PyTorch saves the same files from a CUDA device under fastckpt as natively, in every way that it has, and
# that its copies to ordinary memory go through pinned slots. How: tests/clients/cuda_saves.py on the simulated runtime
# (BUILD/venv, by `make clients`), both ways: files and lines compared, the report read. Cannot see a real device.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from cudas import *  # noqa: E402,F403


def saves(*kinds, least, tensors="1500000,300000,7", adopted=0, **config):
    """`least`: MiB that must have gone through pinned memory; `adopted`: straight, and then without a copy."""
    def run():
        if not os.path.exists(VENV):
            raise Skip("needs BUILD/venv: make clients")
        box = Box("torch", STAGING="512M", **config)
        argv = [VENV, os.path.join(CLIENTS, "cuda_saves.py")] + list(kinds)
        n = box.native(argv, env=dict(simcuda(False, SCALE=0), TENSORS=tensors), timeout=250)
        r = box.run(argv, env=dict(simcuda(SCALE=0), TENSORS=tensors), timeout=250)
        assert n.rc == 0 and n.out == r.out and "False" not in n.out, (n, r)
        assert box.wait().rc == 0
        compare_trees(box.native_d, box.d)
        assert copies(r)[0] >= least, r.err
        assert all(mib >= adopted for mib in straight(r)), r.err
    return run


# 6.9 MiB a state; of what is saved in one go, each tensor of 1 MiB or more
CASES = [("torch", saves("torch_save", "safetensors", "captured", least=20))]
ALL = [("torch-all", saves(*KINDS, least=60)),
       ("torch-adopted", saves(*KINDS, least=10, tensors="9000001,9000003,1500000,7", adopted=300))]

if __name__ == "__main__":
    run_cuda_cases(CASES)
