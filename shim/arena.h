// SPDX-License-Identifier: MIT
//
// arena: memory of this process for copies from a device: one memfd, mapped here as a whole, given to the engine too,
// made resident a step (STAGING_STEP) at a time and never punched or given back, since a device may write to it. And
// its ranges: which bytes of it are whose, and when they may be used again. Of what is in them, and of devices, it
// knows nothing.

#ifndef FASTCKPT_ARENA_H
#define FASTCKPT_ARENA_H

#include "../core/util.h"

#include <stdatomic.h>

/**
 * Some pages of the arena. The program sees those from `skip` on as its own memory at `addr`: a private mapping, so
 * what it changes there it changes for itself; or, while they have not come, guarded memory (guarded.h), whose pages
 * are copied from here when somebody touches them. May be used again when nobody is about to use them (`users`), no
 * reference of the engine's is on its way, and nothing shows them any more.
 */
struct range {
    uint64_t at, len; // whole pages; len 0: free
    _Atomic uint64_t there; // bytes from `at` on that have come; UINT64_MAX: all
    bool lost;              // the others never will
    bool guarded;           // the program sees it as guarded memory, not as a mapping
    char *addr;       // NULL: not mapped
    uint64_t skip, body;
    uint64_t age;
    bool shown;       // it has been mapped somewhere: only a look at all mappings says that it is no more
    uint32_t users, epoch;
    uint64_t turn; // the last reference, of the session of `epoch`,
    bool referred; // if there is one
};

/** Is anything of the arena mapped, or was it ever, here or in a process that this one was forked from? One load. */
bool arena_in_use(void);

/** Makes a range of `len` bytes (whole pages): free ones first, then more of the arena, then what can be had back from
 *  mappings that still show it. It has one user. NULL: there is none, for now or for ever. May ask the engine. */
struct range *arena_take(uint64_t len);
/** Where it is in our own mapping. */
char *arena_mem(const struct range *r);
/** One user more. */
void arena_use(struct range *r);
/** One user less; a range that is not mapped is free then. */
void arena_drop(struct range *r);
/** Its pages from `skip` on, `body` bytes, take the place of those at `addr`. 0, or an error: nothing was changed. */
int arena_map(struct range *r, char *addr, uint64_t skip, uint64_t body);
/** Likewise, by a guard: they need not have come yet. -EIO: they are lost. */
int arena_guard(struct range *r, char *addr, uint64_t skip, uint64_t body);

/** Nothing of it has come yet. It has one user more, until all has. */
void arena_expect(struct range *r);
/** The first `bytes` of it have come (UINT64_MAX: all). */
void arena_came(struct range *r, uint64_t bytes);
/** What has not come of it never will: who touches that gets SIGBUS. */
void arena_lose(struct range *r);
/** Have these bytes, or are they lost? */
bool arena_has(uint64_t at, uint64_t len);
/** Will some of these bytes never come? */
bool arena_is_lost(uint64_t at, uint64_t len);
/** Somebody waits for this page of guarded memory. 0: not any more; -EAGAIN: its bytes have not come. */
int arena_serve(char *page);
/** Is that byte in guarded memory? Then to ask whether it can be read would wait for it. One load where there is
 *  none. */
bool arena_promised(const char *p);

/** The range that is mapped at, or first behind, `p`, and before p + len; with one user more. NULL: there is none. */
struct range *arena_hold(const char *p, uint64_t len);
/** Of the `len` bytes at `p`, within the range's mapping: how many are still that mapping? */
uint64_t arena_still(const struct range *r, const char *p, uint64_t len);
/** Where they are in the arena. */
uint64_t arena_at(const struct range *r, const char *p);
/** They were handed over under this turn. By a user. */
void arena_referred(struct range *r, uint32_t epoch, uint64_t turn);

/** The program discards [addr, addr + len): what of it is the arena's becomes memory that reads as zeros. */
void arena_before_discard(char *addr, uint64_t len);
/** The program moves [addr, addr + len), or has it pinned: what of it is guarded is filled first. All has come. */
void arena_before_move(char *addr, uint64_t len);
/** Fork handlers. Before: what is mapped becomes the program's own, page by page, and its child's too, and guarded
 *  memory is filled. Until behind the fork nothing more is mapped or guarded. False: some of what is guarded has not
 *  come, and nothing was done. */
bool arena_before_fork(void);
void arena_after_fork(bool child);

#endif
