// SPDX-License-Identifier: MIT
//
// crash_programs: programs that save, follow, sync, save over, delete and rename on crash_rig.h's engine, step by step,
// in whatever order sim_choose says. They write its history. Static functions only.

#ifndef FASTCKPT_CRASH_PROGRAMS_H
#define FASTCKPT_CRASH_PROGRAMS_H

#include "crash_rig.h"

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
    *e = (struct event){.dir = s->dir, .id = id, .slot = slot, .followed = s->act == FOLLOW || world.synced[id]};
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
    world.small[cl->id] = small;
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
    if (tier.on) { // the engine keeps some to read back into
        return tier.lend.n_free > tier.lend.kept_back ? lend_steal(&tier.lend) : -1;
    }
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
    if (!tier.on || !drain_add(&tier.drain, chunk)) {
        writer_add(&world.w, chunk);
    }
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
        if (tier.on) {
            cl->phase = 4;
        } else if (!id_of(s->dir, s->name)) {
            add_event(s, cl->id, cl->slot);
            commit_publish(&world.c, cl->slot, cl->number);
        } else {
            commit_sync(&world.c, cl->slot, cl->number);
        }
        cl->phase = 4;
    } else if (cl->phase == 4) {
        if (tier.on) { // of a new name there is a record then
            bool name = !id_of(s->dir, s->name);
            int r = safe_sync(&tier.safe, cl->slot, cl->number, name);
            world.synced[cl->id] |= name;
            cl->phase = r == -EAGAIN ? 4 : 5;
            return r != -EAGAIN;
        }
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

/** What would be had, or done, after all have died: the events before it are all safe or durable. */
static void note_safe(void) {
    while (world.safe < world.n_events) {
        const struct event *e = &world.event[world.safe];
        const struct file_slot *f = file_at(e->slot);
        if (!e->old && f->state != FILE_FREE && !f->done && !safe_is(f)) {
            return;
        }
        world.safe++;
    }
}

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
    if (tier.on) {
        drain_pump(&tier.drain);
    }
    writer_pump(&world.w);
    if (tier.on) {
        safe_hurry(&tier.safe, UINT64_MAX);
        safe_pump(&tier.safe);
        note_safe();
    }
    world.c.hurry = true; // what is gathered for a while would depend on the clock
    commit_pump(&world.c);
    release_turn();
    return n || io_pending(world.io) || world.c.n_queue || world.c.n_syncs;
}

static void world_run(void) {
    volatile unsigned turns = 0;
    if (setjmp(sim_death)) {
        if (world.cut) {
            world.was_cut = true;
            return;
        }
        engine_restart();
        if (tier.die_next) {
            world.cut = true;
            sim_die_at(tier.die_next);
        }
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

/** No items, no places, no log; all of staging is free. */
static void tier_reset(struct state *st) {
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        int *fds[] = {&st->fd_stripe[i], &st->fd_stripe_log[i], &st->fd_stripe_dir[i]};
        for (unsigned k = 0; k < ARRAY_LEN(fds); k++) {
            if (k == 2 && *fds[k] > 0) {
                empty_dir(*fds[k]);
            }
            *fds[k] > 0 ? close(*fds[k]) : 0;
            *fds[k] = 0;
        }
    }
    memset(st->items, 0, sizeof st->items);
    st->log_end = st->log_number = st->log_bad = 0;
    st->note[0] = '\0';
    st->steps[0] = 1;
    for (unsigned i = 0; i < STAGING_STEP / CHUNK_SIZE; i++) {
        chunk_store(&world.p, i, CHUNK_FREE, 0, 0);
    }
    for (unsigned i = 0; i < FILES_MAX; i++) {
        st->files[i].state = FILE_FREE;
    }
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
    if (tier.on) {
        tier_reset(st);
    }
    st->fail_fence = st->fail_from = 0;
    st->failures_total = st->n_failures = st->generation = 0;
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
