// SPDX-License-Identifier: MIT
//
// recover_inside: what recover.c, recover_file.c and recover_change.c share.

#ifndef FASTCKPT_RECOVER_INSIDE_H
#define FASTCKPT_RECOVER_INSIDE_H

#include "recover.h"
#include "state.h"
#include "stripelog.h"

/** One of the copies of a log. */
struct log_copy {
    char *mem;
    size_t len, end; // read, valid
    uint64_t engine, epoch, count;
    uint32_t stripes;
};

/** What is still to be done: a file, a deletion or a renaming. */
struct pending {
    uint64_t id;
    const struct log_safe *safe;     // a file; NULL: it is
    const struct log_change *change; // ... a change
    const char *end;                 // of its record
    const char *name, *dir, *to, *to_dir;
    uint64_t dir_ino, to_ino; // of dir and to_dir
    struct log_identity made; // SAFE: by a recovery of it; ino 0: nothing
    bool ended;
};

/** What one pair has left. */
struct group {
    char id[64];
    bool alive;
    bool unread;  // a log of it could not be opened: another time
    bool written; // every copy is the chosen one, but for those that
    bool unwritable[STRIPES_MAX];
    int fd_log[STRIPES_MAX], fd_data[STRIPES_MAX], fd_dir[STRIPES_MAX]; // 0: missing
    struct log_copy log;
    size_t added; // behind log.end
    unsigned n;
    struct pending *pending;
};

/** Appends REDO or END, durably. 0 or an error. */
int recover_note(struct group *g, enum log_type type, const struct pending *p);
/** The directory of a name, if it is still the one that was recorded (`ino`): a descriptor, or an error. */
int recover_dir(const char *path, uint64_t ino);
/** Is the inode under a name the one that the log means, or what a recovery has made of that? */
bool recover_is_inode(const struct group *g, const struct log_identity *now, const struct log_identity *meant);
/** Is what is under the name what was there when record `i` was made, or what an earlier record leaves there, or found
 *  there, if its end is not known: then what it made of the name may have been lost? (Not by device: its number changes
 *  with a reboot.) */
bool recover_as_recorded(const struct group *g, unsigned i, uint64_t dir_ino, const char *name,
                         const struct log_identity *recorded, const struct log_identity *now);
/** Does record `k` leave `now` under the name? */
bool recover_leaves(const struct group *g, unsigned k, uint64_t dir_ino, const char *name,
                    const struct log_identity *now);

/** Publishes pending file `i`, or finds that it is or must not be. `behind`: one before it could not be, so it replaces
 *  nothing. 0: there is nothing more to do with it; else an error. One line in `line`. */
int recover_file(struct group *g, unsigned i, bool behind, bool dry, char *line, size_t cap);
/** The same of a deletion or a renaming: only of the inode that was meant. */
int recover_change(struct group *g, unsigned i, bool behind, bool dry, char *line, size_t cap);

#endif
