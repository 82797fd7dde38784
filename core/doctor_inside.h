// SPDX-License-Identifier: MIT
//
// doctor_inside: what the parts of doctor share: how a finding is said.

#ifndef FASTCKPT_DOCTOR_INSIDE_H
#define FASTCKPT_DOCTOR_INSIDE_H

#include "doctor.h"

#include <stdint.h>

enum finding {
    FOUND_OK,
    FOUND_UNKNOWN, // could not be found out here
    FOUND_NOTE,    // worth knowing; nothing is slower for it
    FOUND_WARN,    // a slower way is taken
    FOUND_BAD,     // programs run natively, or saves fail
};

struct doctor {
    const struct config *c;
    bool json;
    unsigned said;
    enum finding worst;
};

/** One finding: about `what`, in the directory `where` (or NULL), its value by `fmt`, and the remedy in a few words
 *  (NULL: none; not shown for FOUND_OK). */
void doctor_say(struct doctor *d, enum finding found, const char *where, const char *what, const char *remedy,
                const char *fmt, ...) __attribute__((format(printf, 6, 7)));

/** Reads the small file `path` without its last newline. False, and an empty `buf`, if it cannot be read. */
bool doctor_read(const char *path, char *buf, size_t cap);

/** Every directory by itself, then which of them share a disk. */
void doctor_directories(struct doctor *d, char *const *dirs, int n);

/** Which CUDA runtime the program of `command` uses, as far as its file says. */
void doctor_command(struct doctor *d, char *const *command);

#endif
