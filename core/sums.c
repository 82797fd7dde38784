// SPDX-License-Identifier: MIT
//
// sums: see sums.h. The two files and what a record says; which chunks a published file had is sums_named.c's.

#include "sums.h"

#include "gaps.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

#define READ_MOST  (16 * MIB) // of what no chunk says, for one record
#define READ_PIECE MIB        // with a checksum each
#define NAME       "sums"
#define NAME_OLD   "sums.old"

// ---- Appending

static int open_sums(int dir) {
    return os_openat(dir, NAME, O_CREAT | O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
}

/** Who has the lock, and still finds the file under its name, may give it the other name. Returns the descriptor of
 *  what to append to. */
static int rotate(int dir, int fd) {
    struct stat mine, named;
    if (stripelog_lock(fd) < 0 || os_fstat(fd, &mine) < 0 || os_fstatat(dir, NAME, &named, AT_SYMLINK_NOFOLLOW) < 0) {
        return fd; // another pair is about it: then it becomes a little longer
    }
    if (named.st_ino == mine.st_ino) {
        os_renameat2(dir, NAME, dir, NAME_OLD, 0);
    }
    os_close(fd);
    return open_sums(dir);
}

static void append_to(int dir, const struct log_buf *b) {
    static const char zeros[8];
    struct stat s;
    int fd = open_sums(dir);
    if (fd >= 0 && os_fstat(fd, &s) == 0 && s.st_size > 0 && (uint64_t)s.st_size + b->len > SUMS_MOST) {
        fd = rotate(dir, fd);
    }
    if (fd < 0) {
        return;
    }
    if (os_fstat(fd, &s) == 0 && s.st_size % 8) { // a disk was full
        os_write(fd, zeros, 8 - (size_t)(s.st_size % 8));
    }
    os_write(fd, b->mem, b->len); // at once, or it is torn, which is seen
    os_close(fd);
}

static void append(const int32_t *dirs, struct log_buf *b) {
    if (stripelog_finish(b, 1, 1) == 0) {
        for (unsigned i = 0; i < STRIPES_MAX; i++) {
            if (dirs[i] > 0) {
                append_to(dirs[i], b);
            }
        }
    }
    stripelog_free(b);
}

void sums_sync(const int32_t *dirs) {
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        int fd = dirs[i] > 0 ? open_sums(dirs[i]) : -1;
        if (fd >= 0) {
            os_fsync(fd);
            os_close(fd);
        }
    }
}

// ---- A record

static bool overlap(const struct log_part *a, const struct log_part *b) {
    for (uint32_t i = 0; i < a->n; i++) {
        for (uint32_t k = 0; k < b->n; k++) {
            const struct extent *x = &a->extent[i], *y = &b->extent[k];
            if (x->off < y->off + y->len && y->off < x->off + x->len) {
                return true;
            }
        }
    }
    return false;
}

static int by_index(const void *a, const void *b) {
    const struct log_part *x = *(const struct log_part *const *)a, *y = *(const struct log_part *const *)b;
    return x->index != y->index ? (x->index < y->index ? -1 : 1) : x < y ? -1 : x > y;
}

/** Has a later chunk changed bytes of parts[i]? Then its checksum is of what is no more. Of one index they lie
 *  together, in the order of hand-over. */
static bool is_over(const struct log_part *const *parts, uint32_t n, uint32_t i) {
    for (uint32_t k = i + 1; k < n && parts[k]->index == parts[i]->index; k++) {
        if (overlap(parts[i], parts[k])) {
            return true;
        }
    }
    return false;
}

static uint32_t add_range(struct log_buf *b, uint64_t off, uint64_t len, uint32_t crc, bool more) {
    struct sum_range r = {off, len, crc, more};
    stripelog_add(b, &r, sizeof r);
    return 1;
}

/** Reads what lies in the gap, adding ranges, at most `*left` bytes. How many ranges. */
static uint32_t add_read(struct log_buf *b, int fd, struct gap gap, uint64_t *left, char *buf) {
    uint32_t n = 0;
    while (buf && gap.from < gap.to && *left > 0) {
        size_t len = (size_t)min_u64(min_u64(gap.to - gap.from, READ_PIECE), *left), got;
        os_pread_all(fd, buf, len, (off_t)gap.from, &got);
        if (got < len) {
            *left = 0;
            return n;
        }
        n += add_range(b, gap.from, len, libdeflate_crc32(0, buf, len), false);
        gap.from += len;
        *left -= len;
    }
    return n;
}

/** What no part says. How many ranges. */
static uint32_t add_rest(struct log_buf *b, int fd, struct gaps *g, uint64_t size) {
    uint64_t left = READ_MOST;
    uint32_t ranges = 0;
    struct gap gap;
    char *buf = malloc(READ_PIECE);
    while (gaps_next(g, size, &gap)) {
        ranges += add_read(b, fd, gap, &left, buf);
    }
    free(buf);
    return ranges;
}

/** What the parts say, which `g` hears, too. How many ranges. */
static uint32_t add_parts(struct log_buf *b, const struct log_part *const *parts, uint32_t n, uint64_t size,
                          struct gaps *g) {
    uint32_t ranges = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct log_part *p = parts[i];
        uint64_t start = p->index * CHUNK_SIZE;
        if (p->n == 0 || start + p->extent[p->n - 1].off + p->extent[p->n - 1].len > size || is_over(parts, n, i)) {
            continue; // cut off, or written over
        }
        for (uint32_t k = 0; k < p->n; k++) {
            uint64_t from = start + p->extent[k].off;
            gaps_add(g, from, from + p->extent[k].len);
            ranges += add_range(b, from, p->extent[k].len, p->crc, k + 1 < p->n);
        }
    }
    return ranges;
}

