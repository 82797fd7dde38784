// SPDX-License-Identifier: MIT
//
// simdisk_io: see simdisk.h: the backend. What is submitted waits until io_reap carries one of it out.

#include "simdisk_inside.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int io_open(struct io **ret, int want, char *why, size_t cap) {
    (void)want, (void)cap;
    why[0] = '\0';
    *ret = calloc(1, sizeof **ret);
    return *ret ? 0 : -ENOMEM;
}

static void add(struct io *io, struct sim_work work) {
    cr_assert_lt(io->n, ARRAY_LEN(io->work));
    io->work[io->n++] = work;
}

void io_write(struct io *io, struct io_req *req) {
    add(io, (struct sim_work){.req = req});
}

void io_job(struct io *io, struct io_job *job) {
    add(io, (struct sim_work){.job = job});
}

unsigned io_pending(const struct io *io) {
    return io->n;
}

int io_reap(struct io *io) {
    if (io->n == 0) {
        return 0;
    }
    unsigned i = sim_choose(io->n);
    struct sim_work work = io->work[i];
    memmove(io->work + i, io->work + i + 1, (io->n - i - 1) * sizeof work);
    io->n--;
    sim.in_hand = work; // a death in the middle of it finds it there
    if (work.job) {
        work.job->run(work.job);
    } else {
        work.req->result = io_calls.pwrite_all(work.req->fd, work.req->buf, work.req->len, work.req->off);
    }
    sim.in_hand = (struct sim_work){0};
    if (work.job) {
        work.job->done(work.job);
    } else {
        work.req->done(work.req);
    }
    return 1;
}

/** The engine is dead: the direct writes that the kernel has are made when it likes, from whatever lies there then. */
void io_close(struct io *io) {
    for (unsigned i = 0; io && i < io->n; i++) {
        const struct io_req *req = io->work[i].req;
        if (req && sim_random(4) && sim.n_ghosts < ARRAY_LEN(sim.ghost)) {
            sim.ghost[sim.n_ghosts++] =
                (struct sim_ghost){.inode = sim_inode_of(req->fd), .buf = req->buf, .len = req->len, .off = req->off};
        }
    }
    free(io);
}

void io_serve(uint64_t number) {
    (void)number;
}

uint64_t io_current_number(void) {
    return 0;
}
