// SPDX-License-Identifier: MIT
//
// protocol: sizes and checks of messages, and sending and receiving one datagram with its descriptors. Trusts nothing
// that arrives; knows nothing of what a message means, and keeps no state.

#include "protocol.h"

#include "os.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define HEAD offsetof(struct msg, u)

size_t msg_bytes(unsigned type) {
    switch (type) {
    case MSG_HELLO:
        return HEAD + sizeof(struct msg_hello);
    case MSG_OPEN:
        return HEAD + sizeof(struct msg_open);
    case MSG_BORROW:
    case MSG_RETURN:
        return HEAD + sizeof(struct msg_chunks);
    case MSG_HAND_OVER:
        return HEAD + sizeof(struct msg_hand_over);
    case MSG_REFER:
        return HEAD + sizeof(struct msg_refer);
    case MSG_CLOSE:
        return HEAD + sizeof(struct msg_close);
    case MSG_LEND:
        return HEAD + sizeof(struct msg_lend);
    case MSG_REMOVE:
    case MSG_RENAME:
        return HEAD + sizeof(struct msg_change);
    case MSG_WAIT:
        return HEAD + sizeof(struct msg_wait);
    case MSG_LEAVE:
        return HEAD + sizeof(struct msg_leave);
    case MSG_STATUS:
        return HEAD + sizeof(struct status);
    case MSG_FAILURES:
        return HEAD + sizeof(((struct msg *)0)->u.text);
    default:
        return type > MSG_NONE && type < MSG_TYPES ? HEAD : 0;
    }
}

static bool terminated(const char *s, size_t cap) {
    return memchr(s, '\0', cap) != NULL;
}

// A terminated name of one component.
static bool component(const char *name) {
    return terminated(name, NAME_CAP) && name[0] != '\0' && !strchr(name, '/') && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0;
}

static bool time_valid(const struct timespec *t) {
    return t->tv_nsec == UTIME_NOW || t->tv_nsec == UTIME_OMIT || (t->tv_nsec >= 0 && t->tv_nsec < 1000000000);
}

static bool check_hello(const struct msg_hello *h) {
    return h->magic == MSG_MAGIC && h->tool <= 1 && h->client < CLIENTS_MAX;
}

static bool check_open(const struct msg_open *o) {
    if (o->flags & ~(uint32_t)(OPEN_FOLLOWED | OPEN_REPLACES | OPEN_HIDDEN)) {
        return false;
    }
    bool hidden = o->flags & OPEN_HIDDEN ? component(o->hidden) : terminated(o->hidden, sizeof o->hidden);
    return component(o->name) && hidden && terminated(o->where, sizeof o->where);
}

// For RETURN the chunks count; a question for chunks has none yet.
static bool check_chunks(const struct msg_chunks *c, unsigned type) {
    if (c->n > BORROW_MAX) {
        return false;
    }
    for (uint32_t i = 0; type == MSG_RETURN && i < c->n; i++) {
        if (c->chunk[i] >= CHUNKS_MAX) {
            return false;
        }
    }
    return true;
}

bool msg_hand_over_valid(const struct msg_hand_over *h) {
    if (h->chunk >= CHUNKS_MAX || h->n == 0 || h->n > EXTENTS_MAX || h->index >= INT64_MAX / CHUNK_SIZE) {
        return false;
    }
    for (uint32_t i = 0; i < h->n; i++) {
        const struct extent *e = &h->extent[i];
        if (e->len == 0 || e->len > CHUNK_SIZE || e->off > CHUNK_SIZE - e->len) {
            return false;
        }
        // Both sums fit: the one before has passed the line above.
        if (i > 0 && e->off <= e[-1].off + e[-1].len) {
            return false;
        }
    }
    return true;
}

static bool check_refer(const struct msg_refer *r) {
    const struct extent *e = &r->extent;
    return r->index < INT64_MAX / CHUNK_SIZE && r->turn < INT64_MAX && r->at < INT64_MAX - CHUNK_SIZE && e->len > 0 &&
           e->len <= CHUNK_SIZE && e->off <= CHUNK_SIZE - e->len && r->late <= 1;
}

static bool check_close(const struct msg_close *c) {
    return !(c->flags & ~(uint32_t)(CLOSE_SPAWNED | CLOSE_TIMES | CLOSE_ABORT | CLOSE_KEEP)) && c->size <= INT64_MAX &&
           time_valid(&c->atime) && time_valid(&c->mtime);
}

