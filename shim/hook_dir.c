// SPDX-License-Identifier: MIT
//
// hook_dir: what lists directories. It waits until the directory's pending names are published (a first version,
// design 5); with nothing pending it costs one load. Never fails a listing.

#include "namecalls.h"
#include "real.h"

#include <string.h>

// A walk may come anywhere: everything pending is waited for.
static __attribute__((noinline)) void wait_for_all(void) {
    if (!guard_foreign()) {
        guard_depth++;
        names_wait(WAIT_ALL, -1);
        guard_depth--;
    }
}

static inline void before_walk(void) {
    if (UNLIKELY(!names_native())) {
        wait_for_all();
    }
}

static inline void before_list(int dirfd, const char *path) {
    if (UNLIKELY(!names_native())) {
        names_before_list(dirfd, path);
    }
}

static void *missing(void) {
    hook_ret(-ENOSYS);
    return NULL;
}

DIR *hook_opendir(const char *path) {
    before_list(AT_FDCWD, path);
    return REAL(opendir) != NULL ? real.opendir(path) : missing();
}

DIR *hook_fdopendir(int fd) {
    before_list(fd, ".");
    return REAL(fdopendir) != NULL ? real.fdopendir(fd) : missing();
}

// What has been listed already may be listed anew.
void hook_rewinddir(DIR *dir) {
    if (UNLIKELY(!names_native()) && dir != NULL) {
        names_before_list(dirfd(dir), ".");
    }
    if (REAL(rewinddir) != NULL) {
        real.rewinddir(dir);
    }
}

ssize_t hook_getdents64(int fd, void *buf, size_t len) {
    before_list(fd, ".");
    return NATIVE(getdents64, SYS_getdents64, fd, buf, len);
}

ssize_t hook_getdirentries(int fd, char *buf, size_t len, off_t *base) {
    before_list(fd, ".");
    return REAL(getdirentries) != NULL ? real.getdirentries(fd, buf, len, base) : hook_ret(-ENOSYS);
}

int hook_scandir(const char *path, struct dirent ***list, dir_filter *filter, dir_order *order) {
    before_list(AT_FDCWD, path);
    return REAL(scandir) != NULL ? real.scandir(path, list, filter, order) : (int)hook_ret(-ENOSYS);
}

int hook_scandirat(int dirfd, const char *path, struct dirent ***list, dir_filter *filter, dir_order *order) {
    before_list(dirfd, path);
    return REAL(scandirat) != NULL ? real.scandirat(dirfd, path, list, filter, order) : (int)hook_ret(-ENOSYS);
}

int hook_glob(const char *pattern, int flags, glob_error *err, glob_t *ret) {
    before_walk();
    return REAL(glob) != NULL ? real.glob(pattern, flags, err, ret) : GLOB_ABORTED;
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

#define HOOKS_DIR
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
