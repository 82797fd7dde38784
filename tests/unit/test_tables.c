// SPDX-License-Identifier: MIT
//
// Proves: the words of tables.h give back what was put into them, and looking up a name finds it and ends.
// How: limits and random values; tables filled by the rules that the engine keeps; util's arithmetic at its edges.
// Cannot see: stores of the engine that happen between the loads of a lookup.

#include "core/protocol.h"
#include "core/tables.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

Test(tables, util) {
    cr_expect_eq(min_u64(1, UINT64_MAX), 1);
    cr_expect_eq(max_u64(1, UINT64_MAX), UINT64_MAX);
    static const uint64_t rows[][4] = {
        {0, 4096, 0, 0}, {1, 4096, 0, 4096}, {4096, 4096, 4096, 4096}, {4097, 4096, 4096, 8192}, {7, 1, 7, 7}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        cr_expect_eq(align_down(rows[i][0], rows[i][1]), rows[i][2]);
        cr_expect_eq(align_up(rows[i][0], rows[i][1]), rows[i][3]);
    }
    // The values that the authors of FNV publish.
    cr_expect_eq(fnv1a(FNV1A_INIT, "", 0), 0xcbf29ce484222325ull);
    cr_expect_eq(fnv1a(FNV1A_INIT, "a", 1), 0xaf63dc4c8601ec8cull);
    cr_expect_eq(fnv1a(FNV1A_INIT, "foobar", 6), 0x85944171f73967e8ull);
    cr_expect_eq(fnv1a(fnv1a(FNV1A_INIT, "foo", 3), "bar", 3), 0x85944171f73967e8ull);
}

Test(tables, limits_fit_their_words) {
    cr_expect_leq(CLIENTS_MAX, 0x1000);
    cr_expect_leq(FILES_MAX, 0x10000);
    cr_expect_eq(NAMES_SLOTS & (NAMES_SLOTS - 1), 0);
    cr_expect_geq(NAMES_SLOTS, 2 * FILES_MAX, "a lookup must meet an empty slot soon");
    cr_expect_eq(CHUNK_SIZE % NATIVE_HEAD, 0);
}

Test(tables, numbers) {
    struct numbers n = {0};
    cr_expect_eq(number_draw(&n), 1);
    cr_expect_eq(number_draw(&n), 2);
}

Test(tables, chunk_words) {
    static const unsigned clients[] = {0, 1, CLIENTS_MAX - 1, 0xfff};
    static const uint64_t numbers[] = {0, 1, 0xffffffff, (1ull << 48) - 1};
    for (int s = CHUNK_ABSENT; s <= CHUNK_FLYING; s++) {
        for (size_t c = 0; c < ARRAY_LEN(clients); c++) {
            for (size_t n = 0; n < ARRAY_LEN(numbers); n++) {
                uint64_t w = chunk_word((enum chunk_state)s, clients[c], numbers[n]);
                cr_expect_eq((int)chunk_word_state(w), s);
                cr_expect_eq(chunk_word_client(w), clients[c]);
                cr_expect_eq(chunk_word_number(w), numbers[n]);
            }
        }
    }
    cr_expect_eq(chunk_word(CHUNK_ABSENT, 0, 0), 0);
}

Test(tables, name_words) {
    for (int s = NAME_NONE; s <= NAME_FOLLOWED; s++) {
        for (unsigned f = 0; f < FILES_MAX; f += 63) {
            uint64_t h = name_hash(f, f * 7, "x", 1);
            uint64_t w = name_word(h, (enum name_state)s, f);
            cr_expect_eq((int)name_word_state(w), s);
            cr_expect_eq(name_word_file(w), f);
            cr_expect_eq(w & NAME_HASH_MASK, h);
            cr_expect_neq(w, 0);
            cr_expect_neq(w, NAME_GONE);
        }
    }
}

Test(tables, name_hashes_differ) {
    uint64_t h = name_hash(1, 2, "model.pt", 8);
    cr_expect_eq(name_hash(1, 2, "model.pt", 8), h);
    cr_expect_eq(name_hash(1, 2, "model.ptXX", 8), h);
    cr_expect_neq(name_hash(2, 1, "model.pt", 8), h);
    cr_expect_neq(name_hash(1, 3, "model.pt", 8), h);
    cr_expect_neq(name_hash(1, 2, "model.pu", 8), h);
    cr_expect_neq(name_hash(1, 2, "model.p", 7), h);
    cr_expect_neq(name_hash(1, 2, "mod\xc3\xa8le", 8), name_hash(1, 2, "mod\xc3\xa9le", 8));
    cr_expect_neq(name_hash(1, 2, "", 0), 0);
}

static void put(struct tables *t, uint64_t hash, unsigned file) {
    for (size_t i = 0;; i++) {
        size_t at = ((hash >> 24) + i) & (NAMES_SLOTS - 1);
        if (t->names[at] == 0) {
            t->names[at] = name_word(hash, NAME_OPEN, file);
            return;
        }
    }
}

Test(tables, find) {
    struct tables *t = calloc(1, sizeof *t);
    cr_expect_eq(names_find(t, name_hash(1, 2, "x", 1)), 0);
    for (unsigned f = 0; f < FILES_MAX; f++) {
        put(t, name_hash(9, f, "x", 1), f);
    }
    for (unsigned f = 0; f < FILES_MAX; f++) {
        uint64_t w = names_find(t, name_hash(9, f, "x", 1));
        cr_assert_eq(name_word_file(w), f);
        cr_assert_eq((int)name_word_state(w), NAME_OPEN);
        cr_assert_eq(names_find(t, name_hash(10, f, "x", 1)), 0);
    }
    free(t);
}

Test(tables, find_passes_tombstones_and_wraps) {
    struct tables *t = calloc(1, sizeof *t);
    uint64_t last = (uint64_t)(NAMES_SLOTS - 1) << 24; // hashes that begin at the last slot
    uint64_t other = last | 1ull << 50;
    uint64_t third = last | 1ull << 51;
    put(t, last, 1);
    put(t, other, 2);
    put(t, third, 3);
    cr_expect_eq(name_word_file(t->names[1]), 3, "it wrapped");
    t->names[NAMES_SLOTS - 1] = NAME_GONE;
    t->names[0] = NAME_GONE;
    cr_expect_eq(name_word_file(names_find(t, third)), 3);
    cr_expect_eq(names_find(t, last), 0);
    cr_expect_eq(names_find(t, NAME_GONE), 0, "a tombstone matches nothing");
    for (size_t i = 0; i < NAMES_SLOTS; i++) {
        t->names[i] = NAME_GONE;
    }
    cr_expect_eq(names_find(t, last), 0, "a table of tombstones ends");
    free(t);
}