static bool check_body(const struct msg *m) {
    switch (m->type) {
    case MSG_HELLO:
        return check_hello(&m->u.hello);
    case MSG_OPEN:
        return check_open(&m->u.open);
    case MSG_BORROW:
    case MSG_RETURN:
        return check_chunks(&m->u.chunks, m->type);
    case MSG_RESERVE:
        return m->value <= INT64_MAX;
    case MSG_HAND_OVER:
        return msg_hand_over_valid(&m->u.hand_over);
    case MSG_REFER:
        return check_refer(&m->u.refer);
    case MSG_ARENA:
        return m->value <= CHUNKS_MAX;
    case MSG_ARRIVED:
        return m->value <= INT64_MAX && m->result <= 0;
    case MSG_CLOSE:
        return check_close(&m->u.close);
    case MSG_LEND:
        return !(m->u.lend.flags & ~(uint32_t)(LEND_SETTLE | LEND_WRITE)) && component(m->u.lend.name);
    case MSG_REMOVE:
        return !(m->u.change.flags & ~(uint32_t)(REMOVE_DIR | REMOVE_EMPTY)) && component(m->u.change.name);
    case MSG_RENAME:
        return m->u.change.flags == 0 && component(m->u.change.name) && component(m->u.change.to);
    case MSG_SYNC:
        return !(m->scope &
                 ~(SYNC_PUBLISH | SYNC_SPAWNED | SYNC_QUIET | SYNC_LOG | SYNC_INODE | SYNC_SAFE | SYNC_KEEP));
    case MSG_WAIT:
        return m->scope <= WAIT_DIR_SAFE;
    case MSG_STATUS:
        return terminated(m->u.status.backend, sizeof m->u.status.backend) &&
               terminated(m->u.status.note, sizeof m->u.status.note) &&
               terminated(m->u.status.device.where, sizeof m->u.status.device.where);
    case MSG_FAILURES:
        return terminated(m->u.text, sizeof m->u.text);
    default:
        return true;
    }
}

int msg_check(const struct msg *m, size_t len) {
    if (len < HEAD || m->magic != MSG_MAGIC) {
        return -EPROTO;
    }
    size_t want = msg_bytes(m->type);
    if (want == 0 || len != want || m->slot >= FILES_MAX || !check_body(m)) {
        return -EPROTO;
    }
    return 0;
}

int msg_send(int sock, const struct msg *m, const int *fds, int nfds, int flags) {
    size_t len = msg_bytes(m->type);
    assert(len > 0 && nfds >= 0 && nfds <= MSG_FDS_MAX);
    struct iovec iov = {.iov_base = (void *)m, .iov_len = len};
    union {
        char buf[CMSG_SPACE(MSG_FDS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
    if (nfds > 0) {
        h.msg_control = control.buf;
        h.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, (size_t)nfds * sizeof(int));
    }
    ssize_t n;
    do {
        n = os_sendmsg(sock, &h, flags | MSG_NOSIGNAL);
    } while (n == -EINTR);
    return n < 0 ? (int)n : 0;
}

// Takes the descriptors out of `h`; those beyond MSG_FDS_MAX are closed. Returns how many came.
static int take_fds(struct msghdr *h, int *fds) {
    int got = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++, got++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (got < MSG_FDS_MAX) {
                fds[got] = fd;
            } else {
                os_close(fd);
            }
        }
    }
    return got;
}

ssize_t msg_recv(int sock, struct msg *m, int *fds, int *nfds, int flags) {
    struct iovec iov = {.iov_base = m, .iov_len = sizeof *m};
    union {
        char buf[CMSG_SPACE((MSG_FDS_MAX + 1) * sizeof(int))]; // one more, so that too many can be told from no room
        struct cmsghdr align;
    } control;
    struct msghdr h;
    ssize_t n;
    do {
        h = (struct msghdr){.msg_iov = &iov, .msg_iovlen = 1};
        h.msg_control = control.buf;
        h.msg_controllen = sizeof control.buf;
        n = os_recvmsg(sock, &h, flags);
    } while (n == -EINTR || n == -ECONNRESET);
    *nfds = 0;
    if (n < 0) {
        return n;
    }
    int got = take_fds(&h, fds);
    int err = 0;
    if (got > MSG_FDS_MAX || h.msg_flags & MSG_TRUNC) {
        err = -EPROTO;
    } else if (h.msg_flags & MSG_CTRUNC) {
        err = -EMFILE; // the kernel could not install them all; after MSG_PEEK the datagram is still there
    }
    if (err < 0 || n == 0) {
        os_close_all(fds, got < MSG_FDS_MAX ? got : MSG_FDS_MAX);
        return err;
    }
    *nfds = got;
    return n;
}

void msg_consume(int sock) {
    char byte;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;
    do {
        n = os_recvmsg(sock, &h, MSG_DONTWAIT);
    } while (n == -EINTR || n == -ECONNRESET);
}
