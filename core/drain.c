// SPDX-License-Identifier: MIT
//
// drain: see drain.h. What happens to an item on a stripe is drain_io.c's; here is which one is next, what leaves
// staging, and the start; that after a death is drain_rebuild.c's.

#include "drain_inside.h"

#include "breakpoint.h"
#include "os.h"

#include <assert.h>
#include <stdlib.h>

#define SPARE       8                  // free chunks below which what is on a stripe leaves staging
#define OPEN_NS     300000000ll        // since its last hand-over, before an open file is drained
#define SUMS_FREE   (3 * CHUNKS_MAX)   // free items below which none is kept for its checksum alone
#define BURST_NS    50000000ll         // what FASTCKPT_DRAIN_RATE did not use may be caught up with, as far as this

// ---- Lists

static void activate(struct drain *d, unsigned slot) {
    if (!d->file[slot].active) {
        d->file[slot].active = true;
        d->active[d->n_active++] = slot;
    }
}

void drain_append(struct drain *d, uint32_t i) {
    const struct stripe_item *it = drain_item(d, i);
    struct drain_file *f = &d->file[it->file];
    bool last = f->tail && drain_item(d, f->tail - 1)->number < it->number; // but for bytes of an arena (refer.h)
    uint32_t *at = last ? &d->run[f->tail - 1].next : &f->head;
    while (*at && drain_item(d, *at - 1)->number < it->number) {
        at = &d->run[*at - 1].next;
    }
    d->run[i].next = *at;
    *at = i + 1;
    f->tail = d->run[i].next ? f->tail : i + 1;
    activate(d, it->file);
}

void drain_append_fresh(struct drain *d, uint32_t i) {
    d->run[i].fresh = true;
    if (d->fresh_last) {
        d->run[d->fresh_last - 1].next_fresh = i + 1;
    } else {
        d->fresh = i + 1;
    }
    d->fresh_last = i + 1;
}

static uint32_t pop(struct drain *d, struct drain_file *f) {
    uint32_t i = f->head - 1;
    f->head = d->run[i].next;
    f->tail = f->head ? f->tail : 0;
    return i;
}

// ---- Items

uint32_t drain_take_item(struct drain *d) {
    assert(drain_items_left(d) > 0);
    uint32_t i = d->n_free > 0 ? d->free[--d->n_free] : d->p->st->items_high++;
    d->run[i] = (struct item_run){.d = d};
    return i;
}

uint32_t drain_new_item(struct drain *d, unsigned chunk) {
    uint32_t i = drain_take_item(d);
    const struct chunk_slot *cs = &d->p->st->chunks[chunk];
    struct stripe_item *it = drain_item(d, i);
    uint64_t word = chunk_load(d->p, chunk);
    it->file = cs->file;
    it->file_id = cs->file_id;
    it->number = chunk_word_number(word);
    it->client = chunk_word_client(word);
    it->chunk = chunk + 1;
    it->device = -1;
    it->spilled = it->summed = 0;
    it->what = cs->what;
    atomic_store_explicit(&it->state, ITEM_HELD, memory_order_release);
    BREAK_POINT("item-held");
    d->item_of[chunk] = i + 1;
    return i;
}

/** It is in the file, or nowhere: not on a stripe alone any more. */
static void unspill(struct drain *d, struct stripe_item *it) {
    if (it->spilled) {
        atomic_fetch_sub(&d->p->t->files[it->file].striped, 1);
        d->spilled--;
        it->spilled = 0;
    }
}

void drain_free_item(struct drain *d, uint32_t i) {
    struct stripe_item *it = drain_item(d, i);
    int device = it->device;
    atomic_store_explicit(&it->state, ITEM_FREE, memory_order_release);
    BREAK_POINT("item-free");
    unspill(d, it);
    if (device >= 0) {
        stripes_give(&d->stripes, device, it->place);
    }
    d->free[d->n_free++] = i;
}

void drain_free_chunk(struct drain *d, unsigned chunk) {
    d->item_of[chunk] = 0;
    chunk_store(d->p, chunk, CHUNK_FREE, 0, 0);
    lend_give(d->lend, chunk);
}

