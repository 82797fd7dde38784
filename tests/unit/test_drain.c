// SPDX-License-Identifier: MIT
//
// Proves: what becomes of an item when nobody needs its chunk any more: kept with its place while a record may say it,
//         for its checksum until the file has its name, else gone; a file of which only a part stays summed is loose.
//         And that each item is somebody's or free, once, also behind a restart, and those never used are not touched.
// How: items in ordinary memory, put into each state by hand; stripes that only count places.
// Cannot see: the chunk's way to the stripe and back (test_crash_stripes, tests/system/stripes.py).

#include "core/drain_inside.h"
#include "core/os.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLOT 3u

static struct pair p;
static struct drain *d;
static struct lend lend;
static struct writer *w;

static void start(unsigned generation) {
    p.st->generation = generation;
    d = calloc(1, sizeof *d);
    memset(&lend, 0, sizeof lend);
    drain_start(d, &p, NULL, &lend, w);
    cr_assert(d->run);
}

/** A pair with one stripe, which an earlier engine has made. */
static void setup(void) {
    p.st = calloc(1, sizeof *p.st);
    p.t = calloc(1, sizeof *p.t);
    w = calloc(1, sizeof *w);
    cr_assert(p.st && p.t && w);
    p.st->fd_stripe[0] = os_memfd("stripe", 0);
    cr_assert_eq(ftruncate(p.st->fd_stripe[0], (off_t)(16 * CHUNK_SIZE)), 0);
    p.st->files[SLOT].state = FILE_CLOSED;
    start(2);
    cr_assert_eq(d->stripes.stripe[0].n_free, 16);
}

static struct file_slot *file(void) {
    return &p.st->files[SLOT];
}

/** One that the writer has brought to the file. */
static uint32_t written(bool placed, bool summed) {
    uint32_t i = drain_take_item(d);
    struct stripe_item *it = drain_item(d, i);
    it->file = SLOT;
    it->device = placed ? 0 : -1;
    it->place = placed ? d->stripes.stripe[0].free[--d->stripes.stripe[0].n_free] : 0;
    it->summed = summed;
    it->state = ITEM_PASSED;
    return i;
}

static enum item_state end(uint32_t i) {
    drain_end_item(d, i);
    return drain_item(d, i)->state;
}

static unsigned places_free(void) {
    return d->stripes.stripe[0].n_free;
}

Test(drain, a_record_keeps_the_place, .init = setup) {
    uint32_t one = written(true, true), two = written(true, false);
    file()->safe = SAFE_YES;
    file()->unsafe = 1;
    cr_expect_eq(end(one), ITEM_KEPT);
    file()->error = -5; // a record of it may still be in the log
    cr_expect_eq(end(two), ITEM_KEPT);
    cr_expect(drain_item(d, one)->device == 0 && drain_item(d, two)->device == 0);
    cr_expect_eq(places_free(), 14);
    cr_expect_eq(d->file[SLOT].kept, 2);
    cr_expect_not(file()->loose);
    drain_release(d, SLOT);
    cr_expect_eq(places_free(), 16);
    cr_expect_eq(d->file[SLOT].kept, 0);
    cr_expect(drain_item(d, one)->state == ITEM_FREE && drain_item(d, two)->state == ITEM_FREE);
}

Test(drain, a_record_may_come, .init = setup) {
    uint32_t i = written(true, true);
    cr_expect_eq(end(i), ITEM_KEPT);
    cr_expect_eq(drain_item(d, i)->device, 0);
    drain_unsafe(d, SLOT);
    cr_expect_eq(drain_item(d, i)->state, ITEM_KEPT, "for its checksum");
    cr_expect_eq(drain_item(d, i)->device, -1);
    cr_expect_eq(places_free(), 16);
}

Test(drain, without_a_place_the_checksum_is_kept, .init = setup) {
    uint32_t one = written(true, true), two = written(false, true);
    file()->unsafe = 1;
    cr_expect_eq(end(one), ITEM_KEPT);
    cr_expect_eq(drain_item(d, one)->device, -1);
    cr_expect_eq(places_free(), 16);
    cr_expect_eq(end(two), ITEM_KEPT);
    cr_expect_eq(d->file[SLOT].kept, 2);
    cr_expect_not(file()->loose);
}

