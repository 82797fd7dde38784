// SPDX-License-Identifier: MIT
//
// Proves: elf_next finds what dlsym(RTLD_NEXT) finds: of libc, of libraries before it, and what is chosen when it is
//         looked up (memcpy); leaves filled slots and unknown names alone. How: both are asked for a list of names in
//         this program. Cannot see: files without a hash table, the preloaded library (tests/system/loader.py).

#include "shim/elf.h"

#include <criterion/criterion.h>
#include <dlfcn.h>

static const char *const names[] = {
    "open",   "open64",  "fopen",       "write",         "memcpy", "strlen",       "__xstat", "posix_spawn", "nftw64",
    "malloc", "deflate", "not_a_name_", "cr_assert_none", "dlsym",  "pthread_join", "",        "__open_2",    "glob",
};
#define N (sizeof names / sizeof *names)

Test(elf, as_dlsym) {
    void *found[N] = {0};
    unsigned there = 0;
    elf_next(names, found, N);
    for (unsigned i = 0; i < N; i++) {
        void *want = dlsym(RTLD_NEXT, names[i]);
        cr_expect_eq(found[i], want, "%s: %p, not %p", names[i], found[i], want);
        there += want != NULL;
    }
    cr_assert_geq(there, 12);
}

Test(elf, filled_slots_stay) {
    int mine;
    void *found[N] = {&mine};
    elf_next(names, found, N);
    cr_assert_eq(found[0], (void *)&mine);
}
