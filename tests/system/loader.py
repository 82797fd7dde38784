#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
# timeout: 240
#
# Proves that ways of loading, beginning, splitting and ending a process change nothing about its saves: plugins,
# constructors, other allocators and preloads on either side, vfork, clone, raw forks, exec, daemons, signals, ends of
# all kinds. How: victims and small programs run natively and under the shim, the backends taking turns; same lines,
# status and files are asked, and no word from the shim. Cannot see whether they were fast, or what others saw;
# Go where it is installed.

import os
import sys
import sysconfig
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

LIBS = "/usr/lib/" + sysconfig.get_config_var("MULTIARCH")
OWN = os.path.join(TMP, "own")  # programs built here
PLAIN = ["-std=gnu11", "-g", "-D_GNU_SOURCE"]
boxes = {}
turn = 0


def next_box():
    global turn
    turn += 1
    io = ("uring", "threads")[turn % 2]
    if io not in boxes:
        boxes[io] = Box("box-" + io, io=io, STAGING="128M")
    return boxes[io]


def gcc(name, *flags, source="victims/proc.c"):
    """A victim with flags of its own."""
    os.makedirs(OWN, exist_ok=True)
    out = os.path.join(OWN, name)
    if not os.path.exists(out):
        sh("gcc", *PLAIN, *flags, os.path.join(ROOT, "tests", source), "-o", out, "-pthread")
    return out


def plugin():
    return gcc("plugin.so", "-O2", "-shared", "-fPIC", source="lib/plugin.c")


def same(argv, env=None, preload=None, used=True, timeout=60, may_say=None):
    """Runs it twice and compares. preload: LD_PRELOAD natively; with the shim, {} in it stands for the shim. used: the
    shim must report that it had files."""
    box = next_box()
    native = tempfile.mkdtemp(prefix="w-", dir=box.native_d)
    shim = os.path.join(box.d, os.path.basename(native))
    os.mkdir(shim, 0o700)
    env = dict(env or {})
    with_shim = dict(env)
    if preload:
        env["LD_PRELOAD"] = ":".join(p for p in preload.split(":") if p != "{}")
        with_shim["LD_PRELOAD"] = preload.replace("{}", LIB)
    n = box.native(argv, cwd=native, env=env, timeout=timeout)
    r = box.run(argv, cwd=shim, env=with_shim, timeout=timeout)
    assert n.rc == r.rc, "status %s, natively %s: %r" % (r.rc, n.rc, r)
    assert n.out.replace(native, "@") == r.out.replace(shim, "@"), "%r, natively %r" % (r, n)
    assert box.wait().rc == 0, "fastckpt wait"
    compare_trees(native, shim)
    assert not [m for m in r.messages() if not (may_say and may_say in m)], r.err
    left = "\n".join(l for l in r.err.splitlines() if "fastckpt: " not in l)
    assert n.err.strip() == left.strip(), "stderr %r, natively %r" % (left, n.err)
    assert not box.leftovers(shim), box.leftovers(shim)
    assert not used or sum(r.classes()) > 0, "the shim had no file: %r" % r


def proc(*args, **kw):
    return same([victim("proc")] + list(args), **kw)


# ---------------------------------------------------------------------------------------------------- processes

def copying(mode):
    """While threads copy a large write."""
    used = not mode.startswith("_exit")
    return lambda: same([victim("proc_copy"), mode], env={"FASTCKPT_COPY_THREADS": "4"}, used=used)


def fds(kind):
    def low():
        return same(["bash", "-c", "ulimit -n 1024; exec \"$@\"", "sh", victim("proc_fds"), kind])
    return low


def vfork(level):
    return lambda: same([gcc("proc" + level, level), "vfork"])


def ends(how):
    return lambda: proc("ends", how, used=how in ("exit", "thread"))


def closed_std():
    """Descriptors 0, 1 and 2 closed: ours must not take their places."""
    same(["bash", "-c", "exec \"$@\" <&- >&- 2>&-", "sh", victim("proc"), "ends", "_exit"], used=False)
    same(["bash", "-c", "exec \"$@\" <&-", "sh", victim("proc"), "plain"])


def shells():
    for shell in ("dash", "bash"):
        same([shell, "-c", "ulimit -n 300; exec 3>m.bin; head -c 3000000 /dev/zero >&3; echo x >&3; exec 3>&-; "
              "{ cat m.bin; echo y; } > n.bin; cat m.bin | wc -c; exec 250>o.bin; head -c 5M n.bin >&250; echo $?; "
              "(echo sub > s.txt); ls -l m.bin n.bin o.bin | cut -d' ' -f5; env -i PATH=$PATH wc -c m.bin n.bin"])


