// SPDX-License-Identifier: MIT
//
// safe_record: what a record says of a file, a deletion or a renaming: read from the slot, its inode and its names. Who
// gets one, and when it is written, is safe.c's. Blocks: called in workers.

#include "safe_inside.h"

#include "gaps.h"
#include "log.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#define NATIVE_MOST (16 * MIB) // bytes of the program's own writes that a record takes
#define XATTRS_MOST 65536

/** The path of a directory, terminated. Its length, or an error. */
static int path_of(int fd_dir, char *buf, size_t cap) {
    char link[32];
    log_format(link, sizeof link, "/proc/self/fd/%d", fd_dir);
    ssize_t n = os_readlinkat(AT_FDCWD, link, buf, cap - 1);
    buf[n > 0 ? n : 0] = '\0';
    return n > 0 ? (int)n : -ENOENT;
}

static int add_range(struct log_buf *b, int fd, uint64_t off, uint64_t len) {
    struct log_native n = {off, len};
    stripelog_add(b, &n, sizeof n);
    char *to = stripelog_add(b, NULL, len);
    size_t got;
    return to ? os_pread_all(fd, to, len, (off_t)off, &got) : -ENOMEM; // beyond its end: zeros
}

/** What of the file no chunk says is the program's own: it is read from the inode. How many ranges, or an error. */
static int add_native(const struct safe *s, struct log_buf *b, int fd, uint64_t size) {
    struct gaps g;
    struct gap gap;
    int ranges = 0, err = gaps_start(&g, (uint64_t)s->n_parts * EXTENTS_MAX);
    for (unsigned i = 0; err == 0 && i < s->n_parts; i++) {
        for (uint32_t k = 0; k < s->parts[i].n; k++) {
            uint64_t from = s->parts[i].index * CHUNK_SIZE + s->parts[i].extent[k].off;
            gaps_add(&g, from, from + s->parts[i].extent[k].len);
        }
    }
    for (uint64_t total = 0; err == 0 && gaps_next(&g, size, &gap); ranges++) {
        total += gap.to - gap.from;
        err = total > NATIVE_MOST ? -EFBIG : add_range(b, fd, gap.from, gap.to - gap.from);
    }
    gaps_free(&g);
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

static int make_file(const struct safe *s, const struct file_slot *f, int fd, struct log_buf *b) {
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
                             .shadow = stripelog_inode(fd), .mode = st.st_mode & 07777, .uid = st.st_uid,
                             .gid = st.st_gid,
                             .times = f->state == FILE_CLOSED && (f->size_end > 0 || f->close_flags & CLOSE_TIMES),
                             .atime = f->atime,
                             .mtime = f->mtime, .n_parts = s->n_parts};
    memcpy(rec->name, f->name, sizeof rec->name);
    int n = path_of(f->fd_dir, rec->dir, sizeof rec->dir);
    stripelog_identity(f->fd_dir, f->name, &rec->replaced);
    stripelog_add(b, rec, sizeof *rec);
    stripelog_add(b, s->parts, s->n_parts * sizeof *s->parts);
    int ranges = n < 0 ? n : add_native(s, b, fd, rec->size);
    int xattrs = ranges < 0 ? 0 : add_xattrs(b, fd);
    if (ranges >= 0 && !b->failed) {
        struct log_safe *in = (struct log_safe *)(void *)(b->mem + at);
        in->n_native = (uint32_t)ranges;
        in->xattrs_len = (uint32_t)xattrs;
    }
    free(rec);
    return ranges < 0 ? ranges : 0;
}

int safe_record_file(const struct safe *s, const struct file_slot *f, struct log_buf *b) {
    char path[32];
    log_format(path, sizeof path, "/proc/self/fd/%d", f->fd_own);
    int fd = os_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd >= 0) { // no readahead: a page that comes into the cache beside a direct write makes the next fsync EIO
        OS_CALL(SYS_fadvise64, fd, 0, 0, POSIX_FADV_RANDOM, 0, 0);
    }
    int r = fd < 0 ? fd : make_file(s, f, fd, b);
    if (fd >= 0) {
        os_close(fd);
    }
    return r;
}

static int add_name(struct log_buf *b, int fd_dir, const char *name) {
    char dir[CONFIG_DIR_MAX] = "";
    int r = fd_dir > 0 ? path_of(fd_dir, dir, sizeof dir) : 0;
    stripelog_add(b, name, strlen(name) + 1);
    stripelog_add(b, dir, strlen(dir) + 1);
    return r;
}

int safe_record_change(const struct file_slot *f, struct log_buf *b) {
    struct log_change rec = {.id = f->id, .dir_ino = f->dir_ino, .to_ino = f->to_ino, .kind = f->kind};
    bool rename = f->kind == SLOT_RENAME;
    stripelog_identity(f->fd_dir, f->name, &rec.what);
    if (rec.what.ino != f->ino) { // what is recorded before this one brings it there
        rec.what = stripelog_inode(f->fd_own);
    }
    if (rename) {
        stripelog_identity(f->fd_to, f->to, &rec.over);
    }
    stripelog_begin(b, LOG_CHANGE);
    stripelog_add(b, &rec, sizeof rec);
    int r = add_name(b, f->fd_dir, f->name), to = add_name(b, rename ? f->fd_to : 0, f->to);
    return r < 0 ? r : to < 0 ? to : 0;
}
