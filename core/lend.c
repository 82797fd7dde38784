// SPDX-License-Identifier: MIT
//
// lend: see lend.h.

#include "lend.h"

#include "breakpoint.h"
#include "log.h"
#include "os.h"
#include "staging.h"

#include <string.h>

#define LOOK_NS  200000000ll           // how often room is read again while staging is held
#define KEEP_NS  (3600ll * 1000000000) // unused staging is kept this long
#define LOW_FREE (2 * BORROW_MAX)      // grow ahead below this many free chunks
#define SHARES   4                     // nobody gets more than one of so many parts of what is free: others come

void lend_start(struct lend *l, struct pair *p, struct io *io) {
    l->p = p;
    l->io = io;
    l->last_use_ns = os_now_ns(CLOCK_MONOTONIC);
}

static unsigned step_count(const struct lend *l) {
    return (unsigned)(l->p->st->staging_max / STAGING_STEP);
}

void lend_rebuild(struct lend *l) {
    l->n_free = l->resident = 0;
    for (unsigned s = 0; s < step_count(l); s++) {
        l->resident += l->p->st->steps[s];
        for (unsigned c = s * STAGING_STEP_CHUNKS; c < (s + 1) * STAGING_STEP_CHUNKS; c++) {
            uint64_t word = chunk_load(l->p, c);
            if (!l->p->st->steps[s]) {
                chunk_store(l->p, c, CHUNK_ABSENT, 0, 0);
            } else if (chunk_word_state(word) <= CHUNK_FREE) { // a growth that was cut off in the middle
                chunk_store(l->p, c, CHUNK_FREE, 0, 0);
                l->free[l->n_free++] = c;
            }
        }
    }
}

void lend_give(struct lend *l, unsigned chunk) {
    l->free[l->n_free++] = chunk;
}

static bool is_full(const struct lend *l) {
    return l->resident + l->arenas >= step_count(l) || l->no_room;
}

static unsigned kept(const struct lend *l) {
    return l->kept_back + l->kept_refs;
}

bool lend_has_kept(const struct lend *l) {
    return l->n_free >= kept(l);
}

