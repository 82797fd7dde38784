// SPDX-License-Identifier: MIT
//
// gaps: which bytes of a file none of its chunks says. Collects the ranges that they say, in any order, and walks
// through what is between them. Pure: no I/O.

#ifndef FASTCKPT_GAPS_H
#define FASTCKPT_GAPS_H

#include <stdbool.h>
#include <stdint.h>

struct gap {
    uint64_t from, to; // bytes of the file
};

struct gaps {
    struct gap *said; // what chunks say
    uint32_t n, next;
    uint64_t at; // all before it is behind us
};

/** Makes room for `most` ranges. 0 or -ENOMEM; gaps_free in either case. */
int gaps_start(struct gaps *g, uint64_t most);
/** A chunk says these bytes. Before the first gaps_next; at most `most` times. */
void gaps_add(struct gaps *g, uint64_t from, uint64_t to);
/** The next gap of a file of `size` bytes (the same each time). False: there is none. */
bool gaps_next(struct gaps *g, uint64_t size, struct gap *gap);
void gaps_free(struct gaps *g);

#endif
