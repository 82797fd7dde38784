// SPDX-License-Identifier: MIT
//
// locked: see locked.h. A bit for each number, never taken back: a lock lives no longer than every descriptor of its
// inode that was there when it was taken, so the inode behind the number tells.

#include "locked.h"

#include "../core/os.h"
#include "../core/util.h"

#define NUMBERS 65536 // of descriptors beyond it is only known that there was one

static _Atomic uint64_t asked[NUMBERS / 64];
static _Atomic bool asked_beyond;

void locked_note(int fd) {
    if ((unsigned)fd < NUMBERS) {
        atomic_fetch_or(&asked[fd / 64], UINT64_C(1) << (fd % 64));
    } else {
        atomic_store(&asked_beyond, true);
    }
}

bool locked_inode(const struct stat *st) {
    struct stat has;
    for (unsigned i = 0; i < ARRAY_LEN(asked); i++) {
        for (uint64_t left = atomic_load_explicit(&asked[i], memory_order_relaxed); left != 0; left &= left - 1) {
            int fd = (int)(i * 64 + (unsigned)__builtin_ctzll(left));
            if (os_fstat(fd, &has) == 0 && has.st_dev == st->st_dev && has.st_ino == st->st_ino) {
                return true;
            }
        }
    }
    return atomic_load_explicit(&asked_beyond, memory_order_relaxed);
}
