// SPDX-License-Identifier: MIT
//
// clients: processes: hello, death, leaving. What a death means: chunks that were only lent come back; closed files go
// on; open ones are discarded, unless the process said that it is leaving, or that its image was replaced, or the file
// has been published already (fsync). Their files' slots are files.c's.

#include "breakpoint.h"
#include "broken.h"
#include "engine.h"
#include "log.h"
#include "os.h"
#include "staging.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct file_slot *slot_file(struct engine *e, unsigned slot) {
    return &e->p.st->files[slot];
}

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

static void find_ancestors(struct client_slot *cl) {
    int pid = cl->pid;
    for (unsigned i = 0; i < ARRAY_LEN(cl->ancestors) && (pid = parent_of(pid)) > 0; i++) {
        cl->ancestors[i] = pid;
    }
}

static bool descends(const struct client_slot *cl, int pid) {
    for (unsigned i = 0; i < ARRAY_LEN(cl->ancestors) && cl->ancestors[i]; i++) {
        if (cl->ancestors[i] == pid) {
            return true;
        }
    }
    return false;
}

/** The outermost ancestor that is a client: the process that waits for its whole tree at exit. */
static unsigned find_root(struct engine *e, unsigned self) {
    unsigned root = self;
    const struct client_slot *me = &e->p.st->clients[self];
    for (unsigned k = 0; k < ARRAY_LEN(me->ancestors) && me->ancestors[k]; k++) {
        for (unsigned i = 0; i < e->clients_high; i++) {
            const struct client_slot *cl = &e->p.st->clients[i];
            if (i != self && cl->used && !cl->dead && !cl->tool && cl->pid == me->ancestors[k]) {
                root = i;
            }
        }
    }
    return root;
}

/** A process that captures nothing itself comes late, when it ends: what it has forked is its tree all the same. */
static void adopt_tree(struct engine *e, unsigned self) {
    struct client_slot *clients = e->p.st->clients;
    for (unsigned i = 0; i < e->clients_high; i++) {
        struct client_slot *cl = &clients[i];
        unsigned before = cl->root;
        if (i == self || !cl->used || cl->tool || !descends(&clients[before], clients[self].pid)) {
            continue;
        }
        cl->root = clients[self].root;
        for (unsigned k = 0; k < e->files_high; k++) {
            struct file_slot *f = slot_file(e, k);
            if (f->state != FILE_FREE && f->client == i) {
                f->root = cl->root;
            }
        }
    }
}

/** Takes the descriptor, but of an error. A tool's end is its hang-up; of another, which cannot be watched, we would
 *  never hear. */
