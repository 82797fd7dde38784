// SPDX-License-Identifier: MIT
//
// hook_walk: what lists directories without a stream of the program's. scandir and glob go by our own streams
// (hook_dir.c); the others read inside libc, or by descriptor, and wait until what they may meet is published. With
// nothing pending each costs one load. Never fails a listing.

#include "namecalls.h"
#include "real.h"

#include <stdlib.h>
#include <string.h>

// A walk may come anywhere: everything pending is waited for.
static __attribute__((noinline)) void wait_for_all(void) {
    if (!guard_foreign()) {
        guard_depth++;
        names_wait(WAIT_ALL);
        guard_depth--;
    }
}

static inline void before_walk(void) {
    if (UNLIKELY(!names_native())) {
        wait_for_all();
    }
}

static inline void before_list(int dirfd) {
    if (UNLIKELY(!names_native())) {
        names_before_list(dirfd, ".");
    }
}

static void *missing(void) {
    hook_ret(-ENOSYS);
    return NULL;
}

// ---- By our own streams

struct entries {
    struct dirent **list;
    size_t n, room;
};

// malloc, because the program frees it.
static int keep(struct entries *v, const struct dirent *e) {
    if (v->n == v->room) {
        size_t room = v->room > 0 ? 2 * v->room : 32;
        struct dirent **list = realloc(v->list, room * sizeof *list);
        if (list == NULL) {
            return -ENOMEM;
        }
        v->list = list;
        v->room = room;
    }
    struct dirent *copy = malloc(e->d_reclen);
    if (copy == NULL) {
        return -ENOMEM;
    }
    v->list[v->n++] = memcpy(copy, e, e->d_reclen);
    return 0;
}

static int read_all(DIR *dir, struct entries *v, dir_filter *filter) {
    for (;;) {
        errno = 0; // a filter may have set it
        const struct dirent *e = hook_readdir(dir);
        if (e == NULL) {
            return -errno;
        }
        int r = filter == NULL || filter(e) ? keep(v, e) : 0;
        if (r < 0) {
            return r;
        }
    }
}

static int scan(int dirfd, const char *path, struct dirent ***list, dir_filter *filter, dir_order *order) {
    int saved = errno;
    struct entries v = {0};
    int fd = names_no_directory(dirfd, path);
    fd = fd < 0 ? fd : os_openat(dirfd, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0) {
        return (int)hook_ret(fd);
    }
    DIR *dir = hook_fdopendir(fd);
    if (dir == NULL) {
        os_close(fd);
        return -1;
    }
    int r = read_all(dir, &v, filter);
    hook_closedir(dir);
    if (r < 0) {
        while (v.n > 0) {
            free(v.list[--v.n]);
        }
        free(v.list);
        return (int)hook_ret(r);
    }
    if (order != NULL && v.n > 0) {
        qsort(v.list, v.n, sizeof *v.list, (int (*)(const void *, const void *))(void (*)(void))order);
    }
    *list = v.list;
    errno = saved;
    return (int)v.n;
}

int hook_scandir(const char *path, struct dirent ***list, dir_filter *filter, dir_order *order) {
    if (UNLIKELY(!names_native()) && !guard_foreign()) {
        return scan(AT_FDCWD, path, list, filter, order);
    }
    return REAL(scandir) != NULL ? real.scandir(path, list, filter, order) : (int)hook_ret(-ENOSYS);
}

int hook_scandirat(int dirfd, const char *path, struct dirent ***list, dir_filter *filter, dir_order *order) {
    if (UNLIKELY(!names_native()) && !guard_foreign()) {
        return scan(dirfd, path, list, filter, order);
    }
    return REAL(scandirat) != NULL ? real.scandirat(dirfd, path, list, filter, order) : (int)hook_ret(-ENOSYS);
}

static void *glob_open(const char *path) {
    return hook_opendir(path);
}

static struct dirent *glob_read(void *dir) {
    return hook_readdir(dir);
}

static void glob_close(void *dir) {
    hook_closedir(dir);
}

// libc's own walk, with our functions in place of its own; what the program has in these fields stays.
static int glob_helped(const char *pattern, int flags, glob_error *err, glob_t *ret) {
    glob_t was = *ret;
    ret->gl_opendir = glob_open;
    ret->gl_readdir = glob_read;
    ret->gl_closedir = glob_close;
    ret->gl_stat = (int (*)(const char *restrict, struct stat *restrict))hook_stat;
    ret->gl_lstat = (int (*)(const char *restrict, struct stat *restrict))hook_lstat;
    int r = real.glob(pattern, flags | GLOB_ALTDIRFUNC, err, ret);
    ret->gl_opendir = was.gl_opendir;
    ret->gl_readdir = was.gl_readdir;
    ret->gl_closedir = was.gl_closedir;
    ret->gl_stat = was.gl_stat;
    ret->gl_lstat = was.gl_lstat;
    ret->gl_flags &= ~GLOB_ALTDIRFUNC;
    return r;
}

int hook_glob(const char *pattern, int flags, glob_error *err, glob_t *ret) {
    if (UNLIKELY(REAL(glob) == NULL)) {
        return GLOB_ABORTED;
    }
    bool own = UNLIKELY(!names_native()) && ret != NULL && !(flags & GLOB_ALTDIRFUNC) && !guard_foreign();
    return own ? glob_helped(pattern, flags, err, ret) : real.glob(pattern, flags, err, ret);
}

// ---- Inside libc, or by descriptor

ssize_t hook_getdents64(int fd, void *buf, size_t len) {
    before_list(fd);
    return NATIVE(getdents64, SYS_getdents64, fd, buf, len);
}

ssize_t hook_getdirentries(int fd, char *buf, size_t len, off_t *base) {
    before_list(fd);
    return REAL(getdirentries) != NULL ? real.getdirentries(fd, buf, len, base) : hook_ret(-ENOSYS);
}

int hook_wordexp(const char *words, wordexp_t *ret, int flags) {
    before_walk();
    return REAL(wordexp) != NULL ? real.wordexp(words, ret, flags) : WRDE_NOSPACE;
}

int hook_ftw(const char *path, ftw_visit *visit, int fds) {
    before_walk();
    return REAL(ftw) != NULL ? real.ftw(path, visit, fds) : (int)hook_ret(-ENOSYS);
}

int hook_nftw(const char *path, nftw_visit *visit, int fds, int flags) {
    before_walk();
    return REAL(nftw) != NULL ? real.nftw(path, visit, fds, flags) : (int)hook_ret(-ENOSYS);
}

FTS *hook_fts_open(char *const *paths, int options, fts_order *order) {
    before_walk();
    return REAL(fts_open) != NULL ? real.fts_open(paths, options, order) : missing();
}

#define HOOKS_WALK
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
