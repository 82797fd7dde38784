// SPDX-License-Identifier: MIT
//
// safe: see safe.h. The logs of all stripes are the same, and written by one thread at a time.

#include "safe.h"

#include "breakpoint.h"
#include "log.h"
#include "os.h"
#include "stripelog.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#define NATIVE_MOST (16 * MIB) // bytes of the program's own writes that a record takes
#define XATTRS_MOST 65536
#define LOG_MOST    (256 * MIB) // nothing is added beyond this but ends: then a log is begun again
#define AGE_NS      100000000ll // a file that is published sooner after its close needs no record

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static struct file_slot *slot_file(const struct safe *s, unsigned slot) {
    return &s->p->st->files[slot];
}

// ---- The logs

/** Appends the record to every log and completes it first. With the lock held. */
static int append(struct state *st, struct log_buf *b) {
    int r = st->log_bad ? -EIO : stripelog_finish(b, st->key, st->log_number + 1);
    for (unsigned i = 0; i < STRIPES_MAX && r == 0; i++) {
        if (st->fd_stripe_log[i] > 0) {
            r = io_calls.pwrite_all(st->fd_stripe_log[i], b->mem, b->len, (off_t)st->log_end);
        }
    }
    if (r == 0) {
        st->log_end += b->len;
        st->log_number++;
    }
    stripelog_free(b);
    return r;
}

static int sync_logs(struct state *st) {
    int r = 0;
    for (unsigned i = 0; i < STRIPES_MAX && r == 0; i++) {
        r = st->fd_stripe_log[i] > 0 ? io_calls.fsync(st->fd_stripe_log[i]) : 0;
    }
    return r;
}

static int give_up(struct state *st, int error) {
    if (error < 0 && !st->log_bad) {
        st->log_bad = 1;
        log_error("the log on the stripes cannot be written: %s; what is on them is lost with keeper and engine",
                  log_errno(-error));
    }
    return error;
}

/** Begins the logs anew: what was in them is needed no more. */
static int begin_logs(struct state *st) {
    struct log_buf b;
    struct log_start start = {.epoch = ++st->log_epoch};
    int r = 0;
    for (unsigned i = 0; i < STRIPES_MAX && r == 0; i++) {
        start.stripes |= st->fd_stripe_log[i] > 0 ? 1u << i : 0;
        r = st->fd_stripe_log[i] > 0 ? io_calls.ftruncate(st->fd_stripe_log[i], 0) : 0;
    }
    st->log_end = st->log_number = 0;
    stripelog_begin(&b, LOG_START);
    stripelog_add(&b, &start, sizeof start);
    return r < 0 ? r : append(st, &b);
}

// ---- Making a record

static void identity(const struct file_slot *f, struct log_identity *id) {
    struct stat s;
    if (os_fstatat(f->fd_dir, f->name, &s, AT_SYMLINK_NOFOLLOW) == 0) {
        *id = (struct log_identity){s.st_dev, s.st_ino, (uint64_t)s.st_size, s.st_ctim.tv_sec, s.st_ctim.tv_nsec};
    }
}

static int add_range(struct log_buf *b, int fd, uint64_t off, uint64_t len) {
    struct log_native n = {off, len};
    stripelog_add(b, &n, sizeof n);
    char *to = stripelog_add(b, NULL, len);
    while (to && len > 0) {
        ssize_t got = os_pread(fd, to, len, (off_t)off);
        if (got <= 0) {
            return got < 0 ? (int)got : 0; // beyond its end: zeros
        }
        to += got;
        off += (uint64_t)got;
        len -= (uint64_t)got;
    }
    return to ? 0 : -ENOMEM;
}

struct range {
    uint64_t from, to;
};

static int by_start(const void *a, const void *b) {
    uint64_t x = ((const struct range *)a)->from, y = ((const struct range *)b)->from;
    return x < y ? -1 : x > y;
}

