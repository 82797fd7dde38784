// SPDX-License-Identifier: MIT
//
// real: finding the next definition of every hooked symbol. See real.h. Nothing here knows what a hook does with it.

#include "real.h"

#include "elf.h"

#include <dlfcn.h>
#include <string.h>

struct real real;

// Names in the order of struct real's members, which are nothing but pointers.
static const char *const names[] = {
#define HOOKS_ALL
#define HOOK(name, ret, params) #name,
#include "hooks.h"
};
_Static_assert(sizeof(struct real) == ARRAY_LEN(names) * sizeof(void *), "one pointer a name");

void *real_lookup(const char *name, void *slot) {
    void *p = dlsym(RTLD_NEXT, name);
    if (p != NULL) {
        memcpy(slot, &p, sizeof p); // every caller finds the same
    }
    return p;
}

void real_resolve(void) {
    void *found[ARRAY_LEN(names)];
    memcpy(found, &real, sizeof real);
    elf_next(names, found, ARRAY_LEN(names));
    memcpy(&real, found, sizeof real); // what a hook has looked up meanwhile is the same
}
