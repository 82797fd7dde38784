# SPDX-License-Identifier: MIT
#
# fc: what the system tests in Python share: a box (a checkpoint directory with an engine of its own) in which programs
# run natively or under the shim, as root or as another user. File systems on loop devices are disks.py's, results (ok /
# not ok / skip) results.py's.
#
# Environment: TEST_TMP (own directory on a real disk), BUILD (libfastckpt.so, fastckpt, victims/). Both have defaults.
# For any test: TEST_STRIPES=dir:dir, everything goes by stripes; TEST_BASE=dir, checkpoints are saved there.

import atexit
import collections
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from results import *  # noqa: F401,F403

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("BUILD", os.path.join(ROOT, "build")))
PYTHON = "/usr/bin/python3"
IS_ROOT = os.geteuid() == 0
USER = 12345  # the unprivileged user of tests that prepare as root
WHO = {"root": None, "user": USER}  # as a box takes it
MIB = 1 << 20

if "TEST_TMP" in os.environ:
    TMP = os.environ["TEST_TMP"]
    os.makedirs(TMP, exist_ok=True)
else:
    TMP = tempfile.mkdtemp(prefix="fc-test-", dir=os.environ.get("TMPDIR", "/tmp"))
    atexit.register(shutil.rmtree, TMP, True)
if IS_ROOT:
    os.chmod(TMP, 0o755)


def _open_to_all(path):
    while path != "/":
        if not os.stat(path).st_mode & 0o001:
            return False
        path = os.path.dirname(path)
    return True


# What a test run by root starts as another user must be readable for that user.
CLIENTS = os.path.join(ROOT, "tests", "clients")
if IS_ROOT and os.path.isdir(BUILD) and not (_open_to_all(BUILD) and _open_to_all(CLIENTS)):
    _copy = os.path.join(TMP, "build")
    _not = shutil.ignore_patterns("obj", "pic", "unit", "tmp", "venv", "*.a", "*.d")
    shutil.copytree(BUILD, _copy, symlinks=True, ignore=_not)
    CLIENTS = shutil.copytree(CLIENTS, os.path.join(_copy, "clients"))
    BUILD = _copy
LIB = os.path.join(BUILD, "libfastckpt.so")
BIN = os.path.join(BUILD, "fastckpt")
VICTIMS = os.path.join(BUILD, "victims")

# A test that its runner ends with SIGTERM still unmounts what it mounted.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def victim(name):
    return os.path.join(VICTIMS, name)


def need_root():
    if not IS_ROOT:
        raise Skip("needs root")


def need(program):
    if not shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
        raise Skip("needs " + program)


def need_disk(mib, path=TMP):
    st = os.statvfs(path)
    if st.f_bavail * st.f_frsize < mib * MIB:
        raise Skip("needs %d MiB of free disk" % mib)


def eventually(what, fn, seconds=30.0, step=0.02):
    """Waits until fn() is true and returns its value. How long that may take is a busy machine's matter."""
    end = time.monotonic() + seconds
    while True:
        v = fn()
        if v:
            return v
        if time.monotonic() > end:
            raise AssertionError("not within %g s: %s" % (seconds, what))
        time.sleep(step)


def sh(*argv, check=True, input=None):
    r = subprocess.run(argv, capture_output=True, text=True, errors="replace", input=input, env=dict(
        os.environ, PATH=os.environ.get("PATH", "") + ":/usr/sbin:/sbin", LC_ALL="C"))
    if check and r.returncode != 0:
        raise RuntimeError("%s: %s" % (" ".join(argv[:4]), (r.stderr or r.stdout).strip()[-300:]))
    return r.stdout


def sync_disk(path):
    """Writes out the file system that `path` is on. Not os.sync(), which waits for the slow disks of other tests."""
    sh("sync", "-f", path)


# ---------------------------------------------------------------------------------------------------- programs

_REPORT = re.compile(
    r"fastckpt: (\d+) files? \((\d+) staged, (\d+) captured, (\d+) followed\), "
    r"([\d.]+) MiB staged, ([\d.]+) MiB native, held ([\d.]+) s \(fsync ([\d.]+) s\), "
    r"(?:safe in [\d.]+ s, )?durable in ([\d.]+) s, ([\d.]+) GiB/s, (\d+) failures?")


