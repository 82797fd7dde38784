// SPDX-License-Identifier: MIT
//
// names: the engine's side of the names table (tables.h): enter, change, remove. One 64-bit store changes a slot; the
// count rises before a slot is filled and falls after it is emptied, so that a client that sees 0 may trust it.

#ifndef FASTCKPT_NAMES_H
#define FASTCKPT_NAMES_H

#include "state.h"

/** Enters or changes what the slot says about its name, or names (a rename). What is later by number takes a name over:
 *  the name is what was done to it last. Doing it twice is harmless. */
void names_put(struct pair *p, unsigned slot);
/** Removes what the slot says, where nothing later has taken it over. */
void names_remove(struct pair *p, unsigned slot);
/** The slot that has the last word about a name, or NULL: the name is what its directory says. */
struct file_slot *names_latest(const struct pair *p, uint64_t dev, uint64_t ino, const char *name,
                               enum name_state *state);
/** Empties the table and enters all files again: after a restart. */
void names_rebuild(struct pair *p);

#endif
