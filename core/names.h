// SPDX-License-Identifier: MIT
//
// names: the engine's side of the names table (tables.h): enter, change, remove. One 64-bit store changes a slot; the
// count rises before a slot is filled and falls after it is emptied, so that a client that sees 0 may trust it.

#ifndef FASTCKPT_NAMES_H
#define FASTCKPT_NAMES_H

#include "state.h"

/** Enters or changes the slot of file `slot` (its directory and name). A later file of the same name takes the slot
 *  over: the name is what was opened last. Doing it twice is harmless. */
void names_put(struct pair *p, unsigned slot, enum name_state s);
/** Removes the slot if it still names this file. */
void names_remove(struct pair *p, unsigned slot);
/** Empties the table and enters all files again: after a restart. */
void names_rebuild(struct pair *p);

#endif