class Result:
    def __init__(self, rc, out, err, seconds):
        self.rc, self.out, self.err, self.seconds = rc, out, err, seconds
        self.reports = _REPORT.findall(err)

    def classes(self):
        """(staged, captured, followed), summed over all processes that reported."""
        return tuple(sum(int(r[i]) for r in self.reports) for i in (1, 2, 3))

    def staged_mib(self):
        return sum(float(r[4]) for r in self.reports)

    def failures(self):
        return sum(int(r[10]) for r in self.reports)

    def lines(self):
        """What the program printed, without times."""
        return [l for l in self.out.splitlines() if not l.startswith("ms=")]

    def ms(self):
        return [int(l[3:]) for l in self.out.splitlines() if l.startswith("ms=")]

    def messages(self):
        """The shim's lines other than the report."""
        report = re.compile(_REPORT.pattern + "|fastckpt: device copies: ")
        return [l for l in self.err.splitlines() if "fastckpt" in l and not report.search(l)]

    def __repr__(self):
        return "rc=%s out=%r err=%r" % (self.rc, self.out[-600:], self.err[-600:])


_boxes = []


@witness
def _of_boxes(since):
    """The last programs of the boxes in use, and the last lines of their engines' logs."""
    for box in _boxes:
        box.hear()
        said = ["  %.1f s %s" % (at - since, text) for at, text in box.said if at > since]
        if said:
            log = box.engine_log().splitlines() if os.path.isdir(box.rt) else []
            yield from [os.path.basename(box.top) + ":"] + said + ["  | " + l for l in log[-16:]]


