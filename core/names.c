// SPDX-License-Identifier: MIT
//
// names: see names.h. Linear probing with tombstones; tombstones before an empty slot are swept away at once.

#include "names.h"

#include <string.h>

static size_t slot_of(uint64_t hash, size_t i) {
    return (size_t)((hash >> 24) + i) & (NAMES_SLOTS - 1);
}

static uint64_t hash_of(uint64_t dev, uint64_t ino, const char *name) {
    return name_hash(dev, ino, name, strlen(name));
}

/** A name that a slot has something to say about. */
struct said {
    uint64_t hash;
    enum name_state state;
};

#define SAID_MAX 3

/** Fills `s` (room for SAID_MAX). Returns how many. An inode that is going to have a name or to lose it is hashed with
 *  an empty name: whoever has it open asks how many links it has. */
static unsigned said_by(const struct file_slot *f, struct said *s) {
    s[0].hash = hash_of(f->dir_dev, f->dir_ino, f->name);
    switch (f->kind) {
    case SLOT_UNLINK:
        s[0].state = NAME_ABSENT;
        s[1] = (struct said){hash_of(f->dev, f->ino, ""), NAME_ABSENT};
        return 2;
    case SLOT_RMDIR:
        s[0].state = NAME_ABSENT;
        s[1] = (struct said){hash_of(f->dev, f->ino, ""), NAME_NO_DIR};
        return 2;
    case SLOT_RENAME:
        s[0].state = NAME_ABSENT;
        s[1] = (struct said){hash_of(f->to_dev, f->to_ino, f->to), NAME_PENDING};
        s[2] = (struct said){hash_of(f->over_dev, f->over_ino, ""), NAME_ABSENT};
        return f->over_ino ? 3 : 2;
    default:
        s[0].state = f->flags & OPEN_FOLLOWED || f->linked ? NAME_FOLLOWED
                     : f->state == FILE_OPEN               ? NAME_OPEN
                                                           : NAME_PENDING;
        s[1] = (struct said){hash_of(f->dev, f->ino, ""), s[0].state};
        return 2;
    }
}

static bool says(const struct file_slot *f, uint64_t hash, struct said *s) {
    bool silent = f->state == FILE_FREE || f->dropped || f->unnamed || (f->state == FILE_CLOSED && f->done);
    unsigned n = silent ? 0 : said_by(f, s);
    for (unsigned i = 0; i < n; i++) {
        if (s[i].hash == hash) {
            s[0] = s[i];
            return true;
        }
    }
    return false;
}

/** Who has the last say about a name: the later one; but a file that is only followed says least. It may have been
 *  taken back before it was published, and until then its directory does not show it. */
static bool beats(const struct file_slot *a, enum name_state says_a, const struct file_slot *b,
                  enum name_state says_b) {
    bool follows_a = says_a == NAME_FOLLOWED, follows_b = says_b == NAME_FOLLOWED;
    return follows_a == follows_b ? a->id > b->id : follows_b;
}

static void put(struct pair *p, unsigned slot, const struct said *s) {
    struct tables *t = p->t;
    uint64_t hash = s->hash;
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
            struct file_slot *there = &p->st->files[name_word_file(w) % FILES_MAX], *mine = &p->st->files[slot];
            struct said other[SAID_MAX];
            if (there != mine && says(there, hash, other) && beats(there, other[0].state, mine, s->state)) {
                there->over = 1;
                return;
            }
            mine->over |= there != mine;
            atomic_store_explicit(&t->names[at], name_word(hash, s->state, slot), memory_order_release);
            return;
        }
    }
    if (target == NAMES_SLOTS) {
        return; // cannot happen: there are more slots than names
    }
    atomic_fetch_add_explicit(&t->names_count, 1, memory_order_seq_cst);
    atomic_store_explicit(&t->names[target], name_word(hash, s->state, slot), memory_order_seq_cst);
}