/** It is in the file; what is on the stripe may be all that a crash leaves of it. */
static void keep_item(struct drain *d, uint32_t i) {
    struct stripe_item *it = drain_item(d, i);
    unspill(d, it);
    atomic_store_explicit(&it->state, ITEM_KEPT, memory_order_release);
    BREAK_POINT("item-kept");
    d->file[it->file].kept++;
}

static void give_place(struct drain *d, struct stripe_item *it) {
    int device = it->device;
    if (device >= 0) {
        *(volatile int32_t *)&it->device = -1;
        BREAK_POINT("item-unplaced");
        stripes_give(&d->stripes, device, it->place);
    }
}

/** Nobody needs its chunk any more; but its place, while a record may say that the file is there, or is still to; and
 *  its checksum, until the file has its name (sums.h). */
void drain_end_item(struct drain *d, uint32_t i) {
    struct stripe_item *it = drain_item(d, i);
    struct file_slot *f = &d->p->st->files[it->file];
    bool lost = f->error || f->dropped;
    bool place = it->device >= 0 && it->state != ITEM_HELD && (f->safe != SAFE_NO || !(lost || f->unsafe));
    if (!place && (lost || !it->summed || drain_items_left(d) < SUMS_FREE)) {
        f->loose |= !lost && d->file[it->file].kept > 0; // what is kept may say what this one has changed
        drain_free_item(d, i);
        return;
    }
    if (!place) {
        give_place(d, it);
    }
    keep_item(d, i);
}

void drain_drop_item(struct drain *d, uint32_t i) {
    struct stripe_item *it = drain_item(d, i);
    struct item_run *r = &d->run[i];
    if (r->fresh || r->parts || r->reading) {
        d->file[it->file].busy += !r->dead;
        r->dead = true; // its end comes back here
        return;
    }
    d->file[it->file].busy -= r->dead;
    if (it->chunk) {
        drain_free_chunk(d, it->chunk - 1);
    }
    drain_end_item(d, i);
    d->w->on_change(d->w->arg, it->file);
}

void drain_discard(struct drain *d, unsigned slot) {
    struct drain_file *f = &d->file[slot];
    while (f->head) {
        drain_drop_item(d, pop(d, f));
    }
    f->hurry = f->full = false;
}

bool drain_add(struct drain *d, unsigned chunk) {
    const struct chunk_slot *cs = &d->p->st->chunks[chunk];
    if (!d->run) {
        return false;
    }
    uint32_t i = drain_new_item(d, chunk);
    writer_extend(d->w, cs->file, &cs->what);
    d->file[cs->file].last_ns = os_now_ns(CLOCK_MONOTONIC);
    drain_append(d, i);
    drain_append_fresh(d, i);
    return true;
}

void drain_release(struct drain *d, unsigned slot) {
    for (uint32_t i = 0; i < d->p->st->items_high && d->file[slot].kept > 0; i++) {
        struct stripe_item *it = drain_item(d, i);
        if (it->state == ITEM_KEPT && it->file == slot) {
            d->file[slot].kept--;
            drain_free_item(d, i);
        }
    }
}

void drain_unsafe(struct drain *d, unsigned slot) {
    struct file_slot *f = &d->p->st->files[slot];
    if (d->run && !f->unsafe) {
        f->unsafe = 1;
        for (uint32_t i = 0; i < d->p->st->items_high && f->safe == SAFE_NO && d->file[slot].kept > 0; i++) {
            struct stripe_item *it = drain_item(d, i);
            if (it->state == ITEM_KEPT && it->file == slot) {
                give_place(d, it);
            }
        }
    }
}

void drain_freed(struct drain *d, unsigned chunk) {
    if (!d->item_of[chunk]) {
        return;
    }
    uint32_t i = d->item_of[chunk] - 1, slot = drain_item(d, i)->file;
    d->item_of[chunk] = 0;
    d->file[slot].passed--;
    d->passed_to[drain_target(d, slot)]--;
    drain_end_item(d, i);
}

// ---- What others ask

static bool held(void *arg, unsigned slot, uint64_t number) {
    const struct drain *d = arg;
    uint32_t head = d->file[slot].head;
    return head && d->p->st->items[head - 1].number < number;
}

static void discard(void *arg, unsigned slot) {
    drain_discard(arg, slot);
}

