#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
# timeout: 120
#
# Proves where there are copy threads: in a process with threads of its own, after its first large write, as many as
# configured; none in others, in a fork child, or a while after the last write. And that they cost no CPU time worth
# mentioning when all cores compute. How: /proc/self/task and rusage, inside of programs. Cannot see how much faster a
# save gets on cores that are free, which is bench's. What they must survive is in loader.py (copying-*).

import concurrent.futures
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

PROGRAM = """
import os, sys, threading, time
data = b'abcdefgh' * (3 << 20) # 24 MiB
def save(path='m.bin', n=len(data)):
    with open(path, 'wb', 0) as f:
        left = memoryview(data)[:n]
        while len(left):
            left = left[f.write(left):]
def copiers():
    return len(os.listdir('/proc/self/task')) - threading.active_count()
def a_thread():
    e = threading.Event()
    threading.Thread(target=e.wait, daemon=True).start()
    return e
"""


def seen(text, name="box", **config):
    """The numbers that the program prints; the file has to be right as well."""
    box = Box(name, **dict({"STAGING": "256M"}, **config))
    r = box.run([PYTHON, "-c", PROGRAM + text])
    assert r.rc == 0 and not r.messages(), r
    assert box.wait().rc == 0
    with open(os.path.join(box.d, "m.bin"), "rb") as f:
        whole = f.read()
    assert whole and whole == (b"abcdefgh" * (3 << 20))[:len(whole)], "other bytes"
    return [int(w) for w in r.out.split()]


def expect(want, text, why="", **config):
    """On a machine that is overloaded a helper may be gone before it is counted: then once more."""
    for last in (False, False, True):
        got = seen(text, **config)
        if got == want or last:
            break
    assert got == want, "%s, not %s %s" % (got, want, why)


def where():
    with_thread = "a_thread(); save(); print(copiers())"
    expect([3], with_thread, COPY_THREADS=4)
    expect([0], with_thread, COPY_THREADS=1)
    expect([min(4, len(os.sched_getaffinity(0))) - 1], with_thread)
    expect([0], "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); " + with_thread)
    expect([0], "save(); print(copiers())", "a process without threads", COPY_THREADS=4)
    expect([0], "a_thread(); save(n=7 << 20); print(copiers())", "a small write", COPY_THREADS=4)
    expect([0], "a_thread(); save('/dev/null'); print(copiers()); save(n=1)", "nothing captured", COPY_THREADS=4)
    masked = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); "
    expect([0], masked + with_thread, "perhaps in a handler", COPY_THREADS=4)


def when():
    text = """
e = a_thread()
save()
print(copiers())
pid = os.fork()
if pid == 0:
    n = copiers()
    save('c.bin')
    n += copiers()
    a_thread()
    save('c.bin')
    os._exit(n * 16 + copiers())
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
for i in range(60):
    time.sleep(0.1)
    if copiers() == 0:
        break
print(copiers())
save()
print(copiers())
"""
    # three; none in the child until it has a thread and a large write; none when idle; three again
    expect([3, 3, 0, 3], text, COPY_THREADS=4)


def busy():
    """All cores compute: several threads need no more CPU time than one, and no save waits for a helper for long."""
    text = """
import resource, subprocess
burn = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for i in os.sched_getaffinity(0)]
a_thread()
save(); save()
t, c = [], resource.getrusage(resource.RUSAGE_SELF)
for i in range(12):
    b = time.monotonic()
    save()
    t.append(time.monotonic() - b)
d = resource.getrusage(resource.RUSAGE_SELF)
for p in burn:
    p.kill()
    p.wait()
print(int(1e6 * (d.ru_utime + d.ru_stime - c.ru_utime - c.ru_stime)), int(1e6 * sorted(t)[6]))
"""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # side by side: others may want the cores as well
        pairs = [list(pool.map(lambda n: seen(text, "box%d" % n, COPY_THREADS=n), (1, 4))) for _ in range(3)]
    cpu = [sorted(p[side][0] for p in pairs)[1] for side in (0, 1)]
    held = sorted(([p[side][1] for side in (0, 1)] for p in pairs), key=lambda h: h[1] / h[0])
    say("# CPU us of 12 saves: %s; us a save: %s" % (cpu, held))
    # a save is a few ms of work; a slice of the scheduler is as long, and decides over a single one
    assert cpu[1] < 1.5 * cpu[0] + 20000, "CPU time %s" % cpu
    assert held[0][1] < 2 * held[0][0] + 10000, "held %s" % held


def little_staging():
    """Fewer chunks than are copied at a time; two threads save at once."""
    text = """
e = threading.Thread(target=lambda: [save('n.bin') for i in range(6)])
e.start()
for i in range(6):
    save()
e.join()
print(int(open('n.bin', 'rb').read() == data))
"""
    assert seen(text, COPY_THREADS=4, STAGING="16M") == [1]


def engine_dies():
    """Each save in turn loses the engine, or the pair, in its middle."""
    box = Box("dies", STAGING="256M", COPY_THREADS=4)
    text = """
a_thread()
for i in range(8):
    save()
    print(i, flush=True)
    sys.stdin.readline()
    with open('m%d.bin' % i, 'wb', 0) as f:
        for k in range(4):
            f.write(data)
            time.sleep(0.02)
        if i == 7:
            sys.stdin.readline()
"""
    p = box.start([PYTHON, "-c", PROGRAM + text], stdin=subprocess.PIPE)
    for i in range(8):
        assert p.stdout.readline() == "%d\n" % i
        if i == 7:
            box.wait()  # what is pending when both die is lost, and named
        s = box.status()
        p.stdin.write("\n")
        p.stdin.flush()
        time.sleep(0.01 + i * 0.008)
        os.kill(s["engine_pid"], signal.SIGKILL)
        if i == 7:
            os.kill(s["keeper_pid"], signal.SIGKILL)
    err = p.communicate("\n", timeout=60)[1]  # not closed before both are dead: pending, it would be lost
    assert p.returncode == 0 or "m.bin" in err or "m7.bin" in err, err
    box.wait()
    for i in range(8):
        with open(os.path.join(box.d, "m%d.bin" % i), "rb") as f:
            assert f.read() == b"abcdefgh" * (3 << 20) * 4, "m%d.bin" % i


run_cases([(f.__name__, f) for f in (where, when, busy, little_staging, engine_dies)])
