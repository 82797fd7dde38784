#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
# timeout: 120
#
# Proves that `fastckpt doctor` says what is wrong where something is, with a remedy, and ends with 1 then; that it and
# `fastckpt bench` leave nothing behind, never crash, and that bench measures what a throttled disk does. How: good and
# bad directories, limits, namespaces and filters. Cannot see what a GPU's driver does, or disks that are not loops.
# And that no command passes over an argument that it does not take, or a directory that it cannot look into.

import json
import os
import resource
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403
from cudas import memory_can_be_guarded  # noqa: E402
from disks import Cgroup, LoopFS, mount  # noqa: E402

box = Box("box", uid=None, RUNTIME_DIR=os.path.join(TMP, "box", "rt"))


def command(*args, preexec=None, wrap=(), **env):
    """Runs the command with settings of its own: none but the runtime directory."""
    e = {"FASTCKPT_RUNTIME_DIR": box.rt}
    e.update(env)
    return box.run([*wrap, BIN, *args], cwd="/", shim=False, env=e, preexec=preexec, timeout=60)


def doctor(*args, **kw):
    """(exit status, {(directory or None, what): finding}); the last of several for one thing."""
    r = command("doctor", "--json", *args, **kw)
    assert r.rc in (0, 1) and not r.err, r
    found = json.loads(r.out)["findings"]
    for f in found:
        assert f["remedy"] or f["found"] in ("ok", "unknown", "note"), "no remedy: %r" % f
    bad = [f for f in found if f["found"] in ("warn", "bad")]
    assert r.rc == bool(bad), "exit status %d, %r" % (r.rc, bad)
    return r.rc, {(f["directory"], f["what"]): f for f in found}


def expect(findings, where, what, level, word=""):
    f = findings.get((where, what))
    assert f, "nothing about %s of %s in %s" % (what, where, sorted(map(str, findings)))
    assert f["found"] == level and word in f["value"], f


def empty(d):
    assert os.listdir(d) == [], "left behind: %s" % os.listdir(d)


def here():
    d = os.path.join(TMP, "here")
    os.makedirs(d)
    _, f = doctor(d, FASTCKPT_PATHS=d + "/*")
    for what in ("kernel", "/proc", "library", "io_uring", "runtime directory", "engine", "glibc", "paths"):
        expect(f, None, what, "ok")
    expect(f, None, "engine", "ok", "none runs yet")
    for what in ("file system", "O_TMPFILE", "fallocate", "space"):
        expect(f, d, what, "ok")
    empty(d)
    text = command("doctor", d)
    assert "O_TMPFILE" in text.out and "{" not in text.out, text
    _, f = doctor(FASTCKPT_PATHS=d + "/a*:!*.log:/none/x*")
    expect(f, d, "file system", "ok")
    expect(f, "/none", "directory", "bad", "No such file")


def running():
    box.run(["sh", "-c", "head -c 3000000 /dev/zero > out.pt"])
    _, f = doctor()
    expect(f, None, "engine", "ok", "runs: ")


def nobody_watched():
    empty_rt = os.path.join(TMP, "nobody")
    os.makedirs(empty_rt, mode=0o700)
    p = box.start([BIN, "status", "--watch", "--json"], cwd="/", shim=False, env={"FASTCKPT_RUNTIME_DIR": empty_rt})
    for _ in range(2):
        line = json.loads(p.stdout.readline())
        assert line["engine_pid"] == 0 and line["pending_files"] == 0 and line["bytes_per_second"] is None, line
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=60)
    assert p.returncode == 0, p.returncode


def watched():
    """A line a second or more, whose rates are those of what it says has been written since the line before."""
    began = time.monotonic()
    p = box.start([BIN, "status", "--watch", "--json"], cwd="/", shim=False, env={"FASTCKPT_RUNTIME_DIR": box.rt})
    said = [json.loads(p.stdout.readline())]
    assert said[0]["bytes_per_second"] is None and said[0]["engine_pid"] > 0, said
    box.run(["dd", "if=/dev/zero", "of=big.pt", "bs=4M", "count=10"])
    box.wait()
    written = [sum(d["written_bytes"] for d in said[0]["devices"])]
    while written[-1] < written[0] + 40e6 or written[-1] > written[-2]:
        assert time.monotonic() - began < 60, said
        said.append(json.loads(p.stdout.readline()))
        written.append(sum(d["written_bytes"] for d in said[-1]["devices"]))
        new, rate = written[-1] - written[-2], said[-1]["bytes_per_second"]
        assert new / (time.monotonic() - began) <= rate + 1 and rate <= new / 0.9, (new, rate, said)
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=60)
    assert p.returncode == 0, p.returncode
    assert 40e6 < written[-1] - written[0] < 42e6, said  # but for the first MiB


