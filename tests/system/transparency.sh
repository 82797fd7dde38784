#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Proves P1 and P2 for families of calls: the fam_* victims and everyday programs print and leave the same natively,
# under the shim without patterns, with a pattern that matches nothing, and with everything captured. How: diff of
# output, exit status, and of names, modes, sizes and sums of what lies there. Cannot see times, races, or other calls.
# timeout: 300
set -u
cd "$(dirname "$0")/../.." || exit 1
build=$(realpath "${BUILD:-build}")
lib=$build/libfastckpt.so
tmp=${TEST_TMP:-$(mktemp -d)}/transparency
mkdir -p "$tmp"
failed=0

# Runs a command in a fresh directory `work` (its path is always the same: programs print it), keeps what it left.
#   record OUT PATTERNS|native COMMAND...
record() {
    local out=$1 patterns=$2 work=$tmp/work
    shift 2
    rm -rf "$work"
    mkdir -p "$work"
    (
        cd "$work" || exit 1
        if [ "$patterns" != native ]; then
            [ "$patterns" = none ] || export FASTCKPT_PATHS=$patterns
            export LD_PRELOAD=$lib
        fi
        exec timeout 100 "$@" > "$out.stdout" 2> "$out.stderr" < /dev/null
    )
    echo "exit $?" >> "$out.stdout"
    (
        cd "$work" || exit 1
        find . -mindepth 1 ! -path '*/.git/*' -printf '%p %y %m %n %l ' -type f -printf '%s ' -exec md5sum {} \; -o \
            -mindepth 1 ! -path '*/.git/*' -printf '\n' | sort
    ) > "$out.tree"
}

# compare NAME COMMAND...
compare() {
    local name=$1 row label patterns bad
    shift
    record "$tmp/$name.native" native "$@"
    for row in "off none" "unmatched /nowhere/*" "captured $tmp/work/*"; do
        label=${row%% *}
        patterns=${row#* }
        record "$tmp/$name.$label" "$patterns" "$@"
        bad=
        for part in stdout stderr tree; do
            diff "$tmp/$name.native.$part" "$tmp/$name.$label.$part" > "$tmp/$name.$label.$part.diff" ||
                bad+=" $part: $(head -c 300 "$tmp/$name.$label.$part.diff" | tr '\n' '|')"
        done
        if [ -n "$bad" ]; then
            echo "not ok transparency-$name-$label:$bad"
            failed=1
        else
            echo "ok transparency-$name-$label"
        fi
    done
}

for victim in fam_open fam_stdio fam_fd fam_names fam_raw fam_more fam_locks; do
    compare "$victim" "$build/victims/$victim"
done

compare ls ls -la /etc
compare shell bash -c 'for i in 1 2 3; do echo "line $i"; done > a; cat a | tee b | wc -l; (echo sub
    exec echo exec) >> a
    { head -c 3000000 /dev/zero; echo tail; } > big; mv big bigger; ln -s bigger sl; cp bigger copy
    cmp sl copy && rm b
    ls; exec 5> five; echo to five >&5; exec 5>&-; cat five; $(exit 3); echo $?'
compare tar bash -c 'mkdir d; seq 100000 > d/n; cp d/n d/m; tar cf t.tar --mtime=@0 --owner=0 --group=0 d
    rm -r d; tar xf t.tar; ls d; md5sum t.tar d/n'
compare git bash -c 'git init -q . && echo text > f && git add f &&
    GIT_AUTHOR_DATE=@0 GIT_COMMITTER_DATE=@0 git -c user.name=n -c user.email=e commit -qm m && git log --format=%H -1
    git status --short; git gc -q; git fsck'
compare cc bash -c 'printf "int puts(const char *); int main(void) { return puts(\"hi\") < 0; }" > m.c
    cc -O1 m.c -o m && ./m; rm m'
compare python /usr/bin/python3 -c '
import os, pickle, shutil, subprocess, tempfile, zipfile
blob = bytes(range(256)) * 20000
open("a.bin", "wb").write(blob)
os.replace("a.bin", "b.bin")
print(os.stat("b.bin").st_size, os.path.exists("a.bin"), open("b.bin", "rb").read() == blob)
with zipfile.ZipFile("z.zip", "w") as z:
    z.writestr(zipfile.ZipInfo("member"), blob)
print(zipfile.ZipFile("z.zip").testzip())
shutil.copy("b.bin", "c.bin")
print(subprocess.run(["cat", "c.bin"], stdout=subprocess.PIPE).stdout == blob)
with open("d.bin", "wb") as f:
    f.write(blob)
    f.flush()
    subprocess.run(["echo", "from a child"], stdout=f)
    f.write(b"after")
    pid = os.fork()
    if pid == 0:
        f.write(b"child")
        f.flush()
        os._exit(0)
    os.waitpid(pid, 0)
with tempfile.NamedTemporaryFile(dir=".", delete=False) as t:
    pickle.dump(blob, t)
os.rename(t.name, "e.pkl")
print(sorted(os.listdir(".")), [os.path.getsize(p) for p in sorted(os.listdir("."))])
'
exit "$failed"
