// SPDX-License-Identifier: MIT
//
// locked: the descriptors by which the program has asked for record locks (POSIX, not of a description). The kernel
// drops a process's when it closes any descriptor of the inode: so the shim opens and closes none of such a file. Knows
// no files of ours and no names.

#ifndef FASTCKPT_LOCKED_H
#define FASTCKPT_LOCKED_H

#include <sys/stat.h>

#include "guard.h"

/** The program is about to ask for one by `fd`. */
void locked_note(int fd);

/** May this process have record locks on the inode? That it has had one is enough, as long as the descriptor by which
 *  it asked is the inode's. What came with it by exec, or by no hook, is not known. */
bool locked_inode(const struct stat *st);

#endif
