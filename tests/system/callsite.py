#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# timeout: 200
#
# Proves that the line that reports a failure says where the program opened the file: the function that a C or C++
# program calls from (through fopen, a stream, in a thread, a signal handler, a forked child), the line of a Python
# script, the line and the function of torch.save; and that a missing libunwind costs detail and nothing else. How: each
# finds a directory at its name when it is published, and the line is read. Cannot see interpreters other than Debian's.

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

OPENS = victim("opens")
box = Box("callsite")
# For Python: puts a directory at the name of an open file, as another program would.
BLOCK = "import os\ndef block(name):\n    os.spawnve(os.P_WAIT, '/bin/mkdir', ['mkdir', name], {})\n"


def line_of(name, argv, **env):
    r = box.run(argv, env=env, timeout=60)
    assert r.rc == 0, repr(r)
    box.wait()
    lines = [l for l in box.engine_log().splitlines() if "/" + name + ":" in l and "opened by" in l]
    assert lines, "nothing is said of %s: %r %s" % (name, r, box.engine_log())
    return lines[-1]


def function_of(line, module):
    """What addr2line calls the first place in `module` that the line names."""
    m = re.search(re.escape(module) + r"\+0x([0-9a-f]+)", line)
    assert m, "no place in %s: %s" % (module, line)
    # -i: a function that is inlined into its caller is followed by that
    return [sh("addr2line", "-i", "-f", "-e", OPENS, hex(int(m.group(1), 16) - 1)).splitlines()[0::2][-1] for m in
            re.finditer(re.escape(module) + r"\+0x([0-9a-f]+)", line)]


def native(how, expected):
    def run():
        line = line_of(how, [OPENS, how, how])
        found = function_of(line, "opens")
        assert found[:len(expected)] == expected, "%s, not %s: %s" % (found, expected, line)
        assert "(pid " in line and "libc.so" not in line and "libstdc++" not in line, line
    return run


def many():
    """Threads that open at once: no line is wrong, and nothing hangs or crashes."""
    native("many", ["direct", "main"])()


def without_libunwind():
    hidden = os.path.join(box.top, "hidden")
    os.makedirs(hidden, exist_ok=True)
    for n in ("libunwind-x86_64.so.8", "libunwind-aarch64.so.8"):
        write_file(os.path.join(hidden, n), 16)
    line = line_of("plain", [OPENS, "direct", "plain"], LD_LIBRARY_PATH=hidden)
    assert function_of(line, "opens") == ["direct"], line
    line = line_of("streamed", [OPENS, "stream", "streamed"], LD_LIBRARY_PATH=hidden)
    assert "libstdc++" in line, line


def script(name, text):
    path = os.path.join(box.top, name)
    with open(path, "w") as f:
        f.write(text)
    return path


def python_line():
    s = script("train.py", BLOCK + "def save(name):\n    with open(name, 'wb') as f:\n        block(name)\n\n"
               "save('py.pt')\n")
    line = line_of("py.pt", [PYTHON, s])
    assert "train.py:5 in save" in line and "python3" not in line, line


def python_library_line():
    """The innermost frame is the library's: the program's own is named as well."""
    s = script("job.py", BLOCK + "import tarfile\ndef keep():\n    return tarfile.open('t.tar', 'w')\n\n"
               "t = keep()\nblock('t.tar')\nt.close()\n")
    line = line_of("t.tar", [PYTHON, s])
    assert re.search(r"tarfile\.py:\d+ in \S+ <- \S*job\.py:6 in keep", line), line


def torch_save():
    if os.system(PYTHON + " -c 'import torch' >/dev/null 2>&1") != 0:
        raise Skip("no torch for " + PYTHON)
    s = script("torch_train.py", BLOCK + "import torch\nclass Late:\n    def __reduce__(self):\n"
               "        block('torch.pt')\n        return (str, ())\n\ndef save():\n"
               "    torch.save([Late()], 'torch.pt')\n\nsave()\n")
    line = line_of("torch.pt", [PYTHON, s])
    assert re.search(r"serialization\.py:\d+ in __init__ <- \S*torch_train\.py:11 in save", line), line
    assert re.search(r"by caffe2::serialize::PyTorch\w+Writer::\w+ ", line) and "libtorch_cpu.so" in line, line


def descriptors():
    """What loads libunwind leaves no descriptor behind that the program could meet."""
    argv = [OPENS, "numbers", "numbers"]
    a, b = box.native(argv), box.run(argv)
    assert a.rc == 0 and len(a.lines()) == 3 and a.lines() == b.lines(), (a.lines(), b.lines())


run_cases([("direct", native("direct", ["direct", "main"])), ("stdio", native("stdio", ["stdio", "main"])),
           ("stream", native("stream", ["stream", "main"])), ("thread", native("thread", ["direct", "thread"])),
           ("handler", native("handler", ["direct"])), ("onstack", native("onstack", ["direct"])),
           ("child", native("child", ["direct"])), ("many", many), ("without_libunwind", without_libunwind),
           ("python_line", python_line), ("python_library_line", python_library_line), ("torch_save", torch_save),
           ("descriptors", descriptors)])
