#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 1800
#
# Proves that the tests of copies from a device can see, that PyTorch's other ways to save are the same, too, and more
# of what tests/system/cuda.py does, with copies that take their time. How: libraries of FASTCKPT_BREAK=10 to 13 (a
# slice is not waited for, captures are not seen, the thread's capture mode stays, a reset is not noticed) must fail the
# cases made for it; tests/system/cuda_torch.py with all of its kinds; many seeds. Cannot see a real device.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from fc import *  # noqa: E402,F403
from cudas import *  # noqa: E402,F403
import cuda  # noqa: E402
import cuda_loader  # noqa: E402
import cuda_torch  # noqa: E402


def canary(n, name):
    def run():
        lib = built(n, "libfastckpt.so")
        argv = [victim("cuda_copy"), name]
        cuda.both(argv, ENGINE=BIN)
        try:
            cuda.both(argv, env={"LD_PRELOAD": lib}, native_env={"LD_PRELOAD": ""}, ENGINE=BIN)
        except AssertionError:
            return
        raise AssertionError("fault %d was not seen by %s" % (n, name))
    return run


def gpu_check():
    """Its step with the victims, on the simulated runtime."""
    rc, out, results = cuda_loader.gpu_check("5", timeout=200, **simcuda(False, SCALE=0))
    assert rc == 0 and results[0]["ok"] is True, out


CANARIES = ((10, "order"), (11, "capture"), (12, "elsewhere"), (13, "reset"))
CASES = [("canary-%d" % n, canary(n, name)) for n, name in CANARIES]
CASES += cuda_torch.ALL + [("gpu-check", gpu_check)]
CASES += [("random", cuda.random(*range(100, 300))), ("random-paced", cuda.random(*range(300, 340), scale=1))]
CASES += [("paced-" + name, lambda name=name: cuda.both([victim("cuda_copy"), name], env={"SIMCUDA_SCALE": "1"}))
          for name in ("sizes", "order", "threads", "elsewhere")]


if __name__ == "__main__":
    run_cuda_cases(CASES)
