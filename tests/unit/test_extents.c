// SPDX-License-Identifier: MIT
//
// Proves: extents_add keeps a sorted list of disjoint ranges that do not touch and that name exactly the bytes that
// were added, and leaves the list alone when it has no room. How: the corner cases by hand, then random additions
// against a map of bytes. Cannot see: whether the copy that belongs to an extent was made (whole programs show that).

#include <criterion/criterion.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shim/extents.h"

#define ROOM 16

struct list {
    struct extent e[ROOM + 1]; // one more than may be used: a guard
    uint32_t n;
    uint32_t max;
};

static struct list fresh(uint32_t max) {
    struct list l = {.n = 0, .max = max};
    memset(l.e, 0xa5, sizeof l.e);
    return l;
}

static int add(struct list *l, uint32_t off, uint32_t len) {
    return extents_add(l->e, &l->n, l->max, off, len);
}

static void expect(const struct list *l, uint32_t n, const struct extent *want) {
    cr_assert_eq(l->n, n, "%u extents, not %u", l->n, n);
    for (uint32_t i = 0; i < n; i++) {
        cr_assert(l->e[i].off == want[i].off && l->e[i].len == want[i].len, "extent %u is [%u, +%u)", i, l->e[i].off,
                  l->e[i].len);
    }
}

Test(extents, appends_grow_the_last) {
    struct list l = fresh(ROOM);
    for (uint32_t i = 0; i < 100; i++) {
        cr_assert_eq(add(&l, 1000 + i * 10, 10), 0);
    }
    expect(&l, 1, (struct extent[]){{1000, 1000}});
}

Test(extents, touching_merges_on_both_sides) {
    struct list l = fresh(ROOM);
    add(&l, 0, 10);
    add(&l, 20, 10);
    expect(&l, 2, (struct extent[]){{0, 10}, {20, 10}});
    add(&l, 10, 10);
    expect(&l, 1, (struct extent[]){{0, 30}});
}

Test(extents, a_byte_apart_stays_apart) {
    struct list l = fresh(ROOM);
    add(&l, 0, 10);
    add(&l, 11, 10);
    expect(&l, 2, (struct extent[]){{0, 10}, {11, 10}});
    add(&l, 10, 1);
    expect(&l, 1, (struct extent[]){{0, 21}});
}

Test(extents, in_front_and_in_between) {
    struct list l = fresh(ROOM);
    add(&l, 100, 10);
    add(&l, 0, 10);
    add(&l, 50, 10);
    expect(&l, 3, (struct extent[]){{0, 10}, {50, 10}, {100, 10}});
}

Test(extents, inside_changes_nothing) {
    struct list l = fresh(ROOM);
    add(&l, 100, 100);
    add(&l, 100, 100);
    add(&l, 100, 1);
    add(&l, 199, 1);
    add(&l, 150, 10);
    expect(&l, 1, (struct extent[]){{100, 100}});
}

Test(extents, overlap_on_either_side) {
    struct list l = fresh(ROOM);
    add(&l, 100, 100);
    add(&l, 90, 20);
    expect(&l, 1, (struct extent[]){{90, 110}});
    add(&l, 190, 20);
    expect(&l, 1, (struct extent[]){{90, 120}});
}

Test(extents, one_that_swallows_many) {
    struct list l = fresh(ROOM);
    for (uint32_t i = 0; i < ROOM; i++) {
        cr_assert_eq(add(&l, 100 + i * 20, 10), 0);
    }
    cr_assert_eq(l.n, ROOM);
    add(&l, 115, 100); // touches or covers those at 120 to 200, ends inside none
    expect(&l, 12, (struct extent[]){{100, 10}, {115, 100}, {220, 10}, {240, 10}, {260, 10}, {280, 10}, {300, 10},
                                     {320, 10}, {340, 10}, {360, 10}, {380, 10}, {400, 10}});
    add(&l, 0, 4096);
    expect(&l, 1, (struct extent[]){{0, 4096}});
}

