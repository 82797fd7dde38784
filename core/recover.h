// SPDX-License-Identifier: MIT
//
// recover: what is done with the files that a pair has left on stripes: whatever its log says is safe and has not ended
// is published, in order, where the target is still as it was. Nothing that a living pair holds is touched, nothing is
// deleted that a pair has not written there, and doing it again, or dying in the middle, is harmless. Blocks.

#ifndef FASTCKPT_RECOVER_H
#define FASTCKPT_RECOVER_H

#include <stdbool.h>
#include <stddef.h>

/** `dirs` as in FASTCKPT_STRIPES. `say` gets one line for each file that was found. Returns how many could not be
 *  recovered, and stay on the stripes. `dry`: only says what it would do. `used`: also says what living pairs hold. */
int recover_stripes(const char *dirs, bool dry, bool used, void (*say)(const char *line));

/** How many logs this user's engines have in one stripe directory, a name of `len` bytes; or why it cannot be looked
 *  into. */
int recover_logs(const char *dir, size_t len);

#endif
