// SPDX-License-Identifier: MIT
//
// lend: the engine's purse of chunks: which are free, who gets them, when staging grows and when memory is given back.
// Changes chunk words free <-> lent and absent <-> free; handed over and flying are writer's.

#ifndef FASTCKPT_LEND_H
#define FASTCKPT_LEND_H

#include "io.h"
#include "state.h"

struct lend {
    struct pair *p;
    struct io *io;
    void (*on_change)(void *arg);
    void *arg;
    unsigned n_free;
    uint32_t free[CHUNKS_MAX]; // a stack: what was freed last is warm and is taken first
    unsigned kept_back;        // so many free ones are lent to no client (drain.h)
    unsigned kept_refs;        // ... and so many more (refer.h)
    unsigned resident;         // steps with memory
    unsigned arenas;           // steps that the clients' arenas have of the budget
    unsigned step;             // that the job in hand makes or releases
    bool busy;
    bool no_room;     // the last look found less than a step
    int64_t last_use_ns, last_look_ns;
    unsigned n_askers;
    uint32_t askers[CLIENTS_MAX]; // clients that wait for a chunk
    uint64_t taken[CLIENTS_MAX];  // chunks that each has taken since staging was unused; forgotten at a restart
    uint64_t most_taken;          // by one of them
    struct io_job job;
};

void lend_start(struct lend *l, struct pair *p, struct io *io);
/** After a restart: the free list from the words. A chunk lent to a client that is gone is the caller's to take back.
 */
void lend_rebuild(struct lend *l);
/** Lends up to `want` chunks to `client` for the borrow message `number`, when it is this client's turn. Chunks already
 *  lent for this number (before a restart) are given again. Returns how many; 0: not now, and the client is among those
 *  that wait (one place each, whatever it asks) until it is served, unasked or taken back from. */
unsigned lend_take(struct lend *l, unsigned client, uint64_t number, unsigned want, uint32_t *out);
/** `client` waits no longer. */
void lend_unask(struct lend *l, unsigned client);
/** True when staging cannot grow and fewer than `spare` chunks can be lent. */
bool lend_short(const struct lend *l, unsigned spare);
/** A free chunk for the engine itself, which sets its word; -1: there is none. */
int lend_steal(struct lend *l);
/** True when all the chunks that are kept back are free. */
bool lend_has_kept(const struct lend *l);
/** How many steps of the budget the arena of one of `clients` may have, that has `has` and wants `want`: half of it is
 *  for all of them, a share of that for each, and no more than there is memory for. Never less than it has. */
unsigned lend_to_arena(const struct lend *l, unsigned clients, unsigned has, unsigned want);
/** A chunk has become free. */
void lend_give(struct lend *l, unsigned chunk);
/** `client` gives a chunk back that it was lent. False: it has not got it. */
bool lend_give_back(struct lend *l, unsigned chunk, unsigned client);
/** Takes back every chunk lent to `client`. */
void lend_take_back(struct lend *l, unsigned client);
/** True when no chunk is free, none is on its way to a device and none can be made. */
bool lend_hopeless(const struct lend *l);
/** Grows if asked for more than is free and there is room; gives memory back when there is none, or after an hour. */
void lend_pump(struct lend *l, int64_t now_ns);
unsigned lend_used(const struct lend *l);

#endif
