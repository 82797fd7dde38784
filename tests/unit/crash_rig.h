// SPDX-License-Identifier: MIT
//
// crash_rig: writer, commit and publish on the simulated disk, with programs that save, follow, sync, save over and
// delete, step by step, in whatever order sim_choose says; and an engine that can die at any operation and go on. It
// keeps the history of names, in the order of numbers, for test_crash.c to compare with. Static functions only.

#ifndef FASTCKPT_CRASH_RIG_H
#define FASTCKPT_CRASH_RIG_H

#include "core/commit.h"
#include "core/log.h"
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
    bool followed, failed;
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
    bool releasing[SIM_INODES];
    bool heeds; // programs end when they are told of a failure; else only when a call fails
};
static struct world world;

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

static void engine_start(void) {
    char why[8];
    memset(&world.w, 0, sizeof world.w);
    memset(&world.c, 0, sizeof world.c);
    memset(world.releasing, 0, sizeof world.releasing);
    cr_assert_eq(io_open(&world.io, 0, why, sizeof why), 0);
    world.w.on_change = world.w.on_free = no_slot;
    world.w.on_error = on_error;
    world.c.on_done = on_done;
    writer_start(&world.w, &world.p, world.io);
    commit_start(&world.c, &world.p, world.io, &world.w);
    world.p.st->generation++;
}

