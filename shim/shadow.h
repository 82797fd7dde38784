// SPDX-License-Identifier: MIT
//
// shadow: the unnamed inode that a captured file is written to until it is published: making it, and giving it what the
// older file of its name has (owner, group, mode, xattrs, ACL). Knows names and inodes; talks to no engine.

#ifndef FASTCKPT_SHADOW_H
#define FASTCKPT_SHADOW_H

#include "policy.h"

#define SHADOW_NATIVE  (-5000) // not an errno: the file cannot be a shadow, or the kernel shall say so itself
#define SHADOW_WRITTEN (-5001) // likewise: somebody has the older file open for writing, and would be parted from it

struct shadow {
    int fd;                // the program's
    int old;               // the file to be replaced, as the program would have opened it, at a high number; -1: none
    bool replaces;         // an older file is to be replaced
    char hidden[NAME_CAP]; // its name where the file system has no O_TMPFILE, else ""
};

/**
 * Makes the shadow for an open of `p` with `flags` (O_WRONLY|O_TRUNC and perhaps O_CREAT). Its descriptor is the
 * lowest free one: p->dir and `base` must be high. `base` (or -1) is the pending inode of this name, if there is one;
 * else what stands under the name counts, unless it is going to be deleted (`gone`). 0 with `s` filled, SHADOW_NATIVE,
 * SHADOW_WRITTEN, the error that the native open has, or -ENOSPC or -EDQUOT: there is no room for another inode beside
 * the old one, which natively would be truncated.
 */
int shadow_make(const struct place *p, int base, bool gone, int flags, mode_t mode, struct shadow *s);
/** Closes `old`: once the engine has it, or nobody is to. */
void shadow_forget_old(struct shadow *s);
/** Undoes all. */
void shadow_drop(const struct place *p, struct shadow *s);

/** Is the directory on a file system where nothing is gained (tmpfs, proc, FUSE ...)? */
bool shadow_useless_fs(int dir);

#endif
