// SPDX-License-Identifier: MIT
//
// keeper: the process that makes engines. `fastckpt serve` binds the socket, becomes the keeper in a session of its
// own, and clones the engine: one descriptor table, separate memory. When the engine dies, waitpid returns after its
// last thread has left the kernel, and the next one goes on from the state. If the keeper dies, the engine becomes one.

#ifndef FASTCKPT_KEEPER_H
#define FASTCKPT_KEEPER_H

#include "state.h"

/** `serve`: starts a pair for `key` in the directory `dir` and returns the launcher's exit status: 0 once the socket
 *  takes connections. */
int keeper_serve(const char *dir, uint64_t key, const struct config *c);
/** `serve --resume FD`: goes on as keeper of the pair whose state is on descriptor FD. */
int keeper_serve_resume(int fd_state);

/** Called by an engine whose keeper is gone: execs this binary as `serve --resume`. Returns only on failure. */
void keeper_resume(struct state *st);
/** Renames the log once it is over 1 MiB and begins a new one. */
void keeper_rotate_log(struct state *st);

#endif
