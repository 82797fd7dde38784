// SPDX-License-Identifier: MIT
//
// extents: see extents.h. No system calls, no state.

#include "extents.h"

#include <errno.h>
#include <string.h>

int extents_add(struct extent *e, uint32_t *n, uint32_t max, uint32_t off, uint32_t len) {
    uint32_t end = off + len;
    // [first, last) are those that the new range overlaps or touches.
    uint32_t first = 0;
    while (first < *n && e[first].off + e[first].len < off) {
        first++;
    }
    uint32_t last = first;
    while (last < *n && e[last].off <= end) {
        last++;
    }
    if (first == last) {
        if (*n >= max) {
            return -ENOSPC;
        }
        memmove(&e[first + 1], &e[first], (*n - first) * sizeof *e);
        e[first] = (struct extent){off, len};
        (*n)++;
        return 0;
    }
    uint32_t merged_end = e[last - 1].off + e[last - 1].len;
    merged_end = merged_end > end ? merged_end : end;
    uint32_t merged_off = e[first].off < off ? e[first].off : off;
    e[first] = (struct extent){merged_off, merged_end - merged_off};
    memmove(&e[first + 1], &e[last], (*n - last) * sizeof *e);
    *n -= last - first - 1;
    return 0;
}

bool extents_full(const struct extent *e, uint32_t n, uint32_t from, uint32_t to) {
    return n == 1 && e[0].off == from && e[0].len == to - from;
}

uint64_t extents_bytes(const struct extent *e, uint32_t n) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += e[i].len;
    }
    return sum;
}
