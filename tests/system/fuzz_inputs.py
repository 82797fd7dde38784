#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
# timeout: 120
#
# Proves that messages of strangers, patterns and configuration values of any shape harm nothing: libFuzzer on
# tests/unit/fuzz_*.c with sanitizers: here a fixed number of inputs of one seed, so that a change is judged by itself
# and not by chance; FUZZ_SECONDS=n (tests/long) draws a new seed for n seconds. What a long run found is in KEPT and
# comes first. Cannot see what only a running engine does with well-formed messages.

import os
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

KEPT = {
    "fuzz_msg": [],
    "fuzz_pattern": [b"\b[^.Id-irea]\0+"],  # ^ negates a set as ! does
}
INPUTS = 200000  # 2 to 4 s
SOURCES = {"fuzz_msg": ("protocol", "os"), "fuzz_pattern": ("path", "config", "os", "log")}


def fuzz(name, seconds):
    clang = shutil.which("clang") or shutil.which("clang-14")
    if not clang:
        raise Skip("needs clang")
    binary = os.path.join(TMP, name)
    core = [os.path.join(ROOT, "core", c + ".c") for c in SOURCES[name]]
    sh(clang, "-std=gnu11", "-O1", "-g", "-D_GNU_SOURCE", "-I", ROOT, "-fsanitize=fuzzer,address,undefined",
       "-fno-sanitize-recover=undefined", "-o", binary, os.path.join(ROOT, "tests", "unit", name + ".c"), *core)
    corpus = os.path.join(TMP, name + ".corpus")
    os.makedirs(corpus)
    for i, data in enumerate(KEPT[name]):
        with open(os.path.join(corpus, "kept%d" % i), "wb") as f:
            f.write(data)
    argv = [binary, "-max_len=2000", "-print_final_stats=1", "-verbosity=0", "-artifact_prefix=" + TMP + "/"]
    if seconds:
        argv += ["-max_total_time=%d" % seconds, "-seed=%d" % (int(os.environ.get("SEED") or time.time()) + 1)]
    else:
        argv += ["-max_total_time=30", "-runs=%d" % INPUTS, "-seed=1"]
    r = subprocess.run(argv + [corpus], capture_output=True, text=True, errors="replace", timeout=seconds + 120)
    if r.returncode != 0:
        found = [n for n in os.listdir(TMP) if n.startswith(("crash-", "leak-", "timeout-", "oom-"))]
        inputs = [open(os.path.join(TMP, n), "rb").read().hex() for n in found]
        raise AssertionError("input %s: %s" % (inputs, r.stderr[-900:]))
    runs = int(re.search(r"number_of_executed_units:\s*(\d+)", r.stderr).group(1))
    assert runs > 1000, "only %d inputs" % runs
    say("%s: %d inputs" % (name, runs))


def main(seconds):
    run_cases([(name, lambda name=name: fuzz(name, seconds)) for name in SOURCES])


if __name__ == "__main__":
    main(int(os.environ.get("FUZZ_SECONDS") or 0))