void names_put(struct pair *p, unsigned slot) {
    struct said s[SAID_MAX];
    atomic_fetch_add(&p->t->ways_gone, p->st->files[slot].way); // before the words: who sees one walks
    unsigned n = said_by(&p->st->files[slot], s);
    for (unsigned i = 0; i < n; i++) {
        put(p, slot, &s[i]);
    }
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

/** The word that has the last say once `gone` is silent: an older entry may not have been carried out yet. 0: none. */
static uint64_t word_below(const struct pair *p, unsigned gone, uint64_t hash) {
    const struct file_slot *best = NULL;
    struct said s[SAID_MAX], said = {0};
    for (unsigned i = 0; i < FILES_MAX; i++) {
        const struct file_slot *f = &p->st->files[i];
        if (i != gone && says(f, hash, s) && (!best || beats(f, s[0].state, best, said.state))) {
            best = f;
            said = s[0];
        }
    }
    return best ? name_word(hash, said.state, (unsigned)(best - p->st->files)) : 0;
}

static void take_out(struct pair *p, unsigned slot, uint64_t hash) {
    struct tables *t = p->t;
    for (size_t i = 0; i < NAMES_SLOTS; i++) {
        size_t at = slot_of(hash, i);
        uint64_t w = atomic_load_explicit(&t->names[at], memory_order_relaxed);
        if (w == 0) {
            return;
        }
        if (w != NAME_GONE && (w & NAME_HASH_MASK) == hash) {
            uint64_t below = name_word_file(w) == slot && p->st->files[slot].over ? word_below(p, slot, hash) : 0;
            if (below) {
                p->st->files[name_word_file(below)].over = 1; // there may be more behind it
                atomic_store_explicit(&t->names[at], below, memory_order_release);
            } else if (name_word_file(w) == slot) {
                atomic_store_explicit(&t->names[at], NAME_GONE, memory_order_seq_cst);
                sweep(t, at);
                atomic_fetch_sub_explicit(&t->names_count, 1, memory_order_seq_cst);
            }
            return;
        }
    }
}

void names_remove(struct pair *p, unsigned slot) {
    struct said s[SAID_MAX];
    unsigned n = said_by(&p->st->files[slot], s);
    for (unsigned i = 0; i < n; i++) {
        take_out(p, slot, s[i].hash);
    }
    atomic_fetch_sub(&p->t->ways_gone, p->st->files[slot].way);
}

struct file_slot *names_latest(const struct pair *p, uint64_t dev, uint64_t ino, const char *name,
                               enum name_state *state) {
    uint64_t w = names_find(p->t, hash_of(dev, ino, name));
    struct file_slot *f = w ? &p->st->files[name_word_file(w) % FILES_MAX] : NULL;
    *state = w ? name_word_state(w) : NAME_NONE;
    if (!f || f->state == FILE_FREE) {
        return NULL;
    }
    bool mine = f->dir_dev == dev && f->dir_ino == ino && strcmp(f->name, name) == 0;
    bool to = f->kind == SLOT_RENAME && f->to_dev == dev && f->to_ino == ino && strcmp(f->to, name) == 0;
    return mine || to ? f : NULL; // else two names with one hash: 1 in 2^40
}

void names_rebuild(struct pair *p) {
    struct tables *t = p->t;
    // Clients may look while this runs: keep the counts above zero until they are right again.
    atomic_fetch_add(&t->names_count, FILES_MAX);
    atomic_store(&t->ways_gone, FILES_MAX);
    uint32_t count = 0;
    for (size_t i = 0; i < NAMES_SLOTS; i++) {
        uint64_t w = atomic_load_explicit(&t->names[i], memory_order_relaxed);
        if (w != 0 && w != NAME_GONE) {
            const struct file_slot *f = &p->st->files[name_word_file(w) % FILES_MAX];
            struct said s[SAID_MAX];
            if (!says(f, w & NAME_HASH_MASK, s)) {
                atomic_store_explicit(&t->names[i], NAME_GONE, memory_order_release);
                continue;
            }
            count++;
        }
    }
    atomic_store(&t->names_count, count + state_broken(p->st)); // see broken.h
    for (unsigned i = 0; i < FILES_MAX; i++) {
        if (p->st->files[i].state != FILE_FREE && !p->st->files[i].dropped && !p->st->files[i].unnamed) {
            names_put(p, i);
        }
    }
    atomic_fetch_sub(&t->ways_gone, FILES_MAX);
}
