#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
# backends: uring threads
# timeout: 100
#
# Proves, each as an outside tester found it broken: a redirected program that a shell execs ends when its file is
# durable; a child sees all that its parent has written to an open file; a hole stays a hole; tar right after a save
# is content; a short write that nothing follows is said; a later save is not taken for a log; forks beside saving
# threads do not wait; children ended by a signal are silent; a program whose output a shell has redirected sees a
# file with a name; who has a file open for writing while another saves over it writes into the new content; an open
# file can be given a second name while it has one, and none once that is deleted; a rename to where nobody may
# search is refused for that; a program that was just saved can be executed; fstat and fchmod by syscall(), on what only
# leads to a pending file, wait and count as by name. How: the same small jobs natively and under the shim. Cannot see
# what no tester has thought of yet.

import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

HOLE = "import os; f = os.open('h.pt', os.O_WRONLY | os.O_CREAT | os.O_TRUNC); os.write(f, b'a' * (2 << 20)); %s; " \
       "os.pwrite(f, b'end', (300 << 20)); os.close(f)"
CHILD = """
import os, subprocess
f = os.open('v.pt', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for n in (700, 1 << 20, 5 << 20, 77):
    os.write(f, b'a' * n)
    print(subprocess.run(['cat', 'v.pt'], stdout=subprocess.PIPE).stdout == b'a' * os.fstat(f).st_size, flush=True)
os.close(f)
"""
TAR = """
import os, subprocess
os.makedirs('d', exist_ok=True)
for i in range(8):
    with open('d/%d.pt' % i, 'wb') as f:
        f.write(b'x' * (12 << 20))
    print(subprocess.run(['tar', 'cf', '/dev/null', 'd']).returncode, flush=True)
"""
SHORT = """
import os, resource, signal
open('first.pt', 'wb').write(b'x')
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ((3 << 20) + 5, resource.RLIM_INFINITY))
f = os.open('s.pt', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
print(os.write(f, b'x' * (4 << 20)), flush=True)
os.close(f)
"""


PROGRAM = """
import os, subprocess
for i in range(8):
    with open('tmp', 'wb') as f:
        f.write(open('/bin/true', 'rb').read() + b'x' * (2 << 20))
    os.chmod('tmp', 0o755)
    os.replace('tmp', 'program')
    if i % 2:
        print(subprocess.run(['./program']).returncode)
    else:
        print(os.waitpid(os.posix_spawn('program', ['program'], os.environ), 0)[1])
"""

RENAMED = """
import os, subprocess, sys
other = "import os\\nos.rename('x', 'y')\\nf = os.open('y', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)\\n" \\
        "print('open', flush=True)\\ninput()\\nos.write(f, b'B' * 1000)\\nos.close(f)\\n"
for mode in (os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_WRONLY | os.O_CREAT | os.O_APPEND, os.O_RDWR | os.O_CREAT):
    f = os.open('x', mode)
    os.write(f, b'a' * (2 << 20))
    p = subprocess.Popen([sys.executable, '-c', other], stdin=-1, stdout=-1)
    p.stdout.readline()
    os.pwrite(f, b'A' * 3000000, 0)
    p.communicate(b'.')
    a, b = os.fstat(f), os.stat('y')
    os.close(f)
    print(a.st_ino == b.st_ino, os.path.getsize('y'), open('y', 'rb').read(1001))
    os.unlink('y')
"""

SAVES = """
import os, time
for i in range(5):
    with open('s%d.pt' % i, 'wb', buffering=0) as f:
        for k in range(9):
            f.write(b'head' * 100)
        f.write(b'x' * (3 << 20))
    time.sleep(1.1)
"""

FORKS = """
import os, threading, time
def saver(i):
    with open('s%d.pt' % i, 'wb', buffering=0) as f:
        for k in range(3):
            f.write(block)
block = b'x' * (64 << 20)
threads = [threading.Thread(target=saver, args=(i,)) for i in range(8)]
for t in threads: t.start()
print('saving', flush=True)
input()
took, pids = [], []
for i in range(3):
    begun = time.monotonic()
    pids.append(os.fork())
    if pids[-1] == 0: os.kill(os.getpid(), 9)
    took.append(time.monotonic() - begun)
print(max(took), flush=True)
for p in pids: os.waitpid(p, 0)
for t in threads: t.join()
"""
ENDED = """
import os, signal, time
for k in range(60):
    pid = os.fork()
    if pid == 0:
        with open('p%d.pt' % (k % 4), 'wb') as f: f.write(b'x' * 3000000)
        os._exit(0)
    time.sleep(0.0015 + k * 0.0001)
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
"""

