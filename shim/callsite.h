// SPDX-License-Identifier: MIT
//
// callsite: where in the program a file is opened, as text for the line that reports a failure: the Python line if
// there is one, and the functions outside of libc and the C++ library that led to the call. Decides nothing.
//
// Whoever opens a file may hold any lock, be in a signal handler or be a forked child: no malloc, no lock of the loader
// and none of the interpreter's is taken, but for one dlopen at a moment that is known to be harmless.

#ifndef FASTCKPT_CALLSITE_H
#define FASTCKPT_CALLSITE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/** Looks up what must not be looked up later. Called by the constructor. */
void callsite_start(void);

/** Writes where this thread is calling from: "train.py:17 in save, caffe2::Writer::setup (libtorch_cpu.so+0x12) (pid
 *  7)". `caller` is the hook's return address, or NULL. Leaves errno alone. */
void callsite_describe(const void *caller, char *buf, size_t cap);

void callsite_after_fork(void);

/** Is this thread inside what loads libunwind? It makes a pipe then that we never use. */
bool callsite_loading(void);

/** The interpreter's own dump of a thread's frames is made for signal handlers, needs no lock and writes to a
 *  descriptor: to this one, which no kernel knows, so that it comes to hook_write and from there to callsite_take.
 *  Returns `len`, or -EBADF when it is a program's own mistake. */
#define CALLSITE_FD INT_MIN
ssize_t callsite_take(const void *buf, size_t len);

#endif
