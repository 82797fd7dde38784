// SPDX-License-Identifier: MIT
//
// broken: devices on which something has failed for good, and what that forbids. A program that ignores errors goes on
// to delete its old checkpoints while every new one fails: from the failure until a file that was closed after it, and
// is not much smaller, is durable on that device, nothing is deleted, and nothing replaces. Knows no queue; kept in the
// state, over restarts.

#ifndef FASTCKPT_BROKEN_H
#define FASTCKPT_BROKEN_H

#include "state.h"

/** `f` has failed for good. With an error that says nothing about its device (no space) this does nothing. `where`: its
 *  directory, for who reads of it. From here on names_count is above 0, so that clients ask before they delete. */
void broken_note(struct pair *p, const struct file_slot *f, int error, const char *where);

/** The turn of `f` is over: it is durable (0), or has been refused (-ECANCELED) with its bytes durable. The first lifts
 *  what its device forbids; after the second, the next file may replace an old one. */
void broken_turn(struct pair *p, const struct file_slot *f, int result);

/** Would `f`, if all goes well, lift something? `st`: a struct state. For commit_before. */
bool broken_hopes(const struct file_slot *f, const void *st);

/** Is `f`, whose turn it is, forbidden to delete or to replace? Not if it is what had failed, saved again: then its
 *  bytes have arrived now. Nor if another file's have, closed before it and after the failure. */
bool broken_forbids(const struct state *st, const struct file_slot *f);

/** One line for `fastckpt status`. */
void broken_tell(const struct state *st, struct status *s);

#endif
