// SPDX-License-Identifier: MIT
//
// drain: see drain.h. What happens to an item on a stripe is drain_io.c's; here is which one is next, what leaves
// staging, and the start.

#include "drain_inside.h"

#include "breakpoint.h"
#include "layout.h"
#include "os.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_MASK ((1ull << 48) - 1) // what a chunk's word holds of a number
#define SPARE       8                  // free chunks below which what is on a stripe leaves staging
#define KEPT_BACK   4                  // free chunks that are lent to none while something has to be read back
#define OPEN_NS     300000000ll        // since its last hand-over, before an open file is drained
#define BURST_NS    50000000ll         // what FASTCKPT_DRAIN_RATE did not use may be caught up with, as far as this

// ---- Lists

static void activate(struct drain *d, unsigned slot) {
    if (!d->file[slot].active) {
        d->file[slot].active = true;
        d->active[d->n_active++] = slot;
    }
}

static void append(struct drain *d, uint32_t i) {
    unsigned slot = drain_item(d, i)->file;
    struct drain_file *f = &d->file[slot];
    if (f->tail) {
        d->run[f->tail - 1].next = i + 1;
    } else {
        f->head = i + 1;
    }
    f->tail = i + 1;
    activate(d, slot);
}

static void append_fresh(struct drain *d, uint32_t i) {
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

static int new_item(struct drain *d, unsigned chunk) {
    if (d->n_free == 0) {
        return -ENOSPC;
    }
    uint32_t i = d->free[--d->n_free];
    const struct chunk_slot *cs = &d->p->st->chunks[chunk];
    struct stripe_item *it = drain_item(d, i);
    uint64_t word = chunk_load(d->p, chunk);
    it->file = cs->file;
    it->file_id = cs->file_id;
    it->number = chunk_word_number(word);
    it->client = chunk_word_client(word);
    it->chunk = chunk + 1;
    it->device = -1;
    it->spilled = 0;
    it->what = cs->what;
    d->run[i] = (struct item_run){.d = d};
    atomic_store_explicit(&it->state, ITEM_HELD, memory_order_release);
    BREAK_POINT("item-held");
    d->item_of[chunk] = i + 1;
    return (int)i;
}

void drain_free_item(struct drain *d, uint32_t i) {
    struct stripe_item *it = drain_item(d, i);
    if (it->spilled) {
        atomic_fetch_sub(&d->p->t->files[it->file].striped, 1);
        d->spilled--;
    }
    int device = it->device;
    atomic_store_explicit(&it->state, ITEM_FREE, memory_order_release);
    BREAK_POINT("item-free");
    if (device >= 0) {
        stripes_give(&d->stripes, device, it->place);
    }
    d->free[d->n_free++] = i;
}

static void free_chunk(struct drain *d, unsigned chunk) {
    d->item_of[chunk] = 0;
    chunk_store(d->p, chunk, CHUNK_FREE, 0, 0);
    lend_give(d->lend, chunk);
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
        free_chunk(d, it->chunk - 1);
    }
    drain_free_item(d, i);
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
    int i = d->run && !d->p->st->plain ? new_item(d, chunk) : -ENOSPC;
    if (i < 0) {
        return false;
    }
    struct file_slot *f = &d->p->st->files[cs->file];
    const struct extent *last = &cs->what.extent[cs->what.n - 1];
    f->size_end = max_u64(f->size_end, cs->what.index * CHUNK_SIZE + last->off + last->len);
    d->file[cs->file].last_ns = os_now_ns(CLOCK_MONOTONIC);
    append(d, (uint32_t)i);
    append_fresh(d, (uint32_t)i);
    return true;
}