Test(extents, full_list_is_refused_unchanged) {
    struct list l = fresh(3);
    add(&l, 0, 1);
    add(&l, 10, 1);
    add(&l, 20, 1);
    struct list before = l;
    cr_assert_eq(add(&l, 30, 1), -ENOSPC);
    cr_assert_eq(add(&l, 5, 1), -ENOSPC);
    cr_assert_eq(memcmp(&l, &before, sizeof l), 0);
    // What merges needs no room.
    cr_assert_eq(add(&l, 21, 5), 0);
    cr_assert_eq(add(&l, 9, 1), 0);
    expect(&l, 3, (struct extent[]){{0, 1}, {9, 2}, {20, 6}});
}

Test(extents, up_to_the_end_of_a_chunk) {
    struct list l = fresh(ROOM);
    add(&l, NATIVE_HEAD, 1);
    cr_assert(!extents_full(l.e, l.n, NATIVE_HEAD, CHUNK_SIZE));
    add(&l, CHUNK_SIZE - 1, 1);
    cr_assert(!extents_full(l.e, l.n, NATIVE_HEAD, CHUNK_SIZE));
    add(&l, NATIVE_HEAD + 1, CHUNK_SIZE - NATIVE_HEAD - 2);
    cr_assert(extents_full(l.e, l.n, NATIVE_HEAD, CHUNK_SIZE));
    cr_assert(!extents_full(l.e, l.n, 0, CHUNK_SIZE));
    cr_assert_eq(extents_bytes(l.e, l.n), CHUNK_SIZE - NATIVE_HEAD);
    add(&l, 0, NATIVE_HEAD);
    cr_assert(extents_full(l.e, l.n, 0, CHUNK_SIZE));
    cr_assert(!extents_full(l.e, 0, 0, 0));
}

// ---- Random additions against a map of bytes

#define MAP 512

// How many ranges does the map hold?
static uint32_t runs(const unsigned char *map) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < MAP; i++) {
        n += map[i] && (i == 0 || !map[i - 1]);
    }
    return n;
}

static void compare(const struct list *l, const unsigned char *map, unsigned seed) {
    unsigned char seen[MAP] = {0};
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct extent *e = &l->e[i];
        cr_assert(e->len > 0 && e->off + e->len <= MAP, "seed %u", seed);
        cr_assert(i == 0 || e->off > e[-1].off + e[-1].len, "seed %u: not sorted, or touching", seed);
        memset(seen + e->off, 1, e->len);
        bytes += e->len;
    }
    cr_assert_eq(memcmp(seen, map, MAP), 0, "seed %u", seed);
    cr_assert_eq(extents_bytes(l->e, l->n), bytes, "seed %u", seed);
}

static void random_run(unsigned seed) {
    unsigned char map[MAP] = {0};
    uint32_t longest = 1 + seed % 60;
    struct list l = fresh(1 + seed % ROOM);
    for (int step = 0; step < 120; step++) {
        uint32_t len = 1 + (uint32_t)rand_r(&seed) % longest;
        uint32_t off = (uint32_t)rand_r(&seed) % (MAP - len + 1);
        unsigned char wanted[MAP];
        memcpy(wanted, map, MAP);
        memset(wanted + off, 1, len);
        struct list before = l;
        int r = add(&l, off, len);
        bool fits = runs(wanted) <= l.max;
        cr_assert_eq(r, fits ? 0 : -ENOSPC, "seed %u: %d", seed, r);
        if (fits) {
            memcpy(map, wanted, MAP);
        } else {
            cr_assert_eq(memcmp(&l, &before, sizeof l), 0, "seed %u: changed by a refusal", seed);
        }
        compare(&l, map, seed);
        cr_assert_eq(l.e[ROOM].off, 0xa5a5a5a5u, "seed %u: written beyond the array", seed);
    }
}

Test(extents, random_against_a_map_of_bytes) {
    for (unsigned seed = 1; seed <= 3000; seed++) {
        random_run(seed);
    }
}
