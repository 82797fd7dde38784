#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 120
#
# Proves that calls of the CUDA runtime go where they would have gone, however programs came to their runtimes: plugins,
# two runtimes, static ones, preloads, none at all. How: runtimes that say whose they are (tests/lib/cudart_fake.c), the
# simulated one, and NVIDIA's own where it is installed, natively and under the shim. Cannot see a caller that jumps to
# the runtime instead of calling it, where there are two of them.

import contextlib
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from cudas import *  # noqa: E402,F403

NVIDIA = "/usr/local/cuda/lib64"
PY = """
import ctypes, os
def load(path, mode=ctypes.RTLD_LOCAL):
    return ctypes.CDLL(path, mode)
def say(*what):
    print(*[w - 0x10000 if isinstance(w, int) else w for w in what])
"""


def runtime(n):
    """A runtime of major version n, under its version, that says n."""
    path = os.path.join(OWN, "map%d" % n)
    os.makedirs(OWN, exist_ok=True)
    with open(path, "w") as f:
        f.write("libcudart.so.%d { global: cudaMemcpyAsync; local: *; };\n" % n)
    name = "libcudart.so.%d" % n
    return compile_own(name, "lib/cudart_fake.c", "-shared", "-fPIC", "-DRUNTIME=%d" % (n * 100),
                       "-Wl,--version-script=" + path, "-Wl,-soname," + name)


def caller(n):
    return fake("caller-%d" % n, "-DCALLER", runtime(n), "-Wl,-rpath," + OWN)


def same(text, preload=None, env=None, box=None):
    """A Python program prints the same natively and under the shim. Returns both results."""
    box = box or Box("loader")
    argv = [PYTHON, "-c", PY + text]
    before = {"LD_PRELOAD": preload} if preload else {}
    n = box.native(argv, env=dict(env or {}, **before))
    with_shim = {"LD_PRELOAD": LIB + ":" + preload} if preload else {}
    r = box.run(argv, env=dict(env or {}, **with_shim))
    assert n.rc == 0 and n.out and n.out == r.out, "%r, natively %r" % (r, n)
    assert not [m for m in r.messages() if not COPIES.search(m)], r.err
    return n, r


def versioned():
    assert "cudaMemcpyAsync@libcudart.so.13" in sh("nm", "-D", victim("cuda_copy"))
    r = Box("versioned").run([victim("cuda_copy"), "errors"], env=sim_env())
    assert copies(r)[0] > 8, r


def local_plugin():
    """The runtime came with a plugin that nobody else sees; its first call is a large one, or a small one."""
    plugin = compile_own("plugin.so", "victims/cuda_copy.c", "-shared", "-fPIC", "-Dmain=plugin", "-isystem", headers(),
                         RUNTIME, "-pthread")
    for case in ("errors", "small"):
        text = "a = (ctypes.c_char_p * 2)(b'plugin', %r)\nprint(load(%r).plugin(2, a))\n" % (case.encode(), plugin)
        n, r = same(text, env=sim_env())
        assert (copies(r)[0] > 8) == (case == "errors"), r


def two_runtimes():
    """Each caller reaches its own, as it does natively, in any order of loading."""
    for mode in ("RTLD_LOCAL", "RTLD_GLOBAL"):
        for order in ((12, 13), (13, 12)):
            libs = [caller(v) for v in order]
            text = "ls = [load(p, ctypes.%s) for p in %r]\n" % (mode, libs)
            n, r = same(text + "for i in range(3): say(*[l.caller_copy(i) for l in ls])\n")
            assert n.out.split()[:2] == [str(v * 100) for v in order], n


def in_handlers():
    """The first call of a process in a signal handler, and in threads that block signals."""
    same("l = load(%r)\nsay(l.caller_handler())\nm = load(%r)\nsay(m.caller_handler())\n"
         "say(l.caller_copy(1), m.caller_copy(1))" % (caller(12), caller(13)))
    same("import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])\nl = load(%r)\nsay(l.caller_copy(2))"
         % caller(12))
    same("l = load(%r)\nm = load(%r)\nl.caller_copy(1)\npid = os.fork()\npid and os.waitpid(pid, 0)\n"
         "print(pid == 0, l.caller_copy(2), flush=True)" % (caller(12), caller(13)))


def deep_bind():
    """Out of reach, and as ever."""
    same("l = load(%r, ctypes.RTLD_LOCAL | os.RTLD_DEEPBIND)\nsay(l.caller_copy(1))\n" % caller(12))


def unloaded():
    """A caller that is unloaded goes, and what is loaded in its place reaches its own runtime."""
    text = """
import _ctypes
libs = %r
for i in range(40):
    l = load(libs[i %% 2])
    say(l.caller_copy(i))
    _ctypes.dlclose(l._handle)
    maps = open('/proc/self/maps').read()
    print([os.path.basename(p) in maps for p in libs])
""" % [caller(12), caller(13)]
    n, _ = same(text)
    assert "True" not in n.out, n


