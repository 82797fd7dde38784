// SPDX-License-Identifier: MIT
//
// client_conn: the pool of connections to the engine, and sending and receiving on one of them. A question owns a
// connection until it is answered, so answers need no sorting. What is asked, and what a session is, is client.c's.

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "../core/log.h"
#include "../core/os.h"
#include "client_inside.h"
#include "guard.h"
#include "own.h"

#define CONNS_MAX 64
#define REVIVE_NS (3 * INT64_C(1000000000))
#define NOTICE_NS (10 * INT64_C(1000000000))

enum { CONN_EMPTY, CONN_IDLE, CONN_BUSY };

struct conn {
    _Atomic int state;
    int own; // handle of the descriptor
    int fd;  // while pinned
};

static struct conn conns[CONNS_MAX];

// ---- One connection

static int64_t now(void) {
    return os_now_ns(CLOCK_MONOTONIC);
}

static bool hung_up(int err) {
    return err == -EPIPE || err == -ECONNRESET || err == -ENOTCONN || err == -EBADF || err == -ENOTSOCK ||
           err == -ECONNREFUSED;
}

// Milliseconds to wait now: at most `most`, never beyond `deadline`.
static int slice(int64_t deadline, int most) {
    if (deadline < 0) {
        return most;
    }
    int64_t left = (deadline - now() + MS_NS - 1) / MS_NS;
    return left <= 0 ? 0 : left < most ? (int)left : most;
}

static const char *what(unsigned type) {
    static const char *const names[MSG_TYPES] = {
        [MSG_HELLO] = "its first answer", [MSG_OPEN] = "a file to be taken",      [MSG_BORROW] = "free staging memory",
        [MSG_RESERVE] = "disk space",     [MSG_SETTLE] = "bytes to be written",   [MSG_SYNC] = "a file to be durable",
        [MSG_DROP] = "a file to go",      [MSG_WAIT] = "files to be durable",     [MSG_LEND] = "a pending file",
        [MSG_LIST] = "names",             [MSG_LEAVE] = "files to be durable",
        [MSG_ARENA] = "memory for device copies", [MSG_REFER] = "room for a message",
        [MSG_HAND_OVER] = "room for a message", [MSG_CLOSE] = "room for a message",
    };
    return type < MSG_TYPES && names[type] ? names[type] : "an answer";
}

// At each slice of a wait: a line after 10 s and each 10 s from there.
static void notice(int64_t begun, int64_t *next, unsigned type) {
    int64_t t = now();
    guard_let_die();
    if (t >= *next) {
        *next = t + NOTICE_NS;
        log_error("waiting for the engine: %s (%lld s)", what(type), (long long)((t - begun) / 1000000000));
    }
}

int conn_send(struct conn *c, const struct msg *m, const int *fds, int nfds, int64_t deadline) {
    int64_t begun = 0, next = 0;
    for (;;) {
        int r = msg_send(c->fd, m, fds, nfds, MSG_DONTWAIT);
        if (r >= 0) {
            return 0;
        }
        if (r == -EBADF && nfds > 0) {
            return r; // ours is pinned: it is one of those to be sent
        }
        if (hung_up(r)) {
            return -EPIPE;
        }
        if (r != -EAGAIN && r != -ETOOMANYREFS && r != -EMFILE && r != -ENOBUFS && r != -ENOMEM && r != -EINTR) {
            return r;
        }
        if (!begun) {
            begun = now();
            next = begun + NOTICE_NS;
        }
        if (deadline >= 0 && now() >= deadline) {
            return -ETIMEDOUT;
        }
        notice(begun, &next, m->type);
        if (r == -EAGAIN) { // the socket is full: the engine is behind
            struct pollfd p = {.fd = c->fd, .events = POLLOUT};
            os_poll(&p, 1, slice(deadline, 500));
        } else {
            os_sleep_ms(1);
        }
    }
}

