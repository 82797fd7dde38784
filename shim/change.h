// SPDX-License-Identifier: MIT
//
// change: names are deleted, renamed or made while something is pending (design 5, Names). A deletion or a rename that
// touches a matched, captured or pending name becomes an entry behind what was closed before it, and is answered when
// the table says how the names will be. The kernel's errors are found at the call; where that is not certain, the call
// waits for what was closed before and is made natively. Hooks no symbol.

#ifndef FASTCKPT_CHANGE_H
#define FASTCKPT_CHANGE_H

#include <stdbool.h>

/** Results: CHANGE_NATIVE (make the call), CHANGE_DONE (return 0), or the negative errno to return: -EIO when what it
 *  has to come behind has failed. Called with something pending, outside of a vfork child. */
enum { CHANGE_NATIVE = 0, CHANGE_DONE = 1 };

/** unlinkat; `flags` 0 or AT_REMOVEDIR. */
int change_remove(int dirfd, const char *path, int flags);
/** remove(3): of whichever kind it is. */
int change_remove_any(const char *path);
/** renameat2. */
int change_rename(int fromdir, const char *from, int todir, const char *to, unsigned flags);
/** linkat: waits. */
int change_link(int fromdir, const char *from, int todir, const char *to);
/** Before a linkat of what a descriptor is of, by its link in /proc or with an empty path: a captured file gets its own
 *  name first. Also where nothing is pending. */
int change_link_fd(int fromdir, const char *from);
/** symlinkat, which waits; or, not `ordered`, mkdir and what else makes a name that is no file: it deletes and replaces
 *  nothing, and only waits for what is queued of its own name. */
int change_new(int dirfd, const char *path, bool ordered);

#endif