def two_on_one_disk():
    a, b = os.path.join(TMP, "a"), os.path.join(TMP, "b")
    os.makedirs(a), os.makedirs(b)
    rc, f = doctor(a, b)
    if f[(a, "disk")]["found"] != "ok":
        raise Skip("the disk of %s is not known" % TMP)
    assert rc == 1
    expect(f, b, "disk", "warn", a)


def bad_directories():
    missing, file = os.path.join(TMP, "missing"), os.path.join(TMP, "file")
    open(file, "w").close()
    odd = os.path.join(TMP, "od\"d\n\\\udcffé")
    os.makedirs(odd)
    rc, f = doctor(missing, file, "/dev/shm", "/proc", odd)
    assert rc == 1
    expect(f, missing, "directory", "bad", "No such file")
    expect(f, file, "directory", "bad", "Not a directory")
    expect(f, "/dev/shm", "file system", "bad", "tmpfs")
    expect(f, "/proc", "file system", "bad", "proc")
    expect(f, os.path.join(TMP, "od\"d\n\\\u00ffé"), "file system", "ok")
    assert len(command("doctor", odd).out.splitlines()) > 8, "a name broke the lines"


def not_writable():
    d = os.path.join(TMP, "closed")
    os.makedirs(d)
    os.chmod(d, 0o555)
    drop = (lambda: os.setresuid(USER, USER, USER)) if IS_ROOT else None
    rt = os.path.join(TMP, "user-rt")
    os.makedirs(rt, 0o700)
    if IS_ROOT:
        os.chown(rt, USER, USER)
    rc, f = doctor(d, preexec=drop, FASTCKPT_RUNTIME_DIR=rt)
    assert rc == 1
    expect(f, d, "directory", "bad", "Permission denied")
    os.chmod(rt, 0o755)
    rc, f = doctor(preexec=drop, FASTCKPT_RUNTIME_DIR=rt)
    assert rc == 1
    expect(f, None, "runtime directory", "bad", "0700")


def filtered():
    wrap = victim("seccomp_wrap")
    rc, f = doctor(wrap=(wrap, "EPERM"))
    assert rc == 1
    expect(f, None, "io_uring", "warn", "not permitted")
    assert "seccomp" in f[(None, "io_uring")]["remedy"], f
    d = os.path.join(TMP, "hidden")
    os.makedirs(d)
    _, f = doctor(d, wrap=(wrap, "O_TMPFILE"))
    expect(f, d, "O_TMPFILE", "note", "hidden name")
    empty(d)
    r = command("bench", "--size", "32M", "--json", d, wrap=(wrap, "O_TMPFILE"))
    assert r.rc == 0 and json.loads(r.out)["directories"][0]["alone"] > 0, r
    empty(d)


def limits():
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
    rc, f = doctor(preexec=few)
    assert rc == 1
    expect(f, None, "open files", "warn", "256")
    expect(f, None, "locked memory", "ok", "0 bytes")
    rc, f = doctor(preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
    expect(f, None, "open files", "bad", "64")
    rc, f = doctor(preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4)))
    assert rc == 1  # nothing can be opened: whatever it says, it says it


def settings():
    rc, f = doctor(FASTCKPT_STAGING="lots")
    assert rc == 1
    expect(f, None, "settings", "bad", "FASTCKPT_STAGING")
    rc, f = doctor(FASTCKPT_STAGING="900T")
    expect(f, None, "staging", "warn" if rc else "ok")
    _, f = doctor("--io", "threads", "--direct=off", TMP)
    expect(f, None, "io_uring", "note", "threads")
    expect(f, TMP, "O_DIRECT", "note", "off")
    for args in (["doctor", "--nonsense", "1"], ["bench"], ["bench", "--size", "1K", "/tmp"], ["doctor", "--io"]):
        assert command(*args).rc == 2, args
    assert "doctor" in command("--help").out


