// SPDX-License-Identifier: MIT
//
// recover_inside: what recover.c and recover_file.c share.

#ifndef FASTCKPT_RECOVER_INSIDE_H
#define FASTCKPT_RECOVER_INSIDE_H

#include "recover.h"
#include "stripelog.h"

/** One of the copies of a log. */
struct log_copy {
    char *mem;
    size_t len, end; // read, valid
    uint64_t engine, epoch, count;
    uint32_t stripes;
};

struct pending {
    const struct log_safe *safe;
    const char *end; // of its record
    uint64_t redo_ino;
    bool ended;
};

/** What one pair has left. */
struct group {
    char id[64];
    bool alive;
    bool written; // every copy is the chosen one
    int fd_log[STRIPES_MAX], fd_data[STRIPES_MAX], fd_dir[STRIPES_MAX]; // 0: missing
    struct log_copy log;
    size_t added; // behind log.end
    unsigned n;
    struct pending *pending;
};

/** Appends REDO or END, durably. 0 or an error. */
int recover_note(struct group *g, enum log_type type, uint64_t id, uint64_t ino);
/** Publishes pending file `i`, or finds that it is or must not be. `behind`: one before it could not be, so it replaces
 *  nothing. 0: there is nothing more to do with it; else an error. One line in `line`. */
int recover_file(struct group *g, unsigned i, bool behind, bool dry, char *line, size_t cap);

#endif