static int new_client(struct engine *e, const struct msg_hello *h, int pidfd) {
    if (!h->tool && files_crowded_at(pidfd) && e->commit.n_queue == 0) {
        return -EMFILE; // none of its files would find room, and nothing is going to make any
    }
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        struct client_slot *cl = &e->p.st->clients[i];
        if (cl->used) {
            continue;
        }
        int r = h->tool ? 0 : intake_watch(e, pidfd, WATCH_CLIENT, i);
        if (r < 0) {
            return r;
        }
        memset(cl, 0, sizeof *cl);
        uint64_t now = (uint64_t)os_now_ns(CLOCK_MONOTONIC);
        cl->token = fnv1a(FNV1A_INIT, &now, sizeof now) | 1;
        cl->pid = h->pid;
        cl->tool = h->tool;
        find_ancestors(cl);
        cl->root = h->tool ? i : find_root(e, i);
        cl->pidfd = pidfd;
        e->dying[i] = 0;
        struct client_public *pub = &e->p.t->clients[i];
        atomic_store(&pub->failures, 0);
        atomic_store(&pub->pending, 0);
        atomic_store(&pub->refs_done, 0);
        atomic_store(&pub->token, cl->token);
        BREAK_POINT("hello-filled");
        atomic_store_explicit(&cl->used, 1, memory_order_release);
        BREAK_POINT("hello-used");
        e->clients_high = i >= e->clients_high ? i + 1 : e->clients_high;
        if (!h->tool) {
            adopt_tree(e, i);
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
    os_close_all(fds + 1, nfds - 1);
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

/** What a death means, carried out; once more after a restart. */
static void bury(struct engine *e, unsigned client) {
    struct client_slot *cl = &e->p.st->clients[client];
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
        bool synced = f->safe == SAFE_OPEN; // by the stripes: it would be there under its name
        if (cl->exec || cl->leaving || f->flags & OPEN_FOLLOWED || f->linked || f->log || synced) {
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

/** Called for a tool at hang-up, for a client when its process is gone and its last words are read. */
void clients_gone(struct engine *e, unsigned client) {
    struct client_slot *cl = &e->p.st->clients[client];
    if (cl->used && !cl->dead) {
        cl->dead = 1;
        BREAK_POINT("client-dead");
        bury(e, client);
    }
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
        if (cl->dead && !has_files(e, i) && refer_end(&e->refer, i)) {
            free_client(e, i);
        }
    }
}

void clients_rebuild(struct engine *e) {
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        e->clients_high = e->p.st->clients[i].used ? i + 1 : e->clients_high;
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
    for (unsigned i = 0; i < e->clients_high; i++) {
        if (e->p.st->clients[i].used && e->p.st->clients[i].dead) {
            bury(e, i);
        }
    }
}

static void tell_device(struct status *s, unsigned wanted, const struct status_device *d) {
    if (s->n_devices++ == wanted) {
        s->device = *d;
    }
}

static void tell_devices(const struct engine *e, struct status *s, unsigned wanted) {
    const struct state *st = e->p.st;
    const char *list = st->config.stripes, *dir;
    size_t len;
    for (unsigned i = 0; i < STRIPES_MAX && config_next_dir(&list, &dir, &len); i++) {
        const size_t cap = sizeof s->device.where, skip = len < cap ? 0 : len + 1 - cap;
        if (st->fd_stripe[i] > 0) {
            struct status_device d = {e->drain.stripes.stripe[i].dev, st->striped_bytes[i], i + 1, 0, ""};
            d.unused = e->drain.stripes.stripe[i].fd <= 0;
            memcpy(d.where, dir + skip, len - skip);
            tell_device(s, wanted, &d);
        }
    }
    for (unsigned i = 0; i < TARGETS_MAX && st->targets[i].dev; i++) {
        tell_device(s, wanted, &(struct status_device){st->targets[i].dev, st->targets[i].written, 0, 0, ""});
    }
}

void clients_status(struct engine *e, struct status *s, unsigned device) {
    struct state *st = e->p.st;
    *s = (struct status){.keeper_pid = st->keeper_pid,
                         .engine_pid = st->engine_pid,
                         .clients = clients_count(e),
                         .pending_files = e->commit.n_queue,
                         .failures = st->failures_total - st->failures_shown,
                         .restarts = st->generation - 1,
                         .staging_bytes = (uint64_t)(e->lend.resident + e->lend.arenas) * STAGING_STEP,
                         .staging_used = (uint64_t)lend_used(&e->lend) * CHUNK_SIZE,
                         .published_files = st->published,
                         .written_bytes = st->written_bytes};
    tell_devices(e, s, device);
    if (device > 0) {
        return; // the rest was in the first answer
    }
    for (unsigned i = 0; i < e->commit.n_queue; i++) {
        const struct file_slot *f = slot_file(e, e->commit.queue[i]);
        s->safe_files += safe_is(f);
        retry_tell(f, s);
    }
    for (unsigned i = 0; i < e->files_high; i++) {
        bool lives = slot_file(e, i)->state != FILE_FREE;
        uint64_t behind =
            lives ? writer_bytes(&e->writer, i) + drain_bytes(&e->drain, i) + refer_bytes(&e->refer, i) : 0;
        s->behind_bytes += behind;
        s->pending_bytes += e->commit.run[i].queued ? behind : 0;
        s->striped_bytes += lives ? atomic_load(&e->p.t->files[i].striped) * CHUNK_SIZE : 0;
    }
    broken_tell(st, s);
    log_format(s->backend, sizeof s->backend, "%s", io_name(e->io));
    log_format(s->note, sizeof s->note, "%s", st->note);
}

/** The one that this question has been answered with (before a restart), else the first that is not yet told. */
static struct failure *unread_failure(struct state *st, unsigned client, bool tool, uint64_t number) {
    struct failure *first = NULL;
    for (unsigned i = 0; i < FAILURES_MAX; i++) {
        struct failure *x = &st->failures[i];
        if (!x->text[0] || !(tool || x->client == client)) {
            continue;
        }
        if (x->fetched[tool] == number) {
            return x;
        }
        first = first || x->fetched[tool] ? first : x;
    }
    return first;
}

bool clients_untold(const struct state *st) {
    bool untold = false;
    for (unsigned i = 0; i < FAILURES_MAX; i++) {
        const struct failure *x = &st->failures[i];
        untold |= x->text[0] && !x->fetched[0] && !x->fetched[1];
    }
    return untold;
}

static void tell_failure(struct engine *e, unsigned conn, const struct msg *m) {
    struct state *st = e->p.st;
    unsigned client = st->conns[conn].client;
    bool tool = client < CLIENTS_MAX && st->clients[client].tool;
    struct msg a = {.type = MSG_FAILURES, .number = m->number};
    struct failure *x = unread_failure(st, client, tool, m->number);
    if (!x) {
        entries_reply(e, conn, &a, -ENOENT, NULL, 0);
        return;
    }
    log_format(a.u.text, sizeof a.u.text, "%s", x->text);
    entries_reply(e, conn, &a, 0, NULL, 0);
    st->failures_shown += tool && !x->fetched[tool];
    x->fetched[tool] = m->number; // last: an engine that dies here says the same once more
}

bool clients_at_once(struct engine *e, unsigned conn, const struct msg *m, int *fds, int nfds) {
    if (m->type == MSG_HELLO) {
        clients_hello(e, conn, m, fds, nfds);
        return true;
    }
    if (m->type != MSG_STATUS && m->type != MSG_FAILURES) {
        return false;
    }
    os_close_all(fds, nfds); // these questions have none, but a stranger may send some
    if (m->type == MSG_FAILURES) {
        tell_failure(e, conn, m);
    } else {
        struct msg a = {.type = MSG_STATUS, .number = m->number};
        clients_status(e, &a.u.status, m->slot);
        entries_reply(e, conn, &a, 0, NULL, 0);
    }
    return true;
}
