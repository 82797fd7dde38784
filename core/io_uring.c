// SPDX-License-Identifier: MIT
//
// io_uring: direct writes by io_uring, a ring per device, made when a device is first seen. The one file that includes
// liburing. What a ring cannot do it hands back (-ECANCELED), and io.c gives it to the threads: no write is lost to a
// refusal. Queues, buffered writes and jobs are not its business.
//
// A completion is delivered as task work: the event loop's poll or epoll_wait may return EINTR because of it.

#include "io_inside.h"
#include "log.h"
#include "util.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#define RING_ENTRIES 64
#define WRITE_MAX    (1 * GIB) // a request's length is 32 bits wide, the kernel's own limit 2 GiB less a page
#define SUBMITS_MAX  1000 // refusals in a row (EAGAIN: no memory) until the ring is given up

struct ring {
    struct io_uring uring;
    bool made;
    bool broken;           // not to be had, or given up: writes go through threads
    unsigned refusals;     // in a row
    struct io_req *unsent; // in the ring's submission queue, not yet taken by the kernel
    struct io_req *unsent_tail;
};

struct io_rings {
    int event_fd;
    struct io_slots slots;
    struct io_req *finished; // since the last reap, newest first
    struct ring rings[IO_DEVICES_MAX];
};

// ---- Making rings

static int ring_make(struct ring *r, int event_fd) {
    int ret = io_uring_queue_init(RING_ENTRIES, &r->uring, 0);
    if (ret < 0) {
        return ret;
    }
    ret = io_uring_register_eventfd(&r->uring, event_fd);
    if (ret < 0) {
        io_uring_queue_exit(&r->uring);
        return ret;
    }
    r->made = true;
    return 0;
}

/** IORING_OP_WRITE came with Linux 5.6, as did the means to ask for it. */
static int ring_can_write(struct ring *r) {
    struct io_uring_probe *probe = io_uring_get_probe_ring(&r->uring);
    if (!probe) {
        return -EOPNOTSUPP;
    }
    int ok = io_uring_opcode_supported(probe, IORING_OP_WRITE);
    io_uring_free_probe(probe);
    return ok ? 0 : -EOPNOTSUPP;
}

static const char *refusal_words(int err) {
    switch (-err) {
    case EPERM:
    case EACCES:
        return "not permitted here (a seccomp filter, as containers have, or sysctl kernel.io_uring_disabled)";
    case ENOSYS:
        return "the kernel has none, or a seccomp filter hides it";
    case ENOMEM:
        return "no memory for it (ulimit -l, or the cgroup's limit)";
    case EOPNOTSUPP:
    case EINVAL:
        return "the kernel's is too old (it takes Linux 5.6)";
    case EMFILE:
    case ENFILE:
        return "no file descriptor is free";
    default:
        return "its set-up failed";
    }
}

static int uring_open(void **ret, int event_fd, char *why, size_t cap) {
    struct io_rings *u = calloc(1, sizeof *u);
    if (!u) {
        return -ENOMEM;
    }
    u->event_fd = event_fd;
    struct ring *first = &u->rings[0]; // tried now, kept for the first device
    int err = ring_make(first, event_fd);
    if (!err) {
        err = ring_can_write(first);
        if (err) {
            io_uring_queue_exit(&first->uring);
        }
    }
    if (err) {
        log_format(why, cap, "io_uring: %s (%s); writing by threads", refusal_words(err), log_errno(-err));
        free(u);
        return err;
    }
    *ret = u;
    return 0;
}

static void uring_close(void *b) {
    struct io_rings *u = b;
    for (unsigned i = 0; i < IO_DEVICES_MAX; i++) {
        if (u->rings[i].made) {
            io_uring_queue_exit(&u->rings[i].uring);
        }
    }
    free(u);
}

// ---- Submitting

static void finish(struct io_rings *u, struct io_req *req, int result) {
    req->result = result;
    req->next = u->finished;
    u->finished = req;
}

/** Gives the ring up and hands back what the kernel has not taken. What it has taken still completes. */
static void ring_break(struct io_rings *u, struct ring *r) {
    r->broken = true;
    while (r->unsent) {
        struct io_req *req = r->unsent;
        r->unsent = req->next;
        finish(u, req, -ECANCELED);
    }
}

