// SPDX-License-Identifier: MIT
//
// hook_stat: what is asked about a file: the stat families of old and new glibc, statx, access. A captured or pending
// name is its inode (design 5); with nothing pending a call by name costs one load.

#include "client.h"
#include "hook_inside.h"
#include "namecalls.h"

#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#define RAW_FSTATAT SYS_newfstatat
#else
#define RAW_FSTATAT SYS_fstatat
#endif

// What the kernel refuses is its own to refuse.
#define STAT_FLAGS (AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH | AT_STATX_SYNC_TYPE)

// fstat of a lent inode, corrected. 0 or a negative errno.
static int stat_lent(struct lent *l, struct stat *st) {
    if (l->fd < 0) {
        return l->error;
    }
    int r = NATIVE(fstat, SYS_fstat, l->fd, st) == 0 ? 0 : -errno; // by the next preload, which may know the owner
    if (r == 0) {
        names_fix_stat(l, st);
    }
    names_return(l);
    return r;
}

// Answers for a captured or pending name. True: *ret is libc's result.
static bool answered(int dirfd, const char *path, int flags, struct stat *st, int *ret) {
    struct lent lent;
    if (names_native() || (flags & ~STAT_FLAGS) != 0) {
        return false;
    }
    if (!names_lend(dirfd, path, !(flags & AT_SYMLINK_NOFOLLOW), 0, &lent)) {
        if (flags & AT_SYMLINK_NOFOLLOW) {
            names_before_walk(dirfd, path);
        }
        return false;
    }
    *ret = (int)hook_ret(stat_lent(&lent, st));
    return true;
}

// After a successful fstat: what the kernel does not know yet. Our own descriptors are none of the program's. `native`
// is what names_native said before it: what was queued then may have happened by now.
static int corrected(int r, int fd, struct stat *st, bool native) {
    if (UNLIKELY(r == 0 && client_owns_fd(fd))) {
        return (int)hook_ret(-EBADF);
    }
    bool active = UNLIKELY(!native) && r == 0 && st->st_nlink <= 1;
    uint64_t word = active ? names_word_of(st) : 0;
    struct stat now; // if it has happened since the kernel was asked, it knows now; the rest may be a fakeroot's view
    if (active && !name_word_hidden(word) && !names_gone(word) && fd >= 0 && os_fstat(fd, &now) == 0) {
        st->st_nlink = now.st_nlink;
    }
    struct file *f = r == 0 && UNLIKELY(fd_peek(fd) != NULL) ? fd_get(fd, false) : NULL;
    if (r == 0 && active && st->st_nlink == 0 && (f == NULL || f->followed)) {
        f = file_by_inode(st->st_dev, st->st_ino, false); // opened again, to be read
        st->st_nlink = name_word_hidden(word);            // closed and pending, or another process's
    }
    if (f != NULL) {
        file_fix_stat(f, fd, st); // a followed file is the kernel's
    }
    if (active && st->st_nlink == 1 && names_gone(word)) {
        st->st_nlink = 0;
    }
    return r;
}

int hook_stat(const char *path, struct stat *st) {
    int r;
    return answered(AT_FDCWD, path, 0, st, &r)
               ? r
               : (int)NATIVE_OR(stat, RAW(RAW_FSTATAT, AT_FDCWD, path, st, 0), path, st);
}

int hook_lstat(const char *path, struct stat *st) {
    int r;
    return answered(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, st, &r)
               ? r
               : (int)NATIVE_OR(lstat, RAW(RAW_FSTATAT, AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW), path, st);
}

int hook_fstat(int fd, struct stat *st) {
    bool native = names_native();
    return corrected((int)NATIVE(fstat, SYS_fstat, fd, st), fd, st, native);
}

// Is the answer the kernel's, whatever `path` is? One question, before a program's pointer is looked at.
static inline bool plain(int dirfd) {
    return LIKELY(fd_peek(dirfd) == NULL && names_native() && !client_owns_fd(dirfd));
}

int hook_fstatat(int dirfd, const char *path, struct stat *st, int flags) {
    int r;
    if (plain(dirfd)) {
        return (int)NATIVE(fstatat, RAW_FSTATAT, dirfd, path, st, flags);
    }
    if (!hook_by_descriptor(path, flags) && answered(dirfd, path, flags, st, &r)) {
        return r;
    }
    r = (int)NATIVE(fstatat, RAW_FSTATAT, dirfd, path, st, flags);
    return hook_by_descriptor(path, flags) ? corrected(r, dirfd, st, false) : r;
}

// The forms of programs built before glibc 2.33. `ver` is the layout of struct stat; libc says which it knows.
int hook___xstat(int ver, const char *path, struct stat *st) {
    int r;
    return answered(AT_FDCWD, path, 0, st, &r)
               ? r
               : (int)NATIVE_OR(__xstat, RAW(RAW_FSTATAT, AT_FDCWD, path, st, 0), ver, path, st);
}

int hook___lxstat(int ver, const char *path, struct stat *st) {
    int r;
    return answered(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, st, &r)
               ? r
               : (int)NATIVE_OR(__lxstat, RAW(RAW_FSTATAT, AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW), ver, path, st);
}

