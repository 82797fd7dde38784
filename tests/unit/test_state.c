// SPDX-License-Identifier: MIT
//
// Proves: what was queued behind a failure is known as such, whichever of several failures is noted first, also when
//         the loop and a worker note one at the same moment; an entry that crashes the engine twice is skipped, however
//         many others have crashed it once.
// How: the state's functions on memory of the test's; two threads that note failures at once, many times.
// Cannot see: what is done with what is behind a failure (test_crash), nor a crash (tests/system/blame.py).

#include "core/os.h"
#include "core/state.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#define ROUNDS  20000
#define MOST_NS 1500000000ll

static struct state *st;

static void setup(void) {
    st = calloc(1, sizeof *st);
    cr_assert(st);
}

Test(state, behind_a_failure, .init = setup) {
    cr_expect_not(state_behind_failure(st, 1));
    state_fail(st, 50, 100);
    cr_expect_not(state_behind_failure(st, 49));
    cr_expect_not(state_behind_failure(st, 50), "it is the failure");
    cr_expect(state_behind_failure(st, 51));
    cr_expect(state_behind_failure(st, 100));
    cr_expect_not(state_behind_failure(st, 101));
    state_fail(st, 20, 60);
    cr_expect(state_behind_failure(st, 21) && state_behind_failure(st, 100));
    state_fail(st, 120, 130);
    cr_expect(state_behind_failure(st, 21) && state_behind_failure(st, 130));
    cr_expect_not(state_behind_failure(st, 20) || state_behind_failure(st, 131));
}

Test(state, blame, .init = setup) {
    for (uint64_t number = 1; number <= 20; number++) {
        cr_expect_not(state_blame(st, number), "entry %lu has crashed once", (unsigned long)number);
    }
    cr_expect(state_blame(st, 20) && state_blame(st, 14));
    cr_expect(st->n_skip == 2 && st->skip[0] == 20 && st->skip[1] == 14);
    cr_expect_not(state_blame(st, 21));
    cr_expect_not(state_blame(st, 2), "so long ago that it is forgotten");
    cr_expect(state_blame(st, 2));
}

static _Atomic unsigned at[2];
static _Atomic bool over;

/** Waits until the other is there, too: at first without giving the processor away, so that both go on at once. */
static void meet(unsigned who, unsigned point) {
    atomic_store(&at[who], point);
    for (unsigned spins = 1; atomic_load(&at[!who]) < point; spins++) {
        if (spins % 100000 == 0) {
            sched_yield();
        }
    }
}

/** Both do a round together; one has the first failure, the other the last entry behind one. */
static void note(unsigned who) {
    int64_t end = os_now_ns(CLOCK_MONOTONIC) + MOST_NS;
    for (unsigned round = 0; round < ROUNDS && !over; round++) {
        meet(who, 3 * round + 1);
        state_fail(st, who ? 10 : 20, who ? 30 : 40);
        meet(who, 3 * round + 2);
        if (who) {
            cr_assert(st->fail_from == 10 && st->fail_fence == 40, "round %u: %lu to %lu", round,
                      (unsigned long)st->fail_from, (unsigned long)st->fail_fence);
            st->fail_from = st->fail_fence = 0;
            over = os_now_ns(CLOCK_MONOTONIC) > end;
        }
        meet(who, 3 * round + 3);
    }
}

static void *worker(void *arg) {
    (void)arg;
    note(0);
    return NULL;
}

Test(state, two_failures_at_once, .init = setup, .timeout = 60) {
    pthread_t t;
    cr_assert_eq(pthread_create(&t, NULL, worker, NULL), 0);
    note(1);
    pthread_join(t, NULL);
}
