// SPDX-License-Identifier: MIT
//
// clients: processes and their files: hello and death, a file's slot from open to release. What a death means:
// chunks that were only lent come back; closed files go on; open ones are discarded, unless the process said that it is
// leaving, or that its image was replaced, or the file has been published already (fsync).

#include "engine.h"
#include "log.h"
#include "names.h"
#include "os.h"
#include "staging.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define FDS_SPARE  16 // descriptors kept free for sockets, questions and directories

static struct file_slot *slot_file(struct engine *e, unsigned slot) {
    return &e->p.st->files[slot];
}

struct file_slot *files_find(struct engine *e, const struct msg *m) {
    if (m->slot >= FILES_MAX) {
        return NULL;
    }
    struct file_slot *f = slot_file(e, m->slot);
    return f->state != FILE_FREE && f->id == m->file ? f : NULL;
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
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        e->clients_high = e->p.st->clients[i].used ? i + 1 : e->clients_high;
    }
}

// ---- Open

/** The slot of a file opened already, before a restart; or -ENOENT. */
static int opened_before(struct engine *e, uint64_t number) {
    for (unsigned i = 0; i < e->files_high && e->p.st->generation > 1; i++) {
        const struct file_slot *f = slot_file(e, i);
        if (f->state != FILE_FREE && f->id == number) {
            return (int)i;
        }
    }
    return -ENOENT;
}

static void reset_runs(struct engine *e, unsigned slot) {
    memset(&e->writer.run[slot], 0, sizeof e->writer.run[slot]);
    memset(&e->commit.run[slot], 0, sizeof e->commit.run[slot]);
}

bool files_crowded(const struct entry *en) {
    // The kernel gives the lowest free number: how high ours are says how full the table is.
    struct rlimit r;
    int high = en->fds[0] > en->fds[1] ? en->fds[0] : en->fds[1];
    return getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur != RLIM_INFINITY && (rlim_t)high + FDS_SPARE > r.rlim_cur;
}