class Box:
    """A directory with a checkpoint directory `d` and an engine of its own, for one user."""

    def __init__(self, name, base=None, uid=None, cgroup=None, io=None, **config):
        self.uid = uid if IS_ROOT else None
        self.top = os.path.join(TMP, name)
        shutil.rmtree(self.top, ignore_errors=True)
        self.rt = os.path.join(self.top, "rt")
        if not base and os.environ.get("TEST_BASE"):
            base = os.path.join(os.environ["TEST_BASE"], name)
            shutil.rmtree(base, ignore_errors=True)
        self.d = os.path.join(base or self.top, "ckpt")
        self.native_d = os.path.join(base or self.top, "native", "ckpt")
        self.cgroup = cgroup
        for p in (self.top, self.rt, self.d, os.path.dirname(self.native_d), self.native_d):
            os.makedirs(p, exist_ok=True)
            self.own(p)
        os.chmod(self.rt, 0o700)
        self.config = {"RUNTIME_DIR": self.rt, "PATHS": self.d + "/*", "REPORT": "1"}
        if io or os.environ.get("FASTCKPT_IO"):
            self.config["IO"] = io or os.environ["FASTCKPT_IO"]
        if os.environ.get("TEST_STRIPES"):
            self.config["STRIPES"] = os.environ["TEST_STRIPES"]
        self.config.update({k: v for k, v in config.items()})
        self.started = []
        self.said = collections.deque(maxlen=8)  # (time, text) of the programs that ended last
        atexit.register(self.close)
        _boxes.append(self)

    def own(self, path):
        if self.uid is not None:
            os.chown(path, self.uid, self.uid)

    def env(self, shim=True, **more):
        e = {k: v for k, v in os.environ.items() if not k.startswith("FASTCKPT_") and k != "LD_PRELOAD"}
        e["PYTHONDONTWRITEBYTECODE"] = "1"
        e["OMP_NUM_THREADS"] = "2"
        e["HOME"] = self.top
        if shim:
            e["LD_PRELOAD"] = LIB
            e.update({"FASTCKPT_" + k: str(v) for k, v in self.config.items() if v is not None})
        e.update({k: str(v) for k, v in more.items() if v is not None})
        return e

    def _popen(self, argv, cwd, shim, env, preexec, **kw):
        cgroup = self.cgroup

        def before():
            if cgroup:
                cgroup.enter()
            if self.uid is not None:
                os.setgroups([])
                os.setresgid(self.uid, self.uid, self.uid)
                os.setresuid(self.uid, self.uid, self.uid)
            if preexec:
                preexec()

        p = subprocess.Popen(argv, cwd=cwd or self.d, env=self.env(shim, **(env or {})), text=True, errors="replace",
                             preexec_fn=before if cgroup or preexec or self.uid is not None else None, **kw)
        self.started.append(p)
        return p

    def start(self, argv, cwd=None, shim=True, env=None, preexec=None, stdin=subprocess.DEVNULL):
        return self._popen(argv, cwd, shim, env, preexec, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, argv, cwd=None, shim=True, env=None, preexec=None, timeout=60, input=None):
        t = time.monotonic()
        p = self._popen(argv, cwd, shim, env, preexec, stdin=subprocess.PIPE if input else subprocess.DEVNULL,
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = p.communicate(input, timeout=timeout)
        except subprocess.TimeoutExpired:
            p.kill()
            out, err = p.communicate()
            raise AssertionError("no end within %g s: %s; out=%r err=%r" % (timeout, argv[:3], out[-300:], err[-300:]))
        r = Result(p.returncode, out, err, time.monotonic() - t)
        if argv[:2] != [BIN, "status"]:  # they come by the hundred
            self._note(p, repr(r))
        return r

    def _note(self, p, what):
        call = " ".join(" ".join(str(a)[:60] for a in p.args).split())[:300]
        self.said.append((time.monotonic(), "%s: %s" % (call, what)))

    def hear(self):
        """Notes what programs that have ended said, and nobody has read; and which have not."""
        for p in self.started:
            heard = []
            for f in (p.stdout, p.stderr):
                with contextlib.suppress(OSError, ValueError):  # closed: it was read to its end
                    if f and p.poll() is not None:
                        os.set_blocking(f.fileno(), False)
                        heard.append(os.read(f.fileno(), 1 << 16)[-600:])
            if p.poll() is None or any(heard):
                self._note(p, "rc=%s unread=%r" % (p.poll(), heard))

    def native(self, argv, **kw):
        """The same in the native directory without the shim."""
        kw.setdefault("cwd", self.native_d)
        return self.run(argv, shim=False, **kw)

    def ops(self, *ops, **kw):
        return self.run([victim("ops")] + list(ops), **kw)

    def command(self, *args, timeout=60):
        e = {k: v for k, v in self.env().items() if k.startswith("FASTCKPT_")}
        return self.run([BIN] + list(args), cwd="/", shim=False, env=e, timeout=timeout)

    def status(self):
        """The engine's status, or None if there is none."""
        r = self.command("status", "--json", timeout=20)
        try:
            s = json.loads(r.out)  # it ends with 1 if something failed
        except ValueError:
            return None
        return s if s.get("engine_pid") else None

    def wait(self, timeout=60):
        return self.command("wait", timeout=timeout)

    def let_go(self, name):
        """Waits until the engine has closed it: over a file that is open for writing a save is the kernel's."""
        fds, path = "/proc/%d/fd/" % self.status()["engine_pid"], os.path.join(self.d, name)

        def is_open():
            with contextlib.suppress(FileNotFoundError):
                return any(os.path.samefile(fds + n, path) for n in os.listdir(fds))  # raises if one was just closed
            return os.path.exists(path)
        eventually("the engine has closed " + name, lambda: not is_open())

    def kill_pair(self, s=None):
        """Kills keeper and engine at one instant, so that neither makes the other anew, and what has come in their
        place nevertheless. `s`: the status, if it is known. The status before."""
        s = before = s or eventually("an engine", self.status)
        while s and s.get("engine_pid"):
            pids = s["keeper_pid"], s["engine_pid"]
            for sig in (signal.SIGSTOP, signal.SIGKILL):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, sig)
            eventually("both are gone", lambda: not any(map(alive, pids)))
            s = self.status()
        return before

    def engine_log(self):
        text = ""
        for n in os.listdir(self.rt):
            if n.endswith(".log"):
                with open(os.path.join(self.rt, n), errors="replace") as f:
                    text += f.read()
        return text

    def leftovers(self, d=None):
        return [n for n in os.listdir(d or self.d) if n.startswith(".fastckpt")]

    def close(self):
        """Ends what this box started: programs by SIGKILL, the engine as its users would."""
        for p in self.started:
            if p.poll() is None:
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    p.send_signal(signal.SIGCONT)
                    p.kill()
                    p.wait(5)
        self.hear()
        for p in self.started:
            for f in (p.stdin, p.stdout, p.stderr):
                with contextlib.suppress(OSError):
                    f and f.close()
        self.started = []
        if not os.path.isdir(self.rt) or not os.path.exists(BIN):
            return
        pids = []
        with contextlib.suppress(Exception):
            s = self.status()
            if s:
                pids = [s["keeper_pid"], s["engine_pid"]]
        stop_pair(pids)
        self.started = []


def built(n, what):
    """Builds something with fault n (FASTCKPT_BREAK), in this test's own directory."""
    out = os.path.join(TMP, "break-%d" % n)
    sh("make", "-s", "-j2", "-C", ROOT, "B=" + out, "BREAK=%d" % n, out + "/" + what)
    return out + "/" + what


# ---------------------------------------------------------------------------------------------------- CUDA

SIMCUDA = [os.path.join(BUILD, "simcuda", n) for n in ("libcuda.so.1", "libcudart.so.13")]
VENV = os.path.join(os.path.abspath(os.environ.get("BUILD", os.path.join(ROOT, "build"))), "venv", "bin", "python")


