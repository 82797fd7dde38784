// SPDX-License-Identifier: MIT
//
// Proves: a log is read up to the last whole record and no further: cut at any byte, with any byte changed, with a
//         record left out or of another engine; and a checksum of a chunk is that of its extents only.
// How: logs of a few records in memory, damaged in every place.
// Cannot see: what a disk keeps of an append (tests/system/stripes.py).

#include "core/stripelog.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS 4

static char *log_mem;
static size_t log_len, ends[RECORDS];

/** A log of records with bodies of 5, 50, 500 and 5000 bytes; `skip`: one that is left out (-1: none). */
static void make_log(int skip, uint64_t last_engine) {
    free(log_mem);
    log_mem = NULL;
    log_len = 0;
    size_t len = 5;
    for (int i = 0; i < RECORDS; i++, len *= 10) {
        struct log_buf b;
        stripelog_begin(&b, LOG_SAFE);
        char *body = stripelog_add(&b, NULL, len);
        memset(body, 'a' + i, len);
        cr_assert_eq(stripelog_finish(&b, i == RECORDS - 1 ? last_engine : 77, (uint64_t)i + 1), 0);
        if (i != skip) {
            log_mem = realloc(log_mem, log_len + b.len);
            memcpy(log_mem + log_len, b.mem, b.len);
            log_len += b.len;
        }
        ends[i] = log_len;
        stripelog_free(&b);
    }
}

static unsigned count(const char *mem, size_t len) {
    size_t at = 0;
    uint64_t engine = 0;
    unsigned n = 0;
    while (stripelog_next(mem, len, &at, &engine, n + 1)) {
        n++;
    }
    return n;
}

static unsigned whole_before(size_t at) {
    unsigned n = 0;
    while (n < RECORDS && ends[n] <= at) {
        n++;
    }
    return n;
}

Test(stripelog, whole) {
    make_log(-1, 77);
    cr_expect_eq(count(log_mem, log_len), RECORDS);
    cr_expect_eq(count(log_mem, 0), 0);
}

Test(stripelog, cut_at_every_byte) {
    make_log(-1, 77);
    for (size_t len = 0; len <= log_len; len++) {
        char *copy = malloc(len ? len : 1); // of exactly that size: a sanitizer sees a read behind it
        memcpy(copy, log_mem, len);
        cr_expect_eq(count(copy, len), whole_before(len), "cut at %zu", len);
        free(copy);
    }
}

Test(stripelog, every_byte_changed) {
    make_log(-1, 77);
    for (size_t at = 0; at < log_len; at++) {
        log_mem[at] ^= 0x10;
        unsigned n = 0;
        while (ends[n] <= at) {
            n++;
        }
        cr_expect_eq(count(log_mem, log_len), n, "changed at %zu", at);
        log_mem[at] ^= 0x10;
    }
}

Test(stripelog, zeros_behind) {
    make_log(-1, 77);
    char *copy = calloc(1, log_len + 8192);
    memcpy(copy, log_mem, log_len);
    cr_expect_eq(count(copy, log_len + 8192), RECORDS);
    free(copy);
}

Test(stripelog, gap) {
    make_log(1, 77);
    cr_expect_eq(count(log_mem, log_len), 1);
}

Test(stripelog, other_engine) {
    make_log(-1, 78);
    cr_expect_eq(count(log_mem, log_len), RECORDS - 1);
}

Test(stripelog, checksum) {
    char chunk[64];
    memset(chunk, 'x', sizeof chunk);
    struct extent e[] = {{4, 8}, {32, 16}};
    uint32_t crc = stripelog_crc(chunk, e, 2);
    chunk[20] = 'y'; // between them
    cr_expect_eq(stripelog_crc(chunk, e, 2), crc);
    chunk[33] = 'y';
    cr_expect_neq(stripelog_crc(chunk, e, 2), crc);
}
