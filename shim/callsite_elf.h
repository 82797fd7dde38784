// SPDX-License-Identifier: MIT
//
// callsite_elf: which loaded file an address is in, and which exported function: read from memory, without the loader's
// lock. The address must be on a stack (so that its file stays loaded) or known to be of a loaded file.

#ifndef FASTCKPT_CALLSITE_ELF_H
#define FASTCKPT_CALLSITE_ELF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct callsite_object {
    uintptr_t start, end; // its mapping
    uintptr_t base;       // what is added to the addresses in its file
    const void *frames;   // .eh_frame_hdr, or NULL
    const void *dynamic;  // its dynamic section
    char name[64];        // last component of its path
};

/** Looks up what this needs of the loader. Called by the constructor. */
void callsite_elf_start(void);
/** False: in none, or this libc cannot tell without a lock. */
bool callsite_object(uintptr_t address, struct callsite_object *o);
/** The name of the function that `address` is in, in its symbol table, or NULL. Looks at every symbol. */
const char *callsite_symbol(const struct callsite_object *o, uintptr_t address);

#endif
