#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Proves that the exported symbols are complete: each exists in libc or is one of the few listed below, each sibling
# that libc has of an exported name (`64`, `__X`, `_IO_X`, `__X_2`, `__X64_2`, `__X_chk`) is exported too, and every
# file and process name of glibc 2.31, 2.36, 2.41 and 2.43 (tests/lib/glibc-*.txt) is exported or in
# tests/lib/exports-not.txt with a reason. How: nm on both files, against shim/hooks.h. Cannot see: names of a libc that
# is newer than those lists.
# run-as: root
set -u
export LC_ALL=C # one order of names
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-${1:-build}}
lib=$build/libfastckpt.so
libc=$(ldd "$lib" | awk '$1 == "libc.so.6" { print $3 }')

# Siblings left out, with the reason.
exceptions='
__fork      fork is served by pthread_atfork handlers, which run for every form but _Fork
'

# Exported names that are not libc's, with the reason.
others='
mz_zip_writer_add_mem_ex_v2    libtorch_cpu calls it, its own, by its exported symbol (hook_torch.c)
cudaMemcpy                     of the CUDA runtime (hook_cuda.c)
cudaMemcpy_ptds                as cudaMemcpy: the default stream is of the calling thread
cudaMemcpyAsync                as cudaMemcpy
cudaMemcpyAsync_ptsz           as cudaMemcpy_ptds
cudaDeviceReset                as cudaMemcpy: what we have made on the device is gone behind it
cudaHostRegister               of the CUDA runtime: bytes that are late are there before
cudaMalloc                     of the CUDA runtime: our scratch memory goes before it fails
cudaMallocManaged              as cudaMalloc
cudaMallocPitch                as cudaMalloc
cudaMallocHost                 as cudaMalloc
cudaHostAlloc                  as cudaMalloc
cudaMallocAsync                as cudaMalloc
cudaMallocAsync_ptsz           as cudaMalloc
cudaMallocFromPoolAsync        as cudaMalloc
cudaMallocFromPoolAsync_ptsz   as cudaMalloc
'

fail() {
    echo "not ok $1: $2"
    failed=1
}
failed=0
[ -n "$libc" ] || { echo "not ok exports: no libc found for $lib"; exit 1; }

exported=$(nm -D --defined-only "$lib" | awk '{ sub(/@.*/, "", $3); print $3 }' | sort -u)
public=$(nm -D --defined-only "$libc" | awk '$3 !~ /GLIBC_PRIVATE/ { sub(/@.*/, "", $3); print $3 }' | sort -u)

has() {
    grep -qxF -- "$2" <<< "$1"
}

lists=(tests/lib/glibc-{2.31,2.36,2.41,2.43}.txt)
unknown=$(comm -23 <(echo "$exported") <(cat <(echo "$public") <(awk 'NF { print $1 }' <<< "$others") "${lists[@]}" |
    grep -v '^#' | sort -u) | tr '\n' ' ')
if [ -n "${unknown// /}" ]; then
    fail exports-exist "not in libc: $unknown"
else
    echo "ok exports-exist"
fi

table=$(grep -oE '^HOOK(_ALIAS)?\([A-Za-z0-9_]+' shim/hooks.h | sed 's/.*(//' | sort -u)
if [ "$table" != "$exported" ]; then
    differ=$(diff <(echo "$table") <(echo "$exported") | grep '^[<>]' | tr '\n' ' ')
    fail exports-table "not as in shim/hooks.h: $differ"
else
    echo "ok exports-table"
fi

missing=
for name in $exported; do
    base=${name#__}
    for sibling in "${name}64" "__$name" "_IO_$name" "__${base}_2" "__${base}64_2" "__${base}_chk" "__${base}64_chk" \
                   "${base}_time64" "${name%64}"; do
        if has "$public" "$sibling" && ! has "$exported" "$sibling" && ! grep -q "^$sibling " <<< "$exceptions"; then
            missing+=" $sibling(of $name)"
        fi
    done
done
if [ -n "$missing" ]; then
    fail exports-siblings "missing:$missing"
else
    echo "ok exports-siblings"
fi

not=$(grep -oE '^[^# ]+' tests/lib/exports-not.txt)
for list in "${lists[@]}"; do
    missing=
    for name in $(grep -v '^#' "$list" | comm -23 - <(echo "$exported")); do
        why=
        for pattern in $not; do
            # shellcheck disable=SC2053 # a pattern, on purpose
            [[ $name == $pattern ]] && why=1 && break
        done
        [ -n "$why" ] || missing+=" $name"
    done
    version=$(basename "$list" .txt)
    if [ -n "$missing" ]; then
        fail "exports-$version" "neither exported nor left out for a reason:$missing"
    elif [ "$version" = "glibc-$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)" ] &&
        ! [ -z "$(grep -v '^#' "$list" | comm -23 - <(echo "$public"))" ]; then
        fail "exports-$version" "names names that this libc, of that version, has not"
    else
        echo "ok exports-$version"
    fi
done

needed=$(readelf -d "$lib" | awk '/NEEDED/ { print $NF }' | tr -d '[]' | tr '\n' ' ')
if [ "$needed" != "libc.so.6 " ]; then
    fail exports-needed "needs $needed"
else
    echo "ok exports-needed"
fi
exit "$failed"
