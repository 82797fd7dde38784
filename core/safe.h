// SPDX-License-Identifier: MIT
//
// safe: what is to become of names, so that it can be done after keeper, engine or machine have died (recover.h): a
// record in the stripes' logs of each file that is closed and lies on the stripes, whole, of each deletion and
// renaming, and of an open file as it was at an fsync. In the order of the commit queue: something is recorded only
// when all before it is, or is on the target as it stands. What has ended is recorded as such before anybody can see
// that it has: else a recovery would bring back what was deleted since.

#ifndef FASTCKPT_SAFE_H
#define FASTCKPT_SAFE_H

#include "commit.h"
#include "drain.h"

struct safe_sync {
    uint32_t slot;
    bool name; // there is nothing under its name: it shall be there
    uint64_t id, number;
};

struct safe {
    struct pair *p;
    struct io *io;
    struct drain *drain;
    struct commit *c;
    void (*on_change)(void *arg);
    void *arg;
    int64_t wake_ns; // when the pump is due again (CLOCK_MONOTONIC); 0: when something changes
    bool on, busy;
    unsigned slot; // of the record that is being made,
    enum safe_state becomes; // and what it makes of it; NO: there is none, only its chunks become durable
    uint64_t number;         // of the fsync that it serves; 0: none
    uint64_t want;           // what was closed before this number gets its record at once
    unsigned n_syncs;
    struct safe_sync syncs[FILES_MAX]; // open files of which an fsync waits
    unsigned n_parts;
    struct log_part *parts;
    struct io_job job;
    bool ending[FILES_MAX];
};

void safe_start(struct safe *s, struct pair *p, struct io *io, struct drain *d, struct commit *c);
/** Would it be had, or done, without us? */
bool safe_is(const struct file_slot *f);
/** Somebody waits until all that was closed before `number` is safe. */
void safe_hurry(struct safe *s, uint64_t number);
/** An fsync with this number, of an open file. 0: what it had is safe, `name`: under its name, which is for a file that
 *  has none yet; -EAGAIN: ask again when something has changed; -EOPNOTSUPP: it cannot be. */
int safe_sync(struct safe *s, unsigned slot, uint64_t number, bool name);
/** Starts the next record. Called once a turn of the loop. */
void safe_pump(struct safe *s);
/** A file that is dropped, has failed or is done: true when there is no record of it that has not ended. Else that is
 *  made so; ask again when something has changed. */
bool safe_ended(struct safe *s, unsigned slot);

#endif