int files_open(struct engine *e, const struct entry *en) {
    const struct msg_open *o = &en->msg.u.open;
    struct stat s, d;
    if (en->fds[0] <= 0 || en->fds[1] <= 0 || os_fstat(en->fds[0], &s) < 0 || os_fstat(en->fds[1], &d) < 0) {
        return -EBADF;
    }
    int slot = opened_before(e, en->msg.number);
    if (slot >= 0 || e->n_free_files == 0) {
        return slot >= 0 ? slot : -ENFILE;
    }
    slot = (int)e->free_files[e->n_free_files - 1];
    struct file_slot *f = slot_file(e, (unsigned)slot);
    memset(f, 0, offsetof(struct file_slot, name));
    bool followed = o->flags & OPEN_FOLLOWED, ours;
    f->fd_own = files_description(&e->p.st->config, en->fds[0], followed, &f->direct, &ours);
    if (f->fd_own < 0) {
        return f->fd_own;
    }
    f->client = en->client;
    f->root = e->p.st->clients[en->client].root;
    f->flags = o->flags;
    f->id = en->msg.number;
    // A followed file is only synced: with the program's description kept, a flock of the program's would outlive it.
    f->fd_prog = followed && ours ? 0 : en->fds[0];
    f->fd_dir = en->fds[1];
    f->dev = s.st_dev;
    f->ino = s.st_ino;
    f->dir_dev = d.st_dev;
    f->dir_ino = d.st_ino;
    f->size_made = (uint64_t)s.st_size;
    int64_t now = os_now_ns(CLOCK_REALTIME_COARSE); // the kernel's clock for inode times
    f->opened = (struct timespec){now / 1000000000, now % 1000000000};
    memcpy(f->name, o->name, sizeof f->name);
    memcpy(f->hidden, o->hidden, sizeof f->hidden);
    memcpy(f->where, o->where, sizeof f->where);
    reset_runs(e, (unsigned)slot);
    e->n_free_files--;
    e->files_high = (unsigned)slot >= e->files_high ? (unsigned)slot + 1 : e->files_high;
    struct file_public *pub = &e->p.t->files[slot];
    atomic_store(&pub->error, 0);
    atomic_store(&pub->reserved, 0);
    atomic_store_explicit(&f->state, FILE_OPEN, memory_order_release);
    atomic_store_explicit(&pub->id, f->id, memory_order_release);
    names_put(&e->p, (unsigned)slot, followed ? NAME_FOLLOWED : NAME_OPEN);
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
    if (c->flags & CLOSE_ABORT && !f->error) {
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
    f->close_flags = c->flags;
    f->atime = c->atime;
    f->mtime = c->mtime;
    f->size_end = c->size > 0 ? c->size : f->size_end; // of what was not settled: before, it may have been truncated
    f->done = 0;
    f->publish = f->publish ? f->publish : m->number;
    f->sync_wanted = max_u64(f->sync_wanted, m->number);
    atomic_store_explicit(&f->state, FILE_CLOSED, memory_order_release);
    f->counted = 1;
    atomic_fetch_add(&e->p.t->clients[f->client].pending, 1);
    names_put(&e->p, slot, f->flags & OPEN_FOLLOWED || f->linked ? NAME_FOLLOWED : NAME_PENDING);
    commit_publish(&e->commit, slot, m->number);
}

void files_done(struct engine *e, unsigned slot) {
    struct file_slot *f = slot_file(e, slot);
    e->progress = true;
    if (f->state == FILE_CLOSED && (f->done || f->error || f->dropped)) {
        files_release(e, slot);
    } else if (f->state == FILE_OPEN && f->done && !(f->flags & OPEN_FOLLOWED)) {
        if (f->shared) {
            files_part_from_program(e, f);
        } else {
            f->flags |= OPEN_FOLLOWED; // published by an fsync: native from now on, synced again at its close
            state_close_fd(&f->fd_prog);
        }
        names_put(&e->p, slot, NAME_FOLLOWED);
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
        e->p.st->clients[f->client].last_publish_ns = os_now_ns(CLOCK_MONOTONIC);
        e->p.st->clients[f->root].last_publish_ns = os_now_ns(CLOCK_MONOTONIC);
    }
    writer_discard(&e->writer, slot);
    e->releasing[e->n_releasing++] = slot;
    e->progress = true;
}

struct closing {
    struct io_job job;
    int fds[3];
};

static void closing_run(struct io_job *job) {
    struct closing *c = job->arg;
    for (int i = 0; i < 3; i++) {
        if (c->fds[i] > 0) {
            io_calls.close(c->fds[i]); // the last close of an unnamed 4 GiB file takes 0.7 s
        }
    }
}

static void closing_done(struct io_job *job) {
    free(job->arg);
}

static void release_now(struct engine *e, unsigned slot) {
    struct file_slot *f = slot_file(e, slot);
    struct closing *c = calloc(1, sizeof *c);
    if (f->flags & OPEN_HIDDEN && !f->linked) {
        io_calls.unlinkat(f->fd_dir, f->hidden);
    }
    if (f->counted) {
        atomic_fetch_sub(&e->p.t->clients[f->client].pending, 1);
    }
    atomic_store(&e->p.t->files[slot].id, 0);
    int32_t *recorded[3] = {&f->fd_prog, &f->fd_own, &f->fd_dir};
    bool slow = !f->linked && !(f->flags & OPEN_FOLLOWED); // its last close deletes the inode
    for (int i = 0; i < 3; i++) {
        if (c && slow) {
            c->fds[i] = *recorded[i];
            *recorded[i] = 0;
        } else {
            state_close_fd(recorded[i]);
        }
    }
    uint64_t dev = f->dev;
    names_remove(&e->p, slot); // after the descriptors: a program just saved can be executed once its name is free
    atomic_store_explicit(&f->state, FILE_FREE, memory_order_release);
    e->free_files[e->n_free_files++] = slot;
    if (c && !slow) {
        free(c);
    } else if (c) {
        c->job = (struct io_job){.run = closing_run, .done = closing_done, .arg = c, .device = dev};
        io_job(e->io, &c->job);
    }
}

void files_release_turn(struct engine *e) {
    for (unsigned i = 0; i < e->n_releasing;) {
        unsigned slot = e->releasing[i];
        const struct file_run *r = &e->writer.run[slot];
        const struct commit_run *cr = &e->commit.run[slot];
        if (r->gate || r->flying || r->head || cr->syncing || cr->publishing) {
            i++;
            continue;
        }
        commit_forget(&e->commit, slot);
        release_now(e, slot);
        e->releasing[i] = e->releasing[--e->n_releasing];
        e->progress = true;
    }
}

// ---- Clients

unsigned clients_count(const struct engine *e) {
    unsigned n = 0;
    for (unsigned i = 0; i < e->clients_high; i++) {
        const struct client_slot *cl = &e->p.st->clients[i];
        n += cl->used && !cl->dead && !cl->tool;
    }
    return n;
}

/** The parent of `pid`, or 0. Field 4 of /proc/PID/stat, behind the last ')'. */
static int parent_of(int pid) {
    char path[64], buf[512];
    log_format(path, sizeof path, "/proc/%d/stat", pid);
    if (os_read_file(path, buf, sizeof buf) <= 0) {
        return 0;
    }
    const char *p = strrchr(buf, ')');
    return p && strlen(p) > 4 ? atoi(p + 4) : 0;
}

/** The outermost ancestor of `pid` that is a client: the process that waits for its whole tree at exit. */
static unsigned find_root(struct engine *e, unsigned self, int pid) {
    unsigned root = self;
    for (int depth = 0; depth < 64 && (pid = parent_of(pid)) > 1; depth++) {
        for (unsigned i = 0; i < e->clients_high; i++) {
            const struct client_slot *cl = &e->p.st->clients[i];
            if (i != self && cl->used && !cl->dead && !cl->tool && cl->pid == pid) {
                root = i;
            }
        }
    }
    return root;
}

static int new_client(struct engine *e, const struct msg_hello *h, int pidfd) {
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        struct client_slot *cl = &e->p.st->clients[i];
        if (cl->used) {
            continue;
        }
        memset(cl, 0, sizeof *cl);
        uint64_t now = (uint64_t)os_now_ns(CLOCK_MONOTONIC);
        cl->token = fnv1a(FNV1A_INIT, &now, sizeof now) | 1;
        cl->pid = h->pid;
        cl->tool = h->tool;
        cl->root = h->tool ? i : find_root(e, i, h->pid);
        cl->pidfd = pidfd;
        e->dying[i] = 0;
        struct client_public *pub = &e->p.t->clients[i];
        atomic_store(&pub->failures, 0);
        atomic_store(&pub->pending, 0);
        atomic_store(&pub->token, cl->token);
        atomic_store_explicit(&cl->used, 1, memory_order_release);
        e->clients_high = i >= e->clients_high ? i + 1 : e->clients_high;
        if (!h->tool) {
            intake_watch(e, pidfd, WATCH_CLIENT, i);
        }
        return (int)i;
    }
    return -EAGAIN;
}

