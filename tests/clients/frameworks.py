# SPDX-License-Identifier: MIT
#
# Programs of clients.tsv: how training frameworks save, replayed call by call as they were traced, with smaller sizes:
# PyTorch DCP, Hugging Face, Lightning, DeepSpeed, safetensors, Megatron, Keras, CatBoost, ONNX. Run by common.main.
import ctypes
import json
import mmap
import os
import platform
import shutil
import stat
import tempfile
import threading
import zipfile

from common import MIB, SHADOW, main, noise, save, say, write_all

EXCL = os.O_RDWR | os.O_CREAT | os.O_EXCL


# ---------------------------------------------------------------------------------------------------- torch.save, DCP

def torch_save(path, *tensors, seed=1):
    """What libstdc++ does for torch.save: fopen, writev of headers and payload per storage, write, fclose."""
    os.path.isdir(os.path.dirname(path) or ".")
    fd = os.open(path, SHADOW)
    for i, n in enumerate(tensors):
        os.writev(fd, [noise(832 if i == 0 else 64, seed), noise(n, seed + i)])
    write_all(fd, noise(1047, seed))
    os.close(fd)


def distcp(path, seed):
    with open(path, "wb") as f:
        f.write(noise(1261, seed))
        for i in range(2):
            f.seek(0, os.SEEK_CUR)
            f.tell()
            for n in (704, 3 * MIB, 873):
                f.write(noise(n, seed + i))
        f.flush()
        os.fsync(f.fileno())


def dcp_metadata(d, seed):
    with open(d + "/.metadata.tmp", "wb") as f:
        f.write(noise(1567, seed))
        f.flush()
        os.fsync(f.fileno())
    if os.path.exists(d + "/.metadata"):
        os.unlink(d + "/.metadata")
    os.rename(d + "/.metadata.tmp", d + "/.metadata")


def dcp_save(d, ranks, seed):
    os.access(os.path.dirname(os.path.abspath(d)), os.W_OK)
    os.makedirs(d, exist_ok=True)
    say(os.path.exists(d + "/.metadata"))
    ts = [threading.Thread(target=distcp, args=("%s/__%d_0.distcp" % (d, r), seed + r)) for r in range(ranks)]
    for t in ts:
        t.start()
    for t in ts:
        t.join()
    dcp_metadata(d, seed)
    say(sorted(os.listdir(d)))


def dcp():
    dcp_save("step-1", 3, 10)
    dcp_save("step-2", 3, 20)
    dcp_save("step-2", 3, 30)  # into the same directory: truncates the data in place


def dcp_async():
    t = threading.Thread(target=dcp_save, args=("step-1", 1, 10))
    t.start()
    torch_save("other.pt", 2 * MIB)
    t.join()
    t = threading.Thread(target=dcp_save, args=("step-2", 1, 20))
    t.start()
    t.join()


def dcp_hf_consolidated():
    """Headers first, closed; then each output again by r+b, appended to."""
    os.makedirs("sharded")
    for i in range(2):
        save("sharded/shard-%d.safetensors" % i, 163, 4 * MIB, seed=i, sync=True)
    say(sorted(e.name for e in os.scandir("sharded")))
    outputs = ["model-%05d-of-00002.safetensors" % i for i in (1, 2)]
    for i, name in enumerate(outputs):
        with open(name, "wb") as f:
            f.write(noise(163, 9))
    for i, name in enumerate(outputs):
        for k in range(2):
            with open("sharded/shard-%d.safetensors" % i, "rb") as r, open(name, "r+b") as f:
                r.seek(163 + k * 2 * MIB)
                f.seek(0, os.SEEK_END)
                f.write(r.read(2 * MIB))
    with open("model.safetensors.index.json", "w") as f:
        json.dump({"weight_map": {"a": outputs[0], "b": outputs[1]}}, f)


def torch_checkpointing():
    for step in (1, 2):
        os.mkdir("tmp_%d" % step)
        t = threading.Thread(target=save, args=("tmp_%d/model_0.pt" % step, 1024, 3 * MIB, 64, MIB, 1177))
        t.start()
        t.join()
        os.rename("tmp_%d" % step, "step_%d" % step)
    say(sorted(os.listdir(".")), os.listdir("step_2"))


# ---------------------------------------------------------------------------------------------------- Hugging Face

