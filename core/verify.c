// SPDX-License-Identifier: MIT
//
// verify: see verify.h. A batch of files at a time: opened, read by several threads, judged. That the bytes are right
// proves itself; that they are wrong says something only if nobody has changed the file since.

#include "verify.h"

#include "io.h"
#include "log.h"
#include "os.h"
#include "sums.h"
#include "tool_text.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <libdeflate.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define BATCH   256 // files open at once
#define READERS 8
#define PIECE   MIB // read at once

struct target {
    const char *path;
    int fd, error; // of its opening
    struct stat st;
    const struct sums_known *known;
    bool exact;
    _Atomic uint64_t bad;  // the first byte of what is wrong; UINT64_MAX: nothing is
    _Atomic int read_error;
};

/** What one reader takes: the ranges of one checksum. */
struct task {
    uint32_t target, range;
};

struct batch {
    struct target target[BATCH];
    unsigned n;
    struct task *task;
    size_t n_tasks;
    _Atomic size_t next;
};

// ---- Reading

/** Past the page cache, which may hold what the disk does not. */
static void bypass_cache(int fd) {
    if (!io_known_fs(fd) || os_fcntl(fd, F_SETFL, O_DIRECT) < 0) {
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    }
}

static ssize_t read_at(int fd, char *buf, size_t len, off_t off) {
    ssize_t n = os_pread(fd, buf, len, off);
    if (n == -EINVAL) { // larger blocks than we know of
        os_fcntl(fd, F_SETFL, 0);
        n = os_pread(fd, buf, len, off);
    }
    return n;
}

/** The checksum goes on over a range. 0 or an error. */
static int sum_range(int fd, const struct sum_range *r, char *buf, uint32_t *crc) {
    for (uint64_t at = r->off, end = r->off + r->len; at < end;) {
        uint64_t from = align_down(at, DIRECT_ALIGN), to = min_u64(align_up(end, DIRECT_ALIGN), from + PIECE);
        ssize_t n = read_at(fd, buf, to - from, (off_t)from);
        if (n <= 0 || from + (uint64_t)n <= at) {
            return n < 0 ? (int)n : -EIO;
        }
        uint64_t got = min_u64(from + (uint64_t)n, end);
        *crc = libdeflate_crc32(*crc, buf + (at - from), got - at);
        at = got;
    }
    return 0;
}

static void run_task(struct batch *b, const struct task *k, char *buf) {
    struct target *t = &b->target[k->target];
    const struct sum_range *r = &t->known->range[k->range];
    uint64_t first = r->off;
    uint32_t crc = 0;
    int error = 0;
    for (;; r++) {
        error = sum_range(t->fd, r, buf, &crc);
        if (error < 0 || !r->more) {
            break;
        }
    }
    if (error == 0 && crc == r->crc) {
        return;
    }
    if (error < 0) {
        atomic_store(&t->read_error, error);
    }
    uint64_t old = atomic_load(&t->bad);
    while (first < old && !atomic_compare_exchange_weak(&t->bad, &old, first)) {
    }
}

static void *reader(void *arg) {
    struct batch *b = arg;
    char *buf = aligned_alloc(DIRECT_ALIGN, PIECE);
    if (!buf) {
        abort();
    }
    for (size_t i; (i = atomic_fetch_add(&b->next, 1)) < b->n_tasks;) {
        run_task(b, &b->task[i], buf);
    }
    free(buf);
    return NULL;
}

static void read_all(struct batch *b) {
    pthread_t thread[READERS];
    unsigned n = 0;
    b->next = 0;
    while (n + 1 < READERS && n + 1 < b->n_tasks && pthread_create(&thread[n], NULL, reader, b) == 0) {
        n++;
    }
    reader(b);
    while (n > 0) {
        pthread_join(thread[--n], NULL);
    }
}

// ---- One file

static void open_target(struct target *t, const struct sums *s, const char *path) {
    *t = (struct target){.path = path, .bad = UINT64_MAX};
    t->fd = os_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
    t->error = t->fd < 0 ? t->fd : os_fstat(t->fd, &t->st);
    if (t->error == 0 && S_ISREG(t->st.st_mode)) {
        t->known = sums_find(s, &t->st, &t->exact);
        bypass_cache(t->fd);
    }
}

static bool is_readable(const struct target *t) {
    return t->known && t->known->is.size == (uint64_t)t->st.st_size;
}

