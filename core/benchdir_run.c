// SPDX-License-Identifier: MIT
//
// benchdir_run: see benchdir_run.h. The engine's own queues do the writing. They let IO_DEPTH writes of a device be in
// flight; where more are asked for, a lane takes a second queue, under another device's number.

#include "benchdir_run.h"

#include "io.h"
#include "log.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#define RUN_NS      1000000000ll // of submitting
#define SMALL_NS    300000000ll
#define SMALL_TRIES 25
#define QUEUES      ((BENCH_DEPTH_MAX + IO_DEPTH - 1) / IO_DEPTH)

static atomic_bool interrupted;

void bench_interrupt(void) {
    atomic_store(&interrupted, true);
}

bool bench_interrupted(void) {
    return atomic_load(&interrupted);
}

int bench_file(int dir, int flags) {
    int fd = os_openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    if (fd != -EOPNOTSUPP && fd != -EISDIR && fd != -ENOENT) {
        return fd;
    }
    char name[64];
    log_format(name, sizeof name, ".fastckpt-bench-%d", os_getpid());
    fd = os_openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | flags, 0600);
    if (fd >= 0) {
        os_unlinkat(dir, name, 0);
    }
    return fd;
}

// ---- Large writes

struct run;

struct lane_run {
    struct run *run;
    struct bench_lane *lane;
    int fd;
    uint64_t next; // offset of the next write
    unsigned in_flight;
    bool syncing;
    struct io_req reqs[BENCH_DEPTH_MAX];
    struct io_job sync;
    uint64_t device;
};

struct run {
    const struct bench_shape *shape;
    struct io *io;
    char *bytes; // what is written: BENCH_CHUNK_MAX for each write in flight
    int64_t start;
    int n;
    struct lane_run *lanes;
};

static int64_t now(void) {
    return os_now_ns(CLOCK_MONOTONIC);
}

static void sync_run(struct io_job *job) {
    struct lane_run *l = job->arg;
    job->result = os_fsync(l->fd);
}

static void sync_done(struct io_job *job) {
    struct lane_run *l = job->arg;
    int64_t ns = now() - l->run->start;
    l->lane->rate = (double)l->lane->written * 1e9 / (double)(ns > 0 ? ns : 1);
    if (job->result < 0 && !l->lane->error) {
        l->lane->error = job->result;
    }
}

static bool go_on(const struct lane_run *l) {
    return !l->lane->error && l->next + l->run->shape->chunk <= l->run->shape->size && now() - l->run->start < RUN_NS &&
           !bench_interrupted();
}

/** Sends `req` on its way with the lane's next bytes, or, when nothing is left, has the last of them synced. */
static void advance(struct lane_run *l, struct io_req *req) {
    if (go_on(l)) {
        req->off = (off_t)l->next;
        l->next += req->len;
        l->in_flight++;
        io_write(l->run->io, req);
    } else if (l->in_flight == 0 && !l->syncing) {
        l->syncing = true;
        io_job(l->run->io, &l->sync);
    }
}

static void write_done(struct io_req *req) {
    struct lane_run *l = req->arg;
    l->in_flight--;
    if (req->result < 0) {
        l->lane->error = req->result;
    } else {
        l->lane->written += req->len;
    }
    advance(l, req);
}

/** The file with its space reserved and its size made, as the engine has it: what is measured does not extend it. */
static int open_lane(struct run *r, struct lane_run *l, struct bench_lane *lane, unsigned index) {
    lane->written = 0;
    lane->rate = 0;
    *l = (struct lane_run){.run = r, .lane = lane, .fd = bench_file(lane->dir, lane->direct ? O_DIRECT : 0)};
    l->sync = (struct io_job){.run = sync_run, .done = sync_done, .arg = l, .device = index * QUEUES};
    if (l->fd < 0) {
        return l->fd;
    }
    int ret = os_fallocate(l->fd, 0, 0, (off_t)r->shape->size);
    ret = ret == -EOPNOTSUPP ? os_ftruncate(l->fd, (off_t)r->shape->size) : ret;
    for (unsigned i = 0; i < r->shape->depth; i++) {
        l->reqs[i] = (struct io_req){.fd = l->fd,
                                     .buf = r->bytes + i * BENCH_CHUNK_MAX,
                                     .len = r->shape->chunk,
                                     .device = index * QUEUES + i / IO_DEPTH,
                                     .done = write_done,
                                     .arg = l};
    }
    return ret < 0 ? ret : os_fsync(l->fd);
}

