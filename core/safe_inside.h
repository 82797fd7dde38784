// SPDX-License-Identifier: MIT
//
// safe_inside: what safe.c and safe_record.c share.

#ifndef FASTCKPT_SAFE_INSIDE_H
#define FASTCKPT_SAFE_INSIDE_H

#include "safe.h"
#include "stripelog.h"

/** Fills `b` with the record of a file whose chunks are `s->parts`. 0 or an error; `b` is the caller's to free. */
int safe_record_file(const struct safe *s, const struct file_slot *f, struct log_buf *b);
/** The same of a deletion or a renaming. */
int safe_record_change(const struct file_slot *f, struct log_buf *b);

#endif
