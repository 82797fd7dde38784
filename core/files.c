// SPDX-License-Identifier: MIT
//
// files: the slots of files, deletions and renames, from the entry that fills one to its release. What is in a slot is
// commit's and writer's to carry out; whose it is when a process dies, clients.c says.

#include "breakpoint.h"
#include "engine.h"
#include "names.h"
#include "os.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FDS_SPARE 16 // descriptors kept free for sockets, questions and directories

static struct file_slot *slot_file(const struct engine *e, unsigned slot) {
    return &e->p.st->files[slot];
}

struct file_slot *files_find(struct engine *e, const struct msg *m) {
    if (m->slot >= FILES_MAX) {
        return NULL;
    }
    struct file_slot *f = slot_file(e, m->slot);
    return f->state != FILE_FREE && f->id == m->file ? f : NULL;
}

struct file_slot *files_of_inode(const struct engine *e, int fd) {
    struct stat s;
    if (fd <= 0 || os_fstat(fd, &s) < 0) {
        return NULL;
    }
    for (unsigned i = 0; i < e->files_high; i++) {
        struct file_slot *f = &e->p.st->files[i];
        if (f->state == FILE_OPEN && f->ino == s.st_ino && f->dev == s.st_dev) {
            return f;
        }
    }
    return NULL;
}

bool files_any(const struct engine *e) {
    return e->n_free_files < FILES_MAX;
}

void files_rebuild(struct engine *e) {
    for (unsigned i = FILES_MAX; i-- > 0;) {
        if (slot_file(e, i)->state == FILE_FREE) {
            e->free_files[e->n_free_files++] = i;
        } else if (e->files_high == 0) {
            e->files_high = i + 1;
        }
    }
}

// ---- Open

int files_made_before(const struct engine *e, uint64_t number) {
    for (unsigned i = 0; i < e->files_high; i++) {
        const struct file_slot *f = slot_file(e, i);
        if (f->state != FILE_FREE && f->id == number) {
            return (int)i;
        }
    }
    return -ENOENT;
}

/** Now, by the kernel's clock for the times of inodes. */
static struct timespec time_of(int clock) {
    int64_t now = os_now_ns(clock);
    return (struct timespec){now / 1000000000, now % 1000000000};
}

int files_free_slot(const struct engine *e, const struct entry *en) {
    if (e->n_free_files == 0) {
        return -ENFILE;
    }
    unsigned slot = e->free_files[e->n_free_files - 1];
    struct file_slot *f = slot_file(e, slot);
    memset(f, 0, offsetof(struct file_slot, name));
    f->client = en->client;
    f->root = e->p.st->clients[en->client].root;
    f->id = en->msg.number;
    f->name[0] = f->hidden[0] = f->to[0] = f->where[0] = '\0';
    f->opened = time_of(CLOCK_REALTIME_COARSE); // as the kernel's times of inodes
    return (int)slot;
}

void files_take(struct engine *e, unsigned slot, unsigned state) {
    struct file_slot *f = slot_file(e, slot);
    memset(&e->writer.run[slot], 0, sizeof e->writer.run[slot]);
    memset(&e->commit.run[slot], 0, sizeof e->commit.run[slot]);
    e->n_free_files--;
    e->files_high = slot >= e->files_high ? slot + 1 : e->files_high;
    struct file_public *pub = &e->p.t->files[slot];
    atomic_store(&pub->error, 0);
    atomic_store(&pub->links, 0);
    atomic_store(&pub->looked, 0);
    atomic_store(&pub->reserved, 0);
    atomic_store_explicit(&f->state, state, memory_order_release);
    BREAK_POINT("slot-state");
    atomic_store_explicit(&pub->id, f->id, memory_order_release);
    BREAK_POINT("slot-public");
    names_put(&e->p, slot);
}

void files_count(struct engine *e, struct file_slot *f) {
    f->counted = 1;
    BREAK_POINT("slot-counted");
    atomic_fetch_add(&e->p.t->clients[f->client].pending, 1);
}

