// SPDX-License-Identifier: MIT
//
// recover: see recover.h. Logs are found, read and ended here; how one file gets its name is recover_file.c's.

#include "recover_inside.h"

#include "io.h"
#include "log.h"
#include "os.h"
#include "stripelog.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FDS_SPARE 16 // descriptors kept free for what is done with the logs

// ---- Reading the logs of one pair

static char *read_log(int fd, size_t *len) {
    struct stat s;
    if (os_fstat(fd, &s) < 0) {
        return NULL;
    }
    char *mem = malloc((size_t)s.st_size + 8);
    *len = 0;
    if (mem) {
        os_pread_all(fd, mem, (size_t)s.st_size, 0, len); // what can be read counts
    }
    return mem;
}

/** How far the log is valid. */
static void measure(struct log_copy *c) {
    const struct log_head *h;
    c->end = c->count = c->epoch = 0;
    while ((h = stripelog_next(c->mem, c->len, &c->end, &c->engine, c->count + 1))) {
        if (h->type == LOG_START && h->len >= sizeof *h + sizeof(struct log_start)) {
            const struct log_start *s = (const void *)(h + 1);
            c->epoch = s->epoch;
            c->stripes = s->stripes;
        }
        c->count++;
    }
}

static void choose_copy(struct group *g) {
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        struct log_copy c = {0};
        if (g->fd_log[i] <= 0 || !(c.mem = read_log(g->fd_log[i], &c.len))) {
            continue;
        }
        measure(&c);
        bool better = c.epoch > g->log.epoch || (c.epoch == g->log.epoch && c.count > g->log.count);
        free(better ? g->log.mem : c.mem);
        g->log = better ? c : g->log;
    }
}

static struct pending *find(struct group *g, uint64_t id) {
    for (unsigned i = g->n; i-- > 0;) { // what ends has mostly just begun
        if (g->pending[i].id == id) {
            return &g->pending[i];
        }
    }
    return NULL;
}

/** The next of the strings behind a change's record; NULL: it has none. */
static const char *take_string(const char **at, const char *end) {
    const char *s = *at;
    size_t len = s < end ? strnlen(s, (size_t)(end - s)) : 0;
    if (s >= end || s + len == end) {
        return NULL;
    }
    *at += align_up(len + 1, 8);
    return s;
}

static bool read_pending(const struct log_head *h, struct pending *p) {
    const char *body = (const char *)(h + 1), *end = (const char *)h + h->len;
    if (h->type == LOG_SAFE && h->len >= sizeof *h + sizeof(struct log_safe)) {
        const struct log_safe *s = (const void *)body;
        *p = (struct pending){.id = s->id, .safe = s, .end = end, .name = s->name, .dir = s->dir};
        p->dir_ino = s->dir_ino;
        return true;
    }
    if (h->type != LOG_CHANGE || h->len < sizeof *h + sizeof(struct log_change)) {
        return false;
    }
    const struct log_change *c = (const void *)body;
    const char *at = (const char *)(c + 1);
    *p = (struct pending){.id = c->id, .change = c, .end = end, .dir_ino = c->dir_ino, .to_ino = c->to_ino};
    p->name = take_string(&at, end);
    p->dir = take_string(&at, end);
    p->to = take_string(&at, end);
    p->to_dir = take_string(&at, end);
    return p->to_dir != NULL;
}

static void understand(struct group *g) {
    const struct log_head *h;
    size_t at = 0;
    uint64_t engine = 0, number = 1;
    g->pending = calloc(g->log.count + 1, sizeof *g->pending);
    while (g->pending && (h = stripelog_next(g->log.mem, g->log.end, &at, &engine, number++))) {
        const void *body = h + 1;
        size_t len = h->len - sizeof *h;
        struct pending *p, new;
        if (read_pending(h, &new)) {
            p = find(g, new.id);
            if (p) {
                p->ended = true; // this one says more
            }
            g->pending[g->n++] = new;
        } else if (h->type == LOG_REDO && len >= sizeof(struct log_redo)) {
            p = find(g, ((const struct log_redo *)body)->id);
            if (p && p->safe) {
                p->made = ((const struct log_redo *)body)->made;
            }
        } else if (h->type == LOG_END && len >= sizeof(struct log_end)) {
            p = find(g, ((const struct log_end *)body)->id);
            if (p) {
                p->ended = true;
            }
        }
    }
}

// ---- Writing to them

