// SPDX-License-Identifier: MIT
//
// benchdir_run: one measurement: writes that are in flight to one or several directories at once, until enough has been
// written or a second has passed.

#ifndef FASTCKPT_BENCHDIR_RUN_H
#define FASTCKPT_BENCHDIR_RUN_H

#include <stdbool.h>
#include <stdint.h>

#define BENCH_DEPTH_MAX 8
#define BENCH_CHUNK_MAX (4ull << 20)

/** What is written to one directory, and how fast it was. */
struct bench_lane {
    int dir;     // O_PATH
    bool direct; // O_DIRECT, or through the page cache
    double rate; // result: bytes a second, until all is on the disk
    uint64_t written;
    int error; // result: 0, or a negative errno
};

/** How: enum config_io; bytes of a write; writes in flight; bytes at most for each directory. */
struct bench_shape {
    int io;
    uint64_t chunk;
    unsigned depth;
    uint64_t size;
};

/** Writes to all `n` lanes at once. A lane's clock stops when its bytes are synced. 0, or an error that concerns all.
 */
int bench_write(struct bench_lane *lanes, int n, const struct bench_shape *s);

/** Medians in seconds: an fsync of 4 KiB written anew; making a file of 1 KiB, durable. Negative: could not be done. */
void bench_small(int dir, double *ret_fsync, double *ret_create);

/** A file in `dir` that is gone when it is closed. A descriptor or an error. */
int bench_file(int dir, int flags);

/** Ends what runs: after Ctrl-C. Async-signal-safe. */
void bench_interrupt(void);
bool bench_interrupted(void);

#endif