void sums_write(const int32_t *dirs, int fd, const struct log_part *parts, uint32_t n, uint32_t flags) {
    struct stat s, after;
    struct gaps g;
    const struct log_part **sorted = calloc(n + 1, sizeof *sorted);
    if (gaps_start(&g, (uint64_t)n * EXTENTS_MAX) == 0 && sorted && os_fstat(fd, &s) == 0) {
        struct log_buf b;
        struct sum_file rec = {.is = stripelog_identity_of(&s), .flags = flags};
        for (uint32_t i = 0; i < n; i++) {
            sorted[i] = &parts[i];
        }
        qsort(sorted, n, sizeof *sorted, by_index);
        stripelog_begin(&b, SUM_FILE);
        size_t at = b.len;
        stripelog_add(&b, &rec, sizeof rec);
        rec.n = add_parts(&b, sorted, n, rec.is.size, &g);
        rec.n += add_rest(&b, fd, &g, rec.is.size);
        if (os_fstat(fd, &after) < 0 || !same_time(&s.st_ctim, &after.st_ctim)) {
            rec.flags |= SUM_LOOSE; // somebody writes to it meanwhile
        }
        if (!b.failed) {
            memcpy(b.mem + at, &rec, sizeof rec);
        }
        append(dirs, &b);
    }
    gaps_free(&g);
    free(sorted);
}

void sums_write_moved(const int32_t *dirs, const struct log_identity *from, const struct timespec *ctime) {
    struct log_buf b;
    struct sum_moved m = {*from, *ctime};
    stripelog_begin(&b, SUM_MOVED);
    stripelog_add(&b, &m, sizeof m);
    append(dirs, &b);
}

// ---- Reading them

static bool is_sound(const struct sum_file *f, const struct sum_range *r, size_t room) {
    for (uint32_t i = 0; i < f->n; i++) {
        if (i >= room / sizeof *r || r[i].off > f->is.size || r[i].len > f->is.size - r[i].off) {
            return false;
        }
    }
    return f->n == 0 || !r[f->n - 1].more;
}

static void note(struct sums *s, const struct log_head *h) {
    const void *body = h + 1;
    size_t len = h->len - sizeof *h;
    const struct sum_file *f = body;
    const struct sum_range *r = (const void *)(f + 1);
    if (h->type == SUM_MOVED && len >= sizeof(struct sum_moved)) {
        const struct sum_moved *m = body;
        for (size_t i = s->n; i-- > 0;) {
            struct log_identity *is = &s->known[i].is;
            if (is->ino == m->from.ino && is->dev == m->from.dev && same_time(&is->ctime, &m->from.ctime)) {
                is->ctime = m->ctime;
                return;
            }
        }
    }
    if (h->type != SUM_FILE || len < sizeof *f || !is_sound(f, r, len - sizeof *f)) {
        return;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 1024;
        struct sums_known *more = realloc(s->known, cap * sizeof *more);
        if (!more) {
            return;
        }
        s->known = more;
        s->cap = cap;
    }
    s->known[s->n++] = (struct sums_known){f->is, r, f->n, f->flags};
}

static int read_one(struct sums *s, int dir, const char *name) {
    int fd = os_openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
    struct stat st;
    if (fd < 0 || os_fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        os_close(fd);
        return -ENOENT;
    }
    size_t len = 0, cap = (size_t)st.st_size;
    char *mem = malloc(cap + 1);
    if (mem) {
        os_pread_all(fd, mem, cap, 0, &len); // what can be read counts
    }
    os_close(fd);
    s->mem[s->n_mem++] = mem;
    for (size_t at = 0; mem && at < len;) {
        uint64_t engine = 0;
        const struct log_head *h = stripelog_next(mem, len, &at, &engine, 1);
        if (h) {
            note(s, h);
        } else {
            at += 8; // a torn one: those behind it are as good as before
        }
    }
    return 0;
}

int sums_read(struct sums *s, const char *dirs) {
    int result = -ENOENT;
    *s = (struct sums){0};
    const char *name;
    size_t len;
    for (unsigned i = 0; i < STRIPES_MAX && config_next_dir(&dirs, &name, &len); i++) {
        int dir = stripelog_open_dir(name, len);
        if (dir >= 0) {
            result = read_one(s, dir, NAME_OLD) == 0 ? 0 : result;
            result = read_one(s, dir, NAME) == 0 ? 0 : result;
            os_close(dir);
        }
    }
    return result;
}

enum { SAME_DEVICE = 2, SAME_SIZE = 4, SAME_TIME = 8 };

/** How surely it is this inode; 0: it is not. A device's number changes with a reboot. */
static int rank(const struct log_identity *is, const struct log_identity *now) {
    if (is->ino != now->ino) {
        return 0;
    }
    bool size = is->size == now->size;
    return 1 + (is->dev == now->dev ? SAME_DEVICE : 0) + (size ? SAME_SIZE : 0) +
           (size && same_time(&is->ctime, &now->ctime) ? SAME_TIME : 0);
}

const struct sums_known *sums_find(const struct sums *s, const struct stat *st, bool *exact) {
    const struct sums_known *best = NULL;
    const struct log_identity now = stripelog_identity_of(st);
    int most = 1;
    for (size_t i = 0; i < s->n; i++) {
        int r = rank(&s->known[i].is, &now);
        if (r >= most) {
            best = &s->known[i];
            most = r;
        }
    }
    *exact = most & SAME_TIME;
    return best;
}

void sums_free(struct sums *s) {
    for (unsigned i = 0; i < s->n_mem; i++) {
        free(s->mem[i]);
    }
    free(s->known);
    *s = (struct sums){0};
}