/** Every copy that can be written becomes the best one, with the record behind it; that takes at least one. */
static int append(struct group *g, struct log_buf *b) {
    int made = stripelog_finish(b, g->log.engine, g->log.count + 1), last = -EROFS;
    unsigned n = 0;
    for (unsigned i = 0; i < STRIPES_MAX && made == 0; i++) {
        if (g->fd_log[i] > 0 && !g->unwritable[i]) {
            int r = g->written ? 0 : io_calls.pwrite_all(g->fd_log[i], g->log.mem, g->log.end, 0);
            r = r < 0 ? r : io_calls.pwrite_all(g->fd_log[i], b->mem, b->len, (off_t)(g->log.end + g->added));
            r = r < 0 ? r : io_calls.fsync(g->fd_log[i]);
            g->unwritable[i] = r < 0;
            last = r < 0 ? r : last;
            n += r == 0;
        }
    }
    int r = made < 0 ? made : n > 0 ? 0 : last;
    if (r == 0) {
        g->written = true;
        g->added += b->len;
        g->log.count++;
    }
    stripelog_free(b);
    return r;
}

int recover_note(struct group *g, enum log_type type, const struct pending *p) {
    struct log_buf b;
    struct log_redo redo = {p->id, p->made}; // END is the beginning of it
    stripelog_begin(&b, type);
    stripelog_add(&b, &redo, type == LOG_END ? sizeof(struct log_end) : sizeof redo);
    return append(g, &b);
}

// ---- The pairs that have left something

struct finding {
    struct group *groups;
    unsigned n, cap;
    unsigned unread; // logs that could not be opened,
    int why;         // the last of them for this
    enum recover_how how;
    void (*say)(const char *line);
};

static struct group *group_of(struct finding *f, const char *id) {
    for (unsigned i = 0; i < f->n; i++) {
        if (strcmp(f->groups[i].id, id) == 0) {
            return &f->groups[i];
        }
    }
    if (f->n == f->cap) {
        unsigned cap = f->cap ? 2 * f->cap : 8;
        struct group *more = realloc(f->groups, cap * sizeof *more);
        if (!more) {
            return NULL;
        }
        memset(more + f->cap, 0, (cap - f->cap) * sizeof *more);
        f->groups = more;
        f->cap = cap;
    }
    struct group *g = &f->groups[f->n++];
    snprintf(g->id, sizeof g->id, "%s", id);
    return g;
}

/** "ID.3.log" is the log of an engine on its fourth stripe. */
static bool is_log(const char *name, char id[64], unsigned *i) {
    int end = 0;
    return strlen(name) <= 60 && sscanf(name, "%47[0-9a-f-].%u.log%n", id, i, &end) == 2 && end && !name[end] &&
           *i < STRIPES_MAX;
}

/** The log and what lies beside it, locked. 0, -EAGAIN: its pair lives, -ENOENT: it has just gone, or an error. */
static int open_log(struct group *g, unsigned i, int dir, const char *name) {
    char data[80];
    int fd = os_openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0);
    bool readonly = fd == -EROFS; // what lies there can be had all the same
    fd = readonly ? os_openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0) : fd;
    if (fd < 0) {
        return fd;
    }
    snprintf(data, sizeof data, "%s.%u.data", g->id, i);
    int fd_dir = os_fcntl(dir, F_DUPFD_CLOEXEC, 3);
    int fd_data = fd_dir < 0 ? fd_dir : os_openat(dir, data, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
    int r = fd_dir < 0 || (fd_data < 0 && fd_data != -ENOENT) ? fd_data : stripelog_lock(fd);
    r = r == 0 && os_fds_scarce(fd > fd_data ? fd : fd_data, FDS_SPARE) ? -EMFILE : r;
    if (r < 0) {
        os_close(fd), os_close(fd_dir), os_close(fd_data);
        return r;
    }
    g->unwritable[i] = readonly;
    g->fd_log[i] = fd;
    g->fd_data[i] = fd_data > 0 ? fd_data : 0;
    g->fd_dir[i] = fd_dir;
    return 0;
}

static void look_at(struct finding *f, int dir, const char *name) {
    char id[64] = "";
    unsigned i = 0;
    if (!is_log(name, id, &i)) {
        return;
    }
    struct group *g = group_of(f, id);
    if (g && g->fd_log[i] > 0) {
        return;
    }
    int r = g ? open_log(g, i, dir, name) : -ENOMEM;
    if (r == -EAGAIN) {
        g->alive = true;
    } else if (r < 0 && r != -ENOENT) {
        f->unread++;
        f->why = r;
        if (g) {
            g->unread = true;
        }
    }
}

/** What this user's engines have in a stripe directory. 0 or an error, with *ret NULL. */
static int open_own(const char *dir, size_t len, DIR **ret) {
    int fd = stripelog_open_dir(dir, len);
    *ret = fd < 0 ? NULL : fdopendir(fd);
    if (fd >= 0 && !*ret) {
        int r = -errno;
        os_close(fd);
        return r;
    }
    return fd < 0 ? fd : 0;
}