def cuda():
    """Files that have what tells a runtime, and programs that have not."""
    d = os.path.join(TMP, "cuda")
    os.makedirs(d + "/bin"), os.makedirs(d + "/lib/python3.9/site-packages/torch/lib")
    source, lib = os.path.join(d, "main.c"), os.path.join(d, "libcudart.so.12")
    with open(source, "w") as s:
        s.write('const char *volatile name = TEXT; int main(void) { return !name[0]; }\n')
    sh("gcc", "-shared", "-fPIC", "-DTEXT=\"\"", "-Wl,-soname,libcudart.so.12", "-o", lib, source)
    sh("gcc", "-DTEXT=\"\"", "-o", d + "/plain", source)
    sh("gcc", "-DTEXT=\"cudaErrorCudartUnloading\"", "-s", "-o", d + "/static", source)
    sh("gcc", "-DTEXT=\"\"", "-Wl,--no-as-needed", "-o", d + "/dynamic", source, lib)
    shutil.copy(d + "/plain", d + "/bin/python3")
    with open(d + "/script", "w") as s:
        s.write("#!%s/dynamic\n" % d)
    os.chmod(d + "/script", 0o755)
    for name, level, word in (("plain", "ok", "none"), ("static", "note", "static"), ("script", "ok", "cudart.so.12"),
                              ("dynamic", "ok", "cudart.so.12"), ("bin/python3", "unknown", "no PyTorch")):
        _, f = doctor("--", os.path.join(d, name), "argument")
        expect(f, None, "CUDA runtime", level, word)
    _, f = doctor("--cuda", "off", "--", d + "/dynamic")
    expect(f, None, "CUDA runtime", "note", "FASTCKPT_CUDA=off")
    for option, value, level, word in (("staging", "128M", "ok", "up to 64.0 MiB straight"),
                                       ("staging", "127M", "warn", "less than 64 MiB"),
                                       ("cuda", "bounce", "note", "bounce")):
        _, f = doctor("--" + option, value, "--", d + "/dynamic")
        expect(f, None, "device copies", level, word)
    _, f = doctor("--cuda", "defer", "--", d + "/dynamic")
    guarded = memory_can_be_guarded()
    expect(f, None, "deferred copies", "ok" if guarded else "warn", "1.0 GiB" if guarded else "no userfaultfd")
    torch = d + "/lib/python3.9/site-packages/torch/lib/"
    shutil.copy(d + "/plain", torch + "libc10.so")
    _, f = doctor("--", d + "/bin/python3", "train.py")
    expect(f, None, "CUDA runtime", "ok", "without CUDA")
    shutil.copy(d + "/dynamic", torch + "libc10_cuda.so")
    _, f = doctor("--", d + "/bin/python3", "train.py")
    expect(f, None, "CUDA runtime", "ok", "libcudart.so.12")
    rc, f = doctor("--", "no-such-program")
    assert rc == 1
    expect(f, None, "command", "bad", "no such program")
    with open(d + "/dynamic", "rb") as s:
        whole = s.read()
    for i in range(60):  # cut off and damaged files: an answer, whichever, and no crash
        broken = bytearray(whole[:len(whole) * (i + 1) // 60] if i % 2 else whole)
        for k in range(20, min(len(broken), 1200), 1 + i % 7):
            broken[k] ^= (i * 37 + k) & 0xff if i % 3 else 0
        with open(d + "/broken", "wb") as s:
            s.write(broken)
        os.chmod(d + "/broken", 0o755)
        doctor("--", d + "/broken")


def no_proc():
    """Without /proc and /sys, in a root of its own."""
    if "libasan" in sh("ldd", BIN):
        raise Skip("a sanitizer wants /proc")
    root = os.path.join(TMP, "root")
    for n in ("bin", "tmp", "dev", "proc", "ck"):
        os.makedirs(os.path.join(root, n))
    for n in (BIN, LIB):
        shutil.copy(n, root + "/bin/")
    for lib in re.findall(r"/\S+", sh("ldd", BIN)):
        os.makedirs(root + os.path.dirname(lib), exist_ok=True)
        shutil.copy(lib, root + lib)
    argv = ["/usr/sbin/chroot", root, "/bin/fastckpt", "doctor", "--json", "/ck"]
    r = subprocess.run(argv, capture_output=True, text=True, env={"FASTCKPT_RUNTIME_DIR": "/tmp/rt"}, timeout=30)
    assert r.returncode == 1 and not r.stderr, r
    f = {(x["directory"], x["what"]): x for x in json.loads(r.stdout)["findings"]}
    expect(f, None, "/proc", "bad")
    expect(f, None, "staging", "bad")
    expect(f, "/ck", "disk", "unknown")
    expect(f, None, "library", "unknown")
    assert os.listdir(root + "/ck") == [], os.listdir(root + "/ck")


def short_of_memory():
    group = Cgroup("doctor", 300 * MIB)
    rc, f = doctor(preexec=group.enter)
    assert rc == 1
    expect(f, None, "staging", "warn")
    assert group.oom_kills() == 0


def file_systems():
    plain = LoopFS("plain", 64, mkfs=("-O", "^has_journal"), base=box.top)
    whole = LoopFS("whole", 64, base=box.top)
    rc, f = doctor(plain.at, whole.at)
    assert rc == 1
    expect(f, plain.at, "order of names", "warn")
    expect(f, whole.at, "order of names", "ok")
    expect(f, whole.at, "O_DIRECT", "ok", "aligned to")
    expect(f, whole.at, "disk", "ok", os.path.basename(whole.loop))
    with open(whole.at + "/fill", "wb") as out:
        try:
            while True:
                os.write(out.fileno(), bytes(MIB))
        except OSError:
            pass
    os.chmod(whole.at + "/fill", 0)
    _, f = doctor(whole.at)
    assert f[(whole.at, "space")]["found"] in ("bad", "note"), f
    sh("mount", "-o", "remount,ro", whole.at)
    rc, f = doctor(whole.at)
    assert rc == 1
    expect(f, whole.at, "directory", "bad", "Read-only")
    over = mount("-t", "tmpfs", "none", at=os.path.join(TMP, "over"))
    expect(doctor(over)[1], over, "file system", "bad", "tmpfs")


def bench_rate():
    """A disk of 100 MB/s says so within 20 %; another directory on it is not worth a stripe."""
    disk = LoopFS("bench", 160, base="/dev/shm/fastckpt-%d" % os.getpid())
    again = os.path.join(disk.at, "again")
    os.makedirs(again)
    disk.throttle(100 * 10 ** 6)
    for _ in range(3):  # on a busy machine it may take the cores' time for the disk's
        r = command("bench", "--size", "72M", "--json", disk.at)
        assert r.rc == 0, r
        d = json.loads(r.out)["directories"][0]
        mb = d["alone"] * 2 ** 30 / 10 ** 6
        if 80 < mb < 120:
            break
    assert d["worth"] and 80 < mb < 120, "100 MB/s are said to be %.1f: %r" % (mb, d)
    assert d["fsync_ms"] > 0 and d["small_ms"] > 0, d
    disk.throttle(0)
    r = command("bench", "--size", "32M", disk.at, again)
    assert "on the same disk" in r.out and "to use:" in r.out, r
    r = command("bench", "--size", "1G", disk.at)
    assert r.rc == 1 and "too little space" in r.out, r
    shutil.rmtree(again)
    assert os.listdir(disk.at) == ["lost+found"], os.listdir(disk.at)
    disk.free()
    shutil.rmtree("/dev/shm/fastckpt-%d" % os.getpid())


def bench_refuses():
    r = command("bench", "/dev/shm", os.path.join(TMP, "nowhere"))
    assert r.rc == 1 and r.out.count("not measured") == 2, r


def bench_interrupted():
    d = os.path.join(TMP, "interrupted")
    os.makedirs(d)
    p = box.start([BIN, "bench", d], cwd="/", shim=False)
    eventually("it writes there", lambda: any(os.path.realpath("/proc/%d/fd/%s" % (p.pid, n)).startswith(d + "/")
                                              for n in os.listdir("/proc/%d/fd" % p.pid)))
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=60)
    assert p.returncode == 130, p.returncode
    empty(d)


def arguments():
    for verb, *args in (["status", "--bad"], ["status", "--json", "extra"], ["wait", "--bad"], ["wait", "--safe", "x"],
                        ["run", "--bad", "x"], ["run", "--json"], ["serve", "--bad", "x"], ["recover", "--bad"],
                        ["recover", "-x"], ["verify", "--bad", "a"], ["doctor", "--bad"], ["bench", "--bad=1", "/tmp"],
                        ["bench", "/tmp", "--", "x"]):
        r = command(verb, *args)
        assert r.rc == 2 and not r.out and r.err.startswith("fastckpt: %s does not take" % verb), (verb, args, r)
        assert r.err.count("\n") == 1, r
    for args in (["serve"], ["bench", "--size"], ["bench", "--size", "12x", "/tmp"], ["run", "--paths"]):
        r = command(*args)
        assert r.rc == 2 and not r.out and r.err.count("\n") == 1, (args, r)
    for verb in ("run", "status", "wait", "recover", "verify", "doctor", "bench"):
        r = command(verb, "--help")
        assert r.rc == 0 and "usage" in r.out, r


def recover_looks():
    d = os.path.join(TMP, "nothing")
    os.makedirs(d)
    for args, rc, lines in (([os.path.join(d, "none")], 1, ["No such file"]), (["/etc/passwd"], 1, ["Not a directory"]),
                            ([d], 0, [d + ": no logs"]), ([d, "/dev/null"], 1, [d + ": no logs", "Not a directory"])):
        r = command("recover", *args)
        said = r.err.splitlines()
        assert r.rc == rc and not r.out and len(said) == len(lines), (args, r)
        assert all(l in s for l, s in zip(lines, said)), (args, r)


CASES = [("here", here), ("running", running), ("watched", watched), ("nobody_watched", nobody_watched),
         ("two_on_one_disk", two_on_one_disk), ("bad_directories", bad_directories),
         ("not_writable", not_writable), ("filtered", filtered),
         ("limits", limits), ("settings", settings), ("cuda", cuda), ("bench_refuses", bench_refuses),
         ("bench_interrupted", bench_interrupted), ("arguments", arguments), ("recover_looks", recover_looks)]
if IS_ROOT:
    CASES += [("no_proc", no_proc), ("short_of_memory", short_of_memory), ("file_systems", file_systems),
              ("bench_rate", bench_rate)]
run_cases(CASES)
