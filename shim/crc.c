// SPDX-License-Identifier: MIT
//
// crc: see crc.h. A checksum is a polynomial over GF(2) modulo P, its bits reflected: the highest bit is x^0. That of
// A followed by B is A's times x^(8 |B|), plus B's.

#include "crc.h"

#include "../core/util.h"
#include "workers.h"

#include <libdeflate.h>

#define POLYNOMIAL 0xedb88320u
#define ONE        (1u << 31)       // x^0
#define BYTE       (1u << (31 - 8)) // x^8
#define PARTS      64

static uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (; a != 0; a <<= 1) { // b is what it was, times x for each bit of a that is behind us
        product ^= a & ONE ? b : 0;
        b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return product;
}

uint32_t crc_shift(uint64_t len) {
    uint32_t shift = ONE;
    for (uint32_t square = BYTE; len > 0; len >>= 1, square = multiply(square, square)) {
        shift = len & 1 ? multiply(shift, square) : shift;
    }
    return shift;
}

uint32_t crc_join(uint32_t a, uint32_t b, uint32_t shift) {
    return multiply(a, shift) ^ b;
}

struct parts {
    const char *p;
    size_t len;
    uint32_t crc[PARTS];
};

static size_t length(const struct parts *s, uint32_t i) {
    return min_u64(s->len - (size_t)i * WORKERS_BLOCK, WORKERS_BLOCK);
}

static void part(void *arg, uint32_t i) {
    struct parts *s = arg;
    s->crc[i] = libdeflate_crc32(0, s->p + (size_t)i * WORKERS_BLOCK, length(s, i));
}

uint32_t crc_of(const void *p, size_t len) {
    if (len < WORKERS_MIN) {
        return libdeflate_crc32(0, p, len);
    }
    const uint32_t whole = crc_shift(WORKERS_BLOCK);
    uint32_t crc = 0;
    while (len > 0) {
        struct parts s = {.p = p, .len = min_u64(len, (uint64_t)PARTS * WORKERS_BLOCK)};
        uint32_t n = (uint32_t)((s.len + WORKERS_BLOCK - 1) / WORKERS_BLOCK);
        workers_run(part, &s, n);
        for (uint32_t i = 0; i < n; i++) {
            crc = crc_join(crc, s.crc[i], length(&s, i) == WORKERS_BLOCK ? whole : crc_shift(length(&s, i)));
        }
        p = (const char *)p + s.len;
        len -= s.len;
    }
    return crc;
}
