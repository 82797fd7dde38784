// SPDX-License-Identifier: MIT
//
// held: the chunks that one file is filling: bytes are copied in, complete chunks are handed over. For file.c,
// file_write.c and lost.c; the file's lock is held in all of these.

#ifndef FASTCKPT_HELD_H
#define FASTCKPT_HELD_H

#include "file.h"

/** Copies `len` bytes, all within one chunk of the file, at offset `off`, into staging. 0, or an error: they are to
 *  be written again, by the kernel. -EAGAIN (no chunk is to be had), -EPIPE (keeper and engine are gone), ... */
int held_put(struct file *f, uint64_t off, const void *src, uint32_t len);

/** Hands all chunks over. 0, or the first error (-EPIPE): none is held afterwards whatever the result. */
int held_hand_over(struct file *f);

#endif
