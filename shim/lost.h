// SPDX-License-Identifier: MIT
//
// lost: when keeper and engine are both gone (design 7): bytes that are still in staging are written by the kernel,
// open shadows are published by this process at their close, and what cannot be saved is named.

#ifndef FASTCKPT_LOST_H
#define FASTCKPT_LOST_H

#include "file.h"

/** Recovers one file under its lock: fences it, writes what is not written, makes it native. `fd` -1: finds one. */
void lost_recover(struct file *f, int fd);

/** client_on_lost: recovers every file whose lock is free; the others do it themselves at their next step. */
bool lost_recover_all(void);

/** file_close of a recovered shadow: fsync, linkat, renameat. 0 or an error. */
int lost_publish(struct file *f, int fd);

/** Keeps the directory of the name, of that inode: f->dir becomes a handle, or stays -1. True: `dirfd`, which must be
 *  high, is ours now; else there is one already (or no room), and it is still the caller's. */
bool lost_keep_dir(struct file *f, int dirfd, dev_t dev, ino_t ino);
void lost_drop_dir(struct file *f);
/** The number of that directory, pinned until lost_unpin_dir, or -EBADF. */
int lost_pin_dir(const struct file *f);
void lost_unpin_dir(const struct file *f);
/** Is its name in that directory? */
bool lost_in_dir(const struct file *f, dev_t dev, ino_t ino);

/** Notes a file that was closed and is to be published by the engine. */
void lost_note_closed(const struct file *f);
/** Notes a name that the engine is to rename, under the id and slot that it answered. */
void lost_note_renamed(uint64_t id, uint32_t slot, int dirfd, const char *name);

/** -EIO once after closed files were lost, else 0. */
int lost_error(void);
/** Is that still to come? */
bool lost_owed(void);

void lost_after_fork(void);

#endif
