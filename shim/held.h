// SPDX-License-Identifier: MIT
//
// held: the chunks that one file is filling: bytes are copied in, complete chunks are handed over. For file.c,
// file_write.c and lost.c; the file's lock is held in all of these.

#ifndef FASTCKPT_HELD_H
#define FASTCKPT_HELD_H

#include "file.h"

/** Copies some of the `len` > 0 bytes at offset `off` into staging: up to the end of a chunk, or several whole chunks,
 *  shared with helpers. How many, or an error: they are to be written again, by the kernel. -EAGAIN (no chunk is to be
 *  had), -EPIPE (keeper and engine are gone), ... */
ssize_t held_put(struct file *f, uint64_t off, const void *src, size_t len);

/** Hands bytes of this process's arena over by reference, from `at` there, up to the end of a chunk of the file. How
 *  many, and under which turn (client.h), or an error, as held_put. `late`: they have not come yet. */
ssize_t held_refer(struct file *f, uint64_t off, uint64_t at, size_t len, bool late, uint64_t *turn);

/** Hands all chunks over. 0, or the first error (-EPIPE): none is held afterwards whatever the result. */
int held_hand_over(struct file *f);

#endif