OUTPUT = """
import fcntl, os, sys
print(os.fstat(1).st_nlink, oct(fcntl.fcntl(1, fcntl.F_GETFL)), os.stat('g').st_nlink, flush=True)
if 'gone' in os.environ:
    os.remove('g')
    print(os.fstat(1).st_nlink, file=sys.stderr)
"""
OUTER = "%s -c \"$O\" > g; cat g; (%s -c \"$O\"; true) > g; cat g; gone=1 %s -c \"$O\" > g; ls" % ((PYTHON,) * 3)
LINKS = """
import ctypes, os, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def link(f, to):
    for at, path, flags in ((-100, b'/proc/self/fd/%d' % f, 0x400), (f, b'', 0x1000)):
        r = libc.linkat(at, path, -100, to, flags)
        print(r and ctypes.get_errno(), os.fstat(f).st_nlink, end=' ')
        to += b'2'
def opened(name, size=3 << 20):
    f = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(f, bytes(size))
    return f
def deleted(f, *names):
    for n in names:
        if os.path.exists(n):
            os.unlink(n)
        print(os.fstat(f).st_nlink, end=' ')
for size in (5, 3 << 20):
    f = opened('a.pt', size)
    link(f, b'second')
    os.write(f, b'more')
    print(os.path.getsize('second') == size + 4, os.path.samefile('a.pt', 'second'), end=' ')
    deleted(f, 'a.pt', 'second', 'second2')
    link(f, b'third')
    f = opened('b.pt', size)
    deleted(f, 'b.pt')
    link(f, b'fourth')
    for forked in (True, False):
        f = opened('c.pt', size)
        if forked and os.fork() == 0:
            os.rename('c.pt', 'd.pt')
            os._exit(0)
        os.wait() if forked else subprocess.run(['mv', 'c.pt', 'd.pt'])
        print(os.fstat(f).st_nlink, end=' ')
        deleted(f, 'd.pt')
    f = opened('e.pt', size)
    if os.fork() == 0:
        link(f, b'fifth')
        os._exit(print(flush=True) or 0)
    os.wait()
    print(os.fstat(f).st_nlink, end=' ')
    os.close(f)
    f = os.open('e.pt', os.O_RDONLY)
    link(f, b'sixth')
    deleted(f, 'e.pt', 'fifth', 'fifth2')
t = os.open('.', os.O_TMPFILE | os.O_WRONLY)
link(t, b'tmp')
print(sorted(os.listdir('.')), flush=True)
"""
CLOSED = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
os.mkdir('shut')
for name in ('old.pt', 'shut/there'):
    os.mknod(name)
os.chmod('shut', 0)
for name in ('new.pt', 'old.pt'):
    with open(name, 'wb', buffering=0) as f:
        f.write(bytes(3 << 20))
        for flags in (2, 1, 0):
            for to in (b'shut/there', b'shut/none'):
                for a, b in ((os.fsencode(name), to), (to, os.fsencode(name))):
                    r = libc.renameat2(-100, a, -100, b, flags)
                    print(a, b, flags, r and ctypes.get_errno())
                    if r == 0:
                        libc.renameat2(-100, b, -100, a, 2 if flags == 2 else 0)
os.chmod('shut', 0o755)
"""
BY_NUMBER = """
import ctypes, os
syscall, st = ctypes.CDLL(None).syscall, ctypes.create_string_buffer(256)
fchmod, fstat, links, at = {'x86_64': (91, 5, ctypes.c_uint64, 16),
                            'aarch64': (52, 80, ctypes.c_uint32, 20)}[os.uname().machine]
os.mkdir('d')
for i in range(4):
    with open('d/%d.pt' % i, 'wb', buffering=0) as f:
        f.write(bytes(12 << 20))
    r = os.open('d/%d.pt' % i, os.O_RDONLY)
    print(syscall(fstat, r, st), links.from_buffer(st, at).value)
