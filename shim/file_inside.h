// SPDX-License-Identifier: MIT
//
// file_inside: what file.c, file_write.c, file_sync.c, file_all.c and lost.c share. The file's lock is held in those
// on one file.

#ifndef FASTCKPT_FILE_INSIDE_H
#define FASTCKPT_FILE_INSIDE_H

#include "file.h"

/** Before everything else under the lock: recovers the file if keeper and engine were lost since, settles an inherited
 *  one at its first use in a fork child, and ends staging if another process looks at it. `fd` may be -1. */
void file_begin(struct file *f, int fd);

/** The file's known error (P6), the client's or the engine's, or 0. */
int file_known_error(struct file *f);

/** A question about the file, under the lock; keeps its error. 0, an error, or -EPIPE: recovered, it is native. */
int file_ask(struct file *f, int fd, unsigned type, unsigned scope);

/** Publishes the file, which is native from then on, or only makes it durable. 0, an error, -EPIPE: recovered. */
int file_sync_locked(struct file *f, int fd, bool publish);

/** The times that the program gave the file, by its writes or set, as of now: the inode's where only the kernel knows
 *  (file_before_times). tv_nsec UTIME_OMIT: the kernel's. */
void file_times(const struct file *f, int fd, struct timespec ts[2]);

/** file_settle under the lock. */
int file_settle_locked(struct file *f, int fd);

/** Nothing of it is on its way any more. */
void file_forget_refs(struct file *f);

/** The next object in use at or after *i, which moves on; NULL behind the last. For loops over all: no lock. */
struct file *file_each(uint32_t *i);

/** Recovers all files of an older epoch whose lock is free; true when none is left. */
bool file_recover_all(void);

/** Does the engine change the inode, so that its times are not those of what the program did? */
static inline bool file_engine_changes(const struct file *f) {
    return f->bytes_staged > 0 || f->reserved;
}

/** Do the program's bytes go to the kernel alone? */
static inline bool file_is_native(const struct file *f) {
    return f->native || f->followed || f->closed || f->dropped;
}

#endif