def inline_renameat():
    """renameat as safetensors 0.8 makes it: a system call instruction of its own, that no library sees."""
    if platform.machine() == "x86_64":
        code = bytes.fromhex("b808010000" "4989ca" "0f05" "c3")  # mov eax, renameat; mov r10, rcx; syscall; ret
    elif platform.machine() == "aarch64":
        code = bytes.fromhex("c80480d2" "010000d4" "c0035fd6")  # mov x8, renameat; svc 0; ret
    else:
        return None
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    kind = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_long, ctypes.c_char_p)
    call = kind(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    call.page = page
    return call


def raw_rename(old, new, inline=True):
    call = inline_renameat() if inline else None
    if call is not None:
        r = call(-100, old.encode(), -100, new.encode())
    else:
        number = {"x86_64": 264, "aarch64": 38}.get(platform.machine(), 276)
        r = ctypes.CDLL(None).syscall(number, -100, old.encode(), -100, new.encode())
    say("renameat", r)


def temporary_name(d, seed):
    return os.path.join(d, ".tmp" + "".join(chr(97 + b % 26) for b in noise(6, seed)))


def safetensors_08(path, *sizes, seed=1, inline=True):
    """An exclusive temporary of mode 0600, cut to its size, renamed by a raw system call before it is closed."""
    tmp = temporary_name(os.path.dirname(path), seed)
    fd = os.open(tmp, EXCL | os.O_CLOEXEC, 0o600)
    os.ftruncate(fd, 688 + sum(sizes))
    for n in (688,) + sizes:
        write_all(fd, noise(n, seed))
    raw_rename(tmp, path, inline)
    os.close(fd)


def check_load(path, size):
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as m:
        say(len(m) == size, m[700:704].hex())
    os.close(fd)


def safetensors_new():
    safetensors_08("m.safetensors", 2 * MIB, MIB)
    check_load("m.safetensors", 688 + 3 * MIB)
    safetensors_08("m.safetensors", 3 * MIB, MIB, seed=2)
    check_load("m.safetensors", 688 + 4 * MIB)
    safetensors_08("n.safetensors", 2 * MIB, seed=3, inline=False)
    say(oct(os.stat("m.safetensors").st_mode), sorted(os.listdir(".")))


def safetensors_old():
    for seed in (1, 2):
        save("m.safetensors", 688, 3 * MIB, 2 * MIB, 64, seed=seed)
        check_load("m.safetensors", 688 + 5 * MIB + 64)


def rotate(pattern, limit):
    """transformers sorts by mtime, unless they lie within a second: then by number."""
    found = [n for n in os.listdir(".") if n.startswith(pattern)]
    by_mtime = sorted((os.stat(n).st_mtime, n) for n in found)
    if by_mtime and by_mtime[-1][0] - by_mtime[0][0] < 1.0:
        by_mtime = sorted((int(n.rpartition("-")[2]), n) for n in found)
    for _, n in by_mtime[:max(0, len(found) - limit)]:
        shutil.rmtree(n)
        say("deleted", n)


def hf_trainer():
    for step in (100, 200, 300):
        d = "checkpoint-%d" % step
        for _ in range(2):
            os.makedirs(d, exist_ok=True)
        save(d + "/config.json", 700)
        save(d + "/generation_config.json", 200)
        for n in sorted(os.listdir(d)):
            say(n)  # stale shards would be deleted here
        safetensors_08(d + "/model.safetensors", 2 * MIB, seed=step)
        torch_save(d + "/training_args.bin", 4000)
        torch_save(d + "/optimizer.pt", 2 * MIB, MIB, 40, 1000, seed=step)
        torch_save(d + "/scheduler.pt", 100)
        torch_save(d + "/rng_state.pth", 12000)
        with open(d + "/trainer_state.json", "w", encoding="utf-8") as f:
            f.write(json.dumps({"global_step": step}, indent=2) + "\n")
        rotate("checkpoint-", 2)
    say(sorted(os.listdir(".")), sorted(os.listdir("checkpoint-300")))


def accelerate():
    """The oldest is deleted before the new one is made."""
    for step in range(3):
        rotate("checkpoint-", 1)
        d = "checkpoint-%d" % step
        os.makedirs(d)
        safetensors_08(d + "/model.safetensors", MIB, seed=step)
        torch_save(d + "/optimizer.bin", 2 * MIB, MIB, seed=step)
        torch_save(d + "/scheduler.bin", 100)
        save(d + "/random_states_0.pkl", 14000)
    say(sorted(os.listdir(".")))


# ---------------------------------------------------------------------------------------------------- Lightning

def lightning_save(tmpdir, final, size, seed):
    fd, tmp = tempfile.mkstemp(dir=tmpdir)
    os.close(fd)  # empty
    fd = os.open(tmp, SHADOW)
    write_all(fd, noise(size, seed))
    os.close(fd)
    say(os.path.exists(final))
    shutil.move(tmp, final)  # by rename, or over file systems by sendfile, copystat and unlink
    os.chmod(final, 0o644)


def lightning_run(tmpdir, link=False):
    best = None
    for epoch in range(3):
        name = "epoch=%d.ckpt" % epoch
        lightning_save(tmpdir, name, 3 * MIB + epoch, epoch)
        if best:
            os.lstat(best)
            os.stat(best)
            os.unlink(best)
        best = name
        if link:
            if os.path.lexists("last.ckpt"):
                os.unlink("last.ckpt")
            os.symlink(name, "last.ckpt")
        else:
            lightning_save(tmpdir, "last.ckpt", 3 * MIB + epoch, epoch)
    say(sorted(os.listdir(".")))


def lightning():
    os.makedirs("../../other", exist_ok=True)
    with tempfile.TemporaryDirectory(dir="../../other") as d:
        lightning_run(d)


def lightning_link():
    os.makedirs("../../other", exist_ok=True)
    with tempfile.TemporaryDirectory(dir="../../other") as d:
        lightning_run(d, True)


def lightning_tmp_matched():
    os.mkdir("tmp")
    lightning_run("tmp")


def lightning_other_fs():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as d:
        lightning_run(d)


# ---------------------------------------------------------------------------------------------------- others

def sendfile_copy(source, target, mode):
    with open(source, "rb") as r, open(target, "wb") as w:
        while os.sendfile(w.fileno(), r.fileno(), None, 8 * MIB):
            pass
    os.chmod(target, mode)


def deepspeed():
    save("../../other-script.py", 33000, seed=5)
    for step in (1, 2, 3):
        d = "t%d" % step
        os.makedirs(d, exist_ok=True)
        torch_save(d + "/mp_rank_00_model_states.pt", 2 * MIB, 4096, seed=step)
        torch_save(d + "/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", 4 * MIB + 657, seed=step)
        sendfile_copy("../../other-script.py", "zero_to_fp32.py", 0o744)
        with open("latest", "w") as f:
            f.write(d)
        with open("latest") as f:
            say(f.read(), stat.filemode(os.stat("zero_to_fp32.py").st_mode))
    os.unlink("../../other-script.py")


def megatron():
    """Forked children write the data with fsync and end by _exit; the parent joins them and writes the metadata."""
    for step in (1, 2):
        d = "iter_%07d" % step
        os.mkdir(d)
        say(os.listdir(d))
        torch_save(d + "/common.pt", 2 * MIB, seed=step)
        children = []
        for bucket in range(2):
            pid = os.fork()
            if pid == 0:
                distcp("%s/__0_%d.distcp" % (d, bucket), step + bucket)
                os._exit(0)
            children.append(pid)
        say([os.waitpid(p, 0)[1] for p in children])
        dcp_metadata(d, step)
        with open("latest_checkpointed_iteration.txt", "w") as f:
            f.write(str(step))
    say(sorted(os.listdir(".")), sorted(os.listdir(d)))


def keras():
    """A zip whose headers are patched after each member: far back behind the weights."""
    with open("m.keras", "wb") as w, zipfile.ZipFile(w, "w") as z:
        for name, n in (("metadata.json", 64), ("config.json", 2800), ("model.weights.h5", 5 * MIB)):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            with z.open(info, "w", force_zip64=n > MIB) as f:
                f.write(noise(n))
    with zipfile.ZipFile("m.keras") as z:
        say(z.testzip(), z.namelist())


def catboost():
    fd = os.open("m.cbm", SHADOW, 0o664)
    for n in (8, 1827384, 6264):
        write_all(fd, noise(n))
    os.fsync(fd)
    os.close(fd)
    for seed in (1, 2):
        save("3fa2-snapshot.tmp", 600, 8000, seed=seed, sync=True)
        if os.path.exists("experiment.cbsnapshot"):
            os.rename("experiment.cbsnapshot", "experiment.cbsnapshot.bak")
        os.rename("3fa2-snapshot.tmp", "experiment.cbsnapshot")
    say(sorted(os.listdir(".")))


def onnx_external():
    """The data file is opened again for each tensor, without O_TRUNC."""
    save("m.onnx.data", 0)
    for i in range(4):
        fd = os.open("m.onnx.data", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        say(os.lseek(fd, 0, os.SEEK_END))
        write_all(fd, noise(MIB + 7, i))
        os.close(fd)
    save("m.onnx", 900)


def timm():
    """A temporary, the old one unlinked, rename, and hard links of it under the names that stay."""
    for epoch in range(3):
        torch_save("tmp.pth.tar", 2 * MIB, seed=epoch)
        if os.path.exists("last.pth.tar"):
            os.unlink("last.pth.tar")
        os.rename("tmp.pth.tar", "last.pth.tar")
        os.link("last.pth.tar", "checkpoint-%d.pth.tar" % epoch)
        if epoch:
            os.unlink("checkpoint-%d.pth.tar" % (epoch - 1))
    say(sorted(os.listdir(".")), os.stat("last.pth.tar").st_nlink)


def zarr():
    def chunk(k):
        for i in range(3):
            name = "a/c/%d-%d" % (k, i)
            save(name + ".0123456789abcdef.partial", MIB + k, seed=k + i)
            os.rename(name + ".0123456789abcdef.partial", name)
    os.makedirs("a/c")
    save("a/zarr.json.0123456789abcdef.partial", 700)
    os.rename("a/zarr.json.0123456789abcdef.partial", "a/zarr.json")
    ts = [threading.Thread(target=chunk, args=(k,)) for k in range(2)]
    for t in ts:
        t.start()
    for t in ts:
        t.join()
    say(sorted(os.listdir("a/c")))


main(globals())
