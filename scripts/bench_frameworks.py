# SPDX-License-Identifier: MIT
"""The figures of scripts/bench for frameworks that save: how much less time a save holds the program, each beside the
least that it could take (what the framework does without a file, and one copy), and beside what is used instead, on the
same bytes and disk. And what saves cost a training loop. scripts/clients installs the frameworks.
"""

import os
import shutil
from statistics import median

from bench_lib import Failed, Skip
from bench_rows import WARM

DRIVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_torch.py")
VENV_ONLY = "needs the newest of it: make clients"
ONE, TWO = {"FASTCKPT_COPY_THREADS": "1"}, {"FASTCKPT_COPY_THREADS": "2"}
SAVES, PERIOD, PLAIN = 10, 0.8, 2


def driver(b, fast, kind, **variables):
    return b.program([b.framework_python, DRIVER, str(b.size), kind], fast, **variables)


def newest(b):
    if b.framework_python == "/usr/bin/python3":
        raise Skip(VENV_ONLY)


def speedup(b, kind, staged=1, **variables):
    """Native and ours in turn, with a memcpy of the same size beside them. (value, what stands behind it)."""
    times = {"native": [], "fastckpt": [], "native_null": [], "fastckpt_null": [], "memcpy": []}
    with driver(b, False, kind) as n, driver(b, True, kind, **variables) as f, b.saver(False) as m:
        for i in range(WARM + b.rounds):
            times["memcpy"].append(m.ask("memcpy")[0])
            times["native_null"].append(n.ask("null")[0])
            times["native"].append(n.ask(b.path(f"n{i}"))[0])
            b.clean()
            times["fastckpt_null"].append(f.ask("null")[0])
            times["fastckpt"].append(f.ask(b.path(f"f{i}"))[0])
            b.wait()
            b.clean()
        for p in (n, m):
            p.finish()
        f.finish(staged=staged * (WARM + b.rounds))
    raw = {k + "_s": median(v[WARM:]) for k, v in times.items()}
    raw["limit"] = raw["native_s"] / (raw["fastckpt_null_s"] + raw["memcpy_s"])
    return raw["native_s"] / raw["fastckpt_s"], raw


def instead(b, kinds):
    """What the same bytes hold the program by other ways: seconds, or why not."""
    raw = {}
    for kind in kinds:
        try:
            with driver(b, False, kind) as p:
                held = []
                for i in range(WARM + b.rounds):
                    held.append(p.ask(b.path(f"{kind}{i}"), 300)[0])
                    b.clean()
                p.finish()
            raw[kind + "_s"] = median(held[WARM:])
        except Failed as e:
            raw[kind] = str(e).strip().splitlines()[0][:100]
            b.clean()
    return raw


def torch_save(b):
    """On one thread. Its io figure is the same less what torch.save takes without a file, on both sides."""
    value, raw = speedup(b, "save", **ONE)
    native, ours = (raw[side + "_s"] - raw[side + "_null_s"] for side in ("native", "fastckpt"))
    raw.update(instead(b, ["fast"] if b.framework_python != "/usr/bin/python3" else []))
    return {"torch_save_speedup": (value, raw),
            "torch_save_io_speedup": (native / max(ours, 1e-4), {"native_io_s": native, "fastckpt_io_s": ours})}


def torch_save_2threads(b):
    if len(os.sched_getaffinity(0)) < 2:
        raise Skip("needs two cores")
    value, raw = speedup(b, "save", **TWO)
    return {"torch_save_2threads_speedup": (value, raw)}


def torch_save_nocrc(b):
    newest(b)
    value, raw = speedup(b, "nocrc", **ONE)
    return {"torch_save_nocrc_speedup": (value, raw)}


def np_save(b):
    value, raw = speedup(b, "np", **ONE)
    return {"np_save_speedup": (value, raw)}


def safetensors(b):
    newest(b)
    value, raw = speedup(b, "safetensors", **ONE)
    return {"safetensors_speedup": (value, raw)}


def dcp(b):
    newest(b)
    value, raw = speedup(b, "dcp", FASTCKPT_FSYNC="defer", **ONE)
    raw.update(instead(b, ["dcp_thread", "dcp_process"]))
    return {"dcp_save_speedup": (value, raw)}


def extra_step(b):
    """Ten saves, one after each 0.8 s of products on all cores (so that the row takes a minute): what they add to
    those, for each GiB. Products alone lie between the sides."""
    if shutil.disk_usage(b.ck).free < (SAVES + 2) * b.size << 20:
        raise Skip(f"needs {(SAVES + 2) * b.size >> 10} GiB of free disk")
    sides = ("native", "fsync", "fastckpt")
    took, held, plain = {}, {}, []
    with driver(b, False, "work") as n, driver(b, True, "work", **ONE) as f:
        count = int(n.ask(str(PERIOD))[0])
        f.ask(f"1 1 0 {b.path('warm')}")
        n.ask(f"1 1 0 {b.path('cold')}")
        b.wait()
        b.clean()
        for side in sides:
            plain.append(n.ask(f"{count} {PLAIN} 0 -")[0] / PLAIN)
            p = f if side == "fastckpt" else n
            took[side], held[side] = p.ask(f"{count} {SAVES} {int(side == 'fsync')} {b.path(side)}", 300)
            b.wait()
            b.clean()
        plain.append(n.ask(f"{count} {PLAIN} 0 -")[0] / PLAIN)
        n.finish()
        f.finish(staged=1 + SAVES)
    gib = SAVES * b.size / 1024
    extra = {side: (took[side] - SAVES * median(plain)) / gib for side in sides}
    raw = {"reach": round(extra["native"] / 2, 3)}
    raw.update({side + "_extra_s": e for side, e in extra.items()})
    raw.update({side + "_held_s": h / gib for side, h in held.items()})
    raw.update({"step_s": median(plain), "noise_s": (max(plain) - min(plain)) * SAVES / gib})
    return {"extra_step_seconds_per_gib": (extra["fastckpt"], raw)}
