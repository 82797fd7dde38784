// SPDX-License-Identifier: MIT
//
// arena_inside: what arena.c (the memory and its ranges) and arena_shown.c (where the program sees it)
// share. For nobody else.

#ifndef FASTCKPT_ARENA_INSIDE_H
#define FASTCKPT_ARENA_INSIDE_H

#include "arena.h"
#include "guard.h"
#include "maps.h"

#define RANGES_MAX 1024 // of 32 MiB in the largest arena
#define AREAS_MAX  2048

/** One lock for all. Not held while the engine is asked, a step is made, or somebody uses a range. */
struct arena {
    struct lock lock, growing;
    sigset_t signals;    // of who forks: he has the lock meanwhile,
    _Atomic int forking; // and is this thread
    _Atomic bool in_use, off;
    _Atomic uintptr_t lowest, highest; // between them is whatever has been mapped to it
    int own; // handle of the memfd, from `window` on
    char *window;
    uint64_t size;         // most of it
    _Atomic uint64_t have; // and what is resident
    uint32_t dev_major, dev_minor;
    uint64_t ino;
    _Atomic uint32_t epoch; // of the session that has its descriptor, + 1: all above is there
    uint64_t age;
    uint64_t saved; // age of the newest range that was referred to
    struct range range[RANGES_MAX];
    uint32_t n_used;
    struct range *used[RANGES_MAX]; // by their place; some may be free by now
    uint32_t n_areas;
    _Atomic bool guards; // there is, or was, guarded memory
    // Where the program sees it, filled by shown_look: mappings, but our own; and guarded memory, which has no inode,
    // but the offset here that its bytes are from.
    struct maps_area area[AREAS_MAX];
};
extern struct arena arena; // arena.c

/** No more copies to it in this process, and one line. `err`: 0 or a negative errno. */
void arena_turn_off(const char *what, int err);

// arena_shown.c, under the lock.
/** Is this a mapping of the arena? */
bool shown_is_ours(const struct maps_area *a);
/** Looks at all mappings. False: they are not known. */
bool shown_look(void);
/** Did that look find one that shows pages of this range? */
bool shown_is(const struct range *r);
/** Makes what it found the program's own, page by page. False: it cannot. */
bool shown_break(const struct range *r);
/** Is this thread in a fork handler, with the lock? */
bool shown_forking(void);

/** The lock, or nothing where this thread has it: in a fork handler of somebody else's. */
static inline bool arena_lock(sigset_t *saved) {
    bool take = !shown_forking();
    if (take) {
        lock_take(&arena.lock, saved);
    }
    return take;
}
static inline void arena_unlock(bool taken, const sigset_t *saved) {
    if (taken) {
        lock_drop(&arena.lock, saved);
    }
}

#endif
