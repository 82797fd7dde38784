// SPDX-License-Identifier: MIT
//
// starved: a call by name for which no descriptor is left to ask with: the table is full, or the system's. What the
// name is about is published, which takes none, and the kernel's own answer is right then. Knows no call.

#ifndef FASTCKPT_STARVED_H
#define FASTCKPT_STARVED_H

#include "policy.h"

#include <errno.h>

/** Is the error one of too few descriptors? It says nothing of the name. */
static inline bool starved(int r) {
    return r == -EMFILE || r == -ENFILE;
}

/** Publishes what a path is about, whoever has it open, and carries out what is queued of it, as far as it is of use.
 *  A failure is for who asks in its place in the order (names_wait). Called with something pending. */
void starved_path(int dirfd, const char *path, bool follow);
/** The same for a place that has been found. */
void starved_place(const struct place *p);

#endif
