// SPDX-License-Identifier: MIT
//
// hook_attr: changes of what a file is rather than holds: mode, owner, times, xattrs, and truncate by name. A
// captured or pending name is its inode: the f-form on a lent descriptor (design 5). On a descriptor: settle, then
// the kernel.

#include "hook_inside.h"
#include "namecalls.h"

#include <string.h>
#include <unistd.h>

// A call by name on a captured or pending name: `lent` is to be used. False: the name is native, or the kernel refuses
// the flags.
static inline bool lend(int dirfd, const char *path, int flags, unsigned how, struct lent *lent) {
    return !names_native() && !(flags & ~(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)) &&
           names_lend(dirfd, path, !(flags & AT_SYMLINK_NOFOLLOW), how, lent);
}

// Calls on a lent inode go where the program's own would: another preload behind us (fakeroot) may answer them. This is
// one's result as an internal one.
static inline long internal(long r) {
    return r < 0 ? -errno : r;
}
#define LENT(name, ...) internal(NATIVE(name, SYS_##name, __VA_ARGS__))

// A write by anybody but root takes these bits away: none must come behind them.
static unsigned before_chmod(mode_t mode) {
    return mode & (S_ISUID | S_ISGID) ? LEND_SETTLE : 0;
}

static long lent_chmod(const struct lent *l, mode_t mode) {
    return internal(NATIVE_OR(fchmodat, RAW(SYS_fchmodat, AT_FDCWD, l->path, mode), AT_FDCWD, l->path, mode, 0));
}

// The result of the call on a lent inode.
static int done(struct lent *l, long r) {
    names_return(l);
    return (int)hook_ret(r);
}


// A shorter file must not be seen before what was closed earlier is durable: a pending one is published first.
static bool still_open(struct lent *l) {
    if (l->own != NULL || !l->pending) {
        return true;
    }
    names_return(l);
    guard_depth++;
    names_wait(WAIT_ALL);
    guard_depth--;
    return false;
}

// A directory may become one in which no name can be made any more; its times are set after the names in it were made.
static inline void before_mode(int dirfd, const char *path) {
    if (UNLIKELY(!names_native())) {
        names_before_mode(dirfd, path);
    }
}

static bool lend_for_times(int dirfd, const char *path, int flags, struct lent *l) {
    bool lent = lend(dirfd, path, flags, LEND_WRITE, l);
    if (UNLIKELY(!lent)) {
        before_mode(dirfd, path);
    }
    return lent;
}

int hook_truncate(const char *path, off_t len) {
    struct lent l;
    if (UNLIKELY(lend(AT_FDCWD, path, 0, LEND_SETTLE, &l)) && still_open(&l)) {
        long r = LENT(truncate, l.path, len);
        if (r == 0 && l.own != NULL) {
            file_touch(l.own);
        }
        return done(&l, r);
    }
    return (int)NATIVE(truncate, SYS_truncate, path, len);
}

int hook_chmod(const char *path, mode_t mode) {
    struct lent l;
    if (UNLIKELY(lend(AT_FDCWD, path, 0, before_chmod(mode), &l))) {
        return done(&l, lent_chmod(&l, mode));
    }
    before_mode(AT_FDCWD, path);
    return (int)NATIVE_OR(chmod, RAW(SYS_fchmodat, AT_FDCWD, path, mode), path, mode);
}

int hook_fchmod(int fd, mode_t mode) {
    int r = hook_settled(fd);
    before_mode(fd, ".");
    return r < 0 ? (int)hook_ret(r) : (int)NATIVE(fchmod, SYS_fchmod, fd, mode);
}

int hook_fchmodat(int dirfd, const char *path, mode_t mode, int flags) {
    struct lent l;
    if (UNLIKELY(lend(dirfd, path, flags, before_chmod(mode), &l))) {
        return done(&l, lent_chmod(&l, mode));
    }
    before_mode(dirfd, path);
    return (int)NATIVE_OR(fchmodat, RAW(SYS_fchmodat, dirfd, path, mode), dirfd, path, mode, flags);
}

int hook_chown(const char *path, uid_t uid, gid_t gid) {
    struct lent l;
    if (UNLIKELY(lend(AT_FDCWD, path, 0, 0, &l))) {
        return done(&l, LENT(fchownat, AT_FDCWD, l.path, uid, gid, 0));
    }
    return (int)NATIVE_OR(chown, RAW(SYS_fchownat, AT_FDCWD, path, uid, gid), path, uid, gid);
}

int hook_lchown(const char *path, uid_t uid, gid_t gid) {
    struct lent l;
    if (UNLIKELY(lend(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, 0, &l))) {
        return done(&l, LENT(fchownat, AT_FDCWD, l.path, uid, gid, 0));
    }
    return (int)NATIVE_OR(lchown, RAW(SYS_fchownat, AT_FDCWD, path, uid, gid, AT_SYMLINK_NOFOLLOW), path, uid, gid);
}