bool files_crowded_at(int fd) {
    return os_fds_scarce(fd, FDS_SPARE);
}

bool files_crowded(const struct entry *en) {
    return files_crowded_at(en->fds[0] > en->fds[1] ? en->fds[0] : en->fds[1]);
}

int files_open(struct engine *e, const struct entry *en) {
    const struct msg_open *o = &en->msg.u.open;
    struct stat s, d;
    if (en->fds[0] <= 0 || en->fds[1] <= 0 || os_fstat(en->fds[0], &s) < 0 || os_fstat(en->fds[1], &d) < 0) {
        return -EBADF;
    }
    int slot = files_free_slot(e, en);
    if (slot < 0) {
        return slot;
    }
    struct file_slot *f = slot_file(e, (unsigned)slot);
    bool followed = o->flags & OPEN_FOLLOWED, ours;
    f->fd_own = files_description(&e->p.st->config, en->fds[0], followed, &f->direct, &ours);
    if (f->fd_own < 0) {
        return f->fd_own;
    }
    f->flags = o->flags;
    // A followed file is only synced: with the program's description kept, a flock of the program's would outlive it.
    f->fd_prog = followed && ours ? 0 : en->fds[0];
    f->fd_dir = en->fds[1];
    f->fd_to = o->flags & OPEN_REPLACES ? en->fds[2] : 0;
    f->dev = s.st_dev;
    f->ino = s.st_ino;
    f->dir_dev = d.st_dev;
    f->dir_ino = d.st_ino;
    f->size_made = (uint64_t)s.st_size;
    memcpy(f->name, o->name, sizeof f->name);
    memcpy(f->hidden, o->hidden, sizeof f->hidden);
    memcpy(f->where, o->where, sizeof f->where);
    files_take(e, (unsigned)slot, FILE_OPEN);
    return slot;
}

// ---- Close and release

void files_close(struct engine *e, unsigned slot, const struct msg *m) {
    struct file_slot *f = slot_file(e, slot);
    const struct msg_close *c = &m->u.close;
    if (f->state != FILE_OPEN) {
        return;
    }
    struct client_slot *cl = &e->p.st->clients[f->client];
    if (cl->first_close_ns == 0) {
        cl->first_close_ns = os_now_ns(CLOCK_MONOTONIC);
    }
    if ((c->flags & CLOSE_ABORT || f->unnamed) && !f->error) {
        f->dropped = 1;
    }
    if (f->dropped || f->error) {
        if (f->error) {
            atomic_fetch_add(&e->p.t->clients[f->client].failures, 1);
        }
        f->state = FILE_CLOSED;
        files_release(e, slot);
        return;
    }
    f->close_flags = c->flags | (f->close_flags & CLOSE_SPAWNED); // as said by others that write it
    f->closed = time_of(CLOCK_REALTIME); // an inode's time may be ahead of the coarse clock
    f->atime = c->atime;
    f->mtime = c->mtime;
    f->size_end = c->size > 0 ? c->size : f->size_end; // of what was not settled: before, it may have been truncated
    f->done = 0;
    f->publish = f->publish ? f->publish : m->number;
    f->sync_wanted = max_u64(f->sync_wanted, m->number);
    atomic_store_explicit(&f->state, FILE_CLOSED, memory_order_release);
    files_count(e, f);
    names_put(&e->p, slot);
    commit_publish(&e->commit, slot, m->number);
}

void files_done(struct engine *e, unsigned slot) {
    struct file_slot *f = slot_file(e, slot);
    e->progress = true;
    if (f->state == FILE_CLOSED && (f->done || f->error || f->dropped)) {
        files_release(e, slot);
    } else if (f->state == FILE_OPEN && f->done && !(f->flags & OPEN_FOLLOWED)) {
        atomic_store(&e->p.t->files[slot].links, 1);
        if (f->shared) {
            files_part_from_program(e, f);
        } else {
            f->flags |= OPEN_FOLLOWED; // published by an fsync: native from now on, synced again at its close
            state_close_fd(&f->fd_prog);
        }
        names_put(&e->p, slot);
    }
}

