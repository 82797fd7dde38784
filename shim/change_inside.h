// SPDX-License-Identifier: MIT
//
// change_inside: what change.c and change_rename.c share: a name that is about to change, and what is asked of it.

#ifndef FASTCKPT_CHANGE_INSIDE_H
#define FASTCKPT_CHANGE_INSIDE_H

#include "change.h"
#include "namecalls.h"
#include "starved.h"

#include <sys/stat.h>

#define CHANGE_LOOKS 8 // a name that is published between our look and the engine's is looked at again

#ifndef STATX_ATTR_MOUNT_ROOT
#define STATX_ATTR_MOUNT_ROOT 0x2000
#endif
#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x1000
#endif

struct subject {
    struct place p;
    uint64_t word;
    bool matched;   // its order counts
    bool there;     // the kernel knows it: `x` is what it is
    bool dropped;   // it was open in some process, and is never published now: something was deleted
    bool missing;   // it has no such name
    bool slash;     // written as a directory
    struct statx x; // of what the kernel has, the last component not followed
};

static inline bool is(const struct subject *t, mode_t type) {
    return t->there && (t->x.stx_mode & S_IFMT) == type;
}

static inline enum name_state state_of(const struct subject *t) {
    return t->word != 0 ? name_word_state(t->word) : NAME_NONE;
}

/** Its directory does not show it, or shows an older file. */
static inline bool is_hidden(const struct subject *t) {
    return state_of(t) == NAME_OPEN || state_of(t) == NAME_PENDING;
}

/** statx of a name in a directory, not followed. 0 or an error. */
int change_look(int dir, const char *name, int flags, struct statx *x);
/** Looks the target up, in the table and on disk. */
void change_look_again(struct subject *t);
bool change_matched(const struct subject *t, int dirfd, const char *path);
/** Would the kernel let this process take the name out of its directory, or put one there? False: it is to say so. Also
 *  false of one of several names of a file: the others show how many are left. */
bool change_allowed(const struct subject *t);
/** A descriptor of its inode for the engine to hold, the caller's to close; or an error. */
int change_hold(const struct subject *t);
/** client_ask, and then back-pressure. */
int change_ask(struct msg *q, const int *fds, int n);
/** Keeper and engine are gone: CHANGE_NATIVE; or -EIO, because what has to be known before anything is deleted is told
 *  by the next close or fsync. */
int change_alone(void);
/** "dir/" is "dir". Copied into `buf`, of PATH_MAX bytes, if it is not used as it is. */
const char *change_without_slashes(const char *path, char *buf);
/** Waits for what was closed before: then the kernel can rename. Results as in change.h. */
int change_rename_late(int fromdir, const char *from, int todir, const char *to);

#endif
