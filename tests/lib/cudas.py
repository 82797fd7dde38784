# SPDX-License-Identifier: MIT
#
# cudas: programs that are linked with a CUDA runtime, for the tests of the shim's hooks: how they are built, how they
# find the simulated one (fc.simcuda preloads it instead), and its trace. Knows nothing of what the shim does.

import os
import re

from fc import ROOT, SIMCUDA, TMP, Skip, run_cases, sh, simcuda

SIM = os.path.dirname(SIMCUDA[1])
RUNTIME = SIMCUDA[1]
OWN = os.path.join(TMP, "own")  # built here
# The ways to save of tests/clients/cuda_saves.py.
KINDS = ("torch_save", "legacy", "pinned", "without_crc", "safetensors", "dcp", "dcp_async", "dcp_stager", "host",
         "captured")


def headers():
    """Where they are, as the Makefile looks for them."""
    for d in ("/usr/local/cuda/include", "/usr/include"):
        path = os.path.join(d, "cuda_runtime_api.h")
        if os.path.exists(path):
            with open(path, errors="replace") as f:
                if re.search(r"CUDART_VERSION +13", f.read()):
                    return d
    raise Skip("needs the headers of CUDA 13")


def sim_env(scale=0, devices=1, trace=None, path=None, **more):
    """For a program on the simulated runtime. scale 0: copies take no time. `more`: SIMCUDA_* variables."""
    simcuda()  # is it there?
    env = {"LD_LIBRARY_PATH": path or SIM, "SIMCUDA_SCALE": scale, "SIMCUDA_DEVICES": devices, "SIMCUDA_TRACE": trace}
    env.update({"SIMCUDA_" + k: v for k, v in more.items()})
    return {k: str(v) for k, v in env.items() if v is not None}


class Call:
    """A line of the trace."""

    def __init__(self, line):
        m = re.match(r"(\d+)\.(\d+) (\d+) (\w+)\((.*)\) = (\d+)$", line)
        self.pid, self.thread, self.name, self.what, self.error = int(m[1]), int(m[2]), m[4], m[5], int(m[6])
        self.number = int(m[3])  # in the order in which they began; lines are in that of their ends
        # addresses differ from run to run
        self.text = "%s(%s) = %d" % (self.name, re.sub(r"(0x)?[0-9a-f]{8,}", "@", self.what), self.error)

    def __repr__(self):
        return self.text


def read_trace(path):
    with open(path) as f:
        return [Call(line) for line in f]


def compile_own(name, source, *flags):
    """Builds a program or library of tests/ once, in this test's own directory."""
    os.makedirs(OWN, exist_ok=True)
    out = os.path.join(OWN, name)
    if not os.path.exists(out):
        sh("gcc", "-std=gnu11", "-O2", "-g", "-D_GNU_SOURCE", os.path.join(ROOT, "tests", source), "-o", out, *flags)
    return out


def fake(name, *flags):
    """A library around tests/lib/cudart_fake.c."""
    return compile_own("lib%s.so" % name, "lib/cudart_fake.c", "-shared", "-fPIC", "-Wl,--no-as-needed", *flags)


COPIES = re.compile(r"device copies: ([\d.]+) MiB through pinned memory, ([\d.]+) MiB by the CUDA runtime")


def copies(r):
    """(MiB through pinned memory, MiB by the runtime), summed over the processes that reported."""
    found = COPIES.findall(r.err)
    return sum(float(f[0]) for f in found), sum(float(f[1]) for f in found)


STRAIGHT = re.compile(r"([\d.]+) MiB straight to where they stay; ([\d.]+) MiB written without a copy")


def straight(r):
    """Of a result, or of stderr: (MiB that went straight to where they stay, MiB that were written without a copy)"""
    found = STRAIGHT.findall(getattr(r, "err", r))
    return sum(float(f[0]) for f in found), sum(float(f[1]) for f in found)


LATER = re.compile(r"([\d.]+) MiB not waited for")


def later(r):
    """MiB that the program did not wait for."""
    return sum(float(mib) for mib in LATER.findall(getattr(r, "err", r)))


def memory_can_be_guarded():
    """Is there a userfaultfd here that serves the kernel, too?"""
    with open("/proc/sys/vm/unprivileged_userfaultfd") as f:
        return os.geteuid() == 0 or f.read() == "1\n" or os.access("/dev/userfaultfd", os.R_OK | os.W_OK)


def run_cuda_cases(cases):
    """As run_cases; where there is no simulated runtime, one that says so: skipped for lack of the headers alone."""
    def not_built():
        headers()
        raise AssertionError("the headers of CUDA 13 are there, and no simulated runtime was built")
    run_cases(cases if all(os.path.exists(p) for p in SIMCUDA) else [("headers", not_built)])
