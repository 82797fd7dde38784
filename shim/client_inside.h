// SPDX-License-Identifier: MIT
//
// client_inside: what client.c (session), client_conn.c (connections), client_chunks.c (staging memory) and
// client_leave.c share. For these only.

#ifndef FASTCKPT_CLIENT_INSIDE_H
#define FASTCKPT_CLIENT_INSIDE_H

#include "../core/os.h"
#include "client.h"

#define MS_NS INT64_C(1000000)

struct conn;
struct session {
    uint32_t slot;
    uint64_t token;
};

// client.c
struct session client_session(void);
/** A socket to the engine, starting a pair if `start`; else an error with the reason in `why`. */
int client_dial(bool start, char *why, size_t cap);
/** An answer has come: questions with a time limit are asked again. */
void client_answered(void);
/** The session of this epoch is over: keeper and engine are gone. */
void client_lost(uint32_t epoch);

// client_conn.c
/** A connection of one's own, pinned; makes one if none is idle. NULL: *err is -ETIMEDOUT, or -EPIPE when the session
 *  of `epoch` is over (which is found out here). */
struct conn *conn_take(uint32_t epoch, int64_t deadline, int *err);
/** Says hello on the socket of a new session; the connection is idle then. 0 and the answer, or an error. */
int conn_first(int sock, struct msg *a, int *fds, int *nfds, int64_t deadline);
void conns_close_idle(void);
void conns_after_fork(void);
/** The whole of a question: 0 (answered), -ETIMEDOUT (and cancelled), -EPIPE, or a local error. */
int conn_ask(struct conn *c, struct msg *q, const int *fds, int nfds, int *out, int *nout, int64_t deadline);
/** Gives it back; `broken` closes it. */
void conn_put(struct conn *c, bool broken);
/** Sends on it until `deadline` (CLOCK_MONOTONIC, < 0: none). 0, -ETIMEDOUT, -EPIPE. */
int conn_send(struct conn *c, const struct msg *m, const int *fds, int nfds, int64_t deadline);
/** One slice of waiting for the answer to number q->number: 1 and *q replaced, 0 (not yet), or -EPIPE. */
int conn_receive(struct conn *c, struct msg *q, int *fds, int *nfds, int slice_ms);

// client_chunks.c
/** A new session: fds[0] (staging) backs a window of `max` bytes, fds[1] holds the labels of `client`; both are taken
 *  over. Called under the connecting lock. */
int chunks_begin(const int fds[2], unsigned client, uint64_t max, const struct tables *tables);
/** Forgets window, hands and notes: before a new session, when nothing needs the old one any more. */
void chunks_end(void);
/** In a fork child: the mappings are not there. */
void chunks_after_fork(void);

// client_refs.c
/** A new session. Under the connecting lock. */
void refs_begin(const struct tables *tables);
void refs_after_fork(void);
/** As client_next_unwritten, of the arena alone. */
bool refs_next_unwritten(uint64_t file, uint64_t after, struct msg *m, void **mem);

#endif
