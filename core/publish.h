// SPDX-License-Identifier: MIT
//
// publish: the blocking half of commit, run by worker threads: make one file durable, give a batch of files their names
// in order. Only io_calls and the slots it is given; no queues, no clients.

#ifndef FASTCKPT_PUBLISH_H
#define FASTCKPT_PUBLISH_H

#include "io.h"
#include "state.h"

/** Gives back space that was reserved and has no bytes, sets the program's times, fsyncs. 0 or an error. */
int publish_sync(struct state *st, struct file_slot *f);
/** Will the sync of its directory, behind its name, make the inode durable as well? One journal keeps the order: what
 *  was written out before is there when the name is. A file that gets its first name, and holds only what the program
 *  wrote itself. */
bool publish_with_name(const struct file_slot *f);
/** The same as publish_sync for such a file, without the fsync. */
int publish_write_out(struct state *st, struct file_slot *f);
/** Starts the writeback of what the program wrote itself, without waiting: for a batch, before its files are synced. */
void publish_start_writeback(const struct file_slot *f);

/** Takes away the hidden name that a file which will not be published may have. Not beside publish_names. */
void publish_give_up(struct file_slot *f);

#define PUBLISH_STEP_CAP 32
/** The hidden name under which the file may stand for a moment when its name is given over an older file's. */
void publish_step(const struct file_slot *f, char ret[PUBLISH_STEP_CAP]);

/** Gives the `n` files their names, strictly in order, and makes the directories durable. `result[i]` is set for each;
 *  a failure does not stop the others, but replaces nothing behind itself. Returns `n`, or which one has failed and can
 *  be tried again: nothing was done behind it. */
unsigned publish_names(struct state *st, const uint32_t *slots, unsigned n, int *result);

#endif
