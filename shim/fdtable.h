// SPDX-License-Identifier: MIT
//
// fdtable: descriptor -> captured file, the one array that the untracked path looks at (one load, one compare).
// Entries are hints: descriptors are closed and re-made where no hook sees it, so fd_get checks the inode.

#ifndef FASTCKPT_FDTABLE_H
#define FASTCKPT_FDTABLE_H

#include "file.h"

#define FDTABLE_MAX 65536 // descriptors beyond are never captured

extern struct file *_Atomic fdtable[FDTABLE_MAX];

/** Is `fd` perhaps captured? The whole cost of a hook on an untracked descriptor. */
static inline struct file *fd_peek(int fd) {
    return (unsigned)fd < FDTABLE_MAX ? atomic_load_explicit(&fdtable[fd], memory_order_relaxed) : NULL;
}

/** The captured file of `fd`, or NULL; a stale entry (another inode by now) is dropped. For every path behind fd_peek.
 *  In a vfork child: NULL for calls that would change a table (`change`). */
struct file *fd_get(int fd, bool change);
/** Enters `f` (its reference passes to the table). */
void fd_enter(int fd, struct file *f); // not fd_set: that is a type of libc
/** After a successful dup: the new descriptor shares the file. */
void fd_dup(int from, int to);
/** Before `fd` is closed or replaced (call it when the call is sure to succeed), where fd_get(fd, true) has just said
 *  that it is `f`: if it is the last descriptor of its file, file_close; then the entry is forgotten, so that nothing
 *  is to be done after the close (another thread may have the number by then). Returns file_close's result, to be
 *  returned by close. */
int fd_before_close(int fd, struct file *f);
/** When a number is found re-used: forgets the entry and drops its reference. Not needed after fd_before_close. */
void fd_forget(int fd);
/** Highest entry + 1, a bound for loops over ranges. */
int fd_limit(void);
/** A descriptor of `f`, or -EBADF. */
int fd_of(const struct file *f);

/** The FILE that was made on a captured descriptor, kept by hook_stdio.c: libc writes by itself there. One that was
 *  never closed goes stale, and is memory still. */
extern struct _IO_FILE *_Atomic fd_streams[FDTABLE_MAX];
/** Does a FILE stand on a descriptor of `f`? One may on 0 to 2, which nobody has seen made. */
bool fd_has_stream(const struct file *f);

#endif