int hook_fchown(int fd, uid_t uid, gid_t gid) {
    int r = hook_settled(fd);
    return r < 0 ? (int)hook_ret(r) : (int)NATIVE(fchown, SYS_fchown, fd, uid, gid);
}

int hook_lchmod(const char *path, mode_t mode) {
    struct lent l;
    if (UNLIKELY(lend(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, 0, &l))) {
        return done(&l, lent_chmod(&l, mode));
    }
    return LIKELY(REAL(lchmod) != NULL) ? real.lchmod(path, mode) : (int)hook_ret(-ENOSYS);
}

int hook_fchownat(int dirfd, const char *path, uid_t uid, gid_t gid, int flags) {
    struct lent l;
    if (UNLIKELY(lend(dirfd, path, flags, 0, &l))) {
        return done(&l, LENT(fchownat, AT_FDCWD, l.path, uid, gid, 0));
    }
    return (int)NATIVE(fchownat, SYS_fchownat, dirfd, path, uid, gid, flags);
}

// Times of a captured file are kept and applied last; they are set on the inode as well, where whoever it is lent to
// sees the atime, and where they count if libc writes the file, too (file_before_times).
static int set_times(struct lent *l, const struct timespec ts[2]) {
    if (l->own != NULL) {
        file_before_times(l->own, fd_of(l->own));
    }
    long r = LENT(utimensat, AT_FDCWD, l->path, ts, 0);
    return done(l, l->own != NULL && r == 0 ? file_set_times(l->own, ts) : r);
}

// The three older forms as the one that the kernel has now. NULL means now. -EINVAL as the kernel says.
static int timespecs(const struct timeval tv[2], struct timespec ts[2]) {
    static const struct timeval now[2];
    for (int i = 0; i < 2; i++) {
        const struct timeval *t = tv != NULL ? &tv[i] : &now[i];
        if (t->tv_usec < 0 || t->tv_usec >= 1000000) {
            return -EINVAL;
        }
        ts[i] = (struct timespec){t->tv_sec, tv != NULL ? t->tv_usec * 1000 : UTIME_NOW};
    }
    return 0;
}

static int set_times_tv(struct lent *l, const struct timeval tv[2]) {
    struct timespec ts[2];
    int r = l->fd < 0 ? l->error : timespecs(tv, ts);
    return r < 0 ? done(l, r) : set_times(l, ts);
}

int hook_utime(const char *path, const struct utimbuf *t) {
    struct lent l;
    if (lend_for_times(AT_FDCWD, path, 0, &l)) {
        struct timeval tv[2] = {{t != NULL ? t->actime : 0, 0}, {t != NULL ? t->modtime : 0, 0}};
        return set_times_tv(&l, t != NULL ? tv : NULL);
    }
    return LIKELY(REAL(utime) != NULL) ? real.utime(path, t) : (int)hook_ret(-ENOSYS);
}

int hook_utimes(const char *path, const struct timeval tv[2]) {
    struct lent l;
    if (lend_for_times(AT_FDCWD, path, 0, &l)) {
        return set_times_tv(&l, tv);
    }
    return LIKELY(REAL(utimes) != NULL) ? real.utimes(path, tv) : (int)hook_ret(-ENOSYS);
}

int hook_lutimes(const char *path, const struct timeval tv[2]) {
    struct lent l;
    if (lend_for_times(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, &l)) {
        return set_times_tv(&l, tv);
    }
    return LIKELY(REAL(lutimes) != NULL) ? real.lutimes(path, tv) : (int)hook_ret(-ENOSYS);
}

// On a descriptor: what the kernel, which may refuse it, has set on the inode is kept for the publish, too. `r` is what
// it said.
static int keep_times(int fd, const struct timespec ts[2], int r) {
    struct file *f = hook_captured(fd);
    if (UNLIKELY(f != NULL) && r == 0 && !f->followed) {
        file_set_times(f, ts);
    }
    return r;
}

int hook_futimes(int fd, const struct timeval tv[2]) {
    struct file *f = hook_captured(fd);
    struct timespec ts[2];
    if (UNLIKELY(f != NULL) && timespecs(tv, ts) == 0 && REAL(futimes) != NULL) {
        file_before_times(f, fd);
        return keep_times(fd, ts, real.futimes(fd, tv));
    }
    before_mode(fd, ".");
    return LIKELY(REAL(futimes) != NULL) ? real.futimes(fd, tv) : (int)hook_ret(-ENOSYS);
}

int hook_futimesat(int dirfd, const char *path, const struct timeval tv[2]) {
    struct lent l;
    if (path == NULL) {
        return hook_futimes(dirfd, tv); // glibc's extension
    }
    if (lend_for_times(dirfd, path, 0, &l)) {
        return set_times_tv(&l, tv);
    }
    return LIKELY(REAL(futimesat) != NULL) ? real.futimesat(dirfd, path, tv) : (int)hook_ret(-ENOSYS);
}