void files_release(struct engine *e, unsigned slot) {
    for (unsigned i = 0; i < e->n_releasing; i++) {
        if (e->releasing[i] == slot) {
            return;
        }
    }
    struct file_slot *f = slot_file(e, slot);
    if (f->done && f->client < CLIENTS_MAX) {
        state_safe_now(e->p.st, f);
        e->p.st->clients[f->client].last_publish_ns = os_now_ns(CLOCK_MONOTONIC);
        e->p.st->clients[f->root].last_publish_ns = os_now_ns(CLOCK_MONOTONIC);
    }
    writer_discard(&e->writer, slot);
    e->releasing[e->n_releasing++] = slot;
    e->progress = true;
}

static void unlink_hidden(const struct file_slot *f) {
    if (f->flags & OPEN_HIDDEN && !f->linked) {
        io_calls.unlinkat(f->fd_dir, f->hidden, 0);
    }
}

void files_unname(struct engine *e, unsigned slot) {
    names_remove(&e->p, slot);
    unlink_hidden(slot_file(e, slot)); // now: the program may go on to delete the directory
}

struct closing {
    struct io_job job;
    struct engine *e;
    int fds[4];
};

static void closing_run(struct io_job *job) {
    struct closing *c = job->arg;
    for (int i = 0; i < 4; i++) {
        if (c->fds[i] > 0) {
            io_calls.close(c->fds[i]); // the last close of an unnamed 4 GiB file takes 0.7 s
        }
    }
}

static void closing_done(struct io_job *job) {
    struct closing *c = job->arg;
    c->e->n_closing--;
    c->e->progress = true;
    free(c);
}

static void release_now(struct engine *e, unsigned slot) {
    struct file_slot *f = slot_file(e, slot);
    struct closing *c = calloc(1, sizeof *c);
    unlink_hidden(f);
    if (f->counted) {
        atomic_fetch_sub(&e->p.t->clients[f->client].pending, 1);
    }
    atomic_store(&e->p.t->files[slot].id, 0);
    int32_t *recorded[4] = {&f->fd_prog, &f->fd_own, &f->fd_dir, &f->fd_to};
    // Its last close deletes the inode.
    bool slow = f->kind != SLOT_FILE || (!f->linked && !(f->flags & OPEN_FOLLOWED));
    for (int i = 0; i < 4; i++) {
        if (c && slow) {
            c->fds[i] = *recorded[i];
            *recorded[i] = 0;
            BREAK_POINT("release-struck");
        } else {
            state_close_fd(recorded[i]);
        }
    }
    uint64_t dev = f->dev;
    BREAK_POINT("release-name");
    names_remove(&e->p, slot); // after the descriptors: a program just saved can be executed once its name is free
    BREAK_POINT("release-nameless");
    atomic_store_explicit(&f->state, FILE_FREE, memory_order_release);
    BREAK_POINT("release-free");
    e->free_files[e->n_free_files++] = slot;
    if (c && !slow) {
        free(c);
    } else if (c) {
        c->e = e;
        e->n_closing++;
        c->job = (struct io_job){.run = closing_run, .done = closing_done, .arg = c, .device = dev};
        io_job(e->io, &c->job);
    }
}

unsigned files_leaving(const struct engine *e) {
    return e->n_releasing + e->n_closing;
}

void files_release_turn(struct engine *e) {
    for (unsigned i = 0; i < e->n_releasing;) {
        unsigned slot = e->releasing[i];
        const struct file_run *r = &e->writer.run[slot];
        const struct commit_run *cr = &e->commit.run[slot];
        if (r->gate || r->flying || r->head || cr->syncing || cr->publishing ||
            refer_busy(&e->refer, slot) || drain_busy(&e->drain, slot) || !safe_ended(&e->safe, slot)) {
            i++;
            continue;
        }
        commit_forget(&e->commit, slot);
        release_now(e, slot);
        e->releasing[i] = e->releasing[--e->n_releasing];
        e->progress = true;
    }
}
