// SPDX-License-Identifier: MIT
//
// names: see names.h. Linear probing with tombstones; tombstones before an empty slot are swept away at once.

#include "names.h"

#include <string.h>

static size_t slot_of(uint64_t hash, size_t i) {
    return (size_t)((hash >> 24) + i) & (NAMES_SLOTS - 1);
}

static uint64_t file_hash(const struct file_slot *f) {
    return name_hash(f->dir_dev, f->dir_ino, f->name, strlen(f->name));
}

void names_put(struct pair *p, unsigned slot, enum name_state s) {
    struct tables *t = p->t;
    uint64_t hash = file_hash(&p->st->files[slot]);
    size_t target = NAMES_SLOTS;
    for (size_t i = 0; i < NAMES_SLOTS; i++) {
        size_t at = slot_of(hash, i);
        uint64_t w = atomic_load_explicit(&t->names[at], memory_order_relaxed);
        if (w == 0 || w == NAME_GONE) {
            target = target == NAMES_SLOTS ? at : target;
            if (w == 0) {
                break;
            }
        } else if ((w & NAME_HASH_MASK) == hash) {
            const struct file_slot *there = &p->st->files[name_word_file(w) % FILES_MAX];
            if (there->state != FILE_FREE && there->id > p->st->files[slot].id) {
                return; // a newer file of this name: the old one's close does not hide it
            }
            atomic_store_explicit(&t->names[at], name_word(hash, s, slot), memory_order_release);
            return;
        }
    }
    if (target == NAMES_SLOTS) {
        return; // cannot happen: four times as many slots as files
    }
    atomic_fetch_add_explicit(&t->names_count, 1, memory_order_seq_cst);
    atomic_store_explicit(&t->names[target], name_word(hash, s, slot), memory_order_seq_cst);
}

/** Tombstones directly before an empty slot stop no probe that matters: empty them too. */
static void sweep(struct tables *t, size_t at) {
    if (atomic_load_explicit(&t->names[(at + 1) & (NAMES_SLOTS - 1)], memory_order_relaxed) != 0) {
        return;
    }
    while (atomic_load_explicit(&t->names[at], memory_order_relaxed) == NAME_GONE) {
        atomic_store_explicit(&t->names[at], 0, memory_order_release);
        at = (at - 1) & (NAMES_SLOTS - 1);
    }
}

void names_remove(struct pair *p, unsigned slot) {
    struct tables *t = p->t;
    uint64_t hash = file_hash(&p->st->files[slot]);
    for (size_t i = 0; i < NAMES_SLOTS; i++) {
        size_t at = slot_of(hash, i);
        uint64_t w = atomic_load_explicit(&t->names[at], memory_order_relaxed);
        if (w == 0) {
            return;
        }
        if (w != NAME_GONE && (w & NAME_HASH_MASK) == hash) {
            if (name_word_file(w) == slot) {
                atomic_store_explicit(&t->names[at], NAME_GONE, memory_order_seq_cst);
                sweep(t, at);
                atomic_fetch_sub_explicit(&t->names_count, 1, memory_order_seq_cst);
            }
            return;
        }
    }
}

void names_rebuild(struct pair *p) {
    struct tables *t = p->t;
    // Clients may look while this runs: keep the count above zero until it is right again.
    atomic_fetch_add(&t->names_count, FILES_MAX);
    uint32_t count = 0;
    for (size_t i = 0; i < NAMES_SLOTS; i++) {
        uint64_t w = atomic_load_explicit(&t->names[i], memory_order_relaxed);
        if (w != 0 && w != NAME_GONE) {
            const struct file_slot *f = &p->st->files[name_word_file(w) % FILES_MAX];
            if (f->state == FILE_FREE || file_hash(f) != (w & NAME_HASH_MASK)) {
                atomic_store_explicit(&t->names[i], NAME_GONE, memory_order_release);
                continue;
            }
            count++;
        }
    }
    atomic_store(&t->names_count, count);
    for (unsigned i = 0; i < FILES_MAX; i++) {
        const struct file_slot *f = &p->st->files[i];
        if (f->state != FILE_FREE && !names_find(t, file_hash(f))) {
            bool followed = (f->flags & OPEN_FOLLOWED) != 0;
            names_put(p, i, followed ? NAME_FOLLOWED : f->state == FILE_OPEN ? NAME_OPEN : NAME_PENDING);
        }
    }
}
