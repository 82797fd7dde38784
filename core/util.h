// SPDX-License-Identifier: MIT
//
// util: arithmetic and atomics that every other module uses. Pure inline functions: no state, no system calls.

#ifndef FASTCKPT_UTIL_H
#define FASTCKPT_UTIL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define LIKELY(x)    __builtin_expect(!!(x), 1)
#define UNLIKELY(x)  __builtin_expect(!!(x), 0)

#define KIB 1024ull
#define MIB (1024ull * KIB)
#define GIB (1024ull * MIB)

static inline uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/** Rounds `v` down to a multiple of `align`, a power of two. */
static inline uint64_t align_down(uint64_t v, uint64_t align) {
    return v & ~(align - 1);
}

/** Rounds `v` up to a multiple of `align`, a power of two. Overflow is the caller's concern. */
static inline uint64_t align_up(uint64_t v, uint64_t align) {
    return (v + align - 1) & ~(align - 1);
}

static inline bool same_time(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

#define FNV1A_INIT 0xcbf29ce484222325ull

/** FNV-1a over `len` bytes, continuing from `hash` (begin with FNV1A_INIT). Offset and prime are the published ones. */
static inline uint64_t fnv1a(uint64_t hash, const void *data, size_t len) {
    const unsigned char *p = data;
    for (size_t i = 0; i < len; i++) {
        hash = (hash ^ p[i]) * 0x100000001b3ull;
    }
    return hash;
}

#endif
