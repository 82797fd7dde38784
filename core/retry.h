// SPDX-License-Identifier: MIT
//
// retry: which failed step of a closed file is tried again, when, and until when. Pure but for the clock and the log;
// the steps themselves are writer's and commit's.
//
// Only a step that has lost nothing may be tried again: a write whose chunk is still in staging, growth, a name. Never
// an fsync: the kernel drops what it could not write back, and says so once. A second fsync would answer 0.

#ifndef FASTCKPT_RETRY_H
#define FASTCKPT_RETRY_H

#include "state.h"

#define RETRY_FIRST_NS (50 * INT64_C(1000000)) // doubled each time ...
#define RETRY_MOST_NS  INT64_C(1000000000)     // ... up to this

/** What dies with the engine: the next one tries at once. */
struct retry {
    int64_t at_ns;   // not before, CLOCK_MONOTONIC; 0: nothing has failed
    int64_t step_ns; // the last wait
    bool probe;      // what is in hand is the step that had failed, alone: what it says counts
};

/** A step of `f` has failed with `error`. True: it is to be tried again at r->at_ns, which the log says the first time.
 *  False: it is final. A file that is still open is tried once more only: then its program is told (it may be closing
 *  it at this moment). */
bool retry_later(const struct state *st, struct file_slot *f, struct retry *r, int error);
/** A step of `f` is begun: call it for each. */
static inline void retry_begin(const struct file_slot *f, struct retry *r) {
    r->probe = f->retry_ns != 0;
}
/** A step has succeeded: if it is the one that had failed, all is well again. */
void retry_done(struct file_slot *f, struct retry *r);
/** Can what failed with `error` heal? */
bool retry_heals(int error);
/** May `f` still be tried again after a failure now? For worker threads: changes nothing. */
bool retry_allowed(const struct state *st, const struct file_slot *f, int error);
/** Seconds since the first failure; 0: none. */
unsigned retry_seconds(const struct file_slot *f);
/** Counts a closed file that is being tried again in `s`, which names the one that has been for longest. */
void retry_tell(const struct file_slot *f, struct status *s);
/** Is it too early for the next attempt? `*wake_ns` becomes the earliest time of those asked for (0: none yet). */
bool retry_early(const struct retry *r, int64_t *wake_ns);

#endif