/** The engine has died: the next one finds its memory, and nothing else. */
static void engine_restart(void) {
    io_close(world.io);
    for (unsigned i = 0; i < CHUNK_POOL; i++) {
        free(world.w.chunk[i].memory);
    }
    engine_start();
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

// ---- The programs

static uint64_t draw(void) {
    return number_draw(world.p.numbers);
}

/** What has this name at the end of the history, as far as it is written? 0: nothing. */
static unsigned id_of(unsigned dir, const char *name) {
    for (unsigned i = world.n_events; i-- > 0;) {
        const struct event *e = &world.event[i];
        if (e->dir == dir && strcmp(e->name, name) == 0) {
            return e->id;
        }
        if (e->from[0] && e->from_dir == dir && strcmp(e->from, name) == 0) {
            return 0;
        }
    }
    return 0;
}

static void add_event(const struct step *s, unsigned id, unsigned slot) {
    cr_assert_lt(world.n_events, STEPS_MAX);
    struct event *e = &world.event[world.n_events++];
    *e = (struct event){.dir = s->dir, .id = id, .followed = s->act == FOLLOW};
    strcpy(e->name, s->name);
    world.event_of[slot] = world.n_events;
}

static void open_file(struct client *cl, const struct step *s) {
    struct stat st;
    char path[64];
    cl->slot = world.n_slots++;
    cl->id = cl->slot + 1;
    struct file_slot *f = file_at(cl->slot);
    memset(f, 0, sizeof *f);
    int dirfd = world.dirfd[s->dir];
    int fd = s->act == FOLLOW ? openat(dirfd, s->name, O_RDWR | O_CREAT | O_EXCL, 0644)
                              : openat(dirfd, ".", O_TMPFILE | O_RDWR, 0644);
    cr_assert_geq(fd, 0, "%s: %s", s->name, strerror(errno));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    f->fd_prog = fd;
    f->fd_own = open(path, O_RDWR);
    f->fd_dir = dup(dirfd);
    f->direct = s->act != FOLLOW && sim_random(3) > 0;
    unsigned over = s->act == FOLLOW ? 0 : id_of(s->dir, s->name); // what it is opened over: as the table has it
    f->fd_to = over ? sim_open(over) : 0;
    fstat(fd, &st);
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    fstat(dirfd, &st);
    f->dir_dev = st.st_dev;
    f->dir_ino = st.st_ino;
    f->id = draw();
    f->flags = s->act == FOLLOW ? OPEN_FOLLOWED : 0;
    f->client = NO_CLIENT;
    f->mtime.tv_nsec = f->atime.tv_nsec = UTIME_OMIT;
    strcpy(f->name, s->name);
    bool small = s->act == SMALL || s->act == FOLLOW;
    sim_expect(fd, cl->id, small ? 5000 : CHUNK_SIZE + 4796, blocks_of_save, small ? 2 : ARRAY_LEN(blocks_of_save),
               small ? hash_of_small : hash_of_save);
    if (s->act == FOLLOW) {
        sim_program_created(fd, dirfd, s->name);
    }
    write_head(fd, cl->id);
    fstat(fd, &st);
    f->size_made = (uint64_t)st.st_size;
    f->state = FILE_OPEN;
}

static int free_chunk_of_pool(void) {
    for (unsigned i = 0; i < CHUNK_POOL; i++) {
        enum chunk_state s = chunk_word_state(chunk_load(&world.p, i));
        if (s == CHUNK_FREE || s == CHUNK_ABSENT) {
            return (int)i;
        }
    }
    return -1;
}

static void hand_over(const struct client *cl, unsigned chunk, unsigned index) {
    struct chunk_slot *cs = &world.p.st->chunks[chunk];
    *cs = (struct chunk_slot){.file = cl->slot, .file_id = file_at(cl->slot)->id};
    cs->what = (struct msg_hand_over){.chunk = chunk, .index = index};
    char *mem = world.p.window + chunk * CHUNK_SIZE;
    for (unsigned r = 1; r < ARRAY_LEN(ranges); r++) {
        if (ranges[r].chunk == index) {
            cs->what.extent[cs->what.n++] = (struct extent){ranges[r].off, ranges[r].len};
            for (unsigned i = 0; i < ranges[r].len; i++) {
                uint64_t off = ranges[r].off + i;
                mem[off] = (char)byte_at(cl->id, index * CHUNK_SIZE + off);
            }
        }
    }
    chunk_store(&world.p, chunk, CHUNK_HANDED, 0, draw());
    writer_add(&world.w, chunk);
}

/** One phase of a save; false: it has to wait. Phases: open, two chunks, fsync, close. */
static bool save_phase(struct client *cl, const struct step *s) {
    bool small = s->act == SMALL || s->act == FOLLOW;
    struct file_slot *f = file_at(cl->slot);
    if (cl->phase == 0) {
        open_file(cl, s);
        cl->phase = small ? 5 : 1;
    } else if (cl->phase <= 2) {
        int chunk = free_chunk_of_pool();
        if (chunk < 0) {
            return false;
        }
        hand_over(cl, (unsigned)chunk, cl->phase - 1);
        cl->phase = cl->phase == 2 && s->act != SAVE_SYNC ? 5 : cl->phase + 1;
    } else if (cl->phase == 3) {
        cl->number = draw();
        if (!id_of(s->dir, s->name)) {
            add_event(s, cl->id, cl->slot);
            commit_publish(&world.c, cl->slot, cl->number);
        } else {
            commit_sync(&world.c, cl->slot, cl->number);
        }
        cl->phase = 4;
    } else if (cl->phase == 4) {
        bool published = world.event_of[cl->slot] == 0 || f->done;
        if (!f->error && (f->synced < cl->number || !published)) {
            return false;
        }
        cl->phase = 5;
    } else {
        uint64_t number = draw();
        if (!world.event_of[cl->slot]) {
            add_event(s, cl->id, cl->slot);
        }
        world.event[world.event_of[cl->slot] - 1].failed |= f->error != 0;
        f->size_end = small ? 0 : CHUNK_SIZE + 4796;
        f->done = 0;
        f->publish = f->publish ? f->publish : number;
        f->sync_wanted = max_u64(f->sync_wanted, number);
        clock_gettime(CLOCK_REALTIME, &f->closed);
        f->state = FILE_CLOSED;
        if (f->error) {
            writer_discard(&world.w, cl->slot);
            world.releasing[cl->slot] = true;
        } else {
            commit_publish(&world.c, cl->slot, number);
        }
        cl->phase = 0;
        cl->at++;
    }
    return true;
}

/** A deletion or a rename: an entry of the queue, as changes.c makes it. Of a name that nobody has: nothing. */
static void change(struct client *cl, const struct step *s) {
    unsigned id = id_of(s->dir, s->name), slot = world.n_slots;
    cl->at++;
    if (!id || (s->act == RENAME && s->dir == s->to_dir && strcmp(s->name, s->to) == 0) || state_broken(world.p.st)) {
        return; // the last: it is told EIO
    }
    struct file_slot *f = file_at(slot), *pending = file_at(id - 1); // an id is its slot's number, and 1
    memset(f, 0, sizeof *f);
    bool there = pending->state == FILE_CLOSED && !pending->done && !(pending->flags & OPEN_FOLLOWED);
    int flags = s->act == RENAME ? O_RDONLY : O_PATH;
    f->fd_own = there ? dup(pending->fd_own) : openat(world.dirfd[s->dir], s->name, flags);
    if (f->fd_own < 0 || sim_id(f->fd_own) != id) { // a rename that is pending has it: changes.c would know
        f->fd_own < 0 ? 0 : close(f->fd_own);
        return;
    }
    struct stat st;
    world.n_slots++;
    f->kind = s->act == RENAME ? SLOT_RENAME : SLOT_UNLINK;
    f->id = draw();
    f->client = NO_CLIENT;
    f->fd_dir = dup(world.dirfd[s->dir]);
    fstat(f->fd_dir, &st);
    f->dir_dev = st.st_dev, f->dir_ino = st.st_ino;
    fstat(f->fd_own, &st);
    f->dev = st.st_dev, f->ino = st.st_ino;
    strcpy(f->name, s->name);
    struct step to = *s;
    if (s->act == RENAME) {
        f->fd_to = dup(world.dirfd[s->to_dir]);
        fstat(f->fd_to, &st);
        f->to_dev = st.st_dev, f->to_ino = st.st_ino;
        f->base = there ? id - 1 : 0;
        f->base_id = there ? pending->id : 0;
        strcpy(f->to, s->to);
        strcpy(to.name, s->to);
        to.dir = s->to_dir;
    }
    add_event(&to, s->act == RENAME ? id : 0, slot);
    if (s->act == RENAME) {
        world.event[world.n_events - 1].from_dir = s->dir;
        strcpy(world.event[world.n_events - 1].from, s->name);
    }
    f->publish = f->sync_wanted = f->id;
    f->state = FILE_CLOSED;
    commit_publish(&world.c, slot, f->id);
}

/** The client's next step, or NULL: steps of others are passed over. */
static const struct step *step_of(struct client *cl) {
    if (world.heeds && cl->phase == 0 && world.p.st->failures_total > 0) {
        cl->at = world.n_steps; // it was told of a failure, on stderr at its next call, and ends
    }
    while (cl->at < world.n_steps && world.step[cl->at].client != (unsigned)(cl - world.client)) {
        cl->at++;
    }
    return cl->at < world.n_steps ? &world.step[cl->at] : NULL;
}

// ---- Running

/** One turn: a client's next phase, or one piece of the engine's work. False when all is done. */
static bool turn(void) {
    struct client *able[CLIENTS];
    unsigned n = 0, work = io_pending(world.io) > 0;
    for (unsigned i = 0; i < CLIENTS; i++) {
        if (step_of(&world.client[i])) {
            able[n++] = &world.client[i];
        }
    }
    unsigned choice = sim_choose(n + work);
    bool moved = false;
    for (unsigned k = 0; k < n && choice < n && !moved; k++) { // one that has to wait lets the next one go
        struct client *cl = able[(choice + k) % n];
        const struct step *s = step_of(cl);
        moved = true;
        if (s->act == UNLINK || s->act == RENAME) {
            change(cl, s);
        } else {
            moved = save_phase(cl, s);
        }
    }
    if (!moved) {
        io_reap(world.io);
    }
    writer_pump(&world.w);
    world.c.hurry = true; // what is gathered for a while would depend on the clock
    commit_pump(&world.c);
    release_turn();
    return n || io_pending(world.io) || world.c.n_queue || world.c.n_syncs;
}

static void world_run(void) {
    volatile unsigned turns = 0;
    if (setjmp(sim_death)) {
        engine_restart();
    }
    while (turn()) {
        cr_assert_lt(turns++, 20000, "it does not come to an end");
    }
    sim_settle_ghosts();
}

static int make_dir(const char *under, const char *name) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", under, name);
    mkdir(path, 0755);
    int fd = open(path, O_PATH | O_DIRECTORY);
    cr_assert_geq(fd, 0, "%s: %s", path, strerror(errno));
    return fd;
}

