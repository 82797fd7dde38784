#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Proves: both built files run where there is nothing but glibc and a shell, with /proc and without.
# How:    a root directory with the dynamic loader, libc, sh and our two files; a captured save inside by chroot.
# Cannot see: other libcs and older glibcs.
# run-as: root
# timeout: 60

set -u
if readelf -d "$BUILD/fastckpt" | grep -q libasan; then
    echo "skip bare_root: this build needs the sanitizers' runtime library"
    exit 0
fi
root=$TEST_TMP/root
mkdir -p "$root"/{bin,tmp,ck,proc,dev,f}
chmod 1777 "$root/tmp"
copy_needed() {
    ldd "$1" | grep -o '/[^ ]*' | while read -r lib; do
        mkdir -p "$root$(dirname "$lib")"
        cp -L "$lib" "$root$lib"
    done
}
cp /bin/sh "$root/bin/sh"
copy_needed /bin/sh
for file in fastckpt libfastckpt.so; do
    cp "$BUILD/$file" "$root/f/"
    needed=$(readelf -d "$BUILD/$file" | grep NEEDED | grep -v -e 'libc\.so\.6' -e ld-linux)
    if [ -z "$needed" ]; then echo "ok needed_$file"; else echo "not ok needed_$file: $needed"; fi
done
mknod "$root/dev/null" c 1 3

# One save: sh writes 3 lines by one open; then waits for it and says what it reads back.
save='i=0; while [ $i -lt 3 ]; do echo line$i; i=$((i+1)); done > /ck/out.pt; /f/fastckpt wait'
save="$save; read -r a < /ck/out.pt; echo \"got \$a\""
try() { # name, what the output must contain
    rm -f "$root/ck/out.pt"
    out=$(FASTCKPT_REPORT=1 FASTCKPT_RUNTIME_DIR=/tmp/rt timeout 20 \
        chroot "$root" /f/fastckpt run --paths '/ck/*' -- /bin/sh -c "$save" 2>&1)
    if [ "$(cat "$root/ck/out.pt" 2>&1)" != "$(printf 'line0\nline1\nline2')" ]; then
        echo "not ok $1: $out"
    elif ! grep -q "$2" <<< "$out"; then
        echo "not ok $1: no '$2' in: $out"
    else
        echo "ok $1"
    fi
}
mount -t proc proc "$root/proc" && trap 'umount "$root/proc"' EXIT
try with_proc '1 captured'
umount "$root/proc"
trap - EXIT
try without_proc "runs natively"