static bool has(void *arg, unsigned chunk) {
    const struct drain *d = arg;
    uint32_t i = d->item_of[chunk];
    return i && d->p->st->items[i - 1].state != ITEM_PASSED;
}

void drain_hurry(struct drain *d, unsigned slot) {
    d->file[slot].hurry = d->file[slot].head != 0;
}

bool drain_busy(const struct drain *d, unsigned slot) {
    const struct drain_file *f = &d->file[slot];
    return f->head || f->passed || f->busy;
}

uint64_t drain_bytes(const struct drain *d, unsigned slot) {
    uint64_t n = 0;
    for (uint32_t i = d->file[slot].head; i; i = d->run[i - 1].next) {
        n += drain_length(&d->p->st->items[i - 1]);
    }
    return n;
}

// ---- Leaving staging

/** The newest chunk that is on a stripe: the oldest is the next to be written to its file. Not one that was read back,
 *  which would be read again and again. */
static int newest_striped(const struct drain *d) {
    int best = -1;
    for (unsigned c = 0; c < d->p->st->staging_max / CHUNK_SIZE; c++) {
        uint32_t i = d->item_of[c];
        if (!i || d->p->st->items[i - 1].state != ITEM_STRIPED || d->p->st->items[i - 1].spilled) {
            continue;
        }
        if (best < 0 || d->p->st->items[i - 1].number > d->p->st->items[best].number) {
            best = (int)i - 1;
        }
    }
    return best;
}

static bool spill_one(struct drain *d) {
    int i = newest_striped(d);
    if (i < 0 || drain_crowded(d)) {
        return false;
    }
    struct stripe_item *it = drain_item(d, (uint32_t)i);
    unsigned chunk = it->chunk - 1;
    atomic_fetch_add(&d->p->t->files[it->file].striped, 1);
    d->spilled++;
    it->spilled = 1;
    *(volatile uint32_t *)&it->chunk = 0;
    BREAK_POINT("item-spilled");
    drain_free_chunk(d, chunk);
    return true;
}

static void spill(struct drain *d) {
    bool any = false;
    while (lend_short(d->lend, SPARE) && spill_one(d)) {
        any = true;
        d->lend->kept_back = KEPT_BACK;
    }
    unsigned keep = d->spilled ? KEPT_BACK : 0;
    if (any || keep != d->lend->kept_back) {
        d->lend->kept_back = keep;
        d->lend->on_change(d->lend->arg);
    }
}

// ---- Whose turn it is

static bool ready(const struct drain *d, uint32_t i) {
    const struct stripe_item *it = &d->p->st->items[i];
    const struct item_run *r = &d->run[i];
    return (it->state == ITEM_STRIPED && it->chunk) || (it->state == ITEM_HELD && r->direct && !r->parts);
}

static void pass(struct drain *d, unsigned slot) {
    struct drain_file *f = &d->file[slot];
    uint32_t i = pop(d, f);
    struct stripe_item *it = drain_item(d, i);
    atomic_store_explicit(&it->state, ITEM_PASSED, memory_order_release);
    BREAK_POINT("item-passed");
    f->passed++;
    d->passed_to[drain_target(d, slot)]++;
    f->hurry = f->hurry && f->head;
    f->full = f->full && f->head;
    uint64_t rate = d->p->st->config.drain_rate;
    if (rate) {
        int64_t now = os_now_ns(CLOCK_MONOTONIC);
        d->next_ns = d->next_ns < now - BURST_NS ? now - BURST_NS : d->next_ns;
        d->next_ns += (int64_t)((double)drain_length(it) * 1e9 / (double)rate);
    }
    writer_add(d->w, it->chunk - 1);
}

/** Not yet: FASTCKPT_DRAIN_RATE, or its program is about to write more. */
static bool early(struct drain *d, unsigned slot, int64_t now) {
    const struct drain_file *f = &d->file[slot];
    bool open = d->p->st->files[slot].state == FILE_OPEN && !f->full;
    int64_t at = open ? f->last_ns + OPEN_NS : 0;
    at = d->next_ns > at ? d->next_ns : at;
    if (f->hurry || at <= now) {
        return false;
    }
    d->wake_ns = d->wake_ns && d->wake_ns < at ? d->wake_ns : at;
    return true;
}

