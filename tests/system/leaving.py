#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
#
# Proves that a save that meets an engine in the moment of its leaving (ten seconds after its last client) gets an
# engine. How: an idle engine is stopped just before that moment, and goes on when somebody has connected; and saves at
# many instants around it. None may go natively or say a word. Cannot see instants that no save hits.

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
    time.sleep(9.3)
    os.kill(engine, signal.SIGSTOP)
    time.sleep(1.2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.connect(glob.glob(os.path.join(box.rt, "*.sock"))[0])
        os.kill(engine, signal.SIGCONT)
        time.sleep(0.7)
        assert alive(engine), "it left, with somebody at the door"
    r = box.run(SAVE)
    assert good(r), r


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
    threads.append(threading.Thread(target=lambda: met_result.append(attempt(met))))
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


def connected():
    if met_result[0]:
        raise met_result[0]


met_result = []
run_cases([("around-ten-seconds", around), ("connected", connected)])