static uint64_t above(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

unsigned lend_to_arena(const struct lend *l, unsigned clients, unsigned has, unsigned want) {
    uint64_t all = step_count(l), half = all / 2, share = max_u64(half / clients, 1);
    uint64_t more = above(min_u64(want, share), has);
    more = min_u64(more, above(staging_room() / STAGING_STEP, 1));
    more = min_u64(more, above(all, l->resident + l->arenas));
    return has + (unsigned)min_u64(more, above(half, l->arenas));
}

bool lend_short(const struct lend *l, unsigned spare) {
    return is_full(l) && l->n_free < kept(l) + spare;
}

int lend_steal(struct lend *l) {
    if (l->n_free == 0) {
        return -1;
    }
    unsigned c = l->free[--l->n_free];
    l->p->st->chunks[c].taken = TAKEN_NOT;
    return (int)c;
}

/** The free chunk that suits `client` best: one that it has mapped, else one that nobody has, else the warmest. */
static unsigned pick(struct lend *l, unsigned client) {
    unsigned best = l->n_free - 1, seen = 0;
    for (unsigned i = l->n_free; i-- > 0 && seen < 128; seen++) {
        if (l->p->st->chunks[l->free[i]].last_client == client + 1) {
            best = i;
            break;
        }
    }
    unsigned chunk = l->free[best];
    l->free[best] = l->free[--l->n_free];
    return chunk;
}

static unsigned again(struct lend *l, unsigned client, uint64_t number, uint32_t *out) {
    unsigned n = 0;
    for (unsigned c = 0; c < step_count(l) * STAGING_STEP_CHUNKS && n < BORROW_MAX; c++) {
        if (chunk_load(l->p, c) == chunk_word(CHUNK_LENT, client, number)) {
            out[n++] = c;
        }
    }
    return n;
}

// ---- Whose turn it is: fair queuing. Who has taken least is served first, counted since staging was last unused; who
// comes late begins at most one budget behind the first. (In the order of asking, and as many as were free, one of
// eight that saved at once was held for 0.6 of the others' time.)

static bool waits(const struct lend *l, unsigned client) {
    unsigned i = 0;
    while (i < l->n_askers && l->askers[i] != client) {
        i++;
    }
    return i < l->n_askers;
}

static void ask(struct lend *l, unsigned client) {
    if (l->n_askers == 0 && lend_used(l) == 0) {
        memset(l->taken, 0, sizeof l->taken);
        l->most_taken = 0;
    }
    uint64_t budget = step_count(l) * STAGING_STEP_CHUNKS;
    l->taken[client] = max_u64(l->taken[client], l->most_taken - min_u64(l->most_taken, budget));
    l->askers[l->n_askers++] = client;
}

void lend_unask(struct lend *l, unsigned client) {
    for (unsigned i = 0; i < l->n_askers; i++) {
        if (l->askers[i] == client) {
            memmove(l->askers + i, l->askers + i + 1, (--l->n_askers - i) * sizeof l->askers[0]);
            return;
        }
    }
}

/** Whose turn it is among those that wait: of equals, who asked first. */
static unsigned next_served(const struct lend *l) {
    unsigned best = l->askers[0];
    for (unsigned i = 1; i < l->n_askers; i++) {
        best = l->taken[l->askers[i]] < l->taken[best] ? l->askers[i] : best;
    }
    return best;
}

unsigned lend_take(struct lend *l, unsigned client, uint64_t number, unsigned want, uint32_t *out) {
    unsigned n = 0;
    if (!waits(l, client)) {
        n = again(l, client, number, out);
        if (n > 0) {
            return n;
        }
        ask(l, client);
    }
    if (l->n_free <= kept(l) || next_served(l) != client) {
        return 0;
    }
    unsigned share = (l->n_free - kept(l)) / (l->n_askers > SHARES ? l->n_askers : SHARES);
    want = want > BORROW_MAX ? BORROW_MAX : want;
    want = want > share ? (share ? share : 1) : want;
    while (n < want && l->n_free > 0) {
        unsigned c = pick(l, client);
        l->p->st->chunks[c].last_client = client + 1;
        l->p->st->chunks[c].taken = TAKEN_NOT;
        chunk_store(l->p, c, CHUNK_LENT, client, number);
        BREAK_POINT("chunk-lent");
        out[n++] = c;
    }
    l->taken[client] += n;
    l->most_taken = max_u64(l->most_taken, l->taken[client]);
    lend_unask(l, client);
    l->last_use_ns = os_now_ns(CLOCK_MONOTONIC);
    if (l->n_askers > 0) {
        l->on_change(l->arg); // the next one's turn
    }
    return n;
}

bool lend_give_back(struct lend *l, unsigned chunk, unsigned client) {
    uint64_t word = chunk_load(l->p, chunk);
    enum chunk_state s = chunk_word_state(word);
    if (s <= CHUNK_FREE || chunk_word_client(word) != client) {
        return false;
    }
    if (s == CHUNK_LENT || s == CHUNK_TAKEN) {
        chunk_store(l->p, chunk, CHUNK_FREE, 0, 0);
        lend_give(l, chunk);
        return true;
    }
    if (l->p->st->chunks[chunk].taken == TAKEN_NOT) {
        return false; // handed over
    }
    l->p->st->chunks[chunk].taken = TAKEN_BACK; // on its way to the file: free when that is done
    return true;
}

void lend_take_back(struct lend *l, unsigned client) {
    lend_unask(l, client);
    l->taken[client] = 0; // another may get its slot
    for (unsigned c = 0; c < step_count(l) * STAGING_STEP_CHUNKS; c++) {
        if (lend_give_back(l, c, client)) {
            l->p->st->chunks[c].last_client = 0;
        }
    }
}

static bool on_its_way(const struct lend *l) {
    for (unsigned c = 0; c < step_count(l) * STAGING_STEP_CHUNKS; c++) {
        enum chunk_state s = chunk_word_state(chunk_load(l->p, c));
        if (s == CHUNK_HANDED || s == CHUNK_FLYING) {
            return true;
        }
    }
    return false;
}

bool lend_hopeless(const struct lend *l) {
    return l->n_free <= l->kept_refs && !l->busy && is_full(l) && !on_its_way(l);
}

unsigned lend_used(const struct lend *l) {
    return l->resident * STAGING_STEP_CHUNKS - l->n_free;
}

// ---- Growing and giving back

static char *step_memory(struct lend *l) {
    return l->p->window + l->step * STAGING_STEP;
}

static void grow_run(struct io_job *job) {
    struct lend *l = job->arg;
    int huge = 0;
    job->result = staging_populate(step_memory(l), STAGING_STEP, &huge);
}

static void grow_done(struct io_job *job) {
    struct lend *l = job->arg;
    l->busy = false;
    if (job->result < 0) {
        l->no_room = true;
        log_info("staging cannot grow beyond %lu MiB: %s", (unsigned long)(l->resident * STAGING_STEP / MIB),
                 log_errno(-job->result));
        l->on_change(l->arg); // who waits may have to be told that there will be none
        return;
    }
    l->p->st->steps[l->step] = 1;
    l->resident++;
    for (unsigned c = (l->step + 1) * STAGING_STEP_CHUNKS; c-- > l->step * STAGING_STEP_CHUNKS;) {
        l->p->st->chunks[c].last_client = 0;
        chunk_store(l->p, c, CHUNK_FREE, 0, 0);
        lend_give(l, c);
    }
    l->on_change(l->arg);
}

static void shrink_run(struct io_job *job) {
    struct lend *l = job->arg;
    job->result = staging_release(l->p->window, l->p->st->fd_staging, l->step * STAGING_STEP, STAGING_STEP);
}

static void shrink_done(struct io_job *job) {
    struct lend *l = job->arg;
    l->busy = false;
    l->last_look_ns = 0; // look again at once: one step may not have been enough
    l->on_change(l->arg);
}

static void start_job(struct lend *l, void (*run)(struct io_job *), void (*done)(struct io_job *)) {
    l->busy = true;
    l->job = (struct io_job){.run = run, .done = done, .arg = l, .device = 0};
    io_job(l->io, &l->job);
}

static void grow(struct lend *l) {
    for (unsigned s = 0; s < step_count(l); s++) {
        if (!l->p->st->steps[s]) {
            l->step = s;
            start_job(l, grow_run, grow_done);
            return;
        }
    }
}

static bool step_is_free(const struct lend *l, unsigned s) {
    for (unsigned c = s * STAGING_STEP_CHUNKS; c < (s + 1) * STAGING_STEP_CHUNKS; c++) {
        if (chunk_word_state(chunk_load(l->p, c)) != CHUNK_FREE) {
            return false;
        }
    }
    return true;
}

/** Gives the highest wholly free step back. */
static void shrink(struct lend *l) {
    if (kept(l) > 0 && l->n_free < STAGING_STEP_CHUNKS + kept(l)) {
        return;
    }
    for (unsigned s = step_count(l); s-- > 0;) {
        if (!l->p->st->steps[s] || !step_is_free(l, s)) {
            continue;
        }
        unsigned kept = 0;
        for (unsigned i = 0; i < l->n_free; i++) {
            if (l->free[i] / STAGING_STEP_CHUNKS != s) {
                l->free[kept++] = l->free[i];
            }
        }
        l->n_free = kept;
        l->p->st->steps[s] = 0;
        for (unsigned c = s * STAGING_STEP_CHUNKS; c < (s + 1) * STAGING_STEP_CHUNKS; c++) {
            chunk_store(l->p, c, CHUNK_ABSENT, 0, 0);
        }
        l->resident--;
        l->step = s;
        start_job(l, shrink_run, shrink_done);
        return;
    }
}

void lend_pump(struct lend *l, int64_t now_ns) {
    bool asked = l->n_askers > 0 || l->n_free < l->kept_refs;
    if (l->busy) {
        return;
    }
    bool look = (l->resident > 0 || asked) && now_ns - l->last_look_ns >= LOOK_NS;
    bool want = (asked || now_ns - l->last_use_ns < LOOK_NS) && l->n_free < LOW_FREE &&
                l->resident + l->arenas < step_count(l) && (asked || l->resident > 0);
    if (!look && (!want || l->no_room)) {
        return;
    }
    uint64_t room = staging_room();
    l->last_look_ns = now_ns;
    bool no_room = room < 2 * STAGING_STEP;
    if (no_room != l->no_room) {
        l->no_room = no_room;
        l->on_change(l->arg); // who waits for a chunk may have to be told that there will be none
    }
    if (room < STAGING_STEP || (l->resident > 0 && now_ns - l->last_use_ns > KEEP_NS)) {
        shrink(l);
    } else if (want && !l->no_room) {
        grow(l);
    }
}
