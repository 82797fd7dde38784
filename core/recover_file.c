// SPDX-License-Identifier: MIT
//
// recover_file: one file from the stripes: made again beside its name, compared with its checksums on the way, and
// named if what is under the name is still what it was.

#include "recover_inside.h"

#include "io.h"
#include "log.h"
#include "os.h"
#include "sums.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

/** Walks over a record, and never beyond its end. */
struct cursor {
    const char *at, *end;
};

static const void *take(struct cursor *c, size_t len) {
    size_t padded = align_up(len, 8);
    const char *p = c->at;
    if (padded < len || (size_t)(c->end - c->at) < padded) {
        return NULL;
    }
    c->at += padded;
    return p;
}

static int fill_part(const struct group *g, const struct log_part *p, int fd, char *chunk, char *why, size_t cap) {
    if (p->device >= STRIPES_MAX || p->n > EXTENTS_MAX || g->fd_data[p->device] <= 0) {
        snprintf(why, cap, "stripe number %u is missing", p->device + 1);
        return -ENODEV;
    }
    for (uint32_t k = 0; k < p->n; k++) {
        const struct extent *e = &p->extent[k];
        if (e->off > CHUNK_SIZE || e->len > CHUNK_SIZE - e->off) {
            return -EBADMSG;
        }
        size_t got;
        int r = os_pread_all(g->fd_data[p->device], chunk + e->off, e->len, (off_t)(p->place * CHUNK_SIZE + e->off),
                             &got);
        if (got < e->len) {
            snprintf(why, cap, "stripe number %u: %s", p->device + 1, r ? log_errno(-r) : "it is too short");
            return -EIO;
        }
    }
    if (stripelog_crc(chunk, p->extent, p->n) != p->crc) {
        snprintf(why, cap, "stripe number %u: wrong checksum of chunk %lu", p->device + 1, (unsigned long)p->index);
        return -EBADMSG;
    }
    int r = 0;
    for (uint32_t k = 0; k < p->n && r == 0; k++) {
        r = io_calls.pwrite_all(fd, chunk + p->extent[k].off, p->extent[k].len,
                          (off_t)(p->index * CHUNK_SIZE + p->extent[k].off));
    }
    return r;
}

static int set_xattrs(struct cursor *c, uint32_t n, int fd) {
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t *len = take(c, 16);
        const char *name = len ? take(c, len[0]) : NULL;
        const void *value = name ? take(c, len[1]) : NULL;
        if (!value || len[0] == 0 || name[len[0] - 1]) {
            return -EBADMSG;
        }
        if (fsetxattr(fd, name, value, len[1], 0) < 0 && errno != EPERM && errno != ENOTSUP) {
            return -errno;
        }
    }
    return 0;
}

/** The content and all that belongs to it, durable. */
static int fill(const struct group *g, const struct pending *p, int fd, char *why, size_t cap) {
    const struct log_safe *s = p->safe;
    struct cursor c = {(const char *)(s + 1), p->end};
    const struct log_part *parts = take(&c, (size_t)s->n_parts * sizeof *parts);
    char *chunk = parts ? malloc(CHUNK_SIZE) : NULL;
    int r = chunk ? io_calls.ftruncate(fd, (off_t)s->size) : -EBADMSG;
    for (uint32_t i = 0; i < s->n_parts && r == 0; i++) {
        r = fill_part(g, &parts[i], fd, chunk, why, cap);
    }
    free(chunk);
    for (uint32_t i = 0; i < s->n_native && r == 0; i++) {
        const struct log_native *n = take(&c, sizeof *n);
        const void *bytes = n ? take(&c, n->len) : NULL;
        r = bytes ? io_calls.pwrite_all(fd, bytes, n->len, (off_t)n->off) : -EBADMSG;
    }
    r = r < 0 ? r : set_xattrs(&c, s->xattrs_len, fd);
    if (r == 0 && fchown(fd, s->uid, s->gid) < 0 && errno != EPERM) {
        r = -errno;
    }
    if (r == 0 && fchmod(fd, s->mode) < 0) {
        r = -errno;
    }
    struct timespec ts[2] = {s->atime, s->mtime};
    if (r == 0 && s->times) {
        r = io_calls.futimens(fd, ts);
    }
    return r < 0 ? r : io_calls.fsync(fd);
}

// ---- The name

static const struct pending *find_made(const struct group *g, const struct log_identity *now) {
    for (unsigned k = g->n; now->ino && k-- > 0;) {
        if (stripelog_is_inode(&g->pending[k].made, now)) {
            return &g->pending[k];
        }
    }
    return NULL;
}

