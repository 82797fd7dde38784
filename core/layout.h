// SPDX-License-Identifier: MIT
//
// layout: how the bytes of a chunk go to their file: which of them by direct writes, and by which description. (On a
// stripe a chunk lies whole: drain_io.c.) Pure: no I/O.

#ifndef FASTCKPT_LAYOUT_H
#define FASTCKPT_LAYOUT_H

#include "state.h"

/** A piece of an extent: contiguous bytes that one write takes. */
struct piece {
    uint64_t mem_off;  // within the chunk
    uint64_t file_off; // in the file at `fd`
    uint64_t len;
    int fd;
    bool direct; // may go by the direct queue; else buffered, by a worker
    uint64_t device;
};

#define PIECES_MAX (3 * EXTENTS_MAX) // an unaligned head, the aligned middle, an unaligned tail

/** Splits what a chunk holds into pieces: aligned middles direct where the file allows it, edges buffered (a block that
 *  is not wholly ours may hold a stranger's bytes). Returns how many. */
unsigned layout_pieces(const struct file_slot *f, const struct msg_hand_over *what, struct piece out[PIECES_MAX]);

#endif
