// SPDX-License-Identifier: MIT
//
// layout: where the bytes of a chunk go. With one device that is the real file itself; stripes will choose here among
// directories and record the choice. Pure: no I/O.

#ifndef FASTCKPT_LAYOUT_H
#define FASTCKPT_LAYOUT_H

#include "state.h"

#define DIRECT_ALIGN 4096u // of memory, offset and length of a direct write: holds for every disk sector size in use

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
