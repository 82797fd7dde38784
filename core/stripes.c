// SPDX-License-Identifier: MIT
//
// stripes: see stripes.h. The names of the files are the engine's and no other's; what is in them when a pair dies is
// recover's.

#include "stripes.h"

#include "log.h"
#include "os.h"
#include "runtime.h"
#include "stripelog.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

#define STEP_FIRST  ((uint32_t)(64 * MIB / CHUNK_SIZE)) // places made at once, doubled up to ...
#define STEP_MOST   ((uint32_t)(1 * GIB / CHUNK_SIZE))
#define STEP_LEAST  4
#define LOW_PLACES  8 // more are made below this
#define FULL_NS     1000000000ll
#define UNUSED_NS   5000000000ll // places are kept so long for the next save
#define MARGIN_PART 16 // this part of a stripe is left to the log, and at most ...
#define MARGIN_MOST (512 * MIB)

// ---- Opening

/** Opens the directory of the user's below `dir`, which is made if it is missing. It outlives an exec, by which an
 *  engine becomes a keeper, as all of the pair's descriptors do. */
static int open_dir(const char *dir, char *why, size_t cap) {
    char sub[CONFIG_DIR_MAX], path[CONFIG_DIR_MAX];
    log_format(sub, sizeof sub, "%s/fastckpt-%u", dir, (unsigned)geteuid());
    int fd = runtime_open(sub, path, sizeof path, why, cap);
    if (fd >= 0) {
        os_fcntl(fd, F_SETFD, 0);
    }
    return fd;
}

/** A log that is locked before it has its name: a recovery takes what is not for left behind, and deletes it. */
static int make_log(int fd_dir, const char *name) {
    char path[32];
    int fd = os_openat(fd_dir, ".", O_TMPFILE | O_RDWR, 0600);
    int r = fd < 0 ? fd : stripelog_lock(fd);
    if (r == 0) {
        log_format(path, sizeof path, "/proc/self/fd/%d", fd);
        r = os_linkat(AT_FDCWD, path, fd_dir, name, AT_SYMLINK_FOLLOW);
    }
    if (r < 0) { // not on this file system
        os_close(fd);
        fd = os_openat(fd_dir, name, O_CREAT | O_EXCL | O_RDWR, 0600);
        r = fd < 0 ? fd : stripelog_lock(fd);
    }
    if (r < 0) {
        os_close(fd);
    }
    return r < 0 ? r : fd;
}

/** Makes the two files of this engine in it, the log locked. */
static int open_files(struct state *st, unsigned i, int fd_dir) {
    char name[64], log[64];
    log_format(log, sizeof log, "%s.%u.log", st->stripe_id, i);
    int fd_log = make_log(fd_dir, log);
    int r = fd_log < 0 ? fd_log : 0;
    log_format(name, sizeof name, "%s.%u.data", st->stripe_id, i);
    int direct = st->config.direct == DIRECT_OFF ? 0 : O_DIRECT;
    int fd = r < 0 ? r : os_openat(fd_dir, name, O_CREAT | O_EXCL | O_RDWR | direct, 0600);
    if (fd == -EINVAL && direct) {
        os_unlinkat(fd_dir, name, 0); // made all the same
        fd = os_openat(fd_dir, name, O_CREAT | O_EXCL | O_RDWR, 0600);
    }
    if (fd < 0 && fd_log >= 0) {
        os_unlinkat(fd_dir, log, 0);
        os_close(fd_log);
    }
    if (fd < 0) {
        return fd;
    }
    if (direct && !io_known_fs(fd)) {
        os_fcntl(fd, F_SETFL, 0);
    }
    st->fd_stripe_dir[i] = fd_dir;
    st->fd_stripe_log[i] = fd_log;
    st->fd_stripe[i] = fd;
    return fd;
}

static bool known_device(const struct stripes *s, uint64_t dev) {
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        if (s->stripe[i].fd > 0 && s->stripe[i].dev == dev) {
            return true;
        }
    }
    return false;
}

static void left_out(struct state *st, const char *dir, const char *why) {
    char line[sizeof st->note];
    log_format(line, sizeof line, "the stripe %s is not used: %s", dir, why);
    log_error("%s", line);
    if (!st->note[0]) {
        memcpy(st->note, line, sizeof line);
    }
}

static void open_one(struct stripes *s, unsigned i, const char *dir) {
    struct state *st = s->p->st;
    char why[256] = "";
    struct stat at;
    int fd_dir = open_dir(dir, why, sizeof why);
    if (fd_dir < 0) {
        left_out(st, dir, why);
        return;
    }
    int r = os_fstat(fd_dir, &at);
    if (r == 0 && known_device(s, at.st_dev)) {
        left_out(st, dir, "it is on the same file system as another one");
        os_close(fd_dir);
        return;
    }
    r = r < 0 ? r : open_files(st, i, fd_dir);
    if (r < 0) {
        left_out(st, dir, log_errno(-r));
        os_close(fd_dir);
        return;
    }
    s->stripe[i].fd = r;
    s->stripe[i].dev = at.st_dev;
}