void clients_hello(struct engine *e, unsigned conn, const struct msg *m, int *fds, int nfds) {
    const struct msg_hello *h = &m->u.hello;
    struct state *st = e->p.st;
    int client = -EINVAL;
    int pidfd = nfds > 0 ? fds[0] : 0;
    for (int i = 1; i < nfds; i++) {
        os_close(fds[i]);
    }
    if (st->conns[conn].client != NO_CLIENT) {
        client = (int)st->conns[conn].client; // said before a restart: only the answer may be missing
        if (pidfd > 0) {
            os_close(pidfd);
        }
    } else if (h->token) {
        bool known = h->client < CLIENTS_MAX && st->clients[h->client].used && !st->clients[h->client].dead &&
                     st->clients[h->client].token == h->token;
        client = known ? (int)h->client : -ESTALE;
        if (pidfd > 0) {
            os_close(pidfd);
        }
    } else if (pidfd > 0) {
        client = new_client(e, h, pidfd);
        if (client < 0) {
            os_close(pidfd);
        }
    }
    struct msg a = {.type = MSG_HELLO, .number = m->number};
    if (client >= 0) {
        st->conns[conn].client = (unsigned)client;
        a.u.hello = (struct msg_hello){.magic = MSG_MAGIC,
                                       .pid = st->engine_pid,
                                       .client = (unsigned)client,
                                       .token = st->clients[client].token,
                                       .staging_max = st->staging_max};
    }
    int give[3] = {st->fd_staging, st->fd_numbers, st->fd_tables_ro};
    entries_reply(e, conn, &a, client < 0 ? client : 0, give, client < 0 ? 0 : 3);
    e->progress = true;
}

/** Called for a tool at hang-up, for a client when its process is gone and its last words are read. */
void clients_gone(struct engine *e, unsigned client) {
    struct client_slot *cl = &e->p.st->clients[client];
    if (!cl->used || cl->dead) {
        return;
    }
    cl->dead = 1;
    atomic_store(&e->p.t->clients[client].token, 0);
    entries_forget_client(e, client);
    if (cl->tool) {
        return;
    }
    lend_take_back(&e->lend, client);
    for (unsigned i = 0; i < e->files_high; i++) {
        struct file_slot *f = slot_file(e, i);
        if (f->state != FILE_OPEN || f->client != client) {
            continue;
        }
        if (cl->exec || cl->leaving || f->flags & OPEN_FOLLOWED || f->linked || f->log) {
            struct msg m = {.number = number_draw(e->p.numbers), .u.close.flags = CLOSE_SPAWNED};
            m.u.close.mtime.tv_nsec = m.u.close.atime.tv_nsec = UTIME_OMIT;
            files_close(e, i, &m);
        } else {
            log_info("%s: discarded: process %d died before it closed the file", f->name, cl->pid);
            f->dropped = 1;
            files_release(e, i);
        }
    }
    e->progress = true;
}

