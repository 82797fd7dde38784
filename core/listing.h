// SPDX-License-Identifier: MIT
//
// listing: what a directory's listing has to say beyond the kernel (MSG_LIST): which names are there that the kernel
// does not show yet, or shows with an older inode, and which must not be shown. Reads the state, changes nothing.

#ifndef FASTCKPT_LISTING_H
#define FASTCKPT_LISTING_H

#include "state.h"

/** One name of a directory. */
struct listing_name {
    const char *name;
    enum name_state state; // OPEN or PENDING; ABSENT: it is not to be shown
    uint64_t ino;
    uint8_t type; // DT_*
};

/** Calls `visit` for each name of the directory whose latest word is not the kernel's, among the first `slots` file
 *  slots, and for each hidden name that is a step on its way. Stops when `visit` says false, and says so. */
bool listing_each(const struct pair *p, unsigned slots, uint64_t dir_dev, uint64_t dir_ino,
                  bool (*visit)(const struct listing_name *n, void *arg), void *arg);

/** The names of the directory `fd` as struct list_records (protocol.h) in a sealed memfd, the caller's. Its descriptor,
 *  -ENOENT (there are none), or another error. */
int listing_make(const struct pair *p, unsigned slots, int fd);

#endif
