#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
#
# Proves that a save that meets an engine in the moment of its leaving (ten seconds after its last client) gets an
# engine. How: an idle engine is stopped beyond that moment, and goes on when somebody has connected; and saves at
# many instants around it. None may go natively or say a word. And that failures keep a pair for longer only if nobody
# has been told of them: by jobs, one of which is killed, where a stranger makes a directory of the name that they save
# to. Cannot see instants that no save hits, nor the ten minutes after which a pair leaves all the same.

import glob
import os
import signal
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

SAVE = ["dd", "if=/dev/zero", "of=m.bin", "bs=1M", "count=3", "status=none"]
FIRST, COUNT, SPREAD = 9.9, 16, 0.014


def good(r):
    return r.rc == 0 and not r.messages() and r.classes() == (1, 0, 0)


def met():
    """Idle for longer than it waits, the first that it sees is a connection on which nothing has been said yet."""
    box = Box("met")
    box.run(SAVE)
    engine = box.status()["engine_pid"]
    time.sleep(1)  # it sees that nobody is left
    os.kill(engine, signal.SIGSTOP)
    time.sleep(10.2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.connect(glob.glob(os.path.join(box.rt, "*.sock"))[0])
        os.kill(engine, signal.SIGCONT)
        time.sleep(0.7)
        assert alive(engine), "it left, with somebody at the door"
    r = box.run(SAVE)
    assert good(r), r


FAILING = """
import os, subprocess, sys
f = open('m.pt', 'wb')
f.write(bytes(3 << 20))
subprocess.run(['mkdir', 'm.pt'], env={'PATH': os.environ['PATH']}, check=True)
f.close()
if sys.argv[1] == 'killed':
    os.kill(os.getpid(), 9)
"""


def failed(how):
    """A box whose engine has one failure; when its job had ended; the engine's pid."""
    box = Box(how, STAGING="64M")
    r = box.run([PYTHON, "-c", FAILING, how])
    ended = time.monotonic()
    eventually("it fails", lambda: "m.pt: Is a directory" in box.engine_log())
    assert ("m.pt: Is a directory" in r.err) == (how != "killed"), r
    s = box.status()
    assert s["failures"] == 1, s
    return box, ended, s["engine_pid"]


def told():
    box, _, engine = failed("told")
    eventually("it leaves", lambda: not alive(engine), 30)
    assert "nobody but this log" not in box.engine_log()


def untold():
    box, ended, engine = failed("killed")
    time.sleep(max(0, ended + 11.5 - time.monotonic()))
    assert alive(engine), "nobody knows what has failed, and it has left"
    os.kill(engine, signal.SIGTERM)
    eventually("it leaves", lambda: not alive(engine), 15)
    assert "nobody but this log" in box.engine_log(), box.engine_log()


def one(k, wrong):
    box = Box("around%d" % k, STAGING="64M")
    box.run(SAVE)
    time.sleep(FIRST + k * SPREAD)
    r = box.run(SAVE)
    if not good(r):
        wrong.append("after %.3f s: %r" % (FIRST + k * SPREAD, r))


def around():
    wrong = []
    threads = [threading.Thread(target=one, args=(k, wrong)) for k in range(COUNT)]
    for f in (met, told, untold):
        threads.append(threading.Thread(target=lambda f=f: results.update({f: attempt(f)})))
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, "%d of %d: %s" % (len(wrong), COUNT, wrong[0])


def attempt(fn):
    try:
        fn()
    except Exception as e:
        return e
    return None


def result(f):
    if results[f]:
        raise results[f]


results = {}
run_cases([("around-ten-seconds", around), ("connected", lambda: result(met)), ("told", lambda: result(told)),
           ("untold", lambda: result(untold))])