static void look_into(struct finding *f, const char *dir, size_t len) {
    DIR *d;
    if (open_own(dir, len, &d) < 0) {
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        look_at(f, dirfd(d), e->d_name);
    }
    closedir(d);
}

int recover_logs(const char *dir, size_t len) {
    char path[CONFIG_DIR_MAX], id[64];
    int n = 0;
    unsigned i;
    DIR *d;
    snprintf(path, sizeof path, "%.*s", (int)len, dir);
    int r = os_openat(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (r < 0) {
        return r;
    }
    os_close(r);
    r = open_own(dir, len, &d);
    if (r < 0) {
        return r == -ENOENT ? 0 : r;
    }
    for (struct dirent *e; (e = readdir(d));) {
        n += is_log(e->d_name, id, &i);
    }
    closedir(d);
    return n;
}

/** All of it has ended, every copy is here and says so. They are emptied first: whatever is left by a death in the
 *  middle speaks of no stripe that would have to be waited for. */
static void delete_group(struct group *g) {
    int r = 0;
    for (unsigned i = 0; i < STRIPES_MAX && r == 0; i++) {
        r = g->fd_log[i] > 0 ? stripelog_empty(g->fd_log[i]) : 0;
    }
    for (unsigned i = 0; i < STRIPES_MAX && r == 0; i++) {
        if (g->fd_log[i] > 0) {
            char name[80];
            snprintf(name, sizeof name, "%s.%u.data", g->id, i);
            io_calls.unlinkat(g->fd_dir[i], name, 0);
            snprintf(name, sizeof name, "%s.%u.log", g->id, i); // last: without it nobody would find the other
            io_calls.unlinkat(g->fd_dir[i], name, 0);
        }
    }
}

static unsigned recover_group(struct finding *f, struct group *g) {
    unsigned left = 0, here = 0;
    bool behind = false, dry = f->how & RECOVER_DRY;
    choose_copy(g);
    understand(g);
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        here |= g->fd_log[i] > 0 ? 1u << i : 0;
    }
    for (unsigned i = 0; i < g->n; i++) {
        char line[2 * CONFIG_DIR_MAX + 1024];
        if (g->pending[i].ended) {
            continue;
        }
        int r = (g->pending[i].safe ? recover_file : recover_change)(g, i, behind, dry, line, sizeof line);
        f->say(line);
        bool undone = r < 0 && r != -EEXIST; // what has come to that name since is later than all of this, and stays
        if (r < 0 && f->how & RECOVER_DISCARD) {
            snprintf(line, sizeof line, "discarded: %s/%s", g->pending[i].dir, g->pending[i].name);
            f->say(line);
            r = 0;
        }
        if (r == 0 && !dry) {
            r = recover_note(g, LOG_END, &g->pending[i]);
            g->pending[i].ended = r == 0;
            undone |= r < 0; // each end before the next begins
        }
        behind |= undone;
        left += r < 0;
    }
    // What is missing, or cannot be written, may come back, and must find here that it has ended.
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        here &= ~(g->unwritable[i] ? 1u << i : 0);
    }
    if (left == 0 && !dry && (f->how & RECOVER_DISCARD || !(g->log.stripes & ~here))) {
        delete_group(g);
    }
    return left;
}

static void close_group(struct group *g) {
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        int fds[] = {g->fd_log[i], g->fd_data[i], g->fd_dir[i]};
        for (unsigned k = 0; k < ARRAY_LEN(fds); k++) {
            if (fds[k] > 0) {
                os_close(fds[k]);
            }
        }
    }
    free(g->log.mem);
    free(g->pending);
}

int recover_stripes(const char *dirs, enum recover_how how, void (*say)(const char *line)) {
    struct finding f = {.how = how, .say = say};
    char line[128];
    const char *dir;
    size_t len;
    while (config_next_dir(&dirs, &dir, &len)) {
        look_into(&f, dir, len);
    }
    unsigned left = f.unread;
    if (f.unread) {
        snprintf(line, sizeof line, "not looked at: %u logs: %s; once more when this is done", f.unread,
                 log_errno(-f.why));
        say(line);
    }
    for (unsigned i = 0; i < f.n; i++) {
        if (f.groups[i].alive && how & RECOVER_USED) {
            snprintf(line, sizeof line, "in use by a running engine: %s", f.groups[i].id);
            say(line);
        }
        left += f.groups[i].alive || f.groups[i].unread ? 0 : recover_group(&f, &f.groups[i]);
        close_group(&f.groups[i]);
    }
    free(f.groups);
    return (int)left;
}