void drain_freed(struct drain *d, unsigned chunk) {
    if (!d->item_of[chunk]) {
        return;
    }
    uint32_t i = d->item_of[chunk] - 1, slot = drain_item(d, i)->file;
    d->item_of[chunk] = 0;
    d->file[slot].passed--;
    d->passed_to[drain_target(d, slot)]--;
    drain_free_item(d, i);
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
    if (i < 0 || d->n_free < CHUNKS_MAX) { // an item for each chunk that is handed over next
        return false;
    }
    struct stripe_item *it = drain_item(d, (uint32_t)i);
    unsigned chunk = it->chunk - 1;
    atomic_fetch_add(&d->p->t->files[it->file].striped, 1);
    d->spilled++;
    it->spilled = 1;
    *(volatile uint32_t *)&it->chunk = 0;
    BREAK_POINT("item-spilled");
    free_chunk(d, chunk);
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
    return (it->state == ITEM_STRIPED && it->chunk) || (it->state == ITEM_HELD && r->direct);
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
    if (d->stripes.n == 0) {
        return;
    }
    d->run = calloc(ITEMS_MAX, sizeof *d->run);
    d->free = calloc(ITEMS_MAX, sizeof *d->free);
    if (!d->run || !d->free) {
        abort(); // at the start, with nothing to lose: the keeper makes another engine
    }
    for (uint32_t i = ITEMS_MAX; i-- > 0;) {
        d->run[i].d = d;
        if (p->st->items[i].state == ITEM_FREE) {
            d->free[d->n_free++] = i;
        }
    }
    w->held = held;
    w->discard = discard;
    w->has = has;
    w->drain = d;
}

static bool is_word_of(const struct drain *d, const struct stripe_item *it) {
    uint64_t word = it->chunk ? chunk_load(d->p, it->chunk - 1) : 0;
    enum chunk_state s = chunk_word_state(word);
    return (s == CHUNK_HANDED || s == CHUNK_FLYING) && chunk_word_number(word) == (it->number & NUMBER_MASK);
}

/** A place that a dead engine's write may still reach gets an item of its own. */
static void litter(struct drain *d, struct stripe_item *it) {
    if (d->n_free > 0) {
        struct stripe_item *x = drain_item(d, d->free[--d->n_free]);
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
    if (it->spilled) {
        atomic_fetch_add(&d->p->t->files[it->file].striped, 1);
        d->spilled++;
    }
    bool here = is_word_of(d, it);
    if (s != ITEM_STRIPED && !here) { // the writer was done with it
        drain_free_item(d, i);
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
    for (uint32_t i = 0; i < ITEMS_MAX; i++) {
        const struct stripe_item *it = &d->p->st->items[i];
        if (it->state != ITEM_FREE && it->state != ITEM_LITTER && (it->number & NUMBER_MASK) == number) {
            return i + 1;
        }
    }
    return 0;
}

static const struct stripe_item *sorted_items;

static int by_number(const void *a, const void *b) {
    uint64_t x = sorted_items[*(const uint32_t *)a].number, y = sorted_items[*(const uint32_t *)b].number;
    return x < y ? -1 : x > y;
}

/** Items as they were handed over, behind those that the writer finds itself. */
static void list_again(struct drain *d) {
    uint32_t *found = calloc(ITEMS_MAX, sizeof *found), n = 0;
    for (uint32_t i = 0; found && i < ITEMS_MAX; i++) {
        enum item_state s = drain_item(d, i)->state;
        if (s == ITEM_HELD || s == ITEM_STRIPED) {
            found[n++] = i;
        }
    }
    sorted_items = d->p->st->items;
    if (n > 0) {
        qsort(found, n, sizeof *found, by_number);
    }
    for (uint32_t k = 0; k < n; k++) {
        append(d, found[k]);
        if (drain_item(d, found[k])->state == ITEM_HELD) {
            append_fresh(d, found[k]);
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
    for (uint32_t i = 0; i < ITEMS_MAX; i++) {
        find_again(d, i);
    }
    for (unsigned c = 0; c < d->p->st->staging_max / CHUNK_SIZE; c++) {
        uint64_t word = chunk_load(d->p, c);
        if (chunk_word_state(word) != CHUNK_HANDED || d->item_of[c]) {
            continue;
        }
        if (item_with(d, chunk_word_number(word))) { // it had left staging, or was being read back
            free_chunk(d, c);
        } else {
            new_item(d, c);
        }
    }
    list_again(d);
    d->lend->kept_back = d->spilled ? KEPT_BACK : 0;
}