static void empty_dir(int dirfd) {
    int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY);
    DIR *d = fdopendir(fd);
    for (struct dirent *e; (e = readdir(d));) {
        unlinkat(dirfd, e->d_name, 0);
    }
    closedir(d);
}

/** An empty disk, an engine that was just started, no programs. */
static void world_reset(enum sim_order order, uint64_t seed) {
    struct state *st = world.p.st;
    for (unsigned i = 0; i < world.n_slots; i++) {
        struct file_slot *f = file_at(i);
        if (f->state != FILE_FREE) {
            close(f->fd_own), close(f->fd_dir);
            f->fd_prog > 0 ? close(f->fd_prog) : 0;
            f->fd_to > 0 ? close(f->fd_to) : 0;
            f->state = FILE_FREE;
        }
    }
    struct pair p = world.p;
    int dirfd[DIRS];
    memcpy(dirfd, world.dirfd, sizeof dirfd);
    free(world.io);
    memset(&world, 0, sizeof world);
    world.p = p;
    memcpy(world.dirfd, dirfd, sizeof dirfd);
    for (unsigned i = 0; i < CHUNK_POOL; i++) {
        chunk_store(&p, i, CHUNK_FREE, 0, 0);
    }
    st->fail_fence = st->fail_from = st->failures_total = st->n_failures = st->generation = 0;
    st->plain = 0;
    memset(st->broken, 0, sizeof st->broken);
    world.p.t->names_count = 0;
    sim_reset(order, seed);
    for (unsigned i = 0; i < DIRS; i++) {
        empty_dir(world.dirfd[i]);
        cr_assert_eq(sim_dir(world.dirfd[i]), i);
    }
    engine_start();
}

#endif
