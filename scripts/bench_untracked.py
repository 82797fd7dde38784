# SPDX-License-Identifier: MIT
"""The figures of scripts/bench for what is none of ours: the library is loaded, and FASTCKPT_PATHS matches nothing.

Three sides take turns: native, with fastckpt, and native again. The cost is the median over the turns of what fastckpt
took more than the two native ones beside it; the noise is that of what these two differ by.
"""

import os
import shutil
import subprocess
import time
from statistics import median

from bench_lib import Failed, Program, Skip

SIDES = ("native", "fastckpt", "again")
CALLS = {  # key: (verb of bench_calls, calls in a batch, batches in a turn, nanoseconds in the unit of the figure)
    "untracked_write_ns": ("write", 1000, 50, 1),
    "untracked_fwrite_ns": ("fwrite", 4000, 50, 1),
    "untracked_stat_ns": ("stat", 200, 50, 1),
    "untracked_open_us": ("open", 100, 50, 1000),
    "untracked_create_us": ("create", 30, 50, 1000),
}
PROCESSES, TURNS = 6, 6     # of each side, one after the other; of each process
REPO_FILES = 500
RUNS = {"git_status": 150, "python_pass": 80, "gcc_compile": 80}   # of each side


def untracked(b):
    """The environment of a program whose files are not matched."""
    lib = os.path.join(b.build, "libfastckpt.so")
    return dict(b.env, LD_PRELOAD=lib, FASTCKPT_PATHS="/nowhere/*", FASTCKPT_RUNTIME_DIR=b.main["FASTCKPT_RUNTIME_DIR"])


def in_turn(i):
    """The sides in an order in which each comes first, last, and behind each other one, equally often."""
    order = SIDES[i % 3:] + SIDES[:i % 3]
    return order[::-1] if i % 6 >= 3 else order


def compare(times):
    """The native median, what fastckpt adds, and the noise."""
    turns = list(zip(*(times[s] for s in SIDES)))
    return (median(times["native"] + times["again"]), median(f - (n + a) / 2 for n, f, a in turns),
            abs(median(a - n for n, _, a in turns)))


def loaded(p):
    with open(f"/proc/{p.child.pid}/maps") as f:
        if "libfastckpt.so" not in f.read():
            raise Failed(f"{p.name} has not loaded the library: {p.stderr()}")


def call_cost(b, key):
    verb, calls, batches, unit = CALLS[key]
    path = "/dev/null" if verb in ("write", "fwrite") else b.path("unmatched")
    with open(path, "w"):
        pass
    times = {side: [] for side in SIDES}
    for _ in range(PROCESSES):
        programs = {s: Program([b.victim("bench_calls")], untracked(b) if s == "fastckpt" else b.env, False)
                    for s in SIDES}
        try:
            for i in range(-1, TURNS):
                for side in in_turn(i):
                    ns = programs[side].ask(f"{verb} {path} {calls} {batches}")[0]
                    times[side] += [ns] if i >= 0 else []
            loaded(programs["fastckpt"])
            for p in programs.values():
                p.finish()
        finally:
            for p in programs.values():
                p.__exit__()
    base, added, noise = compare(times)
    return {key: (added / unit, {"native_ns": base, "added_ns": added, "noise_ns": noise})}


def untracked_write_ns(b):
    return call_cost(b, "untracked_write_ns")


def untracked_fwrite_ns(b):
    return call_cost(b, "untracked_fwrite_ns")


def untracked_stat_ns(b):
    return call_cost(b, "untracked_stat_ns")


def untracked_open(b):
    return {**call_cost(b, "untracked_open_us"), **call_cost(b, "untracked_create_us")}


def run_once(argv, env, cwd):
    """CPU seconds of a program and its children, and those on the clock."""
    start = time.monotonic()
    p = subprocess.Popen(argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=subprocess.PIPE)
    said = p.stderr.read()
    p.stderr.close()
    _, status, used = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode or said:
        raise Failed(f"{argv[0]}: exit status {p.returncode}\n{said.decode(errors='replace').strip()[-300:]}")
    return used.ru_utime + used.ru_stime, time.monotonic() - start


def program_cost(b, key, argv, cwd):
    """By CPU time, which other programs disturb little; waiting would show on the clock, which stands beside it. A
    millisecond may be added to what takes less than 100."""
    if not shutil.which(argv[0]):
        raise Skip(f"{argv[0]} is not installed")
    cpu, wall = ({side: [] for side in SIDES} for _ in range(2))
    for i in range(-6, RUNS[key]):
        for side in in_turn(i):
            c, w = run_once(argv, untracked(b) if side == "fastckpt" else b.env, cwd)
            if i >= 0:
                cpu[side].append(c)
                wall[side].append(w)
    base, added, noise = (1e3 * t for t in compare(cpu))
    _, wall_added, wall_noise = (1e3 * t for t in compare(wall))
    return {key: (1 + added / base, {"reach": round(1 + max(0.01, 1 / base), 3), "native_ms": base, "added_ms": added,
                                     "noise_ms": noise, "wall_added_ms": wall_added, "wall_noise_ms": wall_noise})}


def git_status(b):
    """In a repository of its own, with old files: those as new as the index are read again each time."""
    if not shutil.which("git"):
        raise Skip("git is not installed")
    repo, git = b.path("repo"), ["git", "-c", "user.name=bench", "-c", "user.email=bench", "-c", "commit.gpgSign=false"]
    for i in range(REPO_FILES):
        path = f"{repo}/{i % 20}/{i}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(f"{i}\n")
        os.utime(path, (1e9, 1e9))
    for args in (["init", "-q"], ["add", "."], ["commit", "-qm", "bench"]):
        r = subprocess.run([*git, *args], cwd=repo, env=b.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True)
        if r.returncode:
            raise Failed(f"git {args[0]}: {r.stdout.strip()[-300:]}")
    return program_cost(b, "git_status", ["git", "status"], repo)


def python_pass(b):
    return program_cost(b, "python_pass", [b.python, "-c", "pass"], b.ck)


def gcc_compile(b):
    """Of a file so small that what is added to its three processes stands out of the noise."""
    with open(b.path("small.c"), "w") as f:
        f.write('#include <stdio.h>\n\nint main(void) {\n    puts("small");\n    return 0;\n}\n')
    return program_cost(b, "gcc_compile", ["gcc", "-c", "small.c"], b.ck)
