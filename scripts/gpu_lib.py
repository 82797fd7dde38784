# SPDX-License-Identifier: MIT
"""What the steps of scripts/gpu-check share: the CUDA runtime, called by ctypes, and memory of one's own. Calls by a
handle's own name are nobody's hook: this is what the runtime does natively."""

import ctypes
import glob
import json
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MIB = 1 << 20
D2H, H2D = 2, 1
NAMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")


class NoDevice(Exception):
    pass


class Failed(Exception):
    """A call of the runtime."""

    def __init__(self, name, error):
        super().__init__("%s: error %d" % (name, error))
        self.error = error


class Cuda:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)

    def error(self, name, *args):
        """What the call returns. Addresses and sizes are given as Python numbers."""
        args = [ctypes.c_size_t(a) if isinstance(a, int) and a > 0x7fffffff else a for a in args]
        return getattr(self.lib, name)(*args)

    def call(self, name, *args):
        e = self.error(name, *args)
        if e:
            self.lib.cudaGetLastError()
            raise Failed(name, e)

    def number(self, name, *args):
        v = ctypes.c_int()
        self.call(name, ctypes.byref(v), *args)
        return v.value

    def malloc(self, n):
        p = ctypes.c_void_p()
        self.call("cudaMalloc", ctypes.byref(p), ctypes.c_size_t(n))
        return p.value

    def host_alloc(self, n):
        p = ctypes.c_void_p()
        self.call("cudaHostAlloc", ctypes.byref(p), ctypes.c_size_t(n), 0)
        return p.value

    def copy(self, dst, src, n, kind=D2H):
        """Returns the error."""
        return self.error("cudaMemcpy", ctypes.c_void_p(dst), ctypes.c_void_p(src), ctypes.c_size_t(n), kind)

    def copy_async(self, dst, src, n, kind=D2H):
        self.call("cudaMemcpyAsync", ctypes.c_void_p(dst), ctypes.c_void_p(src), ctypes.c_size_t(n), kind, None)

    def register(self, p, n, flags=1):
        """Returns the error."""
        e = self.error("cudaHostRegister", ctypes.c_void_p(p), ctypes.c_size_t(n), flags)
        if e:
            self.lib.cudaGetLastError()
        return e

    def sync(self):
        self.call("cudaDeviceSynchronize")


def candidates(python):
    if os.environ.get("CUDART"):
        return [os.environ["CUDART"]]
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = subprocess.run([python, "-c", where], stdout=subprocess.PIPE, text=True).stdout.strip()
    found = [p for pattern in (site + "/nvidia/*/lib/libcudart.so.*", "/usr/local/cuda/lib64/libcudart.so.*")
             for p in sorted(glob.glob(pattern), reverse=True)]
    # what the environment puts first (LD_PRELOAD) comes before what lies somewhere
    return (list(NAMES) if os.environ.get("LD_PRELOAD") else []) + found + list(NAMES)


def find_runtime(python):
    """The first runtime that has a device."""
    why = "no CUDA runtime (libcudart.so) was found"
    for path in candidates(python):
        try:
            cuda = Cuda(path)
        except OSError:
            continue
        n = ctypes.c_int()
        e = cuda.error("cudaGetDeviceCount", ctypes.byref(n))
        if e == 0 and n.value > 0:
            return path
        why = "%s finds no device (error %d)" % (path, e)
    raise NoDevice(why)


# ---------------------------------------------------------------------------------------------------- memory

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
SHARED, PRIVATE, ANONYMOUS, READ_WRITE = 1, 2, 0x20, 3


def mapped(n, fd=-1, touch=False):
    p = libc.mmap(None, n, READ_WRITE, SHARED if fd >= 0 else PRIVATE | ANONYMOUS, fd, 0)
    if p == ctypes.c_void_p(-1).value:
        raise MemoryError("%d MiB" % (n // MIB))
    if touch:
        ctypes.memset(p, 1, n)
    return p


def unmap(p, n):
    libc.munmap(ctypes.c_void_p(p), ctypes.c_size_t(n))


def result(ok, value, expected="", **more):
    """The last line that a step prints."""
    print(json.dumps(dict(more, ok=ok, value=value, expected=expected)))
