// SPDX-License-Identifier: MIT
//
// tool: the fastckpt command as a client of engines: find them, ask, wait. Prints; owns no files.

#ifndef FASTCKPT_TOOL_H
#define FASTCKPT_TOOL_H

#include "config.h"

/** `status`: one block (or one JSON object a line) for each engine of this user, our own first; failures are shown
 * once. Exit status: 0, 1 when files have failed. Without any engine: zeros. */
int tool_status(const struct config *c, bool json);
/** `status --watch`: a line a second for each engine, with the rate since the last one and the time left at that rate,
 * until Ctrl-C. 0. */
int tool_watch(const struct config *c, bool json);
/** `wait`: until everything closed so far is durable (`safe`: or would be had from the stripes), in every engine of
 *  this user. 0, 1 when something failed, 130 after a second Ctrl-C. */
int tool_wait(const struct config *c, bool safe);

#endif