// The program's times; NULL means now. False: a wild pointer, which the kernel refuses.
static bool fetch_times(struct timespec to[2], const struct timespec from[2]) {
    static const struct timespec now[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};
    if (from == NULL) {
        memcpy(to, now, sizeof now);
        return true;
    }
    return hook_fetch(to, from, 2 * sizeof *to);
}

int hook_futimens(int fd, const struct timespec ts[2]) {
    struct file *f = hook_captured(fd);
    struct timespec kept[2];
    if (UNLIKELY(f != NULL) && fetch_times(kept, ts)) {
        file_before_times(f, fd);
        return keep_times(fd, kept, (int)NATIVE_OR(futimens, RAW(SYS_utimensat, fd, NULL, ts, 0), fd, ts));
    }
    before_mode(fd, ".");
    return (int)NATIVE_OR(futimens, RAW(SYS_utimensat, fd, NULL, ts, 0), fd, ts);
}

int hook_utimensat(int dirfd, const char *path, const struct timespec ts[2], int flags) {
    struct timespec given[2];
    struct lent l;
    struct file *f = hook_captured(dirfd);
    if (UNLIKELY(f != NULL) && path != NULL && hook_by_descriptor(path, flags)) {
        if (fetch_times(given, ts)) {
            file_before_times(f, dirfd);
            return keep_times(dirfd, given, (int)NATIVE(utimensat, SYS_utimensat, dirfd, path, ts, flags));
        }
    } else if (path != NULL && !names_native() && fetch_times(given, ts) && lend_for_times(dirfd, path, flags, &l)) {
        return set_times(&l, given);
    }
    return (int)NATIVE(utimensat, SYS_utimensat, dirfd, path, ts, flags);
}

int hook_setxattr(const char *path, const char *name, const void *value, size_t len, int flags) {
    struct lent l;
    if (UNLIKELY(lend(AT_FDCWD, path, 0, 0, &l))) {
        return done(&l, LENT(setxattr, l.path, name, value, len, flags));
    }
    return (int)NATIVE(setxattr, SYS_setxattr, path, name, value, len, flags);
}

int hook_lsetxattr(const char *path, const char *name, const void *value, size_t len, int flags) {
    struct lent l;
    if (UNLIKELY(lend(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, 0, &l))) {
        return done(&l, LENT(setxattr, l.path, name, value, len, flags));
    }
    return (int)NATIVE(lsetxattr, SYS_lsetxattr, path, name, value, len, flags);
}

int hook_fsetxattr(int fd, const char *name, const void *value, size_t len, int flags) {
    int r = hook_settled(fd);
    return r < 0 ? (int)hook_ret(r) : (int)NATIVE(fsetxattr, SYS_fsetxattr, fd, name, value, len, flags);
}

ssize_t hook_getxattr(const char *path, const char *name, void *value, size_t len) {
    struct lent l;
    if (UNLIKELY(lend(AT_FDCWD, path, 0, 0, &l))) {
        return done(&l, LENT(getxattr, l.path, name, value, len));
    }
    return NATIVE(getxattr, SYS_getxattr, path, name, value, len);
}

ssize_t hook_lgetxattr(const char *path, const char *name, void *value, size_t len) {
    struct lent l;
    if (UNLIKELY(lend(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, 0, &l))) {
        return done(&l, LENT(getxattr, l.path, name, value, len));
    }
    return NATIVE(lgetxattr, SYS_lgetxattr, path, name, value, len);
}

ssize_t hook_listxattr(const char *path, char *list, size_t len) {
    struct lent l;
    if (UNLIKELY(lend(AT_FDCWD, path, 0, 0, &l))) {
        return done(&l, LENT(listxattr, l.path, list, len));
    }
    return NATIVE(listxattr, SYS_listxattr, path, list, len);
}

ssize_t hook_llistxattr(const char *path, char *list, size_t len) {
    struct lent l;
    if (UNLIKELY(lend(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, 0, &l))) {
        return done(&l, LENT(listxattr, l.path, list, len));
    }
    return NATIVE(llistxattr, SYS_llistxattr, path, list, len);
}

int hook_removexattr(const char *path, const char *name) {
    struct lent l;
    if (UNLIKELY(lend(AT_FDCWD, path, 0, 0, &l))) {
        return done(&l, LENT(removexattr, l.path, name));
    }
    return (int)NATIVE(removexattr, SYS_removexattr, path, name);
}

int hook_lremovexattr(const char *path, const char *name) {
    struct lent l;
    if (UNLIKELY(lend(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, 0, &l))) {
        return done(&l, LENT(removexattr, l.path, name));
    }
    return (int)NATIVE(lremovexattr, SYS_lremovexattr, path, name);
}

#define HOOKS_ATTR
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
