// SPDX-License-Identifier: MIT
//
// refer: see refer.h. A reference needs a chunk that is free, and clients hold chunks as long as they like: so some are
// kept back from the first arena on, and no client is told that it has an arena before these are free. A chunk that a
// reference has taken is on its way to a file from there on, so it comes back.

#include "refer.h"

#include "breakpoint.h"
#include "os.h"
#include "staging.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#define COPIES_MAX  4 // of one client at once

/** What of a reference dies with the engine. */
struct refer_run {
    struct io_job job;
    struct refer *r;
    uint32_t client;
    uint32_t chunk; // being copied into, or copied: + 1
    bool copying;
};

static struct arena_slot *arena_of(const struct refer *r, unsigned client) {
    return &r->p->st->arenas[client];
}

static struct ref *ref_at(const struct refer *r, unsigned client, uint64_t turn) {
    return &arena_of(r, client)->ref[turn % REFS_MAX];
}

static struct refer_run *run_at(const struct refer *r, unsigned client, uint64_t turn) {
    return &r->client[client].run[turn % REFS_MAX];
}

static void give(struct refer *r, unsigned chunk) {
    chunk_store(r->p, chunk, CHUNK_FREE, 0, 0);
    lend_give(r->lend, chunk);
}

/** It counts no more for its file: passed on, or nobody wants it. */
static void leave_queue(struct refer *r, struct ref *ref, enum ref_state to) {
    r->p->st->files[ref->file].refs--;
    atomic_store_explicit(&ref->state, to, memory_order_release);
}

// ---- What others ask

/** The next reference of the file that is queued, at or behind turn *t, which moves to it; NULL: there is none. */
static struct ref *next_of(const struct refer *r, unsigned slot, uint64_t *t) {
    const struct file_slot *f = &r->p->st->files[slot];
    for (; f->refs > 0 && *t < r->client[f->client].end; ++*t) {
        struct ref *ref = ref_at(r, f->client, *t);
        if (ref->state == REF_QUEUED && ref->file == slot && ref->file_id == f->id) {
            return ref;
        }
    }
    return NULL;
}

static uint64_t first_turn(const struct refer *r, unsigned slot) {
    const struct file_slot *f = &r->p->st->files[slot];
    return f->refs > 0 ? arena_of(r, f->client)->done : 0;
}

static bool held(void *arg, unsigned slot, uint64_t number) {
    const struct refer *r = arg;
    const struct ref *ref;
    for (uint64_t t = first_turn(r, slot); (ref = next_of(r, slot, &t)); t++) {
        if (ref->number < number) {
            return true;
        }
    }
    return false;
}

static void discard(void *arg, unsigned slot) {
    struct refer *r = arg;
    struct ref *ref;
    for (uint64_t t = first_turn(r, slot); (ref = next_of(r, slot, &t)); t++) {
        struct refer_run *run = run_at(r, r->p->st->files[slot].client, t);
        leave_queue(r, ref, REF_DONE);
        if (run->chunk && !run->copying) {
            give(r, run->chunk - 1);
            run->chunk = 0;
        }
    }
}

static bool has(void *arg, unsigned chunk) {
    (void)arg, (void)chunk;
    return false; // refer_rebuild has given them back
}

bool refer_busy(const struct refer *r, unsigned slot) {
    return r->copying[slot] > 0;
}

uint64_t refer_bytes(const struct refer *r, unsigned slot) {
    uint64_t n = 0;
    const struct ref *ref;
    for (uint64_t t = first_turn(r, slot); (ref = next_of(r, slot, &t)); t++) {
        n += ref->what.extent.len;
    }
    return n;
}

// ---- Arenas

static int make_runs(struct refer *r, unsigned client) {
    struct refer_client *c = &r->client[client];
    if (c->run) {
        return 0;
    }
    c->run = calloc(REFS_MAX, sizeof *c->run);
    for (unsigned i = 0; c->run && i < REFS_MAX; i++) {
        c->run[i].r = r;
        c->run[i].client = client;
    }
    return c->run ? 0 : -ENOMEM;
}

