// SPDX-License-Identifier: MIT
//
// intake: sockets → entries. A datagram is peeked at, copied under its number into the state, and only then consumed:
// an engine that dies in between leaves it in the kernel's queue, which lives in the common descriptor table. Passes:
// an entry's turn comes only after a full look over all sockets that began after it was read, so that whatever was
// sent before it, by anybody, is known (socket order alone put `latest` before another rank's earlier file).

#include "breakpoint.h"
#include "engine.h"
#include "log.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS_MAX 128
#define DRAIN_MAX  512 // datagrams of one socket in one pass: more than its queue holds when the pass begins

static int take_spare(void) {
    return os_openat(AT_FDCWD, "/dev/null", O_RDONLY, 0);
}

int intake_start(struct engine *e) {
    e->spare = take_spare();
    e->epoll = epoll_create1(0);
    if (e->epoll < 0 || intake_watch(e, e->p.st->fd_listen, WATCH_LISTEN, 0) < 0 ||
        intake_watch(e, e->p.st->fd_keeper, WATCH_KEEPER, 0) < 0 ||
        intake_watch(e, io_event_fd(e->io), WATCH_IO, 0) < 0) {
        return -errno;
    }
    for (unsigned i = 0; i < CONNS_MAX; i++) {
        if (e->p.st->conns[i].fd > 0) {
            intake_watch(e, e->p.st->conns[i].fd, WATCH_CONN, i);
        }
    }
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        struct client_slot *cl = &e->p.st->clients[i];
        if (cl->used && cl->pidfd > 0) {
            intake_watch(e, cl->pidfd, WATCH_CLIENT, i);
        }
    }
    return 0;
}

int intake_watch(struct engine *e, int fd, unsigned kind, unsigned index) {
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = (uint64_t)kind << 32 | index};
    return epoll_ctl(e->epoll, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

void intake_drop_conn(struct engine *e, unsigned conn) {
    struct conn_slot *cs = &e->p.st->conns[conn];
    unsigned client = cs->client;
    int fd = cs->fd;
    atomic_store(&cs->fd, 0);
    os_close(fd);
    if (client < CLIENTS_MAX && e->p.st->clients[client].tool) {
        clients_gone(e, client);
    }
}

static void cut_off(struct engine *e, unsigned conn, const char *why) {
    unsigned client = e->p.st->conns[conn].client;
    int pid = client < CLIENTS_MAX ? e->p.st->clients[client].pid : 0;
    log_error("connection cut off: %s (process %d)", why, pid);
    intake_drop_conn(e, conn);
}

/** The answer to a hello, whether it has come yet or not: a job that waited for a descriptor would hang. */
static void refuse(struct engine *e, int fd) {
    const struct msg a = {.magic = MSG_MAGIC, .type = MSG_HELLO, .result = -EMFILE};
    msg_send(fd, &a, NULL, 0, MSG_DONTWAIT);
    e->starved = true;
}

/** The table is full: who has come is let in by the spare number, to be told so. False: there is nobody, or no way. */
static bool turn_away(struct engine *e) {
    os_close(e->spare); // nothing happens where there is none
    int fd = accept4(e->p.st->fd_listen, NULL, NULL, 0);
    if (fd >= 0) {
        refuse(e, fd);
        os_close(fd);
    }
    e->spare = take_spare();
    return fd >= 0;
}

static void accept_all(struct engine *e) {
    for (;;) {
        int fd = accept4(e->p.st->fd_listen, NULL, NULL, 0);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && turn_away(e)) {
            continue;
        }
        if (fd < 0) {
            e->starved |= errno != EAGAIN && errno != EINTR;
            return;
        }
        struct ucred cred;
        socklen_t len = sizeof cred;
        unsigned i = 0;
        while (i < CONNS_MAX && e->p.st->conns[i].fd > 0) {
            i++;
        }
        if (i == CONNS_MAX || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0 || cred.uid != getuid()) {
            log_error(i == CONNS_MAX ? "too many connections" : "a connection of another user was refused");
            os_close(fd);
            continue;
        }
        BREAK_POINT("accept-taken");
        e->p.st->conns[i].client = NO_CLIENT;
        atomic_store_explicit(&e->p.st->conns[i].fd, fd, memory_order_release);
        BREAK_POINT("accept-recorded");
        if (intake_watch(e, fd, WATCH_CONN, i) < 0) {
            cut_off(e, i, "it cannot be watched");
        }
    }
}

static bool is_known(const struct engine *e, const struct msg *m, unsigned client, unsigned conn) {
    for (unsigned k = 0; k < e->n_inbox + e->n_waiting; k++) {
        unsigned i = k < e->n_inbox ? e->inbox[k] : e->waiting[k - e->n_inbox];
        struct entry *en = &e->p.st->entries[i];
        if (en->msg.number == m->number && en->client == client) {
            en->conn = conn; // asked again on another connection: answer there
            return true;
        }
    }
    return false;
}

