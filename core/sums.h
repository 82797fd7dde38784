// SPDX-License-Identifier: MIT
//
// sums: checksums of published files, for `fastckpt verify`. In each directory of stripes two files: `sums`, with the
// newest records, and `sums.old`, what it was called when it had become SUMS_MOST long; so the oldest are dropped. All
// pairs of a user append to the same ones, and a record is found again behind one that is torn. Nothing depends on
// them: a record that is lost makes a file `unknown`. Recovery has nothing to do with them.

#ifndef FASTCKPT_SUMS_H
#define FASTCKPT_SUMS_H

#include "io.h"
#include "stripelog.h"

#include <sys/stat.h>

#define SUMS_MOST (8 * MIB)

enum { SUM_FILE = 64, SUM_MOVED }; // types of records, beside those of the logs
enum { SUM_LOOSE = 1 };            // flag: its program may have changed it by ways of which its chunks know nothing

struct sum_file { // behind it `n` ranges
    struct log_identity is;
    uint32_t flags, n;
};

struct sum_range {
    uint64_t off, len;
    uint32_t crc;  // of the ranges since the last one that had one
    uint32_t more; // it goes on: no checksum yet
};

struct sum_moved { // a rename changes an inode's ctime
    struct log_identity from;
    struct timespec ctime;
};

struct state;

/** In a worker, behind the names that a job has made: writes down what is known of the bytes of these slots' files. */
void sums_named(struct state *st, const uint32_t *slots, unsigned n, const int *result);

/** What is written down becomes durable a second later, and nobody waits for it. */
struct sums_syncing {
    struct state *st;
    struct io_job job;
    bool busy;
    int64_t last_ns; // CLOCK_MONOTONIC
};
/** Called in each turn of the loop. */
void sums_pump(struct sums_syncing *s, struct state *st, struct io *io);

/** Writes it down for the inode behind `fd`, in the directories `dirs` (STRIPES_MAX; 0: none there). `parts`: what went
 *  by stripes, in the order in which it was handed over; a few megabytes of what else there is are read from the
 *  inode. */
void sums_write(const int32_t *dirs, int fd, const struct log_part *parts, uint32_t n, uint32_t flags);
void sums_write_moved(const int32_t *dirs, const struct log_identity *from, const struct timespec *ctime);

/** Makes what was written durable. */
void sums_sync(const int32_t *dirs);

/** What is known of a file. */
struct sums_known {
    struct log_identity is;
    const struct sum_range *range;
    uint32_t n, flags;
};

struct sums {
    char *mem[2 * STRIPES_MAX];
    unsigned n_mem;
    struct sums_known *known;
    size_t n, cap;
};

/** Reads what all directories have (as in FASTCKPT_STRIPES). The caller frees it. 0 or an error: none could be read. */
int sums_read(struct sums *s, const char *dirs);
/** What is known of the inode that `st` describes. `*exact`: nothing has happened to it since. NULL: nothing. */
const struct sums_known *sums_find(const struct sums *s, const struct stat *st, bool *exact);
void sums_free(struct sums *s);

#endif
