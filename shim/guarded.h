// SPDX-License-Identifier: MIT
//
// guarded: memory of this process whose bytes are not there yet: whoever touches a page of it, the kernel for a system
// call included, sleeps until it is filled. By a userfaultfd. Whose memory it is, and where its bytes come from, is
// arena_shown.c's; who serves the faults, late.c's. No malloc, no lock.

#ifndef FASTCKPT_GUARDED_H
#define FASTCKPT_GUARDED_H

#include <stdbool.h>
#include <stddef.h>

/** Makes ready. 0, or why it cannot be (os_userfaultfd). Once. */
int guarded_begin(void);
/** The descriptor, to be polled for faults, or an error. It may be another one the next time. */
int guarded_fd(void);
/** The page that somebody waits for, one at a time; NULL: nobody does. */
char *guarded_next(void);

// Addresses and lengths are whole pages.

/** Guards anonymous memory: its absent pages are not there yet. 0, or an error. */
int guarded_add(char *addr, size_t len);
/** Is this page guarded memory, filled or not? */
bool guarded_is(const char *page);
/** Puts bytes into those of its pages that are absent, and wakes who waits for them. 0, or -ENOENT (not all of it is
 *  guarded memory, in one mapping: the rest is left as it is), ... */
int guarded_fill(char *addr, const char *from, size_t len);
/** Its absent pages will never be there: SIGBUS to who touches them, EFAULT for a system call. */
void guarded_lose(char *addr, size_t len);
/** Wakes who waits there: his page is another's by now. */
void guarded_wake(char *addr, size_t len);
/** It is ordinary memory again, absent pages read as zeros. */
void guarded_drop(char *addr, size_t len);

#endif
