// SPDX-License-Identifier: MIT
//
// capture: the decision at an open for writing (design 4): captured as a shadow, followed, or native. The only place
// that starts a file's life in this process and tells the engine of it.

#ifndef FASTCKPT_CAPTURE_H
#define FASTCKPT_CAPTURE_H

#include <sys/types.h>

#define CAPTURE_NATIVE (-5000) // not an errno: the call is the kernel's

/**
 * An open for writing, of `path` relative to `dirfd`. A descriptor (captured or followed, or native where something
 * went wrong after it was opened), the negative errno that the open has, or CAPTURE_NATIVE: nothing was done, open it
 * natively. `caller` is the return address of the hook, for the line that reports a failure.
 */
int capture_open(int dirfd, const char *path, int flags, mode_t mode, const void *caller);

/** A file that was opened natively by a call we do not model (mkstemp, freopen): followed, if its name matches. */
void capture_follow(int fd, int dirfd, const char *path, int flags, const void *caller);

/** After a rename of an unmatched file onto a matched name (Lightning, fsspec): the file is followed, so that nothing
 *  published later can outlive a crash that it does not. */
void capture_renamed(int fromdir, const char *from, int todir, const char *to, const void *caller);

#endif
