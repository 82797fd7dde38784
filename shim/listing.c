// SPDX-License-Identifier: MIT
//
// listing: see listing.h. A listing is one anonymous mapping: this header, the records as the engine wrote them (each
// serves as a struct dirent), room for a reader who copies a whole struct dirent, and a hash table over the names.

#include "listing.h"

#include "../core/os.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>

#define LISTING_MAX (2 * FILES_MAX * sizeof(struct dirent)) // a name and a hidden one a file
#define STREAMS_MAX 256

static_assert(offsetof(struct list_record, ino) == offsetof(struct dirent, d_ino), "a record is a dirent");
static_assert(offsetof(struct list_record, state) == offsetof(struct dirent, d_off), "a record is a dirent");
static_assert(offsetof(struct list_record, len) == offsetof(struct dirent, d_reclen), "a record is a dirent");
static_assert(offsetof(struct list_record, type) == offsetof(struct dirent, d_type), "a record is a dirent");
static_assert(offsetof(struct list_record, name) == offsetof(struct dirent, d_name), "a record is a dirent");

struct listing {
    size_t bytes;    // of the mapping
    uint64_t given;  // entries to be given
    uint32_t mask;   // of the hash table
    uint32_t *table; // offset of a record + 1, 0: empty
    uint32_t *order; // offsets of the entries to be given
    char records[] __attribute__((aligned(8)));
};

_Atomic uint32_t streams_count;
static struct stream streams[STREAMS_MAX];
static _Atomic uint32_t streams_high; // those from here on have never been used

// ---- Listings

static uint32_t hash_of(const char *name) {
    uint64_t h = fnv1a(FNV1A_INIT, name, strlen(name));
    return (uint32_t)(h ^ h >> 32);
}

// Number of records, or -1 if these are none.
static int count_records(const char *at, size_t bytes) {
    int n = 0;
    for (size_t off = 0; off < bytes; n++) {
        const struct list_record *r = (const struct list_record *)(at + off);
        size_t head = offsetof(struct list_record, name);
        if (bytes - off < sizeof *r || r->len % 8 != 0 || r->len <= head || r->len > bytes - off ||
            memchr(r->name, '\0', r->len - head) == NULL) {
            return -1;
        }
        off += r->len;
    }
    return n;
}

static void index_records(struct listing *l, size_t bytes) {
    for (uint32_t off = 0; off < bytes;) {
        struct list_record *r = (struct list_record *)(l->records + off);
        uint32_t at = hash_of(r->name) & l->mask;
        while (l->table[at] != 0) {
            at = (at + 1) & l->mask;
        }
        l->table[at] = off + 1;
        if (r->state == NAME_OPEN || r->state == NAME_PENDING) {
            l->order[l->given++] = off;
            r->state = listing_position(l->given); // now d_off
        }
        off += r->len;
    }
}

struct listing *listing_read(int fd) {
    struct stat s;
    if (os_fstat(fd, &s) < 0 || s.st_size <= 0 || (uint64_t)s.st_size > LISTING_MAX) {
        return NULL;
    }
    size_t bytes = (size_t)s.st_size, most = bytes / sizeof(struct list_record); // no record is smaller than its head
    size_t slots = 16;
    while (slots < 2 * most) {
        slots *= 2;
    }
    size_t tables = align_up(sizeof(struct listing) + bytes + sizeof(struct dirent), 8);
    size_t total = tables + (slots + most) * sizeof(uint32_t);
    struct listing *l = os_mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (os_is_err(l)) {
        return NULL;
    }
    *l = (struct listing){.bytes = total, .mask = (uint32_t)slots - 1};
    l->table = (uint32_t *)((char *)l + tables);
    l->order = l->table + slots;
    if (os_pread(fd, l->records, bytes, 0) != (ssize_t)bytes || count_records(l->records, bytes) < 0) {
        listing_free(l);
        return NULL;
    }
    index_records(l, bytes);
    return l;
}

void listing_free(struct listing *l) {
    if (l != NULL) {
        os_munmap(l, l->bytes);
    }
}

bool listing_knows(const struct listing *l, const char *name) {
    for (uint32_t at = hash_of(name) & l->mask; l->table[at] != 0; at = (at + 1) & l->mask) {
        if (strcmp(((const struct list_record *)(l->records + l->table[at] - 1))->name, name) == 0) {
            return true;
        }
    }
    return false;
}

uint64_t listing_count(const struct listing *l) {
    return l->given;
}

struct dirent *listing_entry(const struct listing *l, uint64_t i) {
    return (struct dirent *)(uintptr_t)(l->records + l->order[i]);
}

// ---- Streams

bool stream_add(DIR *dir, bool read_before) {
    static DIR *const taken = (DIR *)&streams; // no stream of a program's
    for (uint32_t i = 0; i < STREAMS_MAX; i++) {
        struct stream *s = &streams[i];
        DIR *seen = NULL;
        if (!atomic_compare_exchange_strong(&s->dir, &seen, taken)) {
            continue;
        }
        uint32_t high = atomic_load(&streams_high);
        while (high <= i && !atomic_compare_exchange_weak(&streams_high, &high, i + 1)) {
        }
        atomic_store(&s->state, STREAM_ASK);
        atomic_store(&s->read_before, read_before);
        atomic_store(&s->at, STREAM_KERNEL);
        atomic_store(&s->list, NULL);
        atomic_fetch_add(&streams_count, 1);
        atomic_store(&s->dir, dir);
        return true;
    }
    return false;
}

struct stream *stream_find(const DIR *dir) {
    uint32_t high = atomic_load_explicit(&streams_high, memory_order_acquire);
    for (uint32_t i = 0; i < high && dir != NULL; i++) {
        if (atomic_load_explicit(&streams[i].dir, memory_order_acquire) == dir) {
            return &streams[i];
        }
    }
    return NULL;
}

void stream_drop(struct stream *s) {
    listing_free(atomic_exchange(&s->list, NULL));
    atomic_store(&s->dir, NULL);
    atomic_fetch_sub(&streams_count, 1);
}

struct dirent *stream_next(struct stream *s, const struct listing *l) {
    int64_t at = STREAM_KERNEL;
    int64_t first = atomic_load(&s->read_before) ? (int64_t)l->given : 0;
    if (atomic_compare_exchange_strong(&s->at, &at, first)) {
        at = first;
    }
    while (at < (int64_t)l->given) {
        if (atomic_compare_exchange_weak(&s->at, &at, at + 1)) {
            return listing_entry(l, (uint64_t)at);
        }
    }
    return NULL;
}
