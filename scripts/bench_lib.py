# SPDX-License-Identifier: MIT
"""What the rows of scripts/bench share: programs driven line by line, natively or under fastckpt, in one directory.

A program under fastckpt must say in its report at exit that its files took the expected way: a figure of a run that had
silently gone native would be a figure of something else.
"""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REPORT = re.compile(r"fastckpt: \d+ files? \((\d+) staged, (\d+) captured, (\d+) followed.* (\d+) failures?")


class Failed(Exception):
    """The figure could not be measured: something is broken."""


class Skip(Exception):
    """The figure cannot be measured here, and why."""


class Program:
    """A child that answers each line on stdin by one line of numbers on stdout."""

    def __init__(self, argv, env, captured):
        self.captured = captured
        self.name = os.path.basename(argv[-1] if len(argv) == 1 else argv[0])
        self.errors = tempfile.TemporaryFile("w+")
        self.child = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)
        self.answers = b""

    def stderr(self):
        self.errors.seek(0)
        return self.errors.read().strip()[-2000:]

    def ask(self, line, timeout=120):
        try:
            self.child.stdin.write(line.encode() + b"\n")
            self.child.stdin.flush()
        except OSError as e:
            raise Failed(f"{line.split()[0]}: {e}\n{self.stderr()}")
        end = time.monotonic() + timeout
        while b"\n" not in self.answers:
            ready, _, _ = select.select([self.child.stdout], [], [], max(0, end - time.monotonic()))
            data = os.read(self.child.stdout.fileno(), 4096) if ready else b""
            if not data:
                why = "ended" if ready else f"no answer in {timeout} s"
                raise Failed(f"{line.split()[0]}: {why}\n{self.stderr()}")
            self.answers += data
        answer, self.answers = self.answers.split(b"\n", 1)
        if answer.startswith(b"error"):
            raise Failed(f"{line}: {answer.decode()}\n{self.stderr()}")
        return [float(x) for x in answer.split()]

    def finish(self, staged=0, captured=0):
        """Ends it; of the files it wrote so many must have been staged, and so many captured."""
        self.child.stdin.close()
        try:
            status = self.child.wait(60)
        except subprocess.TimeoutExpired:
            raise Failed(f"does not end\n{self.stderr()}")
        text = self.stderr()
        if status:
            raise Failed(f"exit status {status}\n{text}")
        if not self.captured:
            return
        found = list(REPORT.finditer(text))  # the last one is its own, others are its children's
        if not found:
            raise Failed(f"no report at exit\n{text}")
        counts = [int(n) for n in found[-1].groups()]
        if counts[0] < staged or counts[1] < captured or counts[3]:
            raise Failed(f"expected {staged} staged, {captured} captured, 0 failures; the report: {found[-1][0]}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self.child.stdout.close()
        self.errors.close()


class Bench:
    """The directory, the engine that belongs to it, and how programs are started there."""

    def __init__(self, build, size_mib, rounds):
        self.build = os.path.abspath(build)
        self.tool = os.path.join(self.build, "fastckpt")
        self.python = os.environ.get("PYTHON") or "/usr/bin/python3"
        # Made by scripts/clients. By its real path: what was built for another one is built again.
        venv = os.path.realpath(os.path.join(ROOT, "build", "venv"))
        python = os.path.join(venv, "bin", "python")
        self.framework_python = os.environ.get("PYTHON") or (python if os.path.exists(python) else "/usr/bin/python3")
        self.size = size_mib
        self.rounds = rounds
        self.dir = tempfile.mkdtemp(prefix="bench.", dir=os.environ.get("BENCH_DIR") or self.build)
        self.ck = os.path.join(self.dir, "ck")
        os.mkdir(self.ck)
        self.engines = []
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("FASTCKPT_")}
        self.env.update(DS_ACCELERATOR="cpu", TORCH_EXTENSIONS_DIR=os.path.join(venv, "torch_extensions"),
                        PATH=os.path.join(venv, "bin") + ":" + self.env.get("PATH", os.defpath))
        self.main = self.engine_env("main")

    def engine_env(self, name):
        """The environment of one engine: each runtime directory has its own."""
        path = os.path.join(self.dir, "run-" + name)
        os.mkdir(path, 0o700)
        env = dict(self.env, FASTCKPT_RUNTIME_DIR=path, FASTCKPT_REPORT="1")
        self.engines.append(env)
        return env

    def path(self, name):
        return os.path.join(self.ck, name)

    def victim(self, name):
        return os.path.join(self.build, "victims", name)

    def program(self, argv, fast, env=None, **variables):
        if not fast:
            return Program(argv, self.env, False)
        env = dict(env or self.main, **variables)
        return Program([self.tool, "run", "--paths", self.ck + "/*", "--", *argv], env, True)

    def saver(self, fast, env=None, mib=None, **variables):
        argv = [self.victim("bench_save"), str(mib or self.size), self.tool, "wait"]
        return self.program(argv, fast, env, **variables)

    def run_tool(self, *args, env=None):
        r = subprocess.run([self.tool, *args], env=env or self.main, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, timeout=120)
        if r.returncode:
            raise Failed(f"fastckpt {' '.join(args)}: exit status {r.returncode}\n{r.stderr.strip()}")
        return r.stdout

    def wait(self):
        self.run_tool("wait")

    def status(self, env=None):
        return json.loads(self.run_tool("status", "--json", env=env))

    def need_memory(self, mib):
        with open("/proc/meminfo") as f:
            available = next(int(line.split()[1]) for line in f if line.startswith("MemAvailable")) >> 10
        if available < mib:
            raise Skip(f"needs {mib} MiB of available memory, {available} MiB are")

    def clean(self):
        """Removes what a row has saved, behind the program's back."""
        for name in os.listdir(self.ck):
            path = self.path(name)
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.remove(path)

    def end_engines(self, envs):
        """They would leave by themselves ten seconds later."""
        pids = []
        for env in envs:
            try:
                pid = self.status(env)["engine_pid"]
                if pid > 1:
                    os.kill(pid, signal.SIGTERM)
                    pids.append(pid)
            except (Failed, ValueError, KeyError, OSError, subprocess.TimeoutExpired):
                pass  # it is gone already
        end = time.monotonic() + 5
        while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < end:
            time.sleep(0.05)

    def close(self):
        """Ends the engines and removes everything."""
        self.end_engines(self.engines)
        shutil.rmtree(self.dir, ignore_errors=True)


def cpu_seconds(pid):
    """User and system time of all threads of a process, those that have ended too."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
    except OSError:
        raise Failed(f"process {pid} of the engine is gone")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
