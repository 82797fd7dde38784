// SPDX-License-Identifier: MIT
//
// drain_inside: what drain.c, drain_io.c and drain_rebuild.c share.

#ifndef FASTCKPT_DRAIN_INSIDE_H
#define FASTCKPT_DRAIN_INSIDE_H

#include "drain.h"

static inline struct stripe_item *drain_item(const struct drain *d, uint32_t i) {
    return &d->p->st->items[i];
}

static inline unsigned drain_target(const struct drain *d, unsigned slot) {
    return (unsigned)(d->p->st->files[slot].dev % DRAIN_TARGETS);
}

static inline uint64_t drain_length(const struct stripe_item *it) {
    uint64_t n = 0;
    for (uint32_t k = 0; k < it->what.n; k++) {
        n += it->what.extent[k].len;
    }
    return n;
}

static inline uint32_t drain_items_left(const struct drain *d) {
    return d->n_free + ITEMS_MAX - d->p->st->items_high;
}

#define KEPT_BACK 4 // free chunks that are lent to none while something has to be read back

/** So few items are left that what is on a stripe gets none: those that are free are for the chunks of staging. */
static inline bool drain_crowded(const struct drain *d) {
    return drain_items_left(d) < 2 * CHUNKS_MAX;
}

/** Puts an item at the end of its file's list, and of those that wait for a place. */
void drain_append(struct drain *d, uint32_t i);
void drain_append_fresh(struct drain *d, uint32_t i);
/** A free item, still marked so. There has to be one. */
uint32_t drain_take_item(struct drain *d);
/** An item for a chunk that is handed over. There is always one: see drain_crowded. */
uint32_t drain_new_item(struct drain *d, unsigned chunk);
void drain_free_chunk(struct drain *d, unsigned chunk);
/** Gives the item a place and starts its write; or finds that it goes to the file at once. False: not now. */
bool drain_place(struct drain *d, uint32_t i);
/** Starts to read an item back into a free chunk. False: there is none. */
bool drain_read(struct drain *d, uint32_t i);
/** The item is the writer's no more, and nobody's. */
void drain_free_item(struct drain *d, uint32_t i);
/** Nobody needs its chunk any more. */
void drain_end_item(struct drain *d, uint32_t i);
/** The same of an item whose file is dead, when nothing of it is in hand any more. */
void drain_drop_item(struct drain *d, uint32_t i);

#endif
