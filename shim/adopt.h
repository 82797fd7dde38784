// SPDX-License-Identifier: MIT
//
// adopt: large copies from a device straight into the arena, whose pages then take the place of the program's, and the
// writes that hand such pages over without any copy. Which memory can be treated so, and which bytes of a write have
// not been changed since. Makes no call of CUDA's (cuda_lane.c and cuda_ferry.c do).

#ifndef FASTCKPT_ADOPT_H
#define FASTCKPT_ADOPT_H

#include "../core/util.h"

#include <sys/types.h>

struct file;
struct range;

/** Smaller destinations are not adopted: glibc's malloc has mapped larger ones for themselves alone, and unmaps them
 *  when they are freed. */
#define ADOPT_MIN (32 * MIB)

struct adopted {
    struct range *range;
    char *mem;       // where the first byte belongs: at the same place within a page as in the destination
    uint64_t at;     // and where that is in the arena
    char *dst;
    size_t len;
    size_t skip;     // bytes before the pages that will be replaced: copied, as those behind them
    size_t body;
    size_t rest;     // bytes behind the last one, to the end of its page, if nobody has touched that
};

/** Can this destination be adopted, and is it worth it (a captured file is open, or as much was written to one before)?
 *  Then *a says where its bytes are to go; adopt_end is owed. */
bool adopt_begin(struct adopted *a, char *dst, size_t len);
/** The bytes are there: they become the destination's. Or not (`filled` false): nothing has happened. */
void adopt_end(const struct adopted *a, bool filled);

/** The bytes will come later (late.h), or, adopt_unexpect, will not. In the place of adopt_end, when they are on their
 *  way, all but the first `skip`, which are there: adopt_later. 0; -EIO: some of them have failed, and nothing is the
 *  destination's. */
void adopt_expect(const struct adopted *a);
void adopt_comes(const struct adopted *a, size_t from, size_t len); // the next piece, behind those before
void adopt_unexpect(const struct adopted *a);
int adopt_later(const struct adopted *a);

/** Hands some of `len` > 0 bytes at `src` over to the file at `off`: by reference what was adopted and not changed,
 *  else by a copy (held.h). As held_put. The file's lock is held. */
ssize_t adopt_put(struct file *f, uint64_t off, const char *src, size_t len);
/** A write of that many bytes to a captured file. */
void adopt_written(size_t len);

/** Where the bytes at `p` can be read without touching what is not there yet: *n of `len` > 0, once they have come.
 *  Until adopt_seen they stay there. */
const char *adopt_see(const char *p, size_t len, size_t *n, struct range **user);
void adopt_seen(struct range *user);

#endif
