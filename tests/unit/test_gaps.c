// SPDX-License-Identifier: MIT
//
// Proves: gaps_next names exactly the bytes of a file that no added range has, in order, none twice, whatever ranges
//         overlap, touch, are empty or reach beyond the file's end.
// How: the corner cases by hand, then random ranges against a map of bytes.
// Cannot see: whether who asks reads these bytes (test_sums, tests/system/stripes.py).

#include "core/gaps.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 200

static unsigned char said[2 * SIZE];

/** Adds the ranges, `n` pairs, and compares every byte. How many gaps there are. */
static unsigned check(const uint64_t (*range)[2], unsigned n, uint64_t size) {
    struct gaps g;
    struct gap gap;
    uint64_t at = 0;
    unsigned found = 0;
    memset(said, 0, sizeof said);
    cr_assert_eq(gaps_start(&g, n), 0);
    for (unsigned i = 0; i < n; i++) {
        gaps_add(&g, range[i][0], range[i][1]);
        memset(said + range[i][0], 1, range[i][1] - range[i][0]);
    }
    for (; gaps_next(&g, size, &gap); found++) {
        cr_assert_lt(gap.from, gap.to);
        cr_assert_leq(gap.to, size);
        for (; at < gap.to; at++) {
            cr_assert_eq(said[at], at < gap.from, "byte %lu", (unsigned long)at);
        }
    }
    for (; at < size; at++) {
        cr_assert(said[at], "byte %lu", (unsigned long)at);
    }
    cr_expect_not(gaps_next(&g, size, &gap), "the end is the end");
    gaps_free(&g);
    return found;
}

Test(gaps, corners) {
    cr_expect_eq(check(NULL, 0, 0), 0);
    cr_expect_eq(check(NULL, 0, SIZE), 1);
    cr_expect_eq(check((uint64_t[][2]){{0, SIZE}}, 1, SIZE), 0);
    cr_expect_eq(check((uint64_t[][2]){{0, 2 * SIZE}}, 1, SIZE), 0);
    cr_expect_eq(check((uint64_t[][2]){{SIZE + 10, SIZE + 20}}, 1, SIZE), 1);
    cr_expect_eq(check((uint64_t[][2]){{20, 30}, {10, 20}}, 2, SIZE), 2);
    cr_expect_eq(check((uint64_t[][2]){{10, 100}, {20, 30}}, 2, SIZE), 2);
    cr_expect_eq(check((uint64_t[][2]){{SIZE - 1, SIZE + 1}, {0, 1}}, 2, SIZE), 1);
}

Test(gaps, random_ranges_against_a_map) {
    srand(5);
    for (unsigned round = 0; round < 5000; round++) {
        uint64_t range[8][2];
        unsigned n = (unsigned)rand() % 9;
        for (unsigned i = 0; i < n; i++) {
            range[i][0] = (uint64_t)rand() % (SIZE + 20);
            range[i][1] = range[i][0] + (uint64_t)rand() % 60;
        }
        check(range, n, (uint64_t)rand() % SIZE);
    }
}
