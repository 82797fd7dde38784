// SPDX-License-Identifier: MIT
//
// callsite_elf: see callsite_elf.h.

#include "callsite_elf.h"

#include "../core/log.h"
#include "../core/os.h"
#include "../core/path.h"
#include "elf.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>

static int (*find_object)(void *, struct dl_find_object *); // since glibc 2.35; may be called in a signal handler

void callsite_elf_start(void) {
    void *p = dlsym(RTLD_DEFAULT, "_dl_find_object");
    memcpy(&find_object, &p, sizeof p);
}

bool callsite_object(uintptr_t address, struct callsite_object *o) {
    struct dl_find_object d;
    if (find_object == NULL || find_object((void *)address, &d) != 0) {
        return false;
    }
    *o = (struct callsite_object){.start = (uintptr_t)d.dlfo_map_start,
                                  .end = (uintptr_t)d.dlfo_map_end,
                                  .base = d.dlfo_link_map->l_addr,
                                  .frames = d.dlfo_eh_frame,
                                  .dynamic = d.dlfo_link_map->l_ld};
    const char *name = d.dlfo_link_map->l_name;
    char self[4096];
    if (name == NULL || name[0] == '\0') { // the program itself
        ssize_t n = os_readlinkat(AT_FDCWD, "/proc/self/exe", self, sizeof self - 1);
        self[n > 0 ? n : 0] = '\0';
        name = self;
    }
    log_format(o->name, sizeof o->name, "%s", path_base(name));
    return true;
}

// The symbols that are defined begin at hash[1] and end with the chain of the last bucket.
static uint32_t symbols_end(const uint32_t *hash) {
    uint32_t buckets = hash[0], first = hash[1], words = hash[2] * (uint32_t)(sizeof(ElfW(Addr)) / 4);
    const uint32_t *bucket = hash + 4 + words, *chain = bucket + buckets;
    uint32_t last = 0;
    for (uint32_t i = 0; i < buckets; i++) {
        last = bucket[i] > last ? bucket[i] : last;
    }
    if (last < first) {
        return 0;
    }
    while ((chain[last - first] & 1) == 0) {
        last++;
    }
    return last + 1;
}

const char *callsite_symbol(const struct callsite_object *o, uintptr_t address) {
    struct elf_symbols s = elf_symbols_of(o->base, o->dynamic);
    if (s.table == NULL || s.names == NULL || s.hash == NULL) {
        return NULL;
    }
    uint32_t end = symbols_end(s.hash);
    for (uint32_t i = s.hash[1]; i < end; i++) {
        const ElfW(Sym) *y = &s.table[i];
        if (ELF64_ST_TYPE(y->st_info) == STT_FUNC && y->st_shndx != SHN_UNDEF && address >= o->base + y->st_value &&
            address < o->base + y->st_value + y->st_size) {
            return s.names + y->st_name;
        }
    }
    return NULL;
}