/** Sealed: what is in it stays in it, so that no read comes short. */
static int take_arena(struct refer *r, unsigned client, int32_t *fd) {
    struct arena_slot *a = arena_of(r, client);
    struct stat s;
    int seals = os_fcntl(*fd, F_GET_SEALS, 0);
    if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW) ||
        os_fstat(*fd, &s) < 0) {
        return -EINVAL;
    }
    if (a->fd > 0 && a->fd != *fd) {
        return a->dev == s.st_dev && a->ino == s.st_ino ? 0 : -EEXIST;
    }
    a->dev = s.st_dev;
    a->ino = s.st_ino;
    a->size = (uint64_t)s.st_size;
    *(volatile int32_t *)&a->fd = *fd;
    BREAK_POINT("arena-taken");
    *fd = 0;
    return 0;
}

static unsigned clients_there(const struct refer *r) {
    unsigned n = 0;
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        const struct client_slot *cl = &r->p->st->clients[i];
        n += cl->used && !cl->dead && !cl->tool;
    }
    return n > 0 ? n : 1;
}

int refer_arena(struct refer *r, unsigned client, int32_t *fd, unsigned *steps) {
    struct arena_slot *a = arena_of(r, client);
    int err = *fd > 0 ? take_arena(r, client, fd) : a->fd > 0 ? 0 : -EBADF;
    err = err < 0 ? err : make_runs(r, client);
    if (err < 0) {
        return err;
    }
    r->lend->kept_refs = REFER_KEPT;
    if (!lend_has_kept(r->lend)) {
        return lend_short(r->lend, 0) ? -EAGAIN : -EBUSY;
    }
    unsigned most = (unsigned)min_u64(*steps, a->size / STAGING_STEP), had = a->steps;
    a->steps = lend_to_arena(r->lend, clients_there(r), had, most);
    BREAK_POINT("arena-granted");
    r->lend->arenas += a->steps - had;
    *steps = a->steps;
    return 0;
}

bool refer_end(struct refer *r, unsigned client) {
    struct arena_slot *a = arena_of(r, client);
    struct refer_client *c = &r->client[client];
    if (a->fd <= 0) {
        return true;
    }
    if (c->copying > 0 || a->done < c->end) {
        return false;
    }
    r->lend->arenas -= a->steps;
    a->steps = 0;
    BREAK_POINT("arena-ended");
    state_close_fd(&a->fd);
    a->done = a->arrived = 0;
    free(c->run);
    *c = (struct refer_client){0};
    bool any = false;
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        any |= r->p->st->arenas[i].fd > 0;
    }
    r->lend->kept_refs = any ? REFER_KEPT : 0;
    return true;
}

// ---- References

int refer_add(struct refer *r, unsigned client, const struct msg *m, const struct file_slot *f) {
    struct arena_slot *a = arena_of(r, client);
    struct refer_client *c = &r->client[client];
    const struct msg_refer *what = &m->u.refer;
    if (!c->run || what->turn >= a->done + REFS_MAX || what->at + what->extent.len > a->size) {
        return -EPROTO;
    }
    struct ref *ref = ref_at(r, client, what->turn);
    if (what->turn < a->done || (ref->state != REF_NONE && ref->number == m->number)) {
        return 0; // carried out before a restart
    }
    if (ref->state != REF_NONE) {
        return -EPROTO;
    }
    ref->file = f ? (uint32_t)(f - r->p->st->files) : 0;
    ref->file_id = f ? f->id : 0;
    ref->number = m->number;
    ref->chunk = 0;
    ref->what = *what;
    if (f) {
        r->p->st->files[ref->file].refs++;
    }
    atomic_store_explicit(&ref->state, f ? REF_QUEUED : REF_DONE, memory_order_release);
    BREAK_POINT("ref-queued");
    c->end = max_u64(c->end, what->turn + 1);
    c->to_copy = min_u64(c->to_copy, what->turn); // one that comes late
    c->to_pass = min_u64(c->to_pass, what->turn);
    return 0;
}

void refer_arrived(struct refer *r, unsigned client, uint64_t turn) {
    struct arena_slot *a = arena_of(r, client);
    if (turn > a->arrived) {
        *(volatile uint64_t *)&a->arrived = turn;
        BREAK_POINT("refs-arrived");
    }
}

