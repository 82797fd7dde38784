# SPDX-License-Identifier: MIT
#
# Saves of PyTorch that have something to do with checksums, for tests/system/torch_crc.py and the long torch_zip.py.
# Runs under any PyTorch from 1.13 on. Deterministic: two runs give the same bytes. Prints what zipfile thinks of it.
import io
import zipfile

import torch

from common import main, say

MIB = 1 << 20


def tensor(n, seed=1):
    """n bytes."""
    return (torch.arange(n, dtype=torch.int64) * (2 * seed + 1) >> 3).to(torch.uint8)


def check(path):
    with zipfile.ZipFile(path) as z:
        say(path, len(z.namelist()), z.testzip())


def sizes():
    """Around everything that decides: what is large, a block, what wakes helpers, an odd end."""
    about = (0, 1, 65535, 65536, MIB, MIB + 1, 8 * MIB - 1, 8 * MIB, 9 * MIB + 5, 33 * MIB + 77)
    torch.save([tensor(n, i) for i, n in enumerate(about)], "sizes.pt")
    check("sizes.pt")


def writers():
    """To a file object, to memory, and a view whose storage begins elsewhere."""
    x = tensor(10 * MIB + 3)
    with open("object.pt", "wb") as f:
        torch.save({"x": x, "view": x[12345:2 * MIB]}, f)
    memory = io.BytesIO()
    torch.save(x, memory)
    with open("memory.pt", "wb") as f:
        f.write(memory.getbuffer())
    check("object.pt")
    check("memory.pt")


def script():
    torch.jit.save(torch.jit.script(torch.nn.Linear(1500, 1500)).eval(), "archive.pt")
    with zipfile.ZipFile("archive.pt") as z:
        say(z.testzip())


def without():
    """The program wants no checksums: the file says 0, and zipfile minds."""
    if hasattr(torch.serialization, "set_crc32_options"):
        torch.serialization.set_crc32_options(False)
        torch.save(tensor(9 * MIB), "without.pt")
        with zipfile.ZipFile("without.pt") as z:
            say([i.CRC for i in z.infolist() if i.file_size > MIB])
        torch.serialization.set_crc32_options(True)


def large():
    """More than 4 GiB in one tensor."""
    x = torch.arange((4 << 30) // 8 + 1000, dtype=torch.int64)
    torch.save(x, "large.pt")
    del x
    check("large.pt")


def many():
    """More records than a zip of the old kind can have."""
    torch.save([torch.full((1,), i) for i in range(66000)] + [tensor(9 * MIB)], "many.pt")
    check("many.pt")


if hasattr(torch.serialization, "set_crc32_options"):
    say("takes checksums")
main({f.__name__: f for f in (sizes, writers, script, without, large, many)})