/** What of the file no chunk says is the program's own: it is read from the inode. How many ranges, or an error. */
static int add_native(struct safe *s, struct log_buf *b, int fd, uint64_t size) {
    struct range *r = calloc((size_t)s->n_parts * EXTENTS_MAX + 1, sizeof *r);
    unsigned n = 0;
    int ranges = 0, err = r ? 0 : -ENOMEM;
    for (unsigned i = 0; r && i < s->n_parts; i++) {
        for (uint32_t k = 0; k < s->parts[i].n; k++) {
            uint64_t from = s->parts[i].index * CHUNK_SIZE + s->parts[i].extent[k].off;
            r[n++] = (struct range){from, from + s->parts[i].extent[k].len};
        }
    }
    if (n > 0) {
        qsort(r, n, sizeof *r, by_start);
    }
    uint64_t at = 0, total = 0;
    for (unsigned i = 0; i <= n && err == 0; i++) {
        uint64_t to = i < n ? min_u64(r[i].from, size) : size;
        if (at < to) {
            total += to - at;
            err = total > NATIVE_MOST ? -EFBIG : add_range(b, fd, at, to - at);
            ranges++;
        }
        at = i < n ? max_u64(at, r[i].to) : size;
    }
    free(r);
    return err < 0 ? err : ranges;
}

static int add_xattrs(struct log_buf *b, int fd) {
    char *names = malloc(XATTRS_MOST), *value = malloc(XATTRS_MOST);
    ssize_t n = names && value ? flistxattr(fd, names, XATTRS_MOST) : -1;
    int total = 0;
    for (ssize_t at = 0; at < n; at += (ssize_t)strlen(names + at) + 1) {
        ssize_t len = fgetxattr(fd, names + at, value, XATTRS_MOST);
        if (len < 0 || strncmp(names + at, "security.", 9) == 0) {
            continue; // the system's own
        }
        uint64_t head[2] = {strlen(names + at) + 1, (uint64_t)len};
        stripelog_add(b, head, sizeof head);
        stripelog_add(b, names + at, head[0]);
        stripelog_add(b, value, head[1]);
        total++;
    }
    free(names);
    free(value);
    return total;
}

static int make(struct safe *s, struct file_slot *f, int fd, struct log_buf *b) {
    struct stat st;
    int r = os_fstat(fd, &st);
    if (r < 0) {
        return r;
    }
    stripelog_begin(b, LOG_SAFE);
    struct log_safe *rec = calloc(1, sizeof *rec);
    if (!rec) {
        return -ENOMEM;
    }
    size_t at = b->len;
    *rec = (struct log_safe){.id = f->id, .size = max_u64((uint64_t)st.st_size, f->size_end), .dir_ino = f->dir_ino,
                             .shadow_ino = f->ino, .mode = st.st_mode & 07777, .uid = st.st_uid, .gid = st.st_gid,
                             .times = f->size_end > 0 || f->close_flags & CLOSE_TIMES, .atime = f->atime,
                             .mtime = f->mtime, .n_parts = s->n_parts};
    memcpy(rec->name, f->name, sizeof rec->name);
    char link[32];
    log_format(link, sizeof link, "/proc/self/fd/%d", f->fd_dir);
    ssize_t n = os_readlinkat(AT_FDCWD, link, rec->dir, sizeof rec->dir - 1);
    identity(f, &rec->replaced);
    stripelog_add(b, rec, sizeof *rec);
    stripelog_add(b, s->parts, s->n_parts * sizeof *s->parts);
    int ranges = n <= 0 ? -ENOENT : add_native(s, b, fd, rec->size);
    int xattrs = ranges < 0 ? 0 : add_xattrs(b, fd);
    if (ranges >= 0 && !b->failed) {
        struct log_safe *in = (struct log_safe *)(void *)(b->mem + at);
        in->n_native = (uint32_t)ranges;
        in->xattrs_len = (uint32_t)xattrs;
    }
    free(rec);
    return ranges < 0 ? ranges : 0;
}