/** It has the size and the time that it was given: nobody has written to it since. (Some file systems keep seconds.) */
static bool is_untouched(const struct log_safe *s, const struct log_identity *now) {
    // Not of a program that died, nor where which inode it is alone counts.
    bool known = s->times && s->mtime.tv_nsec < 1000000000 && now->ctime.tv_sec;
    return !known || (now->size == s->size && now->mtime.tv_sec == s->mtime.tv_sec &&
                      (now->mtime.tv_nsec == s->mtime.tv_nsec || now->mtime.tv_nsec == 0));
}

/** Is it the file that record `p` saves, as it was saved? */
static bool is_of(const struct group *g, const struct pending *p, const struct log_identity *now) {
    const struct pending *made = find_made(g, now);
    return (made ? made == p : stripelog_is_inode(now, &p->safe->shadow)) && is_untouched(p->safe, now);
}

bool recover_is_inode(const struct group *g, const struct log_identity *now, const struct log_identity *meant) {
    const struct pending *made = find_made(g, now);
    return stripelog_is_inode(made ? &made->safe->shadow : now, meant);
}

bool recover_leaves(const struct group *g, unsigned k, uint64_t dir_ino, const char *name,
                    const struct log_identity *now) {
    const struct pending *p = &g->pending[k];
    if (p->dir_ino == dir_ino && strcmp(p->name, name) == 0) {
        return p->safe ? now->ino && is_of(g, p, now) : !now->ino;
    }
    bool to = p->change && p->change->kind == SLOT_RENAME && p->to_ino == dir_ino && strcmp(p->to, name) == 0;
    return to && now->ino && recover_is_inode(g, now, &p->change->what);
}

static bool is_same(const struct log_identity *a, const struct log_identity *b) {
    return stripelog_is_inode(a, b) && a->size == b->size && same_time(&a->ctime, &b->ctime);
}

/** What was under the name when `p` was recorded, which gives it to something; NULL: it does not. */
static const struct log_identity *names_it(const struct pending *p, uint64_t dir_ino, const char *name) {
    if (p->safe) {
        return p->dir_ino == dir_ino && strcmp(p->name, name) == 0 ? &p->safe->replaced : NULL;
    }
    bool to = p->change->kind == SLOT_RENAME && p->to_ino == dir_ino && strcmp(p->to, name) == 0;
    return to ? &p->change->over : NULL;
}

bool recover_as_recorded(const struct group *g, unsigned i, uint64_t dir_ino, const char *name,
                         const struct log_identity *recorded, const struct log_identity *now) {
    bool as_is = is_same(recorded, now);
    for (unsigned k = 0; k < i && !as_is; k++) {
        const struct pending *p = &g->pending[k];
        const struct log_identity *before = names_it(p, dir_ino, name);
        as_is = recover_leaves(g, k, dir_ino, name, now) || (before && !p->ended && is_same(before, now));
    }
    return as_is;
}

/** Is it there already, or was it there, and is a later one there now? */
static bool is_complete(const struct group *g, unsigned i, const struct log_identity *now) {
    const struct pending *p = &g->pending[i];
    for (unsigned k = i; k < g->n && now->ino; k++) {
        if (recover_leaves(g, k, p->dir_ino, p->name, now)) {
            return true;
        }
    }
    return false;
}

/** Is its name only the way to another one, or to none? */
static bool moves_on(const struct group *g, unsigned i) {
    const struct pending *p = &g->pending[i];
    for (unsigned k = i + 1; k < g->n; k++) {
        const struct pending *q = &g->pending[k];
        if (q->change && !q->ended && q->dir_ino == p->dir_ino && strcmp(q->name, p->name) == 0) {
            return true;
        }
    }
    return false;
}

int recover_dir(const char *path, uint64_t ino) {
    struct stat s;
    int dir = os_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    int r = dir < 0 ? dir : os_fstat(dir, &s);
    if (r < 0 || s.st_ino != ino) {
        os_close(dir);
        return r < 0 ? r : -ESTALE;
    }
    return dir;
}

/** No other recovery's: numbers begin anew with each pair. */
static void hidden_name(const struct group *g, const struct log_safe *s, char *buf, size_t cap) {
    snprintf(buf, cap, ".fastckpt-recover-%lx-%lx", (unsigned long)g->log.engine, (unsigned long)s->id);
}

