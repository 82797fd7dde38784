// SPDX-License-Identifier: MIT
//
// stripes: the directories of FASTCKPT_STRIPES as devices: a file on each, cut into places of one chunk, which are
// taken and given back. Which chunk goes where, and when it leaves, is drain's. Runs in the event loop; what blocks is
// a job.

#ifndef FASTCKPT_STRIPES_H
#define FASTCKPT_STRIPES_H

#include "io.h"
#include "state.h"

struct stripe {
    int fd; // recorded in the state; 0: this one is out of use
    uint64_t dev;
    unsigned in_flight;
    uint32_t places; // made so far
    uint32_t n_free, cap;
    uint32_t *free;
    uint32_t step;   // how many are made next
    int64_t full_ns; // when it had no room for more (CLOCK_MONOTONIC); 0: it has
    bool growing;    // or shrinking
    int64_t used_ns; // when a place was last taken (CLOCK_MONOTONIC)
    uint32_t keep;   // places that are left when it has shrunk
    struct io_job job;
    struct stripes *all;
};

struct stripes {
    struct pair *p;
    struct io *io;
    void (*on_change)(void *arg); // there are more places
    void *arg;
    unsigned end; // behind the last one in use at the start; 0: everything goes to the files at once
    struct stripe stripe[STRIPES_MAX];
};

/** Opens the directories of the configuration, or finds again what an earlier engine has opened, with the places that
 *  the state's items do not have. One that cannot be used is left out, with a line in the log and in the status. */
void stripes_start(struct stripes *s, struct pair *p, struct io *io);
/** A place for one chunk on the device that is free first, which is its number; `turn` decides among equals. -EAGAIN:
 *  none yet, on_change or stripes_done comes first; -ENOSPC: none. */
int stripes_take(struct stripes *s, uint64_t turn, uint32_t *place);
/** A write to `device` has ended; a device that fails takes no more. */
void stripes_done(struct stripes *s, int device, int error);
/** The place is free again. */
void stripes_give(struct stripes *s, int device, uint32_t place);
/** Gives the disk the places back that have not been used for a while, from the end of the file on. When it is due
 *  again (CLOCK_MONOTONIC); 0: when something changes. */
int64_t stripes_tidy(struct stripes *s);
/** The pair leaves with nothing left to do: takes its files away. */
void stripes_leave(struct state *st);

#endif
