#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 1800
#
# Proves that tests/system/defer.py can see, its longer cases, and PyTorch's ways to save. How: an engine of
# FASTCKPT_BREAK=22 (it takes what is in the arena for the bytes before they have come) and libraries of 23 to 25 (a
# piece is taken for there before it is; nobody settles; the call returns before its snapshot is complete) must fail the
# cases made for them. Cannot see a real device.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from fc import *  # noqa: E402,F403
from cudas import *  # noqa: E402,F403
import cuda_torch  # noqa: E402
import defer  # noqa: E402

# Slow enough that bytes are on their way when they are needed.
CANARIES = {
    22: ("exited", dict(scale=0.004)),
    23: ("threads", dict(scale=0.004)),
    24: ("exited", dict(scale=0.004, EXIT="leave")),
    25: ("snapshot", dict(scale=0.0005)),
}


def canary(n, name, how):
    def run():
        config = {"ENGINE": built(n, "fastckpt")} if n == 22 else {"ENGINE": BIN}
        env = {} if n == 22 else {"LD_PRELOAD": built(n, "libfastckpt.so")}
        try:
            defer.same(name, env=env, tag="-%d" % n, **how, **config)()
        except AssertionError:
            defer.same(name, tag="-not-%d" % n, **how)()
            return
        raise AssertionError("fault %d was not seen by %s" % (n, name))
    return run


CASES = [("canary-%d" % n, canary(n, *of)) for n, of in CANARIES.items()] + defer.LONG
CASES += [("torch", cuda_torch.saves(*KINDS, least=10, tensors="9000001,9000003,1500000,7", adopted=300,
                                     CUDA="defer", CUDA_SCRATCH="64M"))]
CASES += [("seeds-%d" % n, defer.same("seeds", *map(str, range(n, n + 4)), program="cuda_adopt", staging="512M",
                                      scratch="48M", tag="-%d" % n)) for n in range(100, 140, 4)]

if __name__ == "__main__":
    run_cuda_cases(CASES)
