# SPDX-License-Identifier: MIT
#
# Programs of clients.tsv: torch, numpy, pickle, subprocesses, locks. Run by common.main. Deterministic: two runs give
# the same bytes.
import fcntl
import os
import pickle
import shutil
import subprocess
import sys
import tempfile

from common import MIB, main, noise


def model():
    import torch
    torch.manual_seed(3)
    return {"layer%d" % i: torch.randn(n) for i, n in enumerate((10, 1000, 2 << 20, 33, 3 << 20, 7))}


def torch_path():
    import torch
    torch.save(model(), "m.pt")
    assert len(torch.load("m.pt")) == 6


def torch_fileobj():
    import torch
    with open("m.pt", "wb") as f:
        torch.save(model(), f)


def torch_legacy():
    """The format names storages by their addresses: compared here, with the same saved to memory; the test skips it."""
    import io
    import torch
    m, memory = model(), io.BytesIO()
    torch.save(m, memory, _use_new_zipfile_serialization=False)
    torch.save(m, "volatile.pt", _use_new_zipfile_serialization=False)
    with open("volatile.pt", "rb") as f:
        assert f.read() == memory.getvalue(), "other bytes"


def torch_jit():
    """The order of its generated code differs in each run: compared as the legacy format is."""
    import io
    import torch
    torch.manual_seed(3)
    m, memory = torch.jit.script(torch.nn.Linear(2000, 1500)), io.BytesIO()
    torch.jit.save(m, memory)
    torch.jit.save(m, "archive.pt")
    with open("archive.pt", "rb") as f:
        assert f.read() == memory.getvalue(), "other bytes"


def pickled():
    with open("m.pkl", "wb") as f:
        pickle.dump([noise(9 * MIB), list(range(100000)), noise(5 * MIB, 2)], f)


def np_save():
    import numpy
    numpy.save("m.npy", numpy.arange(8 << 20, dtype=numpy.float64))


def np_savez():
    import numpy
    numpy.savez("m.npz", a=numpy.arange(3 << 20), b=numpy.ones((700, 700)))


def small():
    for i in range(20):
        with open("small-%d" % i, "wb") as f:
            f.write(noise(1024, i))


def subprocess_only():
    with open("m.bin", "wb") as f:
        code = "import os; [os.write(1, bytes([i]) * 500001) for i in range(20)]"
        subprocess.run([sys.executable, "-c", code], stdout=f, check=True)


def subprocess_mixed():
    with open("m.bin", "wb", buffering=0) as f:
        f.write(noise(3 * MIB + 5))
        subprocess.run(["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' c"], stdout=f, check=True)
        f.write(noise(6 * MIB, 2))
        subprocess.run(["tar", "c", "--sort=name", "--mtime=@1", "--owner=0", "--group=0", "--mode=644", "-C",
                        "../../src", "big"], stdout=f, check=True)
        f.write(b"the end")


def mkstemp():
    fd, name = tempfile.mkstemp(dir=".", prefix="part-")
    with os.fdopen(fd, "wb") as f:
        f.write(noise(6 * MIB))
        f.flush()
        os.fsync(f.fileno())
    os.rename(name, "m.bin")


def log_append():
    for i in range(50):
        with open("history.txt", "a") as f:
            f.write("step %d loss %f\n" % (i, 1 / (i + 1)))


def lock_file():
    with open("job.lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        f.write("locked\n")


def empty_lock():
    with open("state", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        f.write("locked\n")


def unmatched():
    os.makedirs("../../other", exist_ok=True)
    name = os.path.join("../../other", os.path.basename(os.getcwd()))
    with open(name, "wb") as f:
        f.write(noise(5 * MIB))
    os.unlink(name)


def copies():
    shutil.copyfile("../../src/big", "a.bin")
    shutil.copy2("../../src/big", "b.bin")


main(globals())
