// SPDX-License-Identifier: MIT
//
// drain_rebuild: the items that an engine has left behind when it died, in whatever state.

#include "drain_inside.h"

#include "breakpoint.h"

#include <stdlib.h>

static bool is_word_of(const struct drain *d, const struct stripe_item *it) {
    uint64_t word = it->chunk ? chunk_load(d->p, it->chunk - 1) : 0;
    enum chunk_state s = chunk_word_state(word);
    return (s == CHUNK_HANDED || s == CHUNK_FLYING) && chunk_word_number(word) == (it->number & CHUNK_NUMBER_MASK);
}

/** A place that a dead engine's write may still reach gets an item of its own. */
static void litter(struct drain *d, struct stripe_item *it) {
    if (drain_items_left(d) > 0) {
        struct stripe_item *x = drain_item(d, drain_take_item(d));
        x->device = it->device;
        x->place = it->place;
        x->spilled = 0;
        atomic_store_explicit(&x->state, ITEM_LITTER, memory_order_release);
        BREAK_POINT("item-litter");
    }
    it->device = -1;
}

static void find_again(struct drain *d, uint32_t i) {
    struct stripe_item *it = drain_item(d, i);
    enum item_state s = it->state;
    if (s == ITEM_FREE || s == ITEM_LITTER) {
        return;
    }
    if (s == ITEM_KEPT) {
        d->file[it->file].kept++;
        return;
    }
    if (it->spilled) {
        atomic_fetch_add(&d->p->t->files[it->file].striped, 1);
        d->spilled++;
    }
    bool here = is_word_of(d, it);
    if (s != ITEM_STRIPED && !here) { // the writer was done with it
        drain_end_item(d, i);
        return;
    }
    it->chunk = here ? it->chunk : 0;
    if (here) {
        d->item_of[it->chunk - 1] = i + 1;
    }
    if (s == ITEM_HELD && it->device >= 0) {
        litter(d, it);
    }
    if (s == ITEM_PASSED) {
        d->file[it->file].passed++;
        d->passed_to[drain_target(d, it->file)]++;
    }
}

static uint32_t item_with(const struct drain *d, uint64_t number) {
    for (uint32_t i = 0; i < d->p->st->items_high; i++) {
        const struct stripe_item *it = &d->p->st->items[i];
        enum item_state s = it->state;
        if ((s == ITEM_HELD || s == ITEM_STRIPED || s == ITEM_PASSED) && (it->number & CHUNK_NUMBER_MASK) == number) {
            return i + 1;
        }
    }
    return 0;
}

/** Items as they were handed over, behind those that the writer finds itself. */
static void list_again(struct drain *d) {
    uint32_t high = d->p->st->items_high, n = 0, *found = calloc(high + 1, sizeof *found);
    if (!found) {
        abort(); // as in drain_start: else what is on the stripes would never reach its files
    }
    for (uint32_t i = 0; i < high; i++) {
        enum item_state s = drain_item(d, i)->state;
        if (s == ITEM_HELD || s == ITEM_STRIPED) {
            found[n++] = i;
        }
    }
    state_sort_items(d->p->st, found, n);
    for (uint32_t k = 0; k < n; k++) {
        const struct stripe_item *it = drain_item(d, found[k]);
        writer_extend(d->w, it->file, &it->what);
        drain_append(d, found[k]);
        if (drain_item(d, found[k])->state == ITEM_HELD) {
            drain_append_fresh(d, found[k]);
        }
    }
    free(found);
}

void drain_rebuild(struct drain *d) {
    if (!d->run) {
        return;
    }
    for (unsigned slot = 0; slot < FILES_MAX; slot++) {
        atomic_store(&d->p->t->files[slot].striped, 0);
    }
    for (uint32_t i = 0; i < d->p->st->items_high; i++) { // litter may add to them
        find_again(d, i);
    }
    for (unsigned c = 0; c < d->p->st->staging_max / CHUNK_SIZE; c++) {
        uint64_t word = chunk_load(d->p, c);
        if (chunk_word_state(word) != CHUNK_HANDED || d->item_of[c] || d->p->st->chunks[c].taken != TAKEN_NOT) {
            continue; // (what was taken out of a client's hands is the writer's)
        }
        if (item_with(d, chunk_word_number(word))) { // it had left staging, or was being read back
            drain_free_chunk(d, c);
        } else {
            drain_new_item(d, c);
        }
    }
    list_again(d);
    d->lend->kept_back = d->spilled ? KEPT_BACK : 0;
}