/** Tries to pass on what is unsent. A passing refusal is tried again at the next reap, which it asks for itself: with
 *  nothing in flight no completion would. */
static void ring_submit(struct io_rings *u, struct ring *r) {
    if (!r->unsent || r->broken) {
        return;
    }
    int ret = io_uring_submit(&r->uring);
    if (ret > 0) {
        r->refusals = 0;
    }
    for (int i = 0; i < ret && r->unsent; i++) {
        r->unsent = r->unsent->next;
    }
    if (!r->unsent) {
        return;
    }
    bool passing = ret >= 0 || ret == -EAGAIN || ret == -EBUSY || ret == -EINTR || ret == -ENOMEM;
    if (!passing || ++r->refusals == SUBMITS_MAX) {
        ring_break(u, r);
    }
    eventfd_write(u->event_fd, 1);
}

static void ring_write(struct io_rings *u, struct ring *r, struct io_req *req) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->uring);
    assert(sqe); // IO_DEPTH a device is far below RING_ENTRIES
    unsigned len = (unsigned)min_u64(req->len - req->progress, WRITE_MAX);
    io_uring_prep_write(sqe, req->fd, (const char *)req->buf + req->progress, len, (uint64_t)req->off + req->progress);
    io_uring_sqe_set_data(sqe, req);
    req->next = NULL;
    if (r->unsent) {
        r->unsent_tail->next = req;
    } else {
        r->unsent = req;
    }
    r->unsent_tail = req;
    ring_submit(u, r);
}

static int uring_write(void *b, struct io_req *req) {
    struct io_rings *u = b;
    struct ring *r = &u->rings[io_slot(&u->slots, req->device)];
    if (!r->made && !r->broken && ring_make(r, u->event_fd) < 0) {
        r->broken = true;
        log_info("io_uring: no ring for one more device; it is written by threads");
    }
    if (r->broken) {
        return -EAGAIN;
    }
    ring_write(u, r, req);
    return 0;
}

// ---- Completing

/** Writes on where a completion stopped short, from the last boundary that direct I/O accepts: writing the same bytes
 *  twice does no harm. */
static void ring_go_on(struct io_rings *u, struct ring *r, struct io_req *req, unsigned written) {
    size_t reached = (size_t)align_down(req->progress + written, DIRECT_ALIGN);
    if (r->broken || (reached <= req->progress && written > 0)) {
        finish(u, req, -ECANCELED);
        return;
    }
    req->progress = reached;
    ring_write(u, r, req);
}

static void complete(struct io_rings *u, struct ring *r, struct io_req *req, int res) {
    if (res >= 0 && req->progress + (size_t)res == req->len) {
        finish(u, req, 0);
    } else if (res == 0) {
        finish(u, req, -EIO); // a write that takes nothing and says no error would be tried for ever
    } else if (res > 0) {
        ring_go_on(u, r, req, (unsigned)res);
    } else if (res == -EINTR) {
        ring_go_on(u, r, req, 0);
    } else if (res == -EAGAIN) {
        finish(u, req, -ECANCELED); // a thread can wait for whatever it is
    } else {
        finish(u, req, res);
    }
}

static struct io_req *uring_reap(void *b) {
    struct io_rings *u = b;
    for (unsigned i = 0; i < IO_DEVICES_MAX; i++) {
        struct ring *r = &u->rings[i];
        if (!r->made) {
            continue;
        }
        ring_submit(u, r);
        struct io_uring_cqe *cqe;
        while (io_uring_peek_cqe(&r->uring, &cqe) == 0) {
            struct io_req *req = io_uring_cqe_get_data(cqe);
            int res = cqe->res;
            io_uring_cqe_seen(&r->uring, cqe);
            complete(u, r, req, res);
        }
    }
    struct io_req *list = NULL; // in the order of completion
    while (u->finished) {
        struct io_req *req = u->finished;
        u->finished = req->next;
        req->next = list;
        list = req;
    }
    return list;
}

const struct io_backend io_uring_backend = {
    .name = "uring",
    .open = uring_open,
    .close = uring_close,
    .write = uring_write,
    .reap = uring_reap,
};