print(syscall(fchmod, os.open('d', os.O_RDONLY), 0o555), sorted(os.listdir('d')))
"""
LOOKED_AT = """
import os, sys
f = os.open('g.pt', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for n, what in enumerate((b'a', b'b', b'c', b'd')):
    os.write(f, what * ((6 if n == 0 else 7) << 20))
    print(n, flush=True)
    sys.stdin.readline()
os.close(f)
"""

SAVE_OVER = """
import os, sys, time
for i in range(80):
    f = os.open('s.pt', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.write(f, b'%06d' % i * 1000)
    if i % 4 == 0 and 'sync' in sys.argv: os.fsync(f)
    os.close(f)
    time.sleep(i % 5 * 0.001)
"""

INHERITED = "print(1, flush=True); f = open('f', 'w'); f.write('hello'); f.close(); print(2)"
PASSED = """
import array, os, socket, subprocess, sys
if len(sys.argv) > 1:
    s, f = socket.socket(fileno=int(sys.argv[1])), os.open('f', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(f, b'before')
    s.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [f]))])
    sys.exit()
a, b = socket.socketpair()
subprocess.run([sys.executable, '-c', os.environ['PASSED'], str(b.fileno())], pass_fds=[b.fileno()])
f = array.array('i', a.recvmsg(1, 64)[1][0][2][:4])[0]
g = os.open('/proc/self/fd/%d' % f, os.O_WRONLY)
os.close(f)
with open('f', 'wb') as h: h.write(b'new')
os.write(g, b'NEWER')
print(open('f', 'rb').read())
"""
# Who has the file open for writing, where no open of the program that saves says so.
WRITERS = {
    "append": "exec 5>>f; echo a >&5; /bin/sh -c 'echo trunc > f'; echo b >&5; cat f",
    "read_write": "exec 5<>f; echo a >&5; /bin/sh -c ': > f'; echo b >&5; od -c f",
    "inherited": "echo old > f; /bin/sh -c '%s -c \"$INHERITED\" >> f'; cat f" % PYTHON,
    "passed": PYTHON + ' -c "$PASSED"',
    "later": "mkfifo ../1 ../2 ../3; echo old > f; (echo one; echo > ../1; read x < ../2; echo two; echo > ../3) > f & "
             "read x < ../1; /bin/sh -c 'exec 7>>f; echo app >&7; echo > ../2; read x < ../3; echo end >&7'; wait; "
             "cat f",
}


def with_box(name, fn):
    box = Box(name, STAGING="64M" if name == "forks_beside_savers" else None)
    try:
        fn(box)
    finally:
        box.close()


def redirected(box):
    for n in (500, 3000000, 30000000):
        head = "head -c %d /dev/zero > o.pt" % n
        for shell in (["sh", "-c", "exec " + head], ["bash", "-c", head]):
            r = box.run(shell)
            path = os.path.join(box.d, "o.pt")
            assert r.rc == 0 and os.path.exists(path), "%s: not there when it ended: %r" % (shell, r)
            assert os.path.getsize(path) == n, "%s: %d bytes" % (shell, os.path.getsize(path))
            os.remove(path)


def child_sees(box):
    r = box.run([PYTHON, "-c", CHILD])
    assert r.out.split() == ["True"] * 4, repr(r)


def holes(box):
    for how in ("os.ftruncate(f, 200 << 20)", "pass"):
        blocks = []
        for shim in (False, True):
            r = box.run([PYTHON, "-c", HOLE % how], shim=shim)
            assert r.rc == 0, repr(r)
            st = os.stat(os.path.join(box.d, "h.pt"))
            assert st.st_size == (300 << 20) + 3, st
            blocks.append(st.st_blocks)
            os.remove(os.path.join(box.d, "h.pt"))
        assert blocks[1] < blocks[0] + 65536, "%s: %d blocks, natively %d" % (how, blocks[1], blocks[0])


def tar_after_save(box):
    r = box.run([PYTHON, "-c", TAR])
    assert r.out.split() == ["0"] * 8, repr(r)


def short_write(box):
    r = box.run([PYTHON, "-c", SHORT])
    assert r.rc == 0 and r.out.split() == [str((3 << 20) + 5)], repr(r)
    assert "s.pt is not published" in r.err, "nothing was said: %r" % r


def saves_are_no_logs(box):
    """What is counted for the rule of logs is counted for each file alone, though its object served others before."""
    r = box.run([PYTHON, "-c", SAVES])
    assert r.classes() == (5, 0, 0), repr(r)


def forks_beside_savers(box):
    """fork does not wait for what other threads write. The engine is stopped: they all wait for staging."""
    p = box.start([PYTHON, "-c", FORKS], stdin=-1)
    p.stdout.readline()
    engine = eventually("an engine", box.status)["engine_pid"]
    os.kill(engine, signal.SIGSTOP)
    time.sleep(0.5)
    p.stdin.write("\n")
    p.stdin.flush()
    took = p.stdout.readline()
    os.kill(engine, signal.SIGCONT)
    assert p.wait(30) == 0 and float(took) < 1.5, "a fork took %s s" % took


def ended_children(box):
    """A child that SIGTERM ends while it leaves says nothing, as natively."""
    r = box.run([PYTHON, "-c", ENDED])
    assert r.rc == 0 and not r.messages(), repr(r)


def others_look(box):
    """From the first look of another process on, it sees all that is written, and what it cuts off stays cut off."""
    p = box.start([PYTHON, "-c", LOOKED_AT], stdin=-1)
    look = "import os; print(len(open('g.pt', 'rb').read())); os.truncate('g.pt', 5 << 20)"
    sizes = []
    for _ in range(4):
        p.stdout.readline()
        sizes.append(int(box.run([PYTHON, "-c", look]).out))
        p.stdin.write("\n")
        p.stdin.flush()
    assert p.wait(20) == 0 and box.wait().rc == 0
    assert sizes[1:] == [13 << 20, 20 << 20, 27 << 20], "sizes seen: %s" % sizes
    with open(os.path.join(box.d, "g.pt"), "rb") as f:
        assert f.read() == b"a" * (5 << 20), "not what was left"


def other_writers(box):
    wrong = []
    for name, job in WRITERS.items():
        env = {"INHERITED": INHERITED, "PASSED": PASSED}
        n = box.run(["bash", "-c", job], shim=False, cwd=box.native_d, env=env)
        r = box.run(["bash", "-c", job], env=env)
        if (r.rc, r.out) != (n.rc, n.out) or n.out.count("\n") < 1:
            wrong.append("%s: %r, natively %r; %s" % (name, r.out, n.out, r.err[-300:]))
        os.remove(os.path.join(box.d, "f"))
        os.remove(os.path.join(box.native_d, "f"))
    r = box.run(["bash", "-c", "echo old > f; exec 4<f; echo new > f; cat f - <&4"])
    assert not wrong and r.out == "new\nold\n", wrong or repr(r)


def saves_over(box):
    """The engine's own descriptors, and those of others who save under the same name, are nobody's who goes on."""
    for how in ("plain", "sync"):
        r = box.run([PYTHON, "-c", SAVE_OVER, how])
        assert r.rc == 0 and r.classes() == (0, 80, 0), repr(r)
    ranks = [box.start([PYTHON, "-c", SAVE_OVER]) for _ in range(3)]
    assert [p.wait(30) for p in ranks] == [0] * 3 and box.wait().rc == 0, box.engine_log()
    with open(os.path.join(box.d, "s.pt"), "rb") as f:
        text = f.read()
    assert len(text) == 6000 and text == text[:6] * 1000 and not box.leftovers(), text[:30]


def redirected_output(box):
    said = []
    for shim, cwd in ((False, box.native_d), (True, box.d)):
        r = box.run(["bash", "-c", OUTER], cwd=cwd, shim=shim, env={"O": OUTPUT})
        said.append((r.rc, r.out, [l for l in r.err.splitlines() if "fastckpt" not in l]))
    assert said[0] == said[1], "%s, natively %s" % (said[1], said[0])


def as_natively(box, code):
    n = box.run([PYTHON, "-c", code], cwd=box.native_d, shim=False)
    r = box.run([PYTHON, "-c", code])
    assert (r.rc, r.out) == (n.rc, n.out) and n.rc == 0, "%r, natively %r" % (r, n)
    box.wait()
    compare_trees(box.native_d, box.d)


def links(box):
    as_natively(box, LINKS)


def renamed_and_written(box):
    """Another process has it open to write, it is renamed, and saved over: both write to one file."""
    as_natively(box, RENAMED)


def saved_program(box):
    as_natively(box, PROGRAM)


def by_number(box):
    as_natively(box, BY_NUMBER)
    for d in (box.d, box.native_d):
        os.chmod(os.path.join(d, "d"), 0o755)


def closed_directory(box):
    as_natively(box, CLOSED)


run_cases([(f.__name__, lambda f=f: with_box(f.__name__, f))
           for f in (redirected, child_sees, holes, tar_after_save, short_write, saves_are_no_logs, forks_beside_savers,
                     ended_children, others_look, redirected_output, other_writers, saves_over, links,
                     renamed_and_written, saved_program, by_number, closed_directory)])