def simcuda(shim=True, **config):
    """The environment (for Box.run and its like) of a program that has the simulated CUDA runtime in the place of
    NVIDIA's. config: what tests/lib/simcuda_inside.h lists, without SIMCUDA_."""
    if not all(os.path.exists(p) for p in SIMCUDA):
        raise Skip("needs the headers of CUDA 13: no simulated runtime was built")
    preload = ([LIB] if shim else []) + SIMCUDA
    return dict({"SIMCUDA_" + k: str(v) for k, v in config.items()}, LD_PRELOAD=":".join(preload))


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def stop_pair(pids, seconds=8):
    for sig, wait in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5)):
        for p in pids:
            if alive(p):
                with contextlib.suppress(OSError):
                    os.kill(p, sig)
        end = time.monotonic() + wait
        while any(alive(p) for p in pids) and time.monotonic() < end:
            time.sleep(0.02)
        if not any(alive(p) for p in pids):
            return


# ---------------------------------------------------------------------------------------------------- files

def same_bytes(a, b):
    if os.path.getsize(a) != os.path.getsize(b):
        return False
    return subprocess.run(["cmp", "-s", a, b]).returncode == 0


def tree(d):
    """name -> (type and mode, uid, gid, nlink, size, symlink target) of everything below d."""
    out = {}
    for top, dirs, files in os.walk(d):
        for n in dirs + files:
            p = os.path.join(top, n)
            st = os.lstat(p)
            size = st.st_size if os.path.isfile(p) and not os.path.islink(p) else None
            target = os.readlink(p).replace(d, "@") if os.path.islink(p) else None
            out[os.path.relpath(p, d)] = (oct(st.st_mode), st.st_uid, st.st_gid, st.st_nlink, size, target)
    return out


VOLATILE = ("volatile.pt", "archive.pt")  # other bytes in each run: their programs compare them


def torn(d):
    """What `fastckpt verify` says is torn below a directory: nothing is, whatever programs did with their files."""
    paths = [os.path.join(top, n) for top, _, names in os.walk(d) for n in names]
    stripes = os.environ.get("TEST_STRIPES")
    if not stripes or not paths:
        return []
    r = subprocess.run([BIN, "verify", "--stripes", stripes] + paths, capture_output=True, text=True, errors="replace")
    assert r.stdout.count("\n") >= len(paths), r.stderr
    return [l for l in r.stdout.splitlines() if l.startswith("torn: ")]


def compare_trees(native, shim, ignore=()):
    """Asserts that two directories hold the same names, metadata and bytes (but for those of VOLATILE)."""
    a, b = tree(native), tree(shim)
    for k in ignore:
        a.pop(k, None), b.pop(k, None)
    assert sorted(a) == sorted(b), "names differ: native %s, shim %s" % (sorted(a), sorted(b))
    for n in a:
        volatile = os.path.basename(n) in VOLATILE
        if volatile:
            a[n], b[n] = a[n][:4], b[n][:4]
        assert a[n] == b[n], "%s differs (mode, uid, gid, nlink, size, target): native %s, shim %s" % (n, a[n], b[n])
        if not volatile and a[n][4]:
            assert same_bytes(os.path.join(native, n), os.path.join(shim, n)), "%s: other bytes" % n
    assert not torn(shim), torn(shim)


def write_file(path, size, seed=1):
    """A file of `size` bytes that is not zero anywhere, the same for the same seed."""
    import random
    block = random.Random(seed).randbytes(min(size, MIB)).replace(b"\0", b"x")
    with open(path, "wb") as f:
        left = size
        while left > 0:
            left -= f.write(block[:left])
    return path


def checksum(path):
    import hashlib
    h = hashlib.blake2b()
    with open(path, "rb") as f:
        while True:
            b = f.read(4 * MIB)
            if not b:
                return h.hexdigest()
            h.update(b)


def check_saves(paths):
    """saver -c: path -> ("whole", seq) | ("torn", why) | ("absent", None)."""
    paths = list(paths)
    if not paths:
        return {}
    r = subprocess.run([victim("saver"), "-c"] + paths, capture_output=True, text=True, errors="replace")
    out = {}
    for line in r.stdout.splitlines():
        w = line.split(" ")
        if w[0] == "whole":
            out[" ".join(w[3:])] = ("whole", int(w[1]))
        elif w[0] == "torn":
            out[" ".join(w[2:])] = ("torn", w[1])
        else:
            out[" ".join(w[1:])] = ("absent", None)
    return out
