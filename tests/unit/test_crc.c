// SPDX-License-Identifier: MIT
//
// Proves: crc_of and crc_join agree with zlib's crc32 and crc32_combine, for lengths around every block and at every
//         alignment, alone and with helpers.
// How:    zlib, on pseudo-random bytes. Cannot see: a CPU without the instructions that this one has.

#include "../../core/util.h"
#include "../../shim/crc.h"
#include "../../shim/workers.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include <zlib.h>

#define SIZE (80u << 20)

static unsigned char *bytes(void) {
    unsigned char *p = malloc(SIZE);
    uint64_t x = 88172645463325252ull;
    for (size_t i = 0; i < SIZE; i += 8) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(p + i, &x, 8);
    }
    return p;
}

Test(crc, small_and_unaligned) {
    unsigned char *p = bytes();
    for (size_t at = 0; at < 70; at++) {
        for (size_t len = 0; len < 600; len += 1 + len / 40) {
            cr_assert_eq(crc_of(p + at, len), crc32(0, p + at, (uInt)len), "%zu bytes at %zu", len, at);
        }
    }
    free(p);
}

Test(crc, joined) {
    static const uint64_t lengths[] = {0, 1, 2, 7, 8, 255, 4096, 1u << 20, (1u << 20) + 1, 0xffffffffu, 1ull << 40};
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        for (uint32_t a = 1; a; a *= 5) {
            uint32_t b = a * 2654435761u;
            cr_assert_eq(crc_join(a, b, crc_shift(lengths[i])), crc32_combine64(a, b, (z_off_t)lengths[i]),
                         "%#x and %#x over %llu", a, b, (unsigned long long)lengths[i]);
            if (a > 0xffffffffu / 5) {
                break;
            }
        }
    }
}

static void *sleeps(void *unused) {
    (void)unused;
    pause();
    return NULL;
}

static void large(void) {
    static const size_t block = WORKERS_BLOCK, ends[] = {0, 1, 63, WORKERS_BLOCK - 1};
    unsigned char *p = bytes();
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        for (size_t n = 6; n < 70; n += n < 10 ? 1 : 18) {
            size_t len = n * block + ends[i], at = i * 5;
            cr_assert_eq(crc_of(p + at, len), crc32_z(0, p + at, len), "%zu bytes at %zu", len, at);
        }
    }
    free(p);
}

Test(crc, large_alone) {
    workers_begin(1);
    large();
}

Test(crc, large_with_helpers) {
    pthread_t t;
    pthread_create(&t, NULL, sleeps, NULL);
    workers_begin(4);
    cr_assert(workers_there(true));
    large();
}
