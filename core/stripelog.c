// SPDX-License-Identifier: MIT
//
// stripelog: see stripelog.h. No policy, no state.

#include "stripelog.h"

#include "io.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *grow(struct log_buf *b, size_t len) {
    if (b->len + len > b->cap) {
        size_t cap = b->len + len > 2 * b->cap ? b->len + len : 2 * b->cap;
        char *mem = b->failed ? NULL : realloc(b->mem, cap);
        if (!mem) {
            b->failed = true;
            return NULL;
        }
        b->mem = mem;
        b->cap = cap;
    }
    void *at = b->mem + b->len;
    memset(at, 0, len);
    b->len += len;
    return at;
}

void stripelog_begin(struct log_buf *b, uint32_t type) {
    *b = (struct log_buf){0};
    struct log_head *h = grow(b, sizeof *h);
    if (h) {
        h->magic = STRIPELOG_MAGIC;
        h->type = type;
    }
}

void *stripelog_add(struct log_buf *b, const void *data, size_t len) {
    void *at = grow(b, align_up(len, 8));
    if (at && data) {
        memcpy(at, data, len);
    }
    return at;
}

int stripelog_finish(struct log_buf *b, uint64_t engine, uint64_t number) {
    if (b->failed) {
        return -ENOMEM;
    }
    struct log_head *h = (struct log_head *)(void *)b->mem;
    h->engine = engine;
    h->number = number;
    h->len = b->len;
    h->crc = 0;
    h->crc = libdeflate_crc32(0, b->mem, b->len);
    return 0;
}

void stripelog_free(struct log_buf *b) {
    free(b->mem);
    *b = (struct log_buf){0};
}

static bool is_sound(const char *mem, const struct log_head *h) {
    static const uint32_t zero = 0;
    uint32_t crc = libdeflate_crc32(0, mem, offsetof(struct log_head, crc));
    crc = libdeflate_crc32(crc, &zero, sizeof zero);
    crc = libdeflate_crc32(crc, mem + offsetof(struct log_head, len), h->len - offsetof(struct log_head, len));
    return crc == h->crc;
}

const struct log_head *stripelog_next(const char *mem, size_t len, size_t *at, uint64_t *engine, uint64_t number) {
    if (*at > len || len - *at < sizeof(struct log_head)) {
        return NULL;
    }
    const struct log_head *h = (const struct log_head *)(const void *)(mem + *at);
    if (h->magic != STRIPELOG_MAGIC || h->len < sizeof *h || h->len % 8 || h->len > len - *at ||
        h->number != number || (*engine && h->engine != *engine) || !is_sound(mem + *at, h)) {
        return NULL;
    }
    *engine = h->engine;
    *at += h->len;
    return h;
}

uint32_t stripelog_crc(const char *chunk, const struct extent *e, uint32_t n) {
    uint32_t crc = 0;
    for (uint32_t k = 0; k < n; k++) {
        crc = libdeflate_crc32(crc, chunk + e[k].off, e[k].len);
    }
    return crc;
}

struct log_identity stripelog_identity_of(const struct stat *s) {
    return (struct log_identity){.dev = s->st_dev, .ino = s->st_ino, .size = (uint64_t)s->st_size,
                                 .ctime = s->st_ctim, .mtime = s->st_mtim};
}

void stripelog_identity(int dirfd, const char *name, struct log_identity *id) {
    struct stat s;
    bool there = io_calls.stat_name(dirfd, name, &s) == 0;
    *id = there ? stripelog_identity_of(&s) : (struct log_identity){0};
    if (there) {
        os_birth(dirfd, name, 0, &id->born); // without one it stays 0
    }
}

struct log_identity stripelog_inode(int fd) {
    struct stat s;
    struct log_identity id = {0};
    if (os_fstat(fd, &s) == 0) {
        id.ino = s.st_ino;
        os_birth(fd, "", AT_EMPTY_PATH, &id.born);
    }
    return id;
}

bool stripelog_is_inode(const struct log_identity *a, const struct log_identity *b) {
    return a->ino == b->ino && same_time(&a->born, &b->born);
}

int stripelog_open_dir(const char *dir, size_t len) {
    char path[CONFIG_DIR_MAX];
    struct stat s;
    snprintf(path, sizeof path, "%.*s/fastckpt-%u", (int)len, dir, (unsigned)geteuid());
    int fd = os_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0) {
        return fd;
    }
    int r = os_fstat(fd, &s);
    r = r == 0 && s.st_uid != geteuid() ? -EPERM : r;
    if (r < 0) {
        os_close(fd);
    }
    return r < 0 ? r : fd;
}

int stripelog_lock(int fd) {
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int r = os_fcntl(fd, F_OFD_SETLK, (long)&l);
    if (r == -EBADF) { // open for reading only
        l.l_type = F_RDLCK;
        r = os_fcntl(fd, F_OFD_SETLK, (long)&l);
    }
    return r == -EACCES ? -EAGAIN : r;
}

int stripelog_empty(int fd) {
    int r = io_calls.ftruncate(fd, 0);
    return r < 0 ? r : io_calls.fsync(fd);
}