def inside():
    """A runtime within the library that calls it (nvcc's default), whose names it exports; one that hides them."""
    for name, flags in (("open", []), ("hidden", ["-fvisibility=hidden", "-Wl,-Bsymbolic"])):
        lib = fake("inside-" + name, "-DCALLER", "-DRUNTIME=700", *flags[1:])
        same("import _ctypes\nfor i in range(3):\n    l = load(%r)\n    say(l.caller_copy(i))\n"
             "    _ctypes.dlclose(l._handle)\nprint('inside' in open('/proc/self/maps').read())" % lib)


def tracer():
    """Another preload that wants these calls, behind us or before us."""
    t = fake("tracer", "-DTRACER")
    n, _ = same("l = load(%r, ctypes.RTLD_GLOBAL)\nsay(l.caller_copy(1))" % caller(12), preload=t)
    assert n.out == "2201\n", n


def not_needed():
    """Reached by the process's own names only: the one that is loaded."""
    same("l = load(%r, ctypes.RTLD_GLOBAL)\nf = ctypes.CDLL(None).cudaMemcpyAsync\n"
         "print(f(None, None, ctypes.c_size_t(5), 2, None))" % runtime(12))


def program(name, *flags):
    return compile_own(name, "lib/cudart_fake.c", "-DPROGRAM", "-Wl,--no-as-needed", *flags)


def none():
    """No runtime at all: natively there is no such function (a weak reference); here there is, and it says so."""
    box = Box("none")
    n, r = box.native([program("alone")]), box.run([program("alone")])
    assert (n.out, r.out) == ("none\n", "302\n"), (n, r)
    needs = program("needs", runtime(12), "-Wl,-rpath," + OWN)
    n, r = box.native([needs]), box.run([needs])
    assert n.out == r.out == "1204\n", (n, r)


def by_the_driver():
    """A program that has a device and no runtime that we reach is told."""
    box = Box("driver")
    lib = SIMCUDA[0]
    r = box.run([PYTHON, "-c", "import ctypes; ctypes.CDLL(%r)" % lib])
    assert "device copies: no dynamic CUDA runtime in this process" in r.err, r
    assert "device copies" not in box.run([PYTHON, "-c", "pass"]).err


def real_runtime():
    """NVIDIA's own, without a device: the same errors, shared and static."""
    if os.path.exists("/dev/nvidiactl") or not os.path.exists(NVIDIA + "/libcudart.so.13"):
        raise Skip("needs NVIDIA's runtime, and no GPU")
    box = Box("real")
    for kind, flags in (("shared", [NVIDIA + "/libcudart.so.13"]),
                        ("static", [NVIDIA + "/libcudart_static.a", "-ldl", "-lrt"])):
        argv = [compile_own("copy-" + kind, "victims/cuda_copy.c", "-isystem", headers(), *flags, "-pthread"), "save"]
        out = [f(argv, env={"LD_LIBRARY_PATH": NVIDIA}) for f in (box.native, box.run)]
        assert out[0].out == out[1].out and out[0].rc == out[1].rc and "error 35" in out[0].out, (kind, out)


def gpu_check(*steps, size="64", timeout=60, **env):
    """scripts/gpu-check with a build directory of its own. (status, output, results)"""
    build = os.path.join(TMP, "gpu")
    os.makedirs(build, exist_ok=True)
    for name in ("fastckpt", "victims"):
        with contextlib.suppress(FileExistsError):
            os.symlink(os.path.join(BUILD, name), os.path.join(build, name))
    full = {k: v for k, v in os.environ.items() if not k.startswith("FASTCKPT_") and k != "LD_PRELOAD"}
    full.update(env, GPU_SIZE=size, PYTHON=PYTHON)
    r = subprocess.run([os.path.join(ROOT, "scripts", "gpu-check"), build] + list(steps), env=full, text=True,
                       capture_output=True, timeout=timeout)
    path = os.path.join(build, "gpu.json")
    results = json.load(open(path))["steps"] if os.path.exists(path) else []
    return r.returncode, r.stdout + r.stderr, results


def gpu_check_without():
    """One clear line where there is no device, and where there is no runtime."""
    for env in [{"CUDART": "/nowhere/libcudart.so"}, simcuda(False, DEVICES=0)]:
        rc, out, _ = gpu_check(**env)
        assert rc == 0 and out.startswith("gpu-check: nothing to check here: ") and out.count("\n") == 1, (rc, out)


def gpu_check_runs():
    """The steps that need no PyTorch, on the simulated runtime: what they find there is as expected."""
    rc, out, results = gpu_check("1", "2", "7", **simcuda(False, SCALE=0))
    assert rc == 0 and [r["ok"] for r in results] == [True, True, None] and out.count("\n") == 3, out


CASES = [(f.__name__, f) for f in (versioned, local_plugin, two_runtimes, in_handlers, deep_bind, unloaded, inside,
                                   tracer, not_needed, none, by_the_driver, real_runtime, gpu_check_without,
                                   gpu_check_runs)]

if __name__ == "__main__":
    run_cuda_cases(CASES)
