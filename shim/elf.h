// SPDX-License-Identifier: MIT
//
// elf: the symbol tables of loaded files, read from memory. What a symbol is for is not known here.

#ifndef FASTCKPT_ELF_H
#define FASTCKPT_ELF_H

#include <link.h>
#include <stddef.h>
#include <stdint.h>

struct elf_symbols {
    uintptr_t base; // what is added to the addresses in its file
    const ElfW(Sym) *table;
    const char *names;
    const ElfW(Half) *versions; // or NULL
    const uint32_t *hash;       // DT_GNU_HASH
};

/** The tables of the file with this dynamic section (NULL: none), loaded with this base. The pointers of what it lacks
 *  are NULL. */
struct elf_symbols elf_symbols_of(uintptr_t base, const ElfW(Dyn) *dynamic);

/** Fills each slot that is NULL with what dlsym(RTLD_NEXT, names[i]) gives; NULL stays where there is nothing. Takes
 *  the loader's lock: for the constructor. A dlsym for each name costs a program with many libraries 0.2 ms. */
void elf_next(const char *const names[], void *slots[], size_t n);

#endif