/** Bytes that no disk makes smaller. */
static char *make_bytes(void) {
    size_t len = BENCH_DEPTH_MAX * BENCH_CHUNK_MAX;
    uint64_t *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        return NULL;
    }
    uint64_t x = 0x9e3779b97f4a7c15ull; // xorshift64
    for (size_t i = 0; i < len / sizeof *p; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        p[i] = x;
    }
    return (char *)p;
}

static void run_all(struct run *r) {
    r->start = now();
    for (int i = 0; i < r->n; i++) {
        struct lane_run *l = &r->lanes[i];
        for (unsigned k = 0; k < r->shape->depth && !l->lane->error && l->fd >= 0; k++) {
            advance(l, &l->reqs[k]);
        }
    }
    while (io_pending(r->io)) {
        struct pollfd p = {.fd = io_event_fd(r->io), .events = POLLIN};
        os_poll(&p, 1, -1);
        io_reap(r->io);
    }
}

int bench_write(struct bench_lane *lanes, int n, const struct bench_shape *s) {
    static char *bytes;
    char why[256];
    bytes = bytes ? bytes : make_bytes();
    struct run r = {.shape = s, .n = n, .bytes = bytes, .lanes = calloc((size_t)n, sizeof *r.lanes)};
    int err = bytes && r.lanes ? io_open(&r.io, s->io, why, sizeof why) : -ENOMEM;
    for (int i = 0; i < n && err == 0; i++) {
        lanes[i].error = open_lane(&r, &r.lanes[i], &lanes[i], (unsigned)i);
    }
    if (err == 0) {
        run_all(&r);
        io_close(r.io);
    }
    for (int i = 0; i < n && err == 0; i++) {
        if (r.lanes[i].fd >= 0) {
            os_close(r.lanes[i].fd);
        }
    }
    free(r.lanes);
    return err;
}

// ---- Small ones

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int try_fsync(int dir, int fd) {
    static const char page[4096] = "fastckpt";
    (void)dir;
    int r = os_pwrite_all(fd, page, sizeof page, 0);
    return r < 0 ? r : os_fsync(fd);
}

static int try_create(int dir, int unused) {
    static const char text[1024] = "fastckpt";
    (void)unused;
    char name[64];
    log_format(name, sizeof name, ".fastckpt-bench-%d", os_getpid());
    int fd = os_openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        return fd;
    }
    int r = os_pwrite_all(fd, text, sizeof text, 0);
    r = r < 0 ? r : os_fsync(fd);
    os_close(fd);
    int gone = os_unlinkat(dir, name, 0);
    return r < 0 ? r : gone;
}

/** The median of a few. */
static double median(int (*once)(int dir, int fd), int dir, int fd) {
    double seconds[SMALL_TRIES];
    int n = 0;
    for (int64_t end = now() + SMALL_NS; n < SMALL_TRIES && (n == 0 || now() < end) && !bench_interrupted(); n++) {
        int64_t start = now();
        if (once(dir, fd) < 0) {
            return -1;
        }
        seconds[n] = (double)(now() - start) / 1e9;
    }
    qsort(seconds, (size_t)n, sizeof *seconds, compare);
    return n ? seconds[n / 2] : -1;
}

void bench_small(int dir, double *ret_fsync, double *ret_create) {
    int fd = bench_file(dir, 0);
    *ret_fsync = fd < 0 ? -1 : median(try_fsync, dir, fd);
    if (fd >= 0) {
        os_close(fd);
    }
    *ret_create = median(try_create, dir, -1);
}