int conn_receive(struct conn *c, struct msg *q, int *fds, int *nfds, int slice_ms) {
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    int r = os_poll(&p, 1, slice_ms);
    if (r == 0 || r == -EINTR) {
        return 0;
    }
    if (r < 0) {
        return -EPIPE;
    }
    struct msg a;
    memset(&a, 0, sizeof a);
    int got[MSG_FDS_MAX], n = 0;
    ssize_t len = msg_recv(c->fd, &a, got, &n, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (len == -EAGAIN || len == -EINTR) {
        return 0;
    }
    if (len <= 0) {
        // -EMFILE: an answer whose descriptors found no room. It has been taken from the queue, so the asker learns it.
        return len == -EMFILE ? -EMFILE : -EPIPE;
    }
    client_answered();
    // An answer that somebody did not wait for may still lie here.
    if (len < (ssize_t)offsetof(struct msg, u) || a.magic != MSG_MAGIC || a.number != q->number || a.type != q->type) {
        os_close_all(got, n);
        return 0;
    }
    *q = a;
    if (nfds) {
        *nfds = n;
        memcpy(fds, got, (size_t)n * sizeof *fds);
    } else {
        os_close_all(got, n);
    }
    return 1;
}

int conn_ask(struct conn *c, struct msg *q, const int *fds, int nfds, int *out, int *nout, int64_t deadline) {
    int r = conn_send(c, q, fds, nfds, deadline);
    if (r == -EPIPE && q->type == MSG_HELLO && conn_receive(c, q, out, nout, 0) == 1) {
        return 0; // turned away before it has said anything
    }
    if (r < 0) {
        return r;
    }
    int64_t begun = now();
    int64_t next = begun + NOTICE_NS;
    for (;;) {
        r = conn_receive(c, q, out, nout, slice(deadline, 1000));
        if (r != 0) {
            return r < 0 ? r : 0;
        }
        if (deadline >= 0 && now() >= deadline && q->type == MSG_HELLO) {
            return -ETIMEDOUT;
        }
        if (deadline >= 0 && now() >= deadline) {
            struct msg cancel = {.magic = MSG_MAGIC, .type = MSG_CANCEL, .number = client_number(), .value = q->number};
            msg_send(c->fd, &cancel, NULL, 0, MSG_DONTWAIT);
            return -ETIMEDOUT;
        }
        notice(begun, &next, q->type);
    }
}

// Says hello on a fresh socket, which becomes c's (or is closed). The answer is in *a.
static int hello(struct conn *c, int sock, struct session s, struct msg *a, int *fds, int *nfds, int64_t deadline) {
    c->own = own_add(sock);
    if (c->own < 0) {
        return c->own;
    }
    int pidfd = -1;
    int r = c->fd = own_pin(c->own);
    if (r >= 0) {
        r = pidfd = os_pidfd_open(os_getpid());
    }
    if (r >= 0) {
        *a = (struct msg){.magic = MSG_MAGIC, .type = MSG_HELLO};
        a->u.hello = (struct msg_hello){.magic = MSG_MAGIC, .pid = os_getpid(), .client = s.slot, .token = s.token};
        r = conn_ask(c, a, &pidfd, 1, fds, nfds, deadline);
        r = r < 0 ? r : a->result;
        os_close(pidfd);
    }
    if (c->fd >= 0) {
        own_unpin(c->own);
    }
    if (r < 0) {
        own_drop(c->own);
    }
    return r;
}

int conn_first(int sock, struct msg *a, int *fds, int *nfds, int64_t deadline) {
    struct conn *c = &conns[0]; // nobody else takes one while no session is up
    int seen = CONN_EMPTY;
    while (!atomic_compare_exchange_strong(&c->state, &seen, CONN_BUSY)) {
        seen = CONN_EMPTY; // a thread that has met the loss puts its own back any moment
        os_sleep_ms(1);
    }
    int r = hello(c, sock, (struct session){0}, a, fds, nfds, deadline);
    atomic_store(&c->state, r < 0 ? CONN_EMPTY : CONN_IDLE);
    return r;
}

// One more connection of a session that exists. c is BUSY.
static int conn_more(struct conn *c) {
    char why[256];
    int sock = client_dial(false, why, sizeof why);
    if (sock < 0) {
        return sock;
    }
    struct msg a;
    int fds[MSG_FDS_MAX], n = 0;
    // No limit: an engine that listens and is slow is not one that is gone.
    int r = hello(c, sock, client_session(), &a, fds, &n, -1);
    if (r < 0) {
        return r;
    }
    os_close_all(fds, n);
    r = c->fd = own_pin(c->own);
    if (r < 0) {
        own_drop(c->own);
    }
    return r < 0 ? -EAGAIN : 0;
}

// Errors of the moment, not of the engine.
static bool passing(int err) {
    return err == -EMFILE || err == -ENFILE || err == -ENOMEM || err == -EAGAIN || err == -EINTR || err == -ENOBUFS ||
           err == -ETIMEDOUT;
}

void conn_put(struct conn *c, bool broken) {
    own_unpin(c->own);
    if (broken) {
        own_drop(c->own);
    }
    atomic_store_explicit(&c->state, broken ? CONN_EMPTY : CONN_IDLE, memory_order_release);
}

static struct conn *conn_idle(bool *others) {
    for (int i = 0; i < CONNS_MAX; i++) {
        struct conn *c = &conns[i];
        int seen = CONN_IDLE;
        if (atomic_compare_exchange_strong(&c->state, &seen, CONN_BUSY)) {
            c->fd = own_pin(c->own);
            if (c->fd >= 0) {
                return c;
            }
            own_drop(c->own); // the program has closed it
            atomic_store(&c->state, CONN_EMPTY);
        } else if (seen == CONN_BUSY) {
            *others = true;
        }
    }
    return NULL;
}

// Makes a connection in an empty place. NULL: none could be made; the caller tries again until the engine is found
// lost.
static struct conn *conn_fresh(bool others, uint32_t epoch, int64_t *give_up) {
    for (int i = 0; i < CONNS_MAX; i++) {
        struct conn *c = &conns[i];
        int seen = CONN_EMPTY;
        if (!atomic_compare_exchange_strong(&c->state, &seen, CONN_BUSY)) {
            continue;
        }
        int r = conn_more(c);
        if (r >= 0) {
            return c;
        }
        atomic_store(&c->state, CONN_EMPTY);
        // While another thread's connection stands, it will learn the truth; and errors of the moment pass.
        int64_t t = now();
        *give_up = *give_up ? *give_up : t + REVIVE_NS;
        if (!others && !passing(r) && (r != -EPIPE || t >= *give_up)) {
            client_lost(epoch);
        }
        return NULL;
    }
    return NULL;
}

struct conn *conn_take(uint32_t epoch, int64_t deadline, int *err) {
    int64_t give_up = 0;
    for (;;) {
        if (!client_alive() || client_epoch() != epoch) {
            *err = -EPIPE;
            return NULL;
        }
        bool others = false;
        struct conn *c = conn_idle(&others);
        if (c) {
            return c;
        }
        c = conn_fresh(others, epoch, &give_up);
        if (c) {
            return c;
        }
        if (deadline >= 0 && now() >= deadline) {
            *err = -ETIMEDOUT;
            return NULL;
        }
        os_sleep_ms(1);
    }
}

void conns_close_idle(void) {
    for (int i = 0; i < CONNS_MAX; i++) {
        int idle = CONN_IDLE;
        if (atomic_compare_exchange_strong(&conns[i].state, &idle, CONN_BUSY)) {
            own_drop(conns[i].own);
            atomic_store(&conns[i].state, CONN_EMPTY);
        }
    }
}

void conns_after_fork(void) {
    for (int i = 0; i < CONNS_MAX; i++) {
        atomic_store(&conns[i].state, CONN_EMPTY);
    }
}
