// SPDX-License-Identifier: MIT
//
// way: does a path lead where the kernel thinks, once all that is queued has happened? What it leads through may be
// going to be deleted, or be a captured file that its directory does not show. Knows no call; looks at names only.

#ifndef FASTCKPT_WAY_H
#define FASTCKPT_WAY_H

#include "policy.h"

enum way_end {
    WAY_PARENTS, // all but the last component
    WAY_LINK,    // and the last one if it has to be a directory ("a/")
    WAY_FOLLOW,  // and where a symlink there leads
    WAY_ALL,     // every component: the path is to be a directory
};

/** 0: as the kernel sees it (whose errors are its own). -ENOENT, -ENOTDIR: it is going to fail so. -EMFILE, -ENFILE:
 *  there is no descriptor to find out with. */
int way_check(int dirfd, const char *path, enum way_end end);

/** Is something queued that would change where paths lead without an error of the kernel's? One load. */
bool way_may_differ(void);

#endif