void clients_adopt(struct engine *e, unsigned client, uint64_t number) {
    for (unsigned i = 0; i < e->files_high; i++) {
        struct file_slot *f = slot_file(e, i);
        const struct client_slot *old = f->client < CLIENTS_MAX ? &e->p.st->clients[f->client] : NULL;
        if (f->state != FILE_OPEN || !old || f->client == client || !old->exec ||
            old->pid != e->p.st->clients[client].pid) {
            continue;
        }
        struct msg m = {.number = number - 1, .u.close.flags = CLOSE_SPAWNED};
        m.u.close.mtime.tv_nsec = m.u.close.atime.tv_nsec = UTIME_OMIT;
        f->root = e->p.st->clients[client].root;
        files_close(e, i, &m);
    }
}

static bool has_files(struct engine *e, unsigned client) {
    for (unsigned i = 0; i < e->files_high; i++) {
        const struct file_slot *f = slot_file(e, i);
        if (f->state != FILE_FREE && (f->client == client || f->root == client)) {
            return true;
        }
    }
    return false;
}

static void free_client(struct engine *e, unsigned client) {
    struct client_slot *cl = &e->p.st->clients[client];
    for (unsigned i = 0; i < CONNS_MAX; i++) {
        if (e->p.st->conns[i].fd > 0 && e->p.st->conns[i].client == client) {
            return; // its sockets may live on in a forked child: they go when that goes
        }
    }
    for (unsigned i = 0; i < e->clients_high; i++) {
        if (i != client && e->p.st->clients[i].used && e->p.st->clients[i].root == client) {
            return;
        }
    }
    state_close_fd(&cl->pidfd);
    atomic_store(&cl->used, 0);
    e->progress = true;
}

static bool has_unread(const struct engine *e, unsigned client) {
    for (unsigned k = 0; k < e->n_inbox; k++) {
        if (e->p.st->entries[e->inbox[k]].client == client) {
            return true;
        }
    }
    return false;
}

void clients_turn(struct engine *e) {
    for (unsigned i = 0; i < e->clients_high; i++) {
        struct client_slot *cl = &e->p.st->clients[i];
        if (!cl->used) {
            continue;
        }
        if (e->dying[i] && !cl->dead && e->pass > e->dying[i] + 1 && !has_unread(e, i)) {
            clients_gone(e, i);
        }
        if (cl->dead && !has_files(e, i)) {
            free_client(e, i);
        }
    }
}

void clients_rebuild(struct engine *e) {
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        atomic_store(&e->p.t->clients[i].pending, 0);
    }
    for (unsigned i = 0; i < FILES_MAX; i++) {
        struct file_slot *f = slot_file(e, i);
        if (f->state == FILE_FREE) {
            continue;
        }
        if (f->counted) {
            atomic_fetch_add(&e->p.t->clients[f->client].pending, 1);
        }
        if (f->dropped || (f->state == FILE_CLOSED && (f->done || f->error))) {
            files_release(e, i);
        }
    }
}

void clients_status(struct engine *e, struct status *s) {
    struct state *st = e->p.st;
    *s = (struct status){.keeper_pid = st->keeper_pid,
                         .engine_pid = st->engine_pid,
                         .clients = clients_count(e),
                         .pending_files = e->commit.n_queue,
                         .failures = st->failures_total - st->failures_shown,
                         .restarts = st->generation - 1,
                         .staging_bytes = e->lend.resident * STAGING_STEP,
                         .staging_used = (uint64_t)lend_used(&e->lend) * CHUNK_SIZE,
                         .published_files = st->published,
                         .written_bytes = st->written_bytes};
    for (unsigned i = 0; i < e->commit.n_queue; i++) {
        s->pending_bytes += writer_bytes(&e->writer, e->commit.queue[i]);
    }
    log_format(s->backend, sizeof s->backend, "%s", io_name(e->io));
    log_format(s->note, sizeof s->note, "%s", st->note);
}