/** A file beside the name, without one where the file system has such. */
static int make_beside(int dir, const char *hidden, bool *named) {
    int fd = os_openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    *named = fd < 0;
    if (fd < 0) {
        fd = os_openat(dir, hidden, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    }
    return fd;
}

/** Puts the hidden file over what is there, if that is still `now`. */
static int replace(int dir, const char *hidden, const char *name, const struct log_identity *now) {
    struct log_identity out;
    int r = io_calls.renameat(dir, hidden, dir, name, RENAME_EXCHANGE);
    if (r == -EINVAL || r == -ENOSYS) { // not on this file system
        return io_calls.renameat(dir, hidden, dir, name, 0);
    }
    stripelog_identity(dir, hidden, &out);
    if (r == 0 && !stripelog_is_inode(&out, now)) { // somebody was faster
        io_calls.renameat(dir, hidden, dir, name, RENAME_EXCHANGE);
        r = -EEXIST;
    }
    io_calls.unlinkat(dir, hidden, 0);
    return r;
}

/** Gives the hidden file a name that nobody has. */
static int name_first(int dir, const char *hidden, const char *name) {
    int r = io_calls.renameat(dir, hidden, dir, name, RENAME_NOREPLACE);
    if (r == -EINVAL || r == -ENOSYS) { // not on this file system
        r = io_calls.linkat(dir, hidden, dir, name);
        r = r < 0 ? r : io_calls.unlinkat(dir, hidden, 0);
    }
    return r;
}

static int give_name(int fd, int dir, const char *hidden, const struct log_safe *s, const struct log_identity *now,
                     bool named) {
    int r;
    if (!now->ino) {
        r = named ? name_first(dir, hidden, s->name) : io_calls.link_fd(fd, dir, s->name);
    } else {
        r = named ? 0 : io_calls.link_fd(fd, dir, hidden);
        r = r < 0 ? r : replace(dir, hidden, s->name, now);
    }
    return r < 0 ? r : io_calls.sync_dir(dir);
}

static int publish(struct group *g, struct pending *p, int dir, const char *hidden, const struct log_identity *now,
                   char *why, size_t cap) {
    const struct log_safe *s = p->safe;
    bool named;
    int fd = make_beside(dir, hidden, &named);
    int r = fd < 0 ? fd : fill(g, p, fd, why, cap);
    if (r == 0) {
        p->made = stripelog_inode(fd);
        r = recover_note(g, LOG_REDO, p);
    }
    r = r < 0 ? r : give_name(fd, dir, hidden, s, now, named);
    if (r == 0) {
        sums_write(g->fd_dir, fd, (const struct log_part *)(s + 1), s->n_parts, 0);
    }
    if (r < 0 && named && fd >= 0) {
        io_calls.unlinkat(dir, hidden, 0);
    }
    if (fd >= 0) {
        os_close(fd);
    }
    return r;
}

int recover_file(struct group *g, unsigned i, bool behind, bool dry, char *line, size_t cap) {
    struct pending *p = &g->pending[i];
    const struct log_safe *s = p->safe;
    char why[128] = "", hidden[64];
    struct log_identity now = {0};
    int dir = recover_dir(s->dir, s->dir_ino), r = dir < 0 ? dir : 0;
    hidden_name(g, s, hidden, sizeof hidden);
    if (dir >= 0 && !dry) {
        io_calls.unlinkat(dir, hidden, 0); // of a recovery that was killed: what it made, or what that has replaced
    }
    if (dir >= 0) {
        stripelog_identity(dir, s->name, &now);
    }
    bool complete = dir >= 0 && is_complete(g, i, &now);
    if (complete && !dry) {
        r = io_calls.sync_dir(dir); // who gave it the name may have died before that
    }
    if (r < 0) {
        snprintf(line, cap, "not recovered: %s/%s: its directory: %s", s->dir, s->name, log_errno(-r));
    } else if (complete) {
        snprintf(line, cap, "complete already: %s/%s", s->dir, s->name);
    } else if (!recover_as_recorded(g, i, s->dir_ino, s->name, &s->replaced, &now)) {
        r = -EEXIST;
        snprintf(line, cap, "left alone: %s/%s: it has changed since", s->dir, s->name);
    } else if (behind && (now.ino || moves_on(g, i))) {
        r = -ECANCELED;
        snprintf(line, cap, "not recovered: %s/%s: an earlier file could not be%s", s->dir, s->name,
                 now.ino ? "; the old one stays" : "");
    } else if (dry) {
        snprintf(line, cap, "to be recovered: %s/%s, %lu bytes", s->dir, s->name, (unsigned long)s->size);
    } else {
        r = publish(g, p, dir, hidden, &now, why, sizeof why);
        if (r < 0) {
            snprintf(line, cap, "not recovered: %s/%s: %s", s->dir, s->name, why[0] ? why : log_errno(-r));
        } else {
            snprintf(line, cap, "recovered: %s/%s, %lu bytes", s->dir, s->name, (unsigned long)s->size);
        }
    }
    if (dir >= 0) {
        os_close(dir);
    }
    return r;
}
