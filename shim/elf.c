// SPDX-License-Identifier: MIT
//
// elf: see elf.h. What the tables cannot say alone (a function that is chosen when it is looked up, a file without such
// a table) is left to dlsym.

#include "elf.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#define NAMES_MAX 512
#define HIDDEN    0x8000 // of a symbol's version: not the one that is meant without a version

// The loader has added the base to the addresses in most files.
static const void *relocated(uintptr_t base, ElfW(Addr) a) {
    return (const void *)(a < base ? base + a : a);
}

struct elf_symbols elf_symbols_of(uintptr_t base, const ElfW(Dyn) *dynamic) {
    struct elf_symbols s = {.base = base};
    for (const ElfW(Dyn) *d = dynamic; d != NULL && d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_SYMTAB) {
            s.table = relocated(base, d->d_un.d_ptr);
        } else if (d->d_tag == DT_STRTAB) {
            s.names = relocated(base, d->d_un.d_ptr);
        } else if (d->d_tag == DT_VERSYM) {
            s.versions = relocated(base, d->d_un.d_ptr);
        } else if (d->d_tag == DT_GNU_HASH) {
            s.hash = relocated(base, d->d_un.d_ptr);
        }
    }
    return s;
}

static uint32_t hash_of(const char *name) {
    uint32_t h = 5381;
    while (*name != '\0') {
        h = h * 33 + (unsigned char)*name++;
    }
    return h;
}

// What the file defines under that name for who asks for no version, or NULL.
static const ElfW(Sym) *symbol_in(const struct elf_symbols *o, const char *name, uint32_t hash) {
    const uint32_t buckets = o->hash[0], first = o->hash[1], words = o->hash[2], shift = o->hash[3];
    const ElfW(Addr) *bloom = (const void *)(o->hash + 4);
    const uint32_t *bucket = (const void *)(bloom + words), *chain = bucket + buckets;
    const unsigned bits = 8 * sizeof *bloom;
    ElfW(Addr) word = bloom[hash / bits % words];
    uint32_t i = bucket[hash % buckets];
    if ((word >> hash % bits & word >> (hash >> shift) % bits & 1) == 0 || i < first) {
        return NULL;
    }
    for (;; i++) {
        const ElfW(Sym) *s = &o->table[i];
        bool same = (chain[i - first] | 1) == (hash | 1) && strcmp(o->names + s->st_name, name) == 0;
        bool hidden = o->versions != NULL && (o->versions[i] & HIDDEN);
        if (same && s->st_shndx != SHN_UNDEF && !hidden) {
            return s;
        }
        if (chain[i - first] & 1) {
            return NULL;
        }
    }
}

struct search {
    const char *const *names;
    void **slots;
    size_t n;
    bool behind, unsure; // what comes now is behind us; not all that did could be read
    bool ask[NAMES_MAX];
    uint32_t hash[NAMES_MAX];
};

static void find_in(struct search *s, const struct elf_symbols *o) {
    for (size_t i = 0; i < s->n; i++) {
        bool open = s->slots[i] == NULL && !s->ask[i];
        const ElfW(Sym) *y = open ? symbol_in(o, s->names[i], s->hash[i]) : NULL;
        if (y != NULL && ELF64_ST_TYPE(y->st_info) == STT_FUNC) {
            uintptr_t at = o->base + y->st_value;
            memcpy(&s->slots[i], &at, sizeof at);
        } else if (y != NULL) {
            s->ask[i] = true;
        }
    }
}

static int visit(struct dl_phdr_info *info, size_t size, void *arg) {
    (void)size;
    struct search *s = arg;
    const ElfW(Dyn) *dynamic = NULL;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) {
            dynamic = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        }
    }
    if (dynamic == _DYNAMIC) {
        s->behind = true;
        return 0;
    }
    struct elf_symbols o = elf_symbols_of(info->dlpi_addr, s->behind ? dynamic : NULL);
    if (s->behind && (o.hash == NULL || o.table == NULL || o.names == NULL)) {
        s->unsure = true; // what comes behind it may not be what is next
        return 1;
    }
    if (s->behind) {
        find_in(s, &o);
    }
    return 0;
}

void elf_next(const char *const names[], void *slots[], size_t n) {
    struct search s = {.names = names, .slots = slots, .n = n};
    if (n <= NAMES_MAX) {
        for (size_t i = 0; i < n; i++) {
            s.hash[i] = hash_of(names[i]);
        }
        dl_iterate_phdr(visit, &s);
    }
    bool all = s.behind && !s.unsure;
    for (size_t i = 0; i < n; i++) {
        if (slots[i] == NULL && (!all || s.ask[i])) {
            slots[i] = dlsym(RTLD_NEXT, names[i]);
        }
    }
}
