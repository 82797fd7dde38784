// SPDX-License-Identifier: MIT
//
// crash_rig: the engine's modules on the simulated disk, with stripes or without; an engine that can die at any
// operation and go on; and the history of names, in the order of numbers. Static functions only.

#ifndef FASTCKPT_CRASH_RIG_H
#define FASTCKPT_CRASH_RIG_H

#include "core/commit.h"
#include "core/drain.h"
#include "core/log.h"
#include "core/safe.h"
#include "core/staging.h"
#include "tests/lib/simdisk.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEPS_MAX  64
#define CLIENTS    3
#define CHUNK_POOL 5 // so few that a chunk is used again at once: what comes late writes foreign bytes
#define DIRS       3 // 0 and 1 are on one device, 2 on another

enum act { SAVE, SMALL, SAVE_SYNC, FOLLOW, UNLINK, RENAME };

struct step {
    enum act act;
    unsigned client, dir, to_dir;
    char name[SIM_NAME], to[SIM_NAME]; // RENAME
};

/** One change of a name, as the program's history has it. */
struct event {
    unsigned dir, id; // id 0: deleted
    char name[SIM_NAME];
    unsigned from_dir; // RENAME: what `from` was there
    char from[SIM_NAME];
    unsigned slot; // that brings it about
    bool followed, failed, old;
};

struct client {
    unsigned at, phase, slot, id;
    uint64_t number; // drawn for the step in hand
};

struct world {
    struct pair p;
    struct io *io;
    struct writer w;
    struct commit c;
    int dirfd[DIRS];
    unsigned n_steps, n_events, n_slots, durable; // events below `durable` are, as the engine says
    struct step step[STEPS_MAX];
    struct event event[STEPS_MAX];
    unsigned event_of[SIM_INODES]; // of a slot: event + 1
    struct client client[CLIENTS];
    unsigned restarts, restarts_most;
    unsigned safe;         // events below it would be had from the stripes, or are durable
    bool cut, was_cut;     // the next death is the machine's
    bool small[SIM_INODES];  // by id
    bool synced[SIM_INODES]; // of a new name, an fsync: it may be early
    bool releasing[SIM_INODES];
    bool heeds; // programs end when they are told of a failure; else only when a call fails
};
static struct world world;

/** With stripes: what is between the programs and the writer. */
static struct {
    bool on;
    struct lend lend;
    struct drain drain;
    struct safe safe;
    unsigned die_next; // the operation at which all die, after a death of the engine
} tier;

// ---- What is in the files

static unsigned char byte_at(unsigned id, uint64_t off) {
    return (unsigned char)(id * 37 + off * 7 + (off >> 12) + 1);
}

// Bytes of a save: the head natively, the rest in two chunks with a hole, edges not aligned.
static const struct {
    unsigned chunk, off, len;
} ranges[] = {{0, 0, 5000}, {0, MIB + 100, 9000}, {0, MIB + 20000, 5000}, {1, 0, 4796}};
static const unsigned blocks_of_save[] = {0, 1, 256, 257, 258, 260, 261, 262, 1024, 1025};

static uint64_t block_hash(unsigned id, unsigned block, unsigned n_ranges) {
    static unsigned char buf[SIM_BLOCK];
    memset(buf, 0, sizeof buf);
    for (unsigned r = 0; r < n_ranges; r++) {
        uint64_t from = ranges[r].chunk * CHUNK_SIZE + ranges[r].off, to = from + ranges[r].len;
        uint64_t lo = max_u64(from, (uint64_t)block * SIM_BLOCK), hi = min_u64(to, (block + 1ull) * SIM_BLOCK);
        for (uint64_t o = lo; o < hi; o++) {
            buf[o % SIM_BLOCK] = byte_at(id, o);
        }
    }
    return sim_hash(buf);
}
static uint64_t hash_of_save(unsigned id, unsigned block) {
    return block_hash(id, block, ARRAY_LEN(ranges));
}
static uint64_t hash_of_small(unsigned id, unsigned block) {
    return block_hash(id, block, 1);
}

static void write_head(int fd, unsigned id) {
    unsigned char buf[5000];
    for (unsigned i = 0; i < sizeof buf; i++) {
        buf[i] = byte_at(id, i);
    }
    sim_program_write(fd, buf, sizeof buf, 0);
}

// ---- The engine

static struct file_slot *file_at(unsigned slot) {
    return &world.p.st->files[slot];
}

