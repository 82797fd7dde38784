# SPDX-License-Identifier: MIT
"""torch.save of one tensor of MIB, driven by scripts/bench: a path a line on stdin, answered by the seconds it took."""

import sys
import time

import torch


def main():
    tensor = torch.rand(int(sys.argv[1]) << 18)  # 4 bytes each
    for line in sys.stdin:
        start = time.perf_counter()
        torch.save(tensor, line.strip())
        print(f"{time.perf_counter() - start:.9f}", flush=True)


if __name__ == "__main__":
    main()