int hook___fxstat(int ver, int fd, struct stat *st) {
    bool native = names_native();
    return corrected((int)NATIVE_OR(__fxstat, RAW(SYS_fstat, fd, st), ver, fd, st), fd, st, native);
}

int hook___fxstatat(int ver, int dirfd, const char *path, struct stat *st, int flags) {
    int r;
    if (plain(dirfd)) {
        return (int)NATIVE_OR(__fxstatat, RAW(RAW_FSTATAT, dirfd, path, st, flags), ver, dirfd, path, st, flags);
    }
    if (!hook_by_descriptor(path, flags) && answered(dirfd, path, flags, st, &r)) {
        return r;
    }
    r = (int)NATIVE_OR(__fxstatat, RAW(RAW_FSTATAT, dirfd, path, st, flags), ver, dirfd, path, st, flags);
    return hook_by_descriptor(path, flags) ? corrected(r, dirfd, st, false) : r;
}

// What a corrected struct stat has and the kernel's statx has not.
static void put_statx(struct statx *x, const struct stat *st) {
    x->stx_size = (uint64_t)st->st_size;
    x->stx_nlink = (uint32_t)st->st_nlink;
    x->stx_mtime.tv_sec = st->st_mtim.tv_sec;
    x->stx_mtime.tv_nsec = (uint32_t)st->st_mtim.tv_nsec;
    x->stx_atime.tv_sec = st->st_atim.tv_sec;
    x->stx_atime.tv_nsec = (uint32_t)st->st_atim.tv_nsec;
}

// By name. True: *ret is libc's result.
static bool statx_answered(int dirfd, const char *path, int flags, unsigned mask, struct statx *x, int *ret) {
    struct lent lent;
    struct stat st;
    if (names_native() || (flags & ~STAT_FLAGS) != 0) {
        return false;
    }
    if (!names_lend(dirfd, path, !(flags & AT_SYMLINK_NOFOLLOW), 0, &lent)) {
        if (flags & AT_SYMLINK_NOFOLLOW) {
            names_before_walk(dirfd, path);
        }
        return false;
    }
    bool there = lent.fd >= 0; // else the kernel says what is wrong, and if nothing is, that there is no such file
    long r = there ? NATIVE(statx, SYS_statx, lent.fd, "", flags | AT_EMPTY_PATH, mask, x)
                   : NATIVE(statx, SYS_statx, AT_FDCWD, lent.path, flags, mask, x);
    r = r < 0 ? -errno : 0;
    r = r == 0 ? stat_lent(&lent, &st) : (names_return(&lent), r);
    if (r == 0) {
        put_statx(x, &st);
    }
    *ret = (int)hook_ret(r);
    return true;
}

int hook_statx(int dirfd, const char *path, int flags, unsigned mask, struct statx *x) {
    int r;
    if (plain(dirfd)) {
        return (int)NATIVE(statx, SYS_statx, dirfd, path, flags, mask, x);
    }
    if (!hook_by_descriptor(path, flags) && statx_answered(dirfd, path, flags, mask, x, &r)) {
        return r;
    }
    r = (int)NATIVE(statx, SYS_statx, dirfd, path, flags, mask, x);
    struct stat st;
    if (r == 0 && hook_by_descriptor(path, flags) && os_fstat(dirfd, &st) == 0) {
        r = corrected(0, dirfd, &st, false);
        put_statx(x, &st);
    }
    return r;
}

// access of a lent inode goes by its path in /proc: there is no form for descriptors in older kernels.
static bool access_answered(int dirfd, const char *path, int mode, int flags, int *ret) {
    struct lent lent;
    if (names_native()) {
        return false;
    }
    if (!names_lend(dirfd, path, !(flags & AT_SYMLINK_NOFOLLOW), 0, &lent)) {
        return false;
    }
    flags &= ~AT_SYMLINK_NOFOLLOW;
    *ret = real.faccessat != NULL ? real.faccessat(AT_FDCWD, lent.path, mode, flags)
                                  : (int)hook_ret(OS_CALL(SYS_faccessat, AT_FDCWD, lent.path, mode, 0, 0, 0));
    names_return(&lent);
    return true;
}

int hook_access(const char *path, int mode) {
    int r;
    return access_answered(AT_FDCWD, path, mode, 0, &r)
               ? r
               : (int)NATIVE_OR(access, RAW(SYS_faccessat, AT_FDCWD, path, mode), path, mode);
}

int hook_faccessat(int dirfd, const char *path, int mode, int flags) {
    int r;
    if (access_answered(dirfd, path, mode, flags, &r)) {
        return r;
    }
    return (int)NATIVE_OR(faccessat, RAW(SYS_faccessat, dirfd, path, mode), dirfd, path, mode, flags);
}

int hook_euidaccess(const char *path, int mode) {
    struct lent lent;
    bool hit = REAL(euidaccess) != NULL && UNLIKELY(!names_native()) && names_lend(AT_FDCWD, path, true, 0, &lent);
    if (UNLIKELY(hit)) {
        int r = real.euidaccess(lent.path, mode);
        names_return(&lent);
        return r;
    }
    return LIKELY(real.euidaccess != NULL) ? real.euidaccess(path, mode) : (int)hook_ret(-ENOSYS);
}

#define HOOKS_STAT
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