static void make_run(struct io_job *job) {
    struct safe *s = job->arg;
    struct state *st = s->p->st;
    struct file_slot *f = slot_file(s, s->slot);
    struct log_buf b = {0};
    char path[32];
    log_format(path, sizeof path, "/proc/self/fd/%d", f->fd_own);
    int fd = os_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    job->result = fd < 0 ? fd : make(s, f, fd, &b);
    if (fd >= 0) {
        os_close(fd);
    }
    uint32_t used = 0;
    for (unsigned i = 0; i < s->n_parts; i++) {
        used |= 1u << s->parts[i].device;
    }
    for (unsigned i = 0; i < STRIPES_MAX && job->result == 0; i++) {
        job->result = used & 1u << i ? io_calls.fsync(st->fd_stripe[i]) : 0;
    }
    if (job->result < 0) {
        stripelog_free(&b);
        return;
    }
    pthread_mutex_lock(&log_lock);
    int r = append(st, &b);
    BREAK_POINT("safe-appended");
    r = r < 0 ? r : sync_logs(st);
    BREAK_POINT("safe-synced");
    pthread_mutex_unlock(&log_lock);
    job->result = give_up(st, r);
}

static void make_done(struct io_job *job) {
    struct safe *s = job->arg;
    struct file_slot *f = slot_file(s, s->slot);
    s->busy = false;
    free(s->parts);
    s->parts = NULL;
    if (job->result < 0) {
        log_debug("%s: not safe on the stripes: %s", f->name, log_errno(-job->result));
        drain_unsafe(s->drain, s->slot);
    }
    f->safe = SAFE_YES; // or perhaps: it has to be ended in any case
    BREAK_POINT("safe-marked");
    s->on_change(s->arg);
}

// ---- Which one is next

static int by_number(const void *a, const void *b, void *items) {
    const struct stripe_item *it = items;
    uint64_t x = it[*(const uint32_t *)a].number, y = it[*(const uint32_t *)b].number;
    return x < y ? -1 : x > y;
}

/** The file's chunks on the stripes, in the order of hand-over. False: not all are there yet. */
static bool collect(struct safe *s, unsigned slot) {
    const struct drain *d = s->drain;
    const struct stripe_item *items = s->p->st->items;
    uint32_t *found = calloc(d->high + 1, sizeof *found), n = 0;
    bool all = found;
    for (uint32_t i = 0; all && i < d->high; i++) {
        enum item_state state = items[i].state;
        if (state == ITEM_FREE || state == ITEM_LITTER || items[i].file != slot || d->run[i].dead) {
            continue;
        }
        all = state != ITEM_HELD && items[i].device >= 0;
        found[n++] = i;
    }
    s->parts = all ? calloc(n + 1, sizeof *s->parts) : NULL;
    if (n > 0) {
        qsort_r(found, n, sizeof *found, by_number, s->p->st->items);
    }
    for (uint32_t k = 0; s->parts && k < n; k++) {
        const struct stripe_item *it = &items[found[k]];
        struct log_part *p = &s->parts[k];
        *p = (struct log_part){(uint32_t)it->device, it->place, it->crc, it->what.n, it->what.index, {{0}}};
        memcpy(p->extent, it->what.extent, sizeof p->extent);
    }
    s->n_parts = n;
    free(found);
    return s->parts;
}

/** Closed, captured, and nothing of it beyond what its chunks and its inode say. */
static bool can_be_safe(const struct safe *s, unsigned slot) {
    const struct file_slot *f = slot_file(s, slot);
    const struct commit_run *r = &s->c->run[slot]; // that it is being synced is no matter: the target may be slow
    return f->state == FILE_CLOSED && f->kind == SLOT_FILE && !(f->flags & OPEN_FOLLOWED) && !f->linked && !f->taken &&
           !f->unsafe && !f->error && !f->dropped && !f->unnamed && f->safe == SAFE_NO && !r->publishing;
}

static bool is_young(struct safe *s, const struct file_slot *f) {
    int64_t age = os_now_ns(CLOCK_REALTIME) - (f->closed.tv_sec * 1000000000 + f->closed.tv_nsec);
    if (age < 0 || age >= AGE_NS) { // a clock that was set back proves nothing
        return false;
    }
    s->wake_ns = os_now_ns(CLOCK_MONOTONIC) + AGE_NS - age;
    return true;
}