Test(drain, loose_if_one_without_a_checksum_goes_behind_one_that_is_kept, .init = setup) {
    file()->unsafe = 1;
    cr_expect_eq(end(written(false, false)), ITEM_FREE);
    cr_expect_not(file()->loose, "nothing is kept that it may have changed");
    cr_expect_eq(end(written(false, true)), ITEM_KEPT);
    cr_expect_not(file()->loose);
    cr_expect_eq(end(written(true, false)), ITEM_FREE);
    cr_expect(file()->loose);
    cr_expect_eq(places_free(), 16);
}

Test(drain, nothing_is_kept_of_what_is_lost, .init = setup) {
    cr_expect_eq(end(written(true, true)), ITEM_KEPT);
    file()->dropped = 1;
    cr_expect_eq(end(written(true, true)), ITEM_FREE);
    file()->dropped = 0;
    file()->error = -28;
    cr_expect_eq(end(written(true, true)), ITEM_FREE);
    cr_expect_not(file()->loose);
    cr_expect_eq(places_free(), 15);
}

Test(drain, where_items_are_short_no_checksum_is_kept, .init = setup) {
    file()->unsafe = 1;
    cr_expect_eq(end(written(false, true)), ITEM_KEPT);
    while (!drain_crowded(d)) {
        drain_take_item(d);
    }
    cr_expect_eq(end(written(false, true)), ITEM_FREE);
    cr_expect(file()->loose);
}

Test(drain, an_item_on_a_stripe_alone_is_counted_once, .init = setup) {
    uint32_t kept = written(true, true), gone = written(true, true);
    drain_item(d, kept)->spilled = drain_item(d, gone)->spilled = 1;
    p.t->files[SLOT].striped = d->spilled = 2;
    cr_expect_eq(end(kept), ITEM_KEPT);
    cr_expect(p.t->files[SLOT].striped == 1 && d->spilled == 1);
    file()->error = -5;
    cr_expect_eq(end(gone), ITEM_FREE);
    cr_expect(p.t->files[SLOT].striped == 0 && d->spilled == 0);
    drain_release(d, SLOT);
    cr_expect(p.t->files[SLOT].striped == 0 && d->spilled == 0);
}

/** Takes all that are free. None twice, and with those in `used` they are all there are. */
static void take_all(unsigned char *seen, unsigned used) {
    unsigned n = 0;
    for (; drain_items_left(d) > 0; n++) {
        uint32_t i = drain_take_item(d);
        cr_assert(i < ITEMS_MAX && !seen[i], "item %u", i);
        seen[i] = 1;
    }
    cr_expect_eq(n + used, ITEMS_MAX);
}

Test(drain, every_item_is_free_once, .init = setup) {
    unsigned char *seen = calloc(ITEMS_MAX, 1);
    cr_expect_eq(p.st->items_high, 0, "none is touched");
    for (unsigned k = 0; k < 10; k++) {
        drain_item(d, written(true, true))->number = k;
    }
    cr_expect_eq(p.st->items_high, 10);
    const unsigned gone[] = {9, 8, 2, 5};
    for (unsigned k = 0; k < ARRAY_LEN(gone); k++) {
        drain_free_item(d, gone[k]);
    }
    cr_expect_eq(drain_items_left(d), ITEMS_MAX - 6);
    start(3);
    cr_expect_eq(p.st->items_high, 8, "items 8 and 9 are as if never used");
    cr_expect_eq(drain_items_left(d), ITEMS_MAX - 6);
    cr_expect_eq(places_free(), 10);
    for (unsigned i = 0; i < 8; i++) {
        seen[i] = drain_item(d, i)->state != ITEM_FREE;
    }
    cr_expect_eq(drain_take_item(d), 2u);
    cr_expect_eq(drain_take_item(d), 5u);
    cr_expect_eq(drain_take_item(d), 8u);
    seen[2] = seen[5] = seen[8] = 1;
    take_all(seen, 9);
}
