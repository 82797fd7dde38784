// SPDX-License-Identifier: MIT
//
// drain_inside: what drain.c and drain_io.c share.

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

/** Gives the item a place and starts its write; or finds that it goes to the file at once. False: not now. */
bool drain_place(struct drain *d, uint32_t i);
/** Starts to read an item back into a free chunk. False: there is none. */
bool drain_read(struct drain *d, uint32_t i);
/** The item is the writer's no more, and nobody's. */
void drain_free_item(struct drain *d, uint32_t i);
/** The same of an item whose file is dead, when nothing of it is in hand any more. */
void drain_drop_item(struct drain *d, uint32_t i);

#endif
