# SPDX-License-Identifier: MIT
"""How frameworks save tensors of MIB together, and what is used instead of them, driven by scripts/bench line by line:
a path, answered by the seconds that the save held the program; "null", by those of the same without a file. The path is
a file's, or for DCP a directory's. Asynchronous kinds wait for their end before they answer, and do not count it.

  bench_torch.py MIB KIND     save nocrc np safetensors dcp dcp_thread dcp_process fast
  bench_torch.py MIB work     the training loop: see Work
"""

import os
import sys
import time

import torch

TENSORS = 8


class Save:
    """torch.save to a path."""

    def __init__(self, mib):
        self.state = {f"layer{i}": torch.rand(mib << 18 >> 3) for i in range(TENSORS)}  # 4 bytes each

    def save(self, path):
        torch.save(self.state, path)

    def null(self):
        self.save("/dev/null")

    def finish(self):
        """What an asynchronous save does after it let the program go on."""


class NoCrc(Save):
    def __init__(self, mib):
        super().__init__(mib)
        torch.serialization.set_crc32_options(False)


class Numpy(Save):
    """One array: np.save asks for its space, then writes it by one fwrite."""

    def __init__(self, mib):
        import numpy
        super().__init__(mib)
        self.save_array = numpy.save
        self.array = torch.cat(list(self.state.values())).numpy()
        self.state = None

    def save(self, path):
        with open(path, "wb") as f:
            self.save_array(f, self.array)


class Safetensors(Save):
    """It copies each tensor into bytes of Python's first: that is its null."""

    def __init__(self, mib):
        from safetensors import torch as library
        super().__init__(mib)
        self.library = library

    def save(self, path):
        self.library.save_file(self.state, path)

    def null(self):
        self.library._flatten(self.state)


class Dcp(Save):
    """One process, synchronously, as it comes: with fsync."""

    def __init__(self, mib):
        import torch.distributed.checkpoint
        super().__init__(mib)
        self.dcp = torch.distributed.checkpoint

    def save(self, path):
        self.dcp.save(self.state, checkpoint_id=path, no_dist=True)

    def null(self):
        with open("/dev/null", "wb") as f:
            for tensor in self.state.values():
                torch.save(tensor, f)


class DcpAsync(Dcp):
    def __init__(self, mib, how):
        super().__init__(mib)
        from torch.distributed.checkpoint import state_dict_saver
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        self.how = getattr(state_dict_saver.AsyncCheckpointerType, how)
        self.future = None

    def save(self, path):
        self.future = self.dcp.async_save(self.state, checkpoint_id=path, async_checkpointer_type=self.how)

    def finish(self):
        self.future.result()


class Fast(Save):
    """DeepSpeed's FastFileWriter: direct I/O from a pinned buffer, two halves of it in turn."""

    def __init__(self, mib):
        super().__init__(mib)
        from deepspeed.io import FastFileWriter, FastFileWriterConfig, fast_file_writer
        from deepspeed.ops.op_builder import AsyncIOBuilder
        from deepspeed.ops.op_builder.utils import UtilsBuilder
        fast_file_writer.UtilsBuilder = UtilsBuilder  # what it takes without a GPU says "not implemented"
        self.handle = AsyncIOBuilder().load().aio_handle(8 << 20, 8, False, True, 1)
        self.buffer = self.handle.new_cpu_locked_tensor(128 << 20, torch.empty(0, dtype=torch.uint8))
        self.writer, self.config = FastFileWriter, FastFileWriterConfig

    def save(self, path):
        writer = self.writer(path, self.config(dnvme_handle=self.handle, pinned_tensor=self.buffer))
        torch.save(self.state, writer, _use_new_zipfile_serialization=False)
        writer.close()


class Work(Save):
    """Products of matrices on all cores. A line "SECONDS": how many it takes, answered. A line "COUNT SAVES SYNC PATH":
    that many products after each of SAVES saves ("-": none), with fsync or not; answered by the seconds of all of it
    and those of the saves."""

    def __init__(self, mib):
        super().__init__(mib)
        self.a, self.b, self.c = (torch.rand(1024, 1024) for _ in range(3))

    def products(self, count):
        for _ in range(count):
            torch.mm(self.a, self.b, out=self.c)

    def count(self, seconds):
        self.products(10)
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            self.products(1)
            done += 1
        return max(1, done)

    def run(self, count, saves, sync, path):
        held, start = 0.0, time.perf_counter()
        for i in range(saves):
            begun = time.perf_counter()
            if path != "-":
                with open(f"{path}{i}", "wb") as f:
                    torch.save(self.state, f)
                    if sync:
                        f.flush()
                        os.fsync(f.fileno())
            held += time.perf_counter() - begun
            self.products(count)
        return time.perf_counter() - start, held

    def serve(self, line):
        words = line.split()
        if len(words) == 1:
            return f"{self.count(float(words[0]))}"
        total, held = self.run(int(words[0]), int(words[1]), words[2] == "1", words[3])
        return f"{total:.6f} {held:.6f}"


KINDS = {"save": Save, "nocrc": NoCrc, "np": Numpy, "safetensors": Safetensors, "dcp": Dcp, "fast": Fast,
         "dcp_thread": lambda mib: DcpAsync(mib, "THREAD"), "dcp_process": lambda mib: DcpAsync(mib, "PROCESS"),
         "work": Work}


def serve(kind, line):
    if isinstance(kind, Work):
        return kind.serve(line)
    start = time.perf_counter()
    if line == "null":
        kind.null()
        return f"{time.perf_counter() - start:.9f}"
    kind.save(line)
    held = time.perf_counter() - start
    kind.finish()
    return f"{held:.9f}"


def main():
    answers = os.fdopen(os.dup(1), "w")  # what libraries print is none
    os.dup2(2, 1)
    kind = KINDS[sys.argv[2]](int(sys.argv[1]))
    for line in sys.stdin:
        try:
            print(serve(kind, line.strip()), file=answers, flush=True)
        except Exception as e:
            print(f"error {type(e).__name__}: {e}".splitlines()[0], file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