static void record(struct engine *e, unsigned conn, const struct msg *m, const int *fds, int nfds) {
    unsigned i = e->free_entries[--e->n_free_entries];
    struct entry *en = &e->p.st->entries[i];
    en->conn = conn;
    en->client = e->p.st->conns[conn].client;
    en->canceled = en->made = 0;
    en->begun = en->after_removals = 0;
    for (int k = 0; k < MSG_FDS_MAX; k++) {
        en->fds[k] = k < nfds ? fds[k] : 0;
    }
    memcpy(&en->msg, m, msg_bytes(m->type));
    atomic_store_explicit(&en->state, ENTRY_RECORDED, memory_order_release);
    BREAK_POINT("intake-state");
    entries_enter(e, i);
}

/** One datagram. False when there is no more to read now. */
static bool read_one(struct engine *e, unsigned conn) {
    struct conn_slot *cs = &e->p.st->conns[conn];
    int fds[MSG_FDS_MAX], nfds = 0;
    struct msg m;
    if (e->n_free_entries == 0) {
        // Back-pressure. The pass counts all the same: else what fills the table could never be carried out.
        return false;
    }
    ssize_t len = msg_recv(cs->fd, &m, fds, &nfds, MSG_PEEK | MSG_DONTWAIT);
    if (len == -EAGAIN || len == -EINTR) {
        return false;
    }
    if (len == -EMFILE || len == -ENFILE || len == -ETOOMANYREFS || len == -ENOBUFS) {
        // Back-pressure: it stays in the queue until descriptors are free. The pass counts all the same: what carries
        // descriptors is a question, so its sender has sent nothing behind it, and nothing else is ordered by it.
        os_close_all(fds, nfds);
        e->starved = true;
        if (cs->client == NO_CLIENT) { // a hello: nothing of its is under way
            refuse(e, cs->fd);
            intake_drop_conn(e, conn);
        }
        return false;
    }
    if (len <= 0) {
        intake_drop_conn(e, conn);
        return false;
    }
    BREAK_POINT("intake-peeked");
    bool hello = m.type == MSG_HELLO;
    if (msg_check(&m, (size_t)len) < 0 || (!hello && cs->client == NO_CLIENT)) {
        os_close_all(fds, nfds);
        cut_off(e, conn, "a message that is none of ours");
        return false;
    }
    if (clients_at_once(e, conn, &m, fds, nfds)) {
        BREAK_POINT("intake-answered");
        if (cs->fd > 0) {
            msg_consume(cs->fd);
        }
        return cs->fd > 0;
    }
    if (m.number == 0 || m.number > atomic_load(&e->p.numbers->next)) {
        os_close_all(fds, nfds);
        cut_off(e, conn, "a number that was never drawn");
        return false;
    }
    if (is_known(e, &m, cs->client, conn)) {
        os_close_all(fds, nfds);
    } else {
        record(e, conn, &m, fds, nfds);
        BREAK_POINT("intake-recorded");
    }
    msg_consume(cs->fd);
    return true;
}

static void read_conn(struct engine *e, unsigned conn) {
    for (int n = 0; n < DRAIN_MAX && e->p.st->conns[conn].fd > 0; n++) {
        if (!read_one(e, conn)) {
            return;
        }
    }
}

static void handle(struct engine *e, unsigned kind, unsigned index) {
    switch (kind) {
    case WATCH_LISTEN:
        accept_all(e);
        break;
    case WATCH_CONN:
        if (e->p.st->conns[index].fd > 0) {
            read_conn(e, index);
        }
        break;
    case WATCH_CLIENT:
        if (!e->dying[index]) {
            e->dying[index] = e->pass + 1;
        }
        epoll_ctl(e->epoll, EPOLL_CTL_DEL, e->p.st->clients[index].pidfd, NULL);
        break;
    case WATCH_IO:
        io_reap(e->io);
        e->progress = true;
        break;
    default:
        break; // the keeper: engine_run looks
    }
}

void intake_turn(struct engine *e, int timeout_ms) {
    struct epoll_event ev[EVENTS_MAX];
    e->starved = false;
    int n = epoll_wait(e->epoll, ev, EVENTS_MAX, timeout_ms);
    for (int i = 0; i < n; i++) {
        handle(e, (unsigned)(ev[i].data.u64 >> 32), (unsigned)ev[i].data.u64);
    }
    if (n >= 0 && n < EVENTS_MAX) {
        e->pass++;
    }
    if (e->starved) {
        os_sleep_ms(5); // the sockets stay readable: do not spin until descriptors are free
    }
}
