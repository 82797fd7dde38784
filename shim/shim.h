// SPDX-License-Identifier: MIT
//
// shim: the beginning and the end of the preloaded library in a process.

#ifndef FASTCKPT_SHIM_H
#define FASTCKPT_SHIM_H

#include <stdbool.h>

/** The handlers of fork, for its forms that run none. */
void shim_before_fork(void);
void shim_after_fork_in_parent(void);
void shim_after_fork_in_child(void);

/**
 * The work at the end of a process: flushes FILEs on captured files (`flush`), hands over what is open, waits as
 * FASTCKPT_EXIT says (a forked child does not), prints the report. Once a process; never in a vfork child. Nothing is
 * torn down: hooks that run later pass through.
 */
void shim_leave(bool flush);

#endif
