// SPDX-License-Identifier: MIT
//
// recover: what is done with the files that a pair has left on stripes: whatever its log says is safe and has not ended
// is published, in order, where the target is still as it was. Nothing that a living pair holds is touched, nothing is
// deleted that a pair has not written there, and doing it again, or dying in the middle, is harmless. Blocks.

#ifndef FASTCKPT_RECOVER_H
#define FASTCKPT_RECOVER_H

#include <stdbool.h>
#include <stddef.h>

enum recover_how {
    RECOVER_DRY = 1,     // only says what it would do
    RECOVER_DISCARD = 2, // what cannot be recovered is given up, and leaves the stripes
    RECOVER_USED = 4,    // also says what living pairs hold
};

/** `dirs` as in FASTCKPT_STRIPES. `say` gets one line for each file that was found. Returns how many could not be
 *  recovered, and stay on the stripes. */
int recover_stripes(const char *dirs, enum recover_how how, void (*say)(const char *line));

/** How many logs this user's engines have in one stripe directory, a name of `len` bytes; or why it cannot be looked
 *  into. */
int recover_logs(const char *dir, size_t len);

#endif
