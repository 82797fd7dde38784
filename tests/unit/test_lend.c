// SPDX-License-Identifier: MIT
//
// Proves: who gets a chunk next when several clients wait, and how many; and that nobody is forgotten or served for
// somebody who is gone. How: a purse of 64 chunks in ordinary memory, clients that only take. Cannot see growth and
// giving back of memory, nor the clock: tests/system/ranks.py and bad_memory.py do.

#include "core/lend.h"
#include "core/staging.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define STEPS  4u
#define CHUNKS (STEPS * STAGING_STEP_CHUNKS)

static struct pair pair_;
static struct lend lend;
static unsigned changes;
static uint32_t out[BORROW_MAX];
static uint64_t number;

static void on_change(void *arg) {
    (void)arg;
    changes++;
}

static void setup(void) {
    pair_.st = calloc(1, sizeof *pair_.st);
    pair_.t = calloc(1, sizeof *pair_.t);
    cr_assert(pair_.st && pair_.t);
    pair_.st->staging_max = STEPS * STAGING_STEP;
    memset(pair_.st->steps, 1, STEPS);
    lend_start(&lend, &pair_, NULL);
    lend.on_change = on_change;
    lend_rebuild(&lend);
    cr_assert_eq(lend.n_free, CHUNKS);
}

static unsigned take(unsigned client) {
    return lend_take(&lend, client, ++number, BORROW_MAX, out);
}

static void written(unsigned chunk) {
    chunk_store(&pair_, chunk, CHUNK_FREE, 0, 0);
    lend_give(&lend, chunk);
}

/** `client` takes all there is. */
static unsigned take_all(unsigned client) {
    unsigned n = 0;
    while (lend.n_free > 0) {
        n += take(client);
    }
    return n;
}

Test(lend, parts, .init = setup) {
    cr_expect_eq(take(0), BORROW_MAX, "a quarter of 64");
    cr_expect_eq(take(1), 12, "a quarter of 48");
    cr_expect_eq(take_all(2), 36);
    cr_expect_eq(take(3), 0);
    cr_expect_eq(lend_used(&lend), CHUNKS);
    cr_expect_eq(lend.n_askers, 1);
}

Test(lend, least_first, .init = setup) {
    cr_expect_eq(take_all(0), CHUNKS);
    cr_expect_eq(take(0), 0, "the first has everything, and asks first");
    cr_expect_eq(take(1), 0);
    cr_expect_eq(take(2), 0);
    for (unsigned i = 0; i < CHUNKS; i++) { // the two that have nothing, in turn
        written(i);
        cr_expect_eq(take(0), 0);
        unsigned served = 1 + i % 2;
        cr_expect_eq(take(3 - served), 0);
        changes = 0;
        cr_expect_eq(take(served), 1);
        cr_expect_eq(changes, 1, "those that wait are looked at again");
        cr_expect_eq(take(served), 0);
    }
    cr_expect_eq(lend.taken[1], CHUNKS / 2);
}

Test(lend, late, .init = setup) {
    take_all(0);
    for (unsigned i = 0; i < 10 * CHUNKS; i++) { // for ten budgets there is only one
        written(i % CHUNKS);
        cr_expect_eq(take(0), 1);
    }
    cr_expect_eq(take(0), 0);
    cr_expect_eq(take(1), 0);
    unsigned n = 0;
    for (; n < 20 * CHUNKS; n++) {
        written(n % CHUNKS);
        if (take(0)) {
            break;
        }
        cr_expect_eq(take(1), 1);
        take(1);
    }
    cr_expect_eq(n, CHUNKS, "one budget behind, not ten: %u", n);
}

Test(lend, gone, .init = setup) {
    take_all(0);
    cr_expect_eq(take(1), 0);
    cr_expect_eq(take(0), 0);
    lend_take_back(&lend, 1); // died while it waited
    written(5);
    cr_expect_eq(take(0), 1);
    cr_expect_eq(take(2), 0);
    cr_expect_eq(take(0), 0);
    lend_unask(&lend, 2); // waits no longer
    written(6);
    cr_expect_eq(take(0), 1);
    lend_take_back(&lend, 0);
    cr_expect_eq(lend_used(&lend), 0);
    cr_expect_eq(lend.n_askers, 0);
}

Test(lend, squared, .init = setup) {
    unsigned n = take(0);
    for (unsigned i = 0; i < n; i++) {
        written(out[i]);
    }
    cr_expect_eq(lend_used(&lend), 0);
    take(1);
    cr_expect_eq(lend.taken[0], 0, "staging was unused: nobody owes anybody");
}

Test(lend, again, .init = setup) {
    unsigned n = take(0);
    uint32_t first[BORROW_MAX];
    memcpy(first, out, sizeof first);
    struct lend next = {0}; // an engine after this one
    lend_start(&next, &pair_, NULL);
    next.on_change = on_change;
    lend_rebuild(&next);
    cr_expect_eq(lend_take(&next, 0, number, BORROW_MAX, out), n);
    for (unsigned i = 0; i < n; i++) {
        bool found = false;
        for (unsigned k = 0; k < n; k++) {
            found |= first[k] == out[i];
        }
        cr_expect(found);
    }
    cr_expect_eq(next.n_free, CHUNKS - n);
    cr_expect_eq(next.n_askers, 0);
}