PY = {
    "subprocess_while_saving": """
import subprocess, threading, hashlib
def calls():
    for i in range(60):
        subprocess.run(['true'], check=True, close_fds=i % 2 == 0)
t = threading.Thread(target=calls)
t.start()
k = 0
while t.is_alive() or k < 3:
    with open('m.bin', 'wb') as f:
        for i in range(8):
            f.write(bytes([i + 1]) * (1 << 20))
    k += 1
t.join()
print(hashlib.md5(open('m.bin', 'rb').read()).hexdigest())
""",
    "pools": """
import multiprocessing as mp, sys
def save(a):
    kind, i = a
    with open('%s.%d' % (kind, i), 'wb') as f:
        for k in range(4):
            f.write(bytes([i + k + 1]) * (1 << 20))
    return i
if __name__ == '__main__':
    for kind in ('fork', 'spawn', 'forkserver'):
        with mp.get_context(kind).Pool(3) as p:
            print(kind, p.map(save, [(kind, i) for i in range(5)]))
            if kind == 'spawn':
                p.close(), p.join() # else they are ended by SIGTERM, and report nothing
""",
    "child_then_read": """
import os
pid = os.fork()
if pid == 0:
    with open('c.bin', 'wb') as f:
        f.write(b'x' * 5000000)
    os._exit(0)
os.waitpid(pid, 0)
print(os.path.getsize('c.bin'), len(open('c.bin', 'rb').read()))
""",
}


def python(name):
    def run():
        path = os.path.join(OWN, name + ".py")
        os.makedirs(OWN, exist_ok=True)
        with open(path, "w") as f:
            f.write(PY[name])
        # a pool ends its workers by SIGTERM, some of them while they wait for their files
        same([PYTHON, path], may_say="still being written" if name == "pools" else None)
    return run


def node():
    same(["node", "-e", """
const cp = require('child_process'), fs = require('fs');
let left = 30, out = [];
for (let i = 0; i < 30; i++) {
  const c = cp.spawn('cat', [], {stdio: ['pipe', 'pipe', 'pipe']});
  let text = '';
  c.stdout.on('data', d => text += d);
  c.on('close', code => { out[i] = text.length + ' ' + code; if (--left == 0) { console.log(out.join());
    fs.writeFileSync('m.bin', Buffer.alloc(6000000, 'n')); console.log(fs.statSync('m.bin').size);
    fs.rename('m.bin', 'n.bin', () => fs.readFile('n.bin', (e, d) => console.log(d.length))); } });
  c.stdin.end('x'.repeat(1000 * i));
}"""])


# ---------------------------------------------------------------------------------------------------- loading

def plugged(how):
    return lambda: proc("plugin", how + ":" + plugin())


def caller():
    """A library that loads another along its own RUNPATH: the loader looks at who has called dlopen."""
    inner = os.path.join(OWN, "run", "sub")
    os.makedirs(inner, exist_ok=True)
    for name, code in (("sub/libinner-x.so", "int inner(void) { return 7; }"), ("libcaller.so", """
        #include <dlfcn.h>
        static const char name[] = "libinner-x.so";
        int load(void) { return dlopen(name, RTLD_NOW) != 0 && dlmopen(LM_ID_NEWLM, name, RTLD_NOW) != 0; }""")):
        sh("gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-Wl,-rpath,$ORIGIN/sub", "-x", "c", "-", "-o",
           os.path.join(OWN, "run", name), input=code)
    code = "import ctypes\nopen('s.bin', 'wb').write(b'x')\nassert ctypes.CDLL('%s/run/libcaller.so').load() == 1"
    same([PYTHON, "-c", code % OWN])


def constructors():
    """A library that saves when it is loaded and unloaded, preloaded on either side, so before and behind ours."""
    env = {"PLUGIN_BEGIN": "begin.bin", "PLUGIN_END": "end.bin"}
    for preload in ("{}:" + plugin(), plugin() + ":{}"):
        same([victim("proc"), "plain"], env=env, preload=preload)
        same(["/bin/true"], env=env, preload=preload, used=False)


def allocator(lib):
    def run():
        path = os.path.join(LIBS, lib)
        if not os.path.exists(path):
            raise Skip("needs " + lib)
        for preload in ("{}:" + path, path + ":{}"):
            for argv in (["/bin/true"], [victim("proc"), "fork8", "5"], [victim("proc"), "plain"],
                         [PYTHON, "-c", "open('p.bin','wb').write(b'p'*9000000); print(1)"],
                         [victim("ofstream"), "o.bin", "8"]):
                same(argv, preload=preload, used=len(argv) > 1)
    return run


def asan():
    program = gcc("proc-asan", "-O1", "-fsanitize=address,undefined")
    env = {"ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"}
    for mode in (["plain"], ["spawn"], ["fork8", "5"], ["badexec"], ["handler"]):
        same([program] + mode, env=env)


def static():
    """Carries no shim; what the program before it closed must be there."""
    program = gcc("proc-static", "-O2", "-static")
    same([program, "plain"], used=False)
    same(["sh", "-c", "head -c 20M /dev/zero > a.bin; cp a.bin b.bin; exec \"$@\"", "sh", program, "plain"])


def go():
    os.makedirs(OWN, exist_ok=True)
    with open(os.path.join(OWN, "m.go"), "w") as f:
        f.write('package main\nimport "os"\nfunc main() { os.WriteFile("g.bin", make([]byte, 6000000), 0600) }\n')
    sh("go", "build", "-o", os.path.join(OWN, "go-save"), os.path.join(OWN, "m.go"))
    same([os.path.join(OWN, "go-save")], used=False)