static void open_all(struct stripes *s) {
    char dir[CONFIG_DIR_MAX];
    const char *list = s->p->st->config.stripes;
    log_format(s->p->st->stripe_id, sizeof s->p->st->stripe_id, "%lx-%lx", (unsigned long)s->p->st->key,
               (unsigned long)os_now_ns(CLOCK_REALTIME));
    const char *name;
    size_t len;
    for (unsigned i = 0; i < STRIPES_MAX && config_next_dir(&list, &name, &len); i++) {
        assert(len < sizeof dir);
        memcpy(dir, name, len);
        dir[len] = '\0';
        open_one(s, i, dir);
    }
}

// ---- Places

static bool add_free(struct stripe *x, uint32_t place) {
    if (x->n_free == x->cap) {
        uint32_t cap = x->cap ? x->cap * 2 : 1024;
        uint32_t *more = realloc(x->free, cap * sizeof *more);
        if (!more) {
            return false; // that place is not used again
        }
        x->free = more;
        x->cap = cap;
    }
    x->free[x->n_free++] = place;
    return true;
}

/** Finds a device again: the places that no item has are free. */
static void find_again(struct stripes *s, unsigned i) {
    struct stripe *x = &s->stripe[i];
    const struct state *st = s->p->st;
    struct stat at;
    if (st->fd_stripe[i] <= 0 || os_fstat(st->fd_stripe[i], &at) < 0) {
        return;
    }
    x->fd = st->fd_stripe[i];
    x->dev = at.st_dev;
    x->places = (uint32_t)((uint64_t)at.st_size / CHUNK_SIZE);
    unsigned char *used = calloc(x->places + 1, 1);
    for (unsigned k = 0; used && k < st->items_high; k++) {
        const struct stripe_item *it = &st->items[k];
        if (it->state != ITEM_FREE && it->device == (int)i && it->place < x->places) {
            used[it->place] = 1;
        }
    }
    for (uint32_t k = 0; used && k < x->places; k++) {
        if (!used[k]) {
            add_free(x, k);
        }
    }
    free(used);
}

/** The log beside the places needs room, too, and a recovery that cannot write it recovers nothing. */
static bool leaves_room(int fd, uint64_t len) {
    struct statfs s;
    if (OS_CALL(SYS_fstatfs, fd, &s, 0, 0, 0, 0) < 0) {
        return true;
    }
    uint64_t unit = (uint64_t)s.f_bsize, margin = min_u64((uint64_t)s.f_blocks * unit / MARGIN_PART, MARGIN_MOST);
    return (uint64_t)s.f_bavail * unit >= len + margin;
}

/** For a worker: the loop forgets a failed one's `fd` meanwhile. */
static int fd_for_job(const struct stripe *x) {
    return x->all->p->st->fd_stripe[x - x->all->stripe];
}

static void grow_run(struct io_job *job) {
    const struct stripe *x = job->arg;
    int fd = fd_for_job(x);
    uint64_t len = (uint64_t)x->step * CHUNK_SIZE;
    if (!leaves_room(fd, len)) {
        job->result = -ENOSPC;
        return;
    }
    job->result = io_calls.fallocate(fd, 0, (off_t)(x->places * CHUNK_SIZE), (off_t)len);
    if (job->result == -EOPNOTSUPP || job->result == -ENOSYS) { // then its lack of room shows at the write
        job->result = io_calls.ftruncate(fd, (off_t)((x->places + (uint64_t)x->step) * CHUNK_SIZE));
    }
}

static void grow_done(struct io_job *job) {
    struct stripe *x = job->arg;
    x->growing = false;
    if (job->result >= 0) {
        for (uint32_t k = 0; k < x->step; k++) {
            add_free(x, x->places + x->step - 1 - k); // from the start of the file on
        }
        x->places += x->step;
        x->step = x->step * 2 > STEP_MOST ? STEP_MOST : x->step * 2;
    } else if (x->step > STEP_LEAST) {
        x->step = STEP_LEAST;
    } else {
        x->full_ns = os_now_ns(CLOCK_MONOTONIC);
    }
    x->all->on_change(x->all->arg);
}

static bool may_grow(struct stripe *x) {
    if (x->full_ns && os_now_ns(CLOCK_MONOTONIC) - x->full_ns > FULL_NS) {
        x->full_ns = 0; // others may have made room
    }
    return !x->full_ns && x->places + x->step <= ITEMS_MAX;
}

static void grow(struct stripes *s, struct stripe *x) {
    if (x->growing || x->n_free >= LOW_PLACES || !may_grow(x)) {
        return;
    }
    x->growing = true;
    x->job = (struct io_job){.run = grow_run, .done = grow_done, .arg = x, .device = x->dev};
    io_job(s->io, &x->job);
}

