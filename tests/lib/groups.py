# SPDX-License-Identifier: MIT
#
# groups: cgroups without a limit, for tests of what belongs together and dies together: groups with leaves as Slurm
# makes them, their processes signalled at one instant, and a CPU quota. Memory and disk limits are disks'.

import atexit
import contextlib
import os
import signal
import time

from fc import Skip, need_root


def _tops():
    """Where groups can be made: the unified hierarchy first, then the named one, then any."""
    found = []
    with open("/proc/self/mounts") as f:
        for line in f:
            _, at, kind, options = line.split()[:4]
            if kind == "cgroup2":
                found.append((0, at))
            elif kind == "cgroup":
                found.append((1 if "name=" in options else 2, at))
    return [at for _, at in sorted(found)]


class Group:
    """A cgroup with the path `path` below one of its own; `under`: a hierarchy other than the first that serves."""

    def __init__(self, path, under=None):
        need_root()
        self.made = []
        why = "no cgroup file system"
        for top in [under] if under else _tops():
            try:
                self._make(top, "fastckpt-test-%d/%s" % (os.getpid(), path))
                break
            except OSError as e:
                why = e
        else:
            raise Skip("no cgroup can be made: %s" % why)
        self.path = self.made[-1]
        atexit.register(self.remove)

    def _make(self, top, path):
        at = top
        for part in path.split("/"):
            at = os.path.join(at, part)
            with contextlib.suppress(FileExistsError):
                os.mkdir(at)
            self.made.append(at)

    def enter(self):
        with open(self.path + "/cgroup.procs", "w") as f:
            f.write(str(os.getpid()))

    def take(self, pid):
        with open(self.path + "/cgroup.procs", "w") as f:
            f.write(str(pid))

    def pids(self):
        """Of this group and of those below it."""
        found = []
        for top, _, _ in os.walk(self.path):
            with open(top + "/cgroup.procs") as f:
                found += [int(line) for line in f]
        return found

    def signal(self, sig, but=()):
        """To every process of the group and below, at one instant: stopped first, so that none sees another end. A
        step's end (SIGKILL) does the same by the freezer or cgroup.kill."""
        sent = []
        while True:  # until no process is new
            new = [p for p in self.pids() if p not in sent and p not in but]
            if not new:
                break
            for p in new if sig == signal.SIGKILL else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(p, signal.SIGSTOP)
            for p in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(p, sig)
            sent += new
        return sent

    def remove(self):
        for at in reversed(self.made):
            for _ in range(50):
                try:
                    os.rmdir(at)
                    break
                except FileNotFoundError:
                    break
                except OSError:  # somebody else's group below it, or a process that is just ending
                    if at != self.path:
                        break
                    time.sleep(0.05)


class Starved(Group):
    """Whoever is in it gets `percent` of one CPU."""

    def __init__(self, path, percent):
        v1 = "/sys/fs/cgroup/cpu"
        under = v1 if os.path.exists(v1 + "/cpu.shares") or os.path.exists(v1 + "/cgroup.procs") else None
        super().__init__(path, under=under)
        try:
            if under:
                self._write("cpu.cfs_period_us", 100000)
                self._write("cpu.cfs_quota_us", 1000 * percent)
            else:
                self._write("cpu.max", "%d 100000" % (1000 * percent))
        except OSError as e:
            raise Skip("no CPU quota: %s" % e)

    def _write(self, name, value):
        with open(os.path.join(self.path, name), "w") as f:
            f.write(str(value))
