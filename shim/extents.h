// SPDX-License-Identifier: MIT
//
// extents: which bytes of a chunk are filled: a short sorted list of disjoint ranges that do not touch. Pure functions
// on the caller's array.

#ifndef FASTCKPT_EXTENTS_H
#define FASTCKPT_EXTENTS_H

#include "../core/protocol.h"

/** Adds [off, off + len), len > 0, merging what it overlaps or touches. 0, or -ENOSPC with everything unchanged when
 *  the list would need more than `max` extents. */
int extents_add(struct extent *e, uint32_t *n, uint32_t max, uint32_t off, uint32_t len);

/** Does the list consist of exactly [from, to)? */
bool extents_full(const struct extent *e, uint32_t n, uint32_t from, uint32_t to);

/** How many bytes are filled. */
uint64_t extents_bytes(const struct extent *e, uint32_t n);

#endif
