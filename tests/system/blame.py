#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 120
#
# Proves: an entry that kills the engine each time is found by blame, failed loudly and skipped, and all other files are
# published; an engine that crashes at every file says so for each, and nothing is torn. How:
# engines built with a crash inside (FASTCKPT_BREAK 4 to 6) under the ordinary shim. Cannot see hangs of an engine.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fc import *  # noqa: E402,F403
from canaries import engine  # noqa: E402

SAVE = """
import os, sys
for name in sys.argv[1:]:
    with open(name, 'wb') as f:
        f.write(name.encode() * 700000)
    print('closed', name, flush=True)
"""


def content(name):
    return name.encode() * 700000


def poison():
    box = Box("poison", ENGINE=engine(4))
    try:
        box.run([PYTHON, "-c", "open('poison.pt', 'wb').write(b'old')"], shim=False)
        r = box.run([PYTHON, "-c", SAVE, "a.pt", "poison.pt", "b.pt", "c.pt"])
        assert r.rc == 0, repr(r)
        assert "poison.pt" in r.err and "crashed the engine twice" in r.err, "not said: %r" % r
        for name in ("a.pt", "b.pt", "c.pt"):
            with open(os.path.join(box.d, name), "rb") as f:
                assert f.read() == content(name), name
        with open(os.path.join(box.d, "poison.pt"), "rb") as f:
            assert f.read() == b"old", "the old file does not stay"
    finally:
        box.close()


def unanswered():
    """Entries that nobody waits for: a chunk handed over, a close."""
    box = Box("unanswered", ENGINE=engine(6))
    try:
        box.run([PYTHON, "-c", "open('close.pt', 'wb').write(b'old')"], shim=False)
        r = box.run([PYTHON, "-c", SAVE, "a.pt", "hand.pt", "b.pt", "close.pt", "c.pt"])
        for name in ("hand.pt", "close.pt"):
            assert any(name in l and "crashed the engine twice" in l for l in r.messages()), "not said: %r" % r
        for name in ("a.pt", "b.pt", "c.pt"):
            with open(os.path.join(box.d, name), "rb") as f:
                assert f.read() == content(name), name
        with open(os.path.join(box.d, "close.pt"), "rb") as f:
            assert f.read() == b"old", "the old file does not stay"
        assert not os.path.exists(os.path.join(box.d, "hand.pt")), "hand.pt lacks a chunk"
    finally:
        box.close()


def hopeless():
    box = Box("hopeless", ENGINE=engine(5))
    try:
        r = box.run([PYTHON, "-c", SAVE, "a.pt", "b.pt"])
        for name in ("a.pt", "b.pt"):
            path = os.path.join(box.d, name)
            if os.path.exists(path):
                with open(path, "rb") as f:
                    assert f.read() == content(name), "%s is torn" % name
            else:
                said = "lost: " + path in r.err or name + ": Input/output error" in r.err
                assert said, "%s is gone without a word: %r" % (name, r)
    finally:
        box.close()


if __name__ == "__main__":
    run_cases([(f.__name__, f) for f in (poison, unanswered, hopeless)])
