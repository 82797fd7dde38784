// SPDX-License-Identifier: MIT
//
// tool_inside: what tool.c and tool_status.c share: questions to engines.

#ifndef FASTCKPT_TOOL_INSIDE_H
#define FASTCKPT_TOOL_INSIDE_H

#include "protocol.h"
#include "tool.h"

#include <signal.h>

#define ENGINES_MAX 64

struct link {
    int sock;
    struct numbers *numbers;
};

extern volatile sig_atomic_t tool_interrupts; // Ctrl-C so far
void tool_on_interrupt(int sig);

/** Connects to the engine with this key and says hello. The caller closes it. 0 or an error: there is nothing to close.
 */
int tool_link_open(struct link *l, int dirfd, uint64_t key);
void tool_link_close(struct link *l);
/** Sends a question and waits for its answer. `fds` (NULL: none) go with it, `*nfds` of them; those of the answer come
 *  back. Its result, or -ETIMEDOUT, -EPIPE. */
int tool_ask(const struct link *l, struct msg *m, int *fds, int *nfds);
/** Has tool_link_open failed since the engine lives and says nothing? Then it is said on stderr. */
bool tool_tell_silent(uint64_t key, int r);
/** Keys of all engines of this user, at most ENGINES_MAX, the one of our own surroundings first. */
unsigned tool_find_engines(const struct config *c, int *ret_dir, uint64_t *keys);

#endif