def setuid():
    copy = os.path.join(OWN, "proc-setuid")
    os.makedirs(OWN, exist_ok=True)
    shutil.copy(victim("proc"), copy)
    os.chmod(copy, 0o4755)
    own = Box("setuid", uid=USER)
    for d in (own.d, own.native_d):
        os.chmod(d, 0o777)
    n, r = own.native([copy, "plain"]), own.run([copy, "plain"])
    assert (n.rc, n.out, n.err) == (r.rc, r.out, r.err) and r.rc == 0, "%r, natively %r" % (r, n)
    compare_trees(own.native_d, own.d)
    assert os.stat(os.path.join(own.d, "m.bin")).st_uid == 0


# ---------------------------------------------------------------------------------------------------- other preloads

FAKED = ("head -c 5M /dev/zero > m.bin; chown 7:8 m.bin; stat -c '%u %g %s' m.bin; cp -p m.bin n.bin; "
         "stat -c '%u %g %s' n.bin; mv n.bin o.bin; chmod 4755 o.bin; stat -c '%u %a' o.bin; tar cf t.tar m.bin; "
         "tar tvf t.tar | cut -d' ' -f2; id -u; ln m.bin l.bin; rm m.bin t.tar; stat -c '%h %u' l.bin")


def fakeroot(first):
    """fakeroot puts itself in front of LD_PRELOAD; inside it the shim is put before or behind it."""
    def run():
        need("fakeroot")
        inner = LIB + ":$LD_PRELOAD" if first else "$LD_PRELOAD:" + LIB
        argv = ["fakeroot", "sh", "-c", FAKED]
        own = Box("fakeroot%d" % first)
        n = own.native(argv)
        r = own.run(["fakeroot", "sh", "-c", 'LD_PRELOAD="%s" exec sh -c "$0"' % inner, FAKED],
                    env={"LD_PRELOAD": ""})
        assert (n.rc, n.out) == (r.rc, r.out) and r.rc == 0, "%r, natively %r" % (r, n)
        assert not r.messages() and sum(r.classes()) > 0, r.err
        own.wait()
        compare_trees(own.native_d, own.d)
    return run


def stdbuf():
    same(["stdbuf", "-o0", "-i0", victim("proc"), "spawn"])
    same(["stdbuf", "-oL", "sh", "-c", "seq 200000 > s.txt; tail -n1 s.txt; seq 3"])


def eatmydata():
    need("eatmydata")
    same(["eatmydata", victim("proc"), "plain"])
    same(["eatmydata", "dd", "if=/dev/zero", "of=d.bin", "bs=1M", "count=5", "conv=fsync", "status=none"])
    lib = os.path.join(LIBS, "libeatmydata.so")
    for preload in ("{}:" + lib, lib + ":{}"):
        same([victim("proc"), "execopen"], preload=preload)


def twice():
    """Two copies of the shim over each other."""
    copy = os.path.join(OWN, "libfastckpt.so")
    os.makedirs(OWN, exist_ok=True)
    shutil.copy(LIB, copy)
    for mode in (["plain"], ["spawn"], ["fork8", "5"]):
        same([victim("proc")] + mode, env={"FASTCKPT_ENGINE": BIN}, preload="{}:" + copy)


COPYING = ["large", "fork", "signals", "cancel", "ids", "vfork", "exit", "_exit", "exit-over", "_exit-over", "exec",
           "last", "unmap"]
MODES = ["plain", "spawn", "clone", "rawfork", "badexec", "execopen", "daemonise", "handler", "exit-thread"]
run_cases([(m, lambda m=m: proc(m)) for m in MODES] +
          [("copying-" + m, copying(m)) for m in COPYING] +
          [("fork8", lambda: proc("fork8", "20"))] + [("vfork" + level, vfork(level)) for level in ("-O0", "-O3")] +
          [("fds-" + k, fds(k)) for k in ("loop", "range", "from", "raw", "dup", "numbers")] +
          [("ends-" + k, ends(k)) for k in
           ("abort", "term", "segv", "quick", "_Exit", "_exit", "group", "thread", "exit")] +
          [("closed-std", closed_std), ("shells", shells)] + [(n, python(n)) for n in sorted(PY)] +
          [("dlopen", plugged("o")), ("deepbind", plugged("b")), ("dlmopen", plugged("m")),
           ("caller", caller),
           ("constructors", constructors), ("jemalloc", allocator("libjemalloc.so.2")),
           ("tcmalloc", allocator("libtcmalloc_minimal.so.4")), ("asan", asan), ("static", static),
           ("fakeroot-first", fakeroot(True)), ("fakeroot-behind", fakeroot(False)),
           ("stdbuf", stdbuf), ("eatmydata", eatmydata), ("twice", twice)] +
          [("go", go)] * bool(shutil.which("go")) + [("node", node)] * bool(shutil.which("node")) +
          [("setuid", setuid)] * IS_ROOT)