static void no_slot(void *arg, unsigned slot) {
    (void)arg, (void)slot;
}
static void on_error(void *arg, unsigned slot, int error, const char *what) {
    (void)arg;
    commit_fail_disk(&world.c, slot, error, what);
}

/** As the engine's own files_done: what is published by an fsync goes on natively, what is closed is let go. */
static void on_done(void *arg, unsigned slot) {
    (void)arg;
    struct file_slot *f = file_at(slot);
    unsigned event = world.event_of[slot];
    if (f->error && event) {
        world.event[event - 1].failed = true;
    }
    if (f->done && event) {
        world.durable = event > world.durable ? event : world.durable;
    }
    if (f->state == FILE_CLOSED && (f->done || f->error)) {
        writer_discard(&world.w, slot);
        world.releasing[slot] = true;
    } else if (f->state == FILE_OPEN && f->done && !(f->flags & OPEN_FOLLOWED)) {
        f->flags |= OPEN_FOLLOWED;
        close(f->fd_prog);
        f->fd_prog = 0;
    }
}

static void release_turn(void) {
    for (unsigned i = 0; i < world.n_slots; i++) {
        const struct file_run *r = &world.w.run[i];
        const struct commit_run *cr = &world.c.run[i];
        if (!world.releasing[i] || r->gate || r->flying || r->head || cr->syncing || cr->publishing) {
            continue;
        }
        if (tier.on && (drain_busy(&tier.drain, i) || !safe_ended(&tier.safe, i))) {
            continue;
        }
        struct file_slot *f = file_at(i);
        commit_forget(&world.c, i);
        int *fds[] = {&f->fd_prog, &f->fd_own, &f->fd_dir, &f->fd_to};
        for (unsigned k = 0; k < ARRAY_LEN(fds); k++) {
            if (*fds[k] > 0) {
                close(*fds[k]);
            }
            *fds[k] = 0;
        }
        f->state = FILE_FREE;
        world.releasing[i] = false;
    }
}

static void nothing(void *arg) {
    (void)arg;
}
static void on_free(void *arg, unsigned chunk) {
    (void)arg;
    if (tier.on) {
        drain_freed(&tier.drain, chunk);
        lend_give(&tier.lend, chunk);
    }
}

static void tier_start(void) {
    free(tier.drain.run);
    free(tier.drain.free);
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        free(tier.drain.stripes.stripe[i].free);
    }
    memset(&tier.lend, 0, sizeof tier.lend);
    memset(&tier.drain, 0, sizeof tier.drain);
    memset(&tier.safe, 0, sizeof tier.safe);
    tier.lend.on_change = tier.safe.on_change = nothing;
    lend_start(&tier.lend, &world.p, world.io);
    lend_rebuild(&tier.lend);
    drain_start(&tier.drain, &world.p, world.io, &tier.lend, &world.w);
    cr_assert(tier.drain.run, "no stripe: %s", world.p.st->note);
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        if (world.p.st->fd_stripe[i] > 0) {
            sim_plain(world.p.st->fd_stripe[i]);
            sim_plain(world.p.st->fd_stripe_log[i]);
        }
    }
}

static void engine_start(void) {
    char why[8];
    memset(&world.w, 0, sizeof world.w);
    memset(&world.c, 0, sizeof world.c);
    memset(world.releasing, 0, sizeof world.releasing);
    world.p.st->generation++;
    cr_assert_eq(io_open(&world.io, 0, why, sizeof why), 0);
    world.w.on_change = no_slot;
    world.w.on_free = on_free;
    world.w.on_error = on_error;
    world.c.on_done = on_done;
    writer_start(&world.w, &world.p, world.io);
    if (tier.on) {
        tier_start();
    }
    commit_start(&world.c, &world.p, world.io, &world.w);
    if (tier.on) {
        safe_start(&tier.safe, &world.p, world.io, &tier.drain, &world.c);
    }
}

/** The engine has died: the next one finds its memory, and nothing else. */
static void engine_restart(void) {
    io_close(world.io);
    for (unsigned i = 0; i < CHUNK_POOL; i++) {
        free(world.w.chunk[i].memory);
    }
    engine_start();
    if (tier.on) {
        drain_rebuild(&tier.drain);
    }
    writer_rebuild(&world.w);
    commit_rebuild(&world.c);
    for (unsigned i = 0; i < world.n_slots; i++) {
        const struct file_slot *f = file_at(i);
        world.releasing[i] = f->state == FILE_CLOSED && (f->done || f->error);
    }
    if (++world.restarts < world.restarts_most) {
        sim_die_at(sim_steps + 1 + sim_random(20));
    }
}

#endif