/** Are its bytes in the arena? */
static bool is_there(const struct refer *r, unsigned client, uint64_t turn) {
#if FASTCKPT_BREAK == 22 // canary: what is in the arena before they are is taken for them
    return true;
#endif
    return !ref_at(r, client, turn)->what.late || turn < arena_of(r, client)->arrived;
}

/** They never will be. */
static void fail_late(struct refer *r, const struct ref *ref) {
    unsigned slot = ref->file;
    r->w->on_error(r->w->arg, slot, -EIO, "copying it from the device: its program has died");
    discard(r, slot);
    r->w->on_change(r->w->arg, slot);
}

static void copy_run(struct io_job *job) {
    const struct refer_run *run = job->arg;
    const struct arena_slot *a = arena_of(run->r, run->client);
    const struct ref *ref = &a->ref[run - run->r->client[run->client].run];
    char *to = run->r->p->window + (run->chunk - 1) * CHUNK_SIZE + ref->what.extent.off;
    uint64_t done = 0;
    job->result = 0;
    while (done < ref->what.extent.len && job->result >= 0) {
        ssize_t n = os_pread(a->fd, to + done, ref->what.extent.len - done, (off_t)(ref->what.at + done));
        job->result = n > 0 || n == -EINTR ? 0 : n == 0 ? -EIO : (int)n;
        done += n > 0 ? (uint64_t)n : 0;
    }
}

static void copy_done(struct io_job *job) {
    struct refer_run *run = job->arg;
    struct refer *r = run->r;
    struct ref *ref = &arena_of(r, run->client)->ref[run - r->client[run->client].run];
    run->copying = false;
    r->client[run->client].copying--;
    r->copying[ref->file]--;
    BREAK_POINT("ref-copied");
    if (ref->state != REF_QUEUED) { // discarded meanwhile
        give(r, run->chunk - 1);
        run->chunk = 0;
    } else if (job->result < 0) {
        r->w->on_error(r->w->arg, ref->file, job->result, "reading from its program's arena");
        discard(r, ref->file);
    }
    r->w->on_change(r->w->arg, ref->file);
}

/** Those that the drain needs to read back are not for us; beyond our own, clients that wait come first. */
static bool may_take(const struct lend *l) {
    return l->n_free > l->kept_back && (l->n_askers == 0 || l->n_free <= l->kept_back + l->kept_refs);
}

/** False: there is no chunk now. */
static bool start_copy(struct refer *r, unsigned client, uint64_t turn) {
    struct ref *ref = ref_at(r, client, turn);
    struct refer_run *run = run_at(r, client, turn);
    if (!may_take(r->lend)) {
        return false;
    }
    int chunk = lend_steal(r->lend);
    struct chunk_slot *cs = &r->p->st->chunks[chunk];
    cs->file = ref->file;
    cs->file_id = ref->file_id;
    cs->taken = TAKEN_NOT;
    cs->last_client = 0;
    cs->what = (struct msg_hand_over){.chunk = (uint32_t)chunk, .n = 1, .index = ref->what.index};
    cs->what.extent[0] = ref->what.extent;
    ref->chunk = run->chunk = (uint32_t)chunk + 1;
    BREAK_POINT("ref-chunk");
    chunk_store(r->p, (unsigned)chunk, CHUNK_HANDED, client, ref->number);
    BREAK_POINT("ref-copying");
    run->copying = true;
    r->client[client].copying++;
    r->copying[ref->file]++;
    run->job = (struct io_job){.run = copy_run, .done = copy_done, .arg = run, .device = 0, .number = ref->number};
    io_job(r->io, &run->job); // with no disk's workers: they may wait for a slow one
    return true;
}

static void pass(struct refer *r, unsigned client, uint64_t turn) {
    struct ref *ref = ref_at(r, client, turn);
    unsigned chunk = run_at(r, client, turn)->chunk - 1;
    run_at(r, client, turn)->chunk = 0;
    leave_queue(r, ref, REF_PASSED);
    BREAK_POINT("ref-passed");
    if (!drain_add(r->drain, chunk)) {
        writer_add(r->w, chunk);
    }
}

