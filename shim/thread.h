// SPDX-License-Identifier: MIT
//
// thread: making a thread of the shim's own, and what such a thread is to the program. By pthread_create, so that glibc
// knows it (setuid and its kin change all threads of a process) and so do other runtimes that preload something. Knows
// not what it does.

#ifndef FASTCKPT_THREAD_H
#define FASTCKPT_THREAD_H

#include <stdbool.h>
#include <stddef.h>

/** Makes a detached thread that calls run(NULL), with a stack of `stack` bytes, or of 8 MiB where the program's
 *  thread-local variables need more. It allocates: not to be called by a thread that may be in a signal handler. False:
 *  the system has none for us. */
bool thread_make(void *(*run)(void *), size_t stack);

/** What it does first: it takes none of the program's signals, and is called `name` (at most 15 characters). */
void thread_begin(const char *name);

#endif
