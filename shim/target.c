// SPDX-License-Identifier: MIT
//
// target: see target.h. The loader is asked once for each place that calls. What a caller reaches natively: the first
// definition of the name in the order of loading, unless that one has a version that the caller does not ask for; then
// what its own object needs. An object opened with RTLD_LOCAL is in no order of loading but that of its own.

#include "target.h"

#include "guard.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

struct target_place target_places[TARGET_PLACES];

// ---- Objects

// The object that `address` is in, or NULL.
static struct link_map *object_of(const void *address) {
    Dl_info info;
    struct link_map *map = NULL;
    return dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) != 0 ? map : NULL;
}

static bool is_program(const struct link_map *map) {
    return map->l_name == NULL || map->l_name[0] == '\0';
}

static bool has_versions(const struct link_map *map) {
    const ElfW(Dyn) *d = map->l_ld;
    while (d->d_tag != DT_NULL && d->d_tag != DT_VERDEF) {
        d++;
    }
    return d->d_tag == DT_VERDEF;
}

// `name` in a loaded file or in what it needs; never ours.
static void *in_object(const char *path, const char *name) {
    void *handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL) {
        return NULL;
    }
    void *p = dlsym(handle, name);
    dlclose(handle); // a caller's object may still be unloaded
    return p != NULL && object_of(p) != object_of(&shim) ? p : NULL;
}

struct search {
    const char *library;
    char path[4096];
};

static int named(struct dl_phdr_info *info, size_t size, void *arg) {
    (void)size;
    struct search *s = arg;
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *base = slash != NULL ? slash + 1 : info->dlpi_name;
    size_t len = strlen(info->dlpi_name);
    if (strncmp(base, s->library, strlen(s->library)) != 0 || len >= sizeof s->path) {
        return 0;
    }
    memcpy(s->path, info->dlpi_name, len + 1);
    return 1;
}

static void *in_loaded(const char *library, const char *name) {
    struct search s = {.library = library};
    return dl_iterate_phdr(named, &s) != 0 ? in_object(s.path, name) : NULL;
}

bool target_loaded(const char *library) {
    struct search s = {.library = library};
    return dl_iterate_phdr(named, &s) != 0;
}

void target_keep(const void *function) {
    const struct link_map *map = object_of(function);
    const int flags = RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE;
    void *handle = map != NULL && !is_program(map) ? dlopen(map->l_name, flags) : NULL;
    if (handle != NULL) {
        dlclose(handle);
    }
}

static void *find(const struct target_symbol *s, uintptr_t caller) {
    struct link_map *from = object_of((void *)caller);
    void *next = dlsym(RTLD_NEXT, s->name), *p = next;
    const struct link_map *map = next != NULL ? object_of(next) : NULL;
    if ((map == NULL || has_versions(map)) && from != NULL && !is_program(from)) {
        void *own = in_object(from->l_name, s->name);
        p = own != NULL ? own : next;
    }
    if (p == NULL && s->library != NULL) {
        p = in_loaded(s->library, s->name);
    }
    if (p != NULL && object_of(p) != from) { // what is in the caller itself is there while it calls
        target_keep(p);
    }
    dlerror(); // of ours
    return p;
}

// ---- Places

// A function of that name which has been found for others. False: none, or several.
static bool known(const struct target_symbol *s, struct target *ret) {
    *ret = (struct target){0};
    for (size_t i = 0; i < TARGET_PLACES; i++) {
        struct target_place *p = &target_places[i];
        if (atomic_load(&p->symbol) != s || atomic_load(&p->version) & 1) {
            continue;
        }
        void *function = atomic_load(&p->function);
        if (ret->function != NULL && ret->function != function) {
            return false;
        }
        *ret = (struct target){function, atomic_load(&p->more)};
    }
    return ret->function != NULL;
}

// Two that write the same place at once: one of them is not kept.
static void keep_place(const struct target_symbol *s, uintptr_t caller, const struct target *t) {
    struct target_place *p = target_place(caller);
    uint32_t version = atomic_load(&p->version);
    if ((version & 1) == 0 && atomic_compare_exchange_strong(&p->version, &version, version + 1)) {
        atomic_store(&p->caller, caller);
        atomic_store(&p->code, target_code(caller));
        atomic_store(&p->symbol, s);
        atomic_store(&p->function, t->function);
        atomic_store(&p->more, t->more);
        atomic_store(&p->version, version + 2);
    }
}

struct target target_look_up(const struct target_symbol *s, uintptr_t caller) {
    struct target t;
    int saved = errno;
    if (!shim.forked || !known(s, &t)) {
        t.function = find(s, caller);
        t.more = t.function != NULL && s->more != NULL ? s->more(t.function) : 0;
        if (t.function != NULL) {
            keep_place(s, caller, &t);
        }
    }
    errno = saved;
    return t;
}