void safe_pump(struct safe *s) {
    s->wake_ns = 0;
    if (!s->on || s->busy || s->p->st->log_bad || s->p->st->plain || s->p->st->log_end > LOG_MOST) {
        return;
    }
    for (unsigned i = 0; i < s->c->n_queue; i++) {
        unsigned slot = s->c->queue[i];
        struct file_slot *f = slot_file(s, slot);
        if (f->kind == SLOT_FILE && f->safe == SAFE_YES && !f->unsafe && !f->error && !f->dropped) {
            continue;
        }
        if (!can_be_safe(s, slot) || is_young(s, f) || !collect(s, slot)) {
            return;
        }
        s->slot = slot;
        s->busy = true;
        f->safe = SAFE_MAKING;
        BREAK_POINT("safe-making");
        s->job = (struct io_job){.run = make_run, .done = make_done, .arg = s, .device = f->dev, .number = f->id};
        io_job(s->io, &s->job);
        return;
    }
}

// ---- The end

/** In a worker: records the end of every slot that `wanted` says, and makes that durable. */
static void end_all(struct state *st, const uint32_t *slots, unsigned n, const int *result) {
    bool any = false;
    int r = 0;
    pthread_mutex_lock(&log_lock);
    for (unsigned i = 0; i < n; i++) {
        struct file_slot *f = &st->files[slots[i]];
        if (f->kind == SLOT_FILE && f->safe != SAFE_NO && (!result || result[i] == 0) && r == 0) {
            struct log_buf b;
            struct log_end end = {f->id};
            stripelog_begin(&b, LOG_END);
            stripelog_add(&b, &end, sizeof end);
            r = append(st, &b);
            any = true;
        }
    }
    BREAK_POINT("end-appended");
    r = r == 0 && any ? sync_logs(st) : r;
    BREAK_POINT("end-synced");
    bool needed = false;
    for (unsigned i = 0; i < n && any; i++) {
        struct file_slot *f = &st->files[slots[i]];
        if (f->kind == SLOT_FILE && f->safe != SAFE_NO && (!result || result[i] == 0)) {
            f->safe = SAFE_NO;
            f->unsafe = 1;
        }
    }
    for (unsigned i = 0; i < FILES_MAX && any; i++) {
        needed |= st->files[i].state != FILE_FREE && st->files[i].safe != SAFE_NO;
    }
    if (any && !needed && r == 0 && st->log_end > LOG_MOST) {
        r = begin_logs(st);
    }
    pthread_mutex_unlock(&log_lock);
    give_up(st, r);
}

static void on_named(struct state *st, const uint32_t *slots, unsigned n, const int *result) {
    end_all(st, slots, n, result);
}

struct ending {
    struct io_job job;
    struct safe *s;
    uint32_t slot;
};

static void end_run(struct io_job *job) {
    struct ending *x = job->arg;
    end_all(x->s->p->st, &x->slot, 1, NULL);
}

static void end_done(struct io_job *job) {
    struct ending *x = job->arg;
    x->s->ending[x->slot] = false;
    x->s->on_change(x->s->arg);
    free(x);
}

bool safe_ended(struct safe *s, unsigned slot) {
    struct file_slot *f = slot_file(s, slot);
    if (f->safe == SAFE_NO && !s->ending[slot]) {
        drain_release(s->drain, slot);
        return true;
    }
    struct ending *x = f->safe == SAFE_YES && !s->ending[slot] ? calloc(1, sizeof *x) : NULL;
    if (x) {
        s->ending[slot] = true;
        x->s = s;
        x->slot = slot;
        x->job = (struct io_job){.run = end_run, .done = end_done, .arg = x, .device = f->dev, .number = f->id};
        io_job(s->io, &x->job);
    }
    return false;
}

void safe_start(struct safe *s, struct pair *p, struct io *io, struct drain *d, struct commit *c) {
    s->p = p;
    s->io = io;
    s->drain = d;
    s->c = c;
    s->on = d->run;
    if (!s->on) {
        return;
    }
    c->on_named = on_named;
    if (p->st->generation == 1) {
        give_up(p->st, begin_logs(p->st));
    }
    for (unsigned i = 0; i < FILES_MAX; i++) {
        struct file_slot *f = &p->st->files[i];
        if (f->state != FILE_FREE && f->safe == SAFE_MAKING) { // perhaps there is a record: it has to be ended
            f->safe = SAFE_YES;
            f->unsafe = 1;
        }
    }
}
