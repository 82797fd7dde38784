// SPDX-License-Identifier: MIT
//
// io_inside: what io.c, io_threads.c and io_uring.c share and nobody else sees: slots for devices and the jobs' side of
// the threads.

#ifndef FASTCKPT_IO_INSIDE_H
#define FASTCKPT_IO_INSIDE_H

#include "io.h"

#define IO_DEVICES_MAX 64

struct io_slots {
    uint64_t ids[IO_DEVICES_MAX];
    unsigned count;
};

/** The slot of `device`, taken at first sight. Devices beyond the last slot share one: slower, never an error. */
static inline unsigned io_slot(struct io_slots *s, uint64_t device) {
    for (unsigned i = 0; i < s->count; i++) {
        if (s->ids[i] == device) {
            return i;
        }
    }
    if (s->count == IO_DEVICES_MAX) {
        return (unsigned)(device % IO_DEVICES_MAX);
    }
    s->ids[s->count] = device;
    return s->count++;
}

/** Queues a job with the workers of its device. `b` is the handle of io_threads_backend. */
void io_threads_job(void *b, struct io_job *job);
/** The finished jobs, a list by `next`. */
struct io_job *io_threads_reap_jobs(void *b);

#endif
