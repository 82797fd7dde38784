// SPDX-License-Identifier: MIT
//
// reopen: a shadow that is to be locked. A lock means something to others under the file's name: a new name is linked,
// one that replaces an older file goes back to the inode that others have open. Knows no kind of lock.

#ifndef FASTCKPT_REOPEN_H
#define FASTCKPT_REOPEN_H

/** Before a lock on `fd`, captured or perhaps another process's shadow: 0, or the error to return. */
int reopen_before_lock(int fd);

#endif