/** Of the files with something to do now, the one whose bytes are oldest. `read`: its next item is only on a stripe. */
static int choose(struct drain *d, bool read) {
    int best = -1;
    int64_t now = os_now_ns(CLOCK_MONOTONIC);
    for (unsigned k = 0; k < d->n_active; k++) {
        unsigned slot = d->active[k];
        const struct drain_file *f = &d->file[slot];
        if (!f->head) {
            continue;
        }
        uint32_t i = f->head - 1;
        bool lone = drain_item(d, i)->state == ITEM_STRIPED && !drain_item(d, i)->chunk && !d->run[i].reading;
        bool room = f->passed < FLY_MAX && (f->hurry || d->passed_to[drain_target(d, slot)] < DRAIN_DEPTH);
        if (!room || (read ? !lone : !ready(d, i)) || early(d, slot, now)) {
            continue;
        }
        const struct drain_file *b = &d->file[best < 0 ? 0 : best];
        if (best < 0 || f->hurry > b->hurry ||
            (f->hurry == b->hurry && drain_item(d, i)->number < drain_item(d, b->head - 1)->number)) {
            best = (int)slot;
        }
    }
    return best;
}

/** Reads back the next of a file, and those behind it that will be next. */
static bool read_some(struct drain *d, unsigned slot) {
    bool any = false;
    unsigned ahead = 0;
    for (uint32_t i = d->file[slot].head; i && ahead < DRAIN_READS && d->reads < DRAIN_READS; i = d->run[i - 1].next) {
        const struct stripe_item *it = drain_item(d, i - 1);
        ahead++;
        if (it->state == ITEM_STRIPED && !it->chunk && !d->run[i - 1].reading) {
            if (!drain_read(d, i - 1)) {
                break;
            }
            any = true;
        }
    }
    return any;
}

static void forget_idle(struct drain *d) {
    for (unsigned k = 0; k < d->n_active;) {
        unsigned slot = d->active[k];
        if (d->file[slot].head) {
            k++;
        } else {
            d->file[slot].active = false;
            d->active[k] = d->active[--d->n_active];
        }
    }
}

void drain_pump(struct drain *d) {
    d->wake_ns = 0;
    if (!d->run) {
        return;
    }
    while (d->fresh && drain_place(d, d->fresh - 1)) {
        d->fresh = d->run[d->fresh - 1].next_fresh;
        d->fresh_last = d->fresh ? d->fresh_last : 0;
    }
    spill(d);
    for (int slot; (slot = choose(d, false)) >= 0;) {
        pass(d, (unsigned)slot);
    }
    for (int slot; d->reads < DRAIN_READS && (slot = choose(d, true)) >= 0;) {
        if (!read_some(d, (unsigned)slot)) {
            break;
        }
    }
    forget_idle(d);
    int64_t due = stripes_tidy(&d->stripes);
    d->wake_ns = due && (!d->wake_ns || due < d->wake_ns) ? due : d->wake_ns;
}

// ---- Start

void drain_start(struct drain *d, struct pair *p, struct io *io, struct lend *l, struct writer *w) {
    d->p = p;
    d->io = io;
    d->lend = l;
    d->w = w;
    d->stripes.on_change = l->on_change;
    d->stripes.arg = l->arg;
    stripes_start(&d->stripes, p, io);
    if (d->stripes.end == 0) {
        return;
    }
    d->run = calloc(ITEMS_MAX, sizeof *d->run);
    d->free = calloc(ITEMS_MAX, sizeof *d->free);
    if (!d->run || !d->free) {
        abort(); // at the start, with nothing to lose: the keeper makes another engine
    }
    uint32_t *high = &p->st->items_high; // what is above it is not touched: it takes no memory
    while (*high > 0 && p->st->items[*high - 1].state == ITEM_FREE) {
        --*high;
    }
    for (uint32_t i = *high; i-- > 0;) {
        d->run[i].d = d;
        if (p->st->items[i].state == ITEM_FREE) {
            d->free[d->n_free++] = i;
        }
    }
    writer_add_source(w, (struct writer_source){held, discard, has, d});
}