int stripes_take(struct stripes *s, uint64_t turn, uint32_t *place) {
    int best = -1;
    bool later = false;
    for (unsigned k = 0; k < s->end; k++) {
        unsigned i = (unsigned)((turn + k) % s->end);
        struct stripe *x = &s->stripe[i];
        if (x->fd <= 0) {
            continue;
        }
        grow(s, x);
        bool busy = x->in_flight >= IO_DEPTH;
        later |= x->growing || (busy && x->n_free > 0);
        if (!busy && x->n_free > 0 && (best < 0 || x->in_flight < s->stripe[best].in_flight)) {
            best = (int)i;
        }
    }
    if (best < 0) {
        return later ? -EAGAIN : -ENOSPC;
    }
    struct stripe *x = &s->stripe[best];
    *place = x->free[--x->n_free];
    x->in_flight++;
    x->used_ns = os_now_ns(CLOCK_MONOTONIC);
    return best;
}

// ---- Giving back

static void shrink_run(struct io_job *job) {
    const struct stripe *x = job->arg;
    job->result = io_calls.ftruncate(fd_for_job(x), (off_t)(x->keep * CHUNK_SIZE));
}

static void shrink_done(struct io_job *job) {
    struct stripe *x = job->arg;
    x->growing = false;
    x->places = x->keep; // if it could not be cut, the rest is made again when it is needed
    x->step = STEP_FIRST;
    x->full_ns = 0;
    x->all->on_change(x->all->arg);
}

/** Takes the free places at the end of the file out of the list. How many places are left. */
static uint32_t cut_free(struct stripe *x) {
    unsigned char *is_free = calloc(x->places + 1, 1);
    uint32_t keep = x->places, n = 0;
    for (uint32_t k = 0; is_free && k < x->n_free; k++) {
        is_free[x->free[k]] = 1;
    }
    while (is_free && keep > 0 && is_free[keep - 1]) {
        keep--;
    }
    for (uint32_t k = 0; k < x->n_free; k++) {
        if (x->free[k] < keep) {
            x->free[n++] = x->free[k];
        }
    }
    x->n_free = n;
    free(is_free);
    return keep;
}

int64_t stripes_tidy(struct stripes *s) {
    int64_t now = os_now_ns(CLOCK_MONOTONIC), due = 0;
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        struct stripe *x = &s->stripe[i];
        if (x->fd <= 0 || x->growing || x->n_free == 0) {
            continue;
        }
        x->used_ns = x->used_ns && now - x->used_ns < UNUSED_NS ? x->used_ns : x->used_ns ? 0 : now;
        if (x->used_ns) {
            due = due && due < x->used_ns + UNUSED_NS ? due : x->used_ns + UNUSED_NS;
            continue;
        }
        x->keep = cut_free(x);
        x->used_ns = now; // and once more then
        if (x->keep < x->places) {
            x->growing = true;
            x->job = (struct io_job){.run = shrink_run, .done = shrink_done, .arg = x, .device = x->dev};
            io_job(s->io, &x->job);
        }
    }
    return due;
}

void stripes_done(struct stripes *s, int device, int error) {
    struct stripe *x = &s->stripe[device];
    x->in_flight--;
    if (error == -ENOSPC || error == -EDQUOT) {
        x->full_ns = os_now_ns(CLOCK_MONOTONIC);
    } else if (error < 0 && x->fd > 0) {
        char dir[32];
        log_format(dir, sizeof dir, "number %d", device + 1);
        left_out(s->p->st, dir, log_errno(-error));
        x->fd = 0; // the state keeps the descriptor: what is on it is still read
    }
}

void stripes_give(struct stripes *s, int device, uint32_t place) {
    add_free(&s->stripe[device], place);
}

static void remove_all(const struct state *st, const char *kind) {
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        if (st->fd_stripe_dir[i] > 0) {
            char name[64];
            log_format(name, sizeof name, "%s.%u.%s", st->stripe_id, i, kind);
            os_unlinkat(st->fd_stripe_dir[i], name, 0);
        }
    }
}

void stripes_leave(struct state *st) {
    bool all = true;
    remove_all(st, "data");
    // A log that can be written no more may speak of what has ended since. Then the others stay: they know.
    for (unsigned k = 0; k < 2 && all; k++) { // so it is the first to be emptied, and for good: power may be cut now
        for (unsigned i = 0; i < STRIPES_MAX && all; i++) {
            bool out = st->log_out & 1u << i;
            all = st->fd_stripe_log[i] <= 0 || out != (k == 0) || stripelog_empty(st->fd_stripe_log[i]) == 0;
        }
    }
    if (all) {
        remove_all(st, "log");
    }
}

// ---- Start

void stripes_start(struct stripes *s, struct pair *p, struct io *io) {
    s->p = p;
    s->io = io;
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        s->stripe[i].all = s;
        s->stripe[i].step = STEP_FIRST;
        if (p->st->generation > 1) {
            find_again(s, i);
        }
    }
    if (p->st->generation == 1) {
        open_all(s);
    }
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        s->end = s->stripe[i].fd > 0 ? i + 1 : s->end;
    }
}
