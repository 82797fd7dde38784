# SPDX-License-Identifier: MIT
#
# Programs of clients.tsv on the newest frameworks, which scripts/clients installs: PyTorch, NumPy, safetensors, DCP.
# Run by common.main with that interpreter. Deterministic: two runs give the same bytes.
import os
import subprocess
import sys

from common import main, say


def tensors():
    import torch
    torch.manual_seed(3)
    return {"layer%d" % i: torch.randn(n) for i, n in enumerate((10, 1000, 2 << 20, 33, 3 << 20, 7))}


def torch_save():
    import torch
    torch.save(tensors(), "m.pt")
    with open("n.pt", "wb") as f:
        torch.save(tensors(), f)
    say(len(torch.load("m.pt")), os.path.getsize("n.pt"))


def torch_nocrc():
    import torch
    was = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    torch.save(tensors(), "m.pt")
    torch.serialization.set_crc32_options(was)


def np_save():
    """Beyond 16 MiB it asks for the space first."""
    import numpy
    numpy.save("m.npy", numpy.arange(3 << 20, dtype=numpy.float64))
    with open("two.npy", "wb") as f:
        for i in range(2):
            numpy.save(f, numpy.arange(5 << 19, dtype=numpy.float64) * i)
            say(f.tell())
        numpy.arange(1000).tofile(f)
        f.seek(0)
        f.write(b"\x93NUMPY")
    say(float(numpy.load("m.npy", mmap_mode="r")[12345]))


def safetensors():
    from safetensors.torch import load_file, save_file
    save_file(tensors(), "m.safetensors")
    say(sorted(load_file("m.safetensors")))


def safetensors_newest():
    """Another version of a module: in a process of its own."""
    env = dict(os.environ, PYTHONPATH=os.path.join(sys.prefix, "newest"))
    subprocess.run([sys.executable, os.path.abspath(__file__), "safetensors"], env=env, check=True)


def dcp():
    import warnings
    import torch.distributed.checkpoint as checkpoint
    warnings.simplefilter("ignore")
    checkpoint.filesystem._generate_uuid = lambda: "7"  # else its metadata differs in each run
    for step in (1, 2):
        checkpoint.save(tensors(), checkpoint_id="step-%d" % step, no_dist=True)
        say(sorted(os.listdir("step-%d" % step)))
    state = {k: v * 0 for k, v in tensors().items()}
    checkpoint.load(state, checkpoint_id="step-2", no_dist=True)
    say(float(state["layer4"].sum()) == float(tensors()["layer4"].sum()))


main(globals())