/** Its chunk is free, or another's by now: the bytes are in the file, or on a stripe, or nobody wants them. */
static bool is_over(const struct refer *r, unsigned client, uint64_t turn) {
    const struct ref *ref = ref_at(r, client, turn);
    if (ref->state == REF_PASSED) {
        uint64_t word = chunk_load(r->p, ref->chunk - 1);
        enum chunk_state s = chunk_word_state(word);
        return (s != CHUNK_HANDED && s != CHUNK_FLYING) || chunk_word_number(word) != (ref->number & CHUNK_NUMBER_MASK);
    }
    return ref->state == REF_DONE && !run_at(r, client, turn)->copying;
}

static void pump_client(struct refer *r, unsigned client) {
    struct refer_client *c = &r->client[client];
    struct arena_slot *a = arena_of(r, client);
    // A turn that never came is waited for, since its message may be on its way; of a dead client it is not. Nor are
    // bytes that were on their way.
    bool dead = r->p->st->clients[client].dead;
    for (; c->to_copy < c->end && c->copying < COPIES_MAX; c->to_copy++) {
        const struct ref *ref = ref_at(r, client, c->to_copy);
        if (ref->state != REF_QUEUED || run_at(r, client, c->to_copy)->chunk) {
            continue;
        }
        bool there = is_there(r, client, c->to_copy);
        if (!there && dead) {
            fail_late(r, ref);
        } else if (!there || !start_copy(r, client, c->to_copy)) {
            break;
        }
    }
    for (; c->to_pass < c->end; c->to_pass++) {
        const struct refer_run *run = run_at(r, client, c->to_pass);
        if (ref_at(r, client, c->to_pass)->state != REF_QUEUED) {
            continue;
        }
        if (!run->chunk || run->copying) {
            break;
        }
        pass(r, client, c->to_pass);
    }
    while (a->done < c->end) {
        struct ref *ref = ref_at(r, client, a->done);
        if (ref->state == REF_NONE ? !dead : !is_over(r, client, a->done)) {
            break;
        }
        *(volatile uint64_t *)&a->done += 1;
        BREAK_POINT("ref-done");
        atomic_store_explicit(&ref->state, REF_NONE, memory_order_release);
    }
    atomic_store_explicit(&r->p->t->clients[client].refs_done, a->done, memory_order_release);
}

void refer_pump(struct refer *r) {
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        if (r->client[i].run) {
            pump_client(r, i);
        }
    }
}

// ---- Start

void refer_start(struct refer *r, struct pair *p, struct io *io, struct drain *d) {
    r->p = p;
    r->io = io;
    r->drain = d;
    r->lend = d->lend;
    r->w = d->w;
    writer_add_source(r->w, (struct writer_source){held, discard, has, r});
}

/** A copy that was cut off is made again, into another chunk. */
static void find_again(struct refer *r, unsigned client, struct ref *ref) {
    struct file_slot *f = &r->p->st->files[ref->file];
    uint64_t word = ref->chunk ? chunk_load(r->p, ref->chunk - 1) : 0;
    if (chunk_word_state(word) == CHUNK_HANDED && chunk_word_client(word) == client &&
        chunk_word_number(word) == (ref->number & CHUNK_NUMBER_MASK)) {
        give(r, ref->chunk - 1);
    }
    ref->chunk = 0;
    if (f->state == FILE_FREE || f->id != ref->file_id) {
        atomic_store(&ref->state, REF_DONE);
    } else {
        f->refs++;
    }
}

void refer_rebuild(struct refer *r) {
    for (unsigned i = 0; i < FILES_MAX; i++) {
        r->p->st->files[i].refs = 0;
    }
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        struct arena_slot *a = arena_of(r, i);
        struct refer_client *c = &r->client[i];
        if (a->fd <= 0) {
            continue;
        }
        if (make_runs(r, i) < 0) {
            abort(); // the keeper makes another engine
        }
        r->lend->kept_refs = REFER_KEPT;
        r->lend->arenas += a->steps;
        c->to_copy = c->to_pass = c->end = a->done;
        for (unsigned k = 0; k < REFS_MAX; k++) {
            struct ref *ref = &a->ref[k];
            if (ref->state != REF_NONE && ref->what.turn < a->done) { // it was over already
                atomic_store(&ref->state, REF_NONE);
            } else if (ref->state != REF_NONE) {
                c->end = max_u64(c->end, ref->what.turn + 1);
                if (ref->state == REF_QUEUED) {
                    find_again(r, i, ref);
                }
            }
        }
    }
}