static size_t add_tasks(struct batch *b, uint32_t target) {
    const struct target *t = &b->target[target];
    size_t n = 0;
    for (uint32_t i = 0; is_readable(t) && i < t->known->n; i++) {
        if (i == 0 || !t->known->range[i - 1].more) {
            if (b->task) {
                b->task[b->n_tasks + n] = (struct task){target, i};
            }
            n++;
        }
    }
    return n;
}

static void make_tasks(struct batch *b) {
    size_t n = 0;
    b->task = NULL;
    b->n_tasks = 0;
    for (unsigned i = 0; i < b->n; i++) {
        n += add_tasks(b, i);
    }
    b->task = calloc(n + 1, sizeof *b->task);
    if (!b->task) {
        abort();
    }
    for (unsigned i = 0; i < b->n; i++) {
        b->n_tasks += add_tasks(b, i);
    }
}

static uint64_t covered(const struct sums_known *k) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < k->n; i++) {
        n += k->range[i].len;
    }
    return n;
}

static enum verify_result say(const char *word, const struct target *t, const char *why, enum verify_result r) {
    printf("%s: %s%s%s\n", word, t->path, why[0] ? ": " : "", why);
    return r;
}

static enum verify_result judge_bad(const struct target *t) {
    char why[200];
    int error = atomic_load(&t->read_error);
    if (!t->exact) {
        return say("unknown", t, "it has changed since it was saved", VERIFY_UNSURE);
    }
    if (error) {
        snprintf(why, sizeof why, "it cannot be read: %s", log_errno(-error));
        return say("torn", t, why, VERIFY_TORN);
    }
    bool loose = t->known->flags & SUM_LOOSE;
    snprintf(why, sizeof why, "from byte %lu on it is not what was %s", (unsigned long)atomic_load(&t->bad),
             loose ? "handed over, but its program wrote to it in other ways, too" : "saved");
    return say(loose ? "unknown" : "torn", t, why, loose ? VERIFY_UNSURE : VERIFY_TORN);
}

static enum verify_result judge(const struct target *t) {
    char why[200], some[24], all[24];
    struct stat now;
    uint64_t size = (uint64_t)t->st.st_size;
    if (t->error < 0) {
        return say("unknown", t, log_errno(-t->error), VERIFY_UNSURE);
    }
    if (!S_ISREG(t->st.st_mode)) {
        return say("unknown", t, "it is no regular file", VERIFY_UNSURE);
    }
    if (!t->known) {
        return say("unknown", t, "the stripes know nothing of it", VERIFY_UNSURE);
    }
    if (!is_readable(t)) {
        return say("unknown", t, "it has changed since it was saved", VERIFY_UNSURE);
    }
    if (os_fstat(t->fd, &now) < 0 || !same_time(&now.st_ctim, &t->st.st_ctim)) {
        return say("unknown", t, "it has changed while it was read", VERIFY_UNSURE);
    }
    if (atomic_load(&t->bad) != UINT64_MAX) {
        return judge_bad(t);
    }
    uint64_t known = covered(t->known);
    if (known >= size) {
        return say("whole", t, "", VERIFY_WHOLE);
    }
    if (!t->exact) {
        return say("unknown", t, "it has changed since it was saved", VERIFY_UNSURE);
    }
    snprintf(why, sizeof why, "of %s %s have checksums, and are what was saved", text_size(size, all, sizeof all),
             text_size(known, some, sizeof some));
    return say(known ? "partly" : "unknown", t, known ? why : "nothing of it has a checksum", VERIFY_UNSURE);
}

static enum verify_result worse(enum verify_result a, enum verify_result b) {
    return a == VERIFY_TORN || b == VERIFY_TORN ? VERIFY_TORN : a > b ? a : b;
}

enum verify_result verify_files(const char *stripes, char *const *files, int n) {
    struct sums s;
    enum verify_result result = VERIFY_WHOLE;
    struct batch *b = calloc(1, sizeof *b);
    if (!b) {
        abort();
    }
    sums_read(&s, stripes); // where there is nothing, nothing is known
    for (int i = 0; i < n;) {
        for (b->n = 0; b->n < BATCH && i < n; b->n++, i++) {
            open_target(&b->target[b->n], &s, files[i]);
        }
        make_tasks(b);
        read_all(b);
        for (unsigned k = 0; k < b->n; k++) {
            result = worse(result, judge(&b->target[k]));
            os_close(b->target[k].fd);
        }
        free(b->task);
    }
    free(b);
    sums_free(&s);
    return result;
}
