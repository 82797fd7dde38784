#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
# timeout: 150
#
# Proves P1 for calls that few programs make: with arguments that the kernel refuses, wild pointers, odd flags and
# paths, by links of /proc, on captured files and on names in every state. How: some 700 of them (victims/odd_*.c)
# natively and under the shim: the same answers, and the same left. Cannot see times that no call has set, other calls.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

STAGED = MIB + 65536
GROUPS = [("odd_fds", "writes", STAGED), ("odd_fds", "copies", STAGED), ("odd_fds", "descriptors", STAGED),
          ("odd_meta", "meta", STAGED), ("odd_meta", "links", STAGED), ("odd_names", "names", 5000, 4),
          ("odd_names", "changes", 5000, 4)]
boxes = []


def answers(box, shim, program, group, *words):
    """What each call said and left: a list of lines for each."""
    d, work = (os.path.join(box.d, n) for n in (group + ("-shim" if shim else "-native"), "work"))
    os.mkdir(work)  # the same path for both
    box.own(work)
    r = box.run([victim(program), group] + [str(w) for w in words], cwd=work, shim=shim, timeout=120)
    os.rename(work, d)
    assert r.rc == 0 and not r.messages(), repr(r)
    calls = []
    for line in r.out.splitlines():
        if line.startswith("    ") or not calls:
            calls.append([]) if not calls else None
            calls[-1].append(line)
        else:
            calls.append([line])
    return calls


def compare(program, *words, **config):
    io = ("uring", "threads")[len(boxes) % 2]
    box = Box("%s-%d" % (program, len(boxes)), io=io, **config)
    boxes.append(box)
    native, shim = (answers(box, s, program, *words) for s in (False, True))
    bad = ["natively: %s; under the shim: %s" % (" / ".join(a), " / ".join(b)) for a, b in zip(native, shim) if a != b]
    assert not bad, "%d of %d differ, with %s: %s" % (len(bad), len(native), io, "; ".join(bad[:3]))
    assert len(native) == len(shim) > 25, "%d calls, natively %d" % (len(shim), len(native))
    box.close()


if __name__ == "__main__":
    run_cases([("%s-%s" % g[:2], lambda g=g: compare(*g)) for g in GROUPS])
