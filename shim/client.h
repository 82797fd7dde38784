// SPDX-License-Identifier: MIT
//
// client: this process as a client of the engine: connections, numbers, questions and answers, the mapped memory,
// borrowed chunks, and what happens when keeper and engine are both gone. Knows chunks and entries, not files' policy:
// file.c decides what is sent and when.
//
// Connections: a question owns a connection until it is answered, so answers need no sorting. They come from a small
// pool, are made on demand, sit on high descriptors (close-on-exec) and are re-made when a program has closed them.
// Lost connection and the engine lives: reconnect with (client, token). Lost and no engine: client_lost().

#ifndef FASTCKPT_CLIENT_H
#define FASTCKPT_CLIENT_H

#include "../core/protocol.h"

/** Everything below may be called from a hook: no malloc, no stdio, errno untouched; negative errno results. */

/** Connects if needed (starting a pair on demand). 0, or an error: the caller goes natively. After a time-out (2 s) or
 *  a failed start the next 2 s of calls fail at once instead of waiting again. */
int client_connect(void);

/** True while a connection is believed to live. One load; no system call. */
bool client_alive(void);

/** May the engine do in a directory what this process may? Not one that was started by, and runs as, another uid than
 *  the process has now, unless that is root. One system call. */
bool client_acts_for_us(void);

/** The engine's tables, or NULL before the first connection and after a fork in the child. */
const struct tables *client_tables(void);
unsigned client_slot(void);
/** Bytes that staging may take, as the engine says. */
uint64_t client_staging_max(void);

/** Draws a number for an entry. To be called before anything that others can notice. */
uint64_t client_number(void);

/**
 * Sends `q` (type, file, slot, body filled in; number drawn here if 0) with descriptors and waits for the answer, which
 * replaces *q; descriptors of the answer go to `fds_out` (own them; high, close-on-exec) and *nfds_out. Waits at most
 * `timeout_ms` (< 0: no limit; after 10 s one line says what it waits for); on a time-out it sends CANCEL. Returns the
 * answer's result, or -ETIMEDOUT, or -EPIPE when keeper and engine are gone.
 */
int client_ask(struct msg *q, const int *fds, int nfds, int *fds_out, int *nfds_out, int timeout_ms);

/** Sends an entry that is not answered (HAND_OVER, CLOSE, RETURN, EXEC). Order of calls by one thread is kept by the
 *  numbers. 0, or -EPIPE when keeper and engine are gone. */
int client_tell(struct msg *m);

/**
 * Takes a chunk to fill: one in hand, else borrowed (16 at a time). `*mem` is its memory, mapped and resident.
 * Waits for the engine when staging is full; -EAGAIN when `may_wait` is false or when this client itself holds partial
 * chunks that the engine waits for (the caller hands its oldest over, then asks again). Returns the chunk's number.
 */
int client_take_chunk(bool may_wait, void **mem);
/** Puts an unused chunk back into this process's hand. */
void client_put_chunk(unsigned chunk);
/** The memory of a chunk that this client has in its hands or handed over. */
void *client_chunk_mem(unsigned chunk);

/** Prints failures of files closed earlier that the engine has told since the last call (P6), on stderr. Returns how
 *  many are new. One load when there are none. */
int client_report_failures(void);

/** Says what is in a chunk in hand, once it is there: `n` extents of the file's chunk `index`. The engine reads it when
 *  another process looks at the file (core/labels.h), and so does client_next_unwritten. */
void client_label(unsigned chunk, uint64_t file, uint64_t index, const struct extent *e, uint32_t n);
/** Hands a chunk over: `m` is a HAND_OVER, complete but for its number. It is labelled before it is sent, and is no
 *  longer in this process's hands whatever the result. */
int client_hand_over(struct msg *m);
/** This process's arena, mapped at `mem`, is to have `*steps` of STAGING_STEP in all; `fd`: its memfd, the first time
 *  of a session, else -1. 0, or an error; *steps: what it may have. */
int client_arena(int fd, const void *mem, unsigned *steps, int timeout_ms);
/** Hands bytes of the arena over: `m` is a REFER, complete but for its number and turn, which is put into *turn. They
 *  stay as they are until it is over. -EAGAIN: too many are on their way, nothing was done. Else as client_tell. */
int client_refer(struct msg *m, uint64_t *turn);
/** Does nobody need what was referred to under this turn, of the session of `epoch`, any more? */
bool client_ref_over(uint32_t epoch, uint64_t turn);
/** Something has come of which references were made before (`late`): tells the engine up to which turn it `has` all. */
void client_refs_arrived(bool (*has)(uint64_t at, uint64_t len));
/** These bytes of the arena will never come: files that were to have any of them fail. */
void client_refs_lost(uint64_t at, uint64_t len);
/** This file was to have some: it fails, and is never published. */
int client_file_lost(uint64_t file, uint32_t slot);
/** Are references to these bytes of the file on their way? To be settled before others come there. */
bool client_refs_overlap(uint64_t file, uint64_t off, uint64_t len);
/** The file has been settled. */
void client_refs_settled(uint64_t file);
/** Gives all chunks in hand back to the engine: nothing is captured any more. */
void client_return_chunks(void);

/** Keeper and engine are gone (a hang-up and nobody who knows us). Recovers files; true when none of them needs the old
 *  memory any more: only then does client_connect start a new pair. Set by file_new. */
extern bool (*client_on_lost)(void);
/** How often keeper and engine were lost so far: a file of an older epoch has to be recovered (lost.c). */
uint32_t client_epoch(void);
/** For recovery: the chunk, or bytes of the arena, of `file` with the lowest number above `after` that was handed
 *  over and is not written yet. Fills *m (number, index, extents) and *mem, as of a chunk; NULL: its bytes will
 *  never come, which is waited for. False: no more. */
bool client_next_unwritten(uint64_t file, uint64_t after, struct msg *m, void **mem);
/** For messages at a loss: had the engine that is gone still this file, closed and not published? */
bool client_was_pending(uint64_t file, uint32_t slot);
/** Had it bytes of this file that were in no memory any more, and not in the file yet? */
bool client_only_striped(uint64_t file, uint32_t slot);

/** Fork handler of the child: closes our descriptors, forgets connections, chunks and tables. */
void client_after_fork(void);

/** Descriptors of ours, for the close family: a hook skips them (close: EBADF) and moves them when dup2 wants the
 *  number. */
bool client_owns_fd(int fd);
/** Moves ours from number `fd` to another, before a dup2 onto it. 0, or -EBUSY. */
int client_move_fd(int fd);
/** The lowest descriptor number that the shim's own descriptors use. */
int client_fd_floor(void);

/** Says LEAVE and waits if `wait` (progress on a terminal, else a line every 10 s; a second SIGINT or SIGTERM ends it).
 *  Fills the answer for the report. */
int client_leave(bool wait, struct msg_leave *ret);

#endif
