// SPDX-License-Identifier: MIT
//
// fs: what is known of file systems by their magic numbers: the one table; and what a directory's attributes forbid.
// What follows from it is decided by who asks.

#ifndef FASTCKPT_FS_H
#define FASTCKPT_FS_H

#include <stdbool.h>
#include <stdint.h>

enum fs_traits {
    FS_NATIVE = 1,  // nothing to gain, or files that are no files: never captured
    FS_NETWORK = 2, // shared between nodes
    FS_DIRECT = 4,  // fallocate works on the file and waits for direct writes (the fence)
    FS_HOLES = 8,   // its extents say what has no bytes, behind an fsync: space there can be given back
    FS_LOG = 16,    // an fsync writes a log of that file: names and extents changed before need a sync of their own
};

struct fs_type {
    uint32_t magic; // f_type of statfs(2)
    const char *name;
    unsigned traits; // of enum fs_traits
};

/** The file system that `fd` (O_PATH will do) is on. One that is not in the table has the name "unknown" and no traits.
 *  NULL when it cannot be asked. */
const struct fs_type *fs_of(int fd);

/** Can names only be made in the directory `dir` (O_PATH will do), and neither replaced nor deleted (chattr +a)? */
bool fs_dir_only_grows(int dir);

#endif
