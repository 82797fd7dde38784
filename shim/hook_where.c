// SPDX-License-Identifier: MIT
//
// hook_where: calls by name that are neither stat nor a change of it: what a link says, where a name leads, which file
// system it is on, watches, handles, and what makes a name that is no regular file. A captured or pending name is
// answered by its inode where that is the same, by text, or it is published first (design 5).

#include "change.h"
#include "hook_inside.h"
#include "lost.h"
#include "namecalls.h"
#include "way.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

static inline bool lend(int dirfd, const char *path, bool follow, struct lent *l) {
    return UNLIKELY(!names_native()) && names_lend(dirfd, path, follow, 0, l);
}

// Returns the result of a call on a lent inode, errno kept.
static int done(struct lent *l, int r) {
    names_return(l); // leaves errno alone
    return r;
}

static int missing(void) {
    return (int)hook_ret(-ENOSYS);
}

// ---- What a link says: a captured name is no link

// The error of a readlink whose answer the kernel does not know, or 0.
static int not_a_link(int dirfd, const char *path, size_t len) {
    enum name_state s = LIKELY(names_native()) || (int)len <= 0 ? NAME_NONE : names_state(dirfd, path, false);
    return s == NAME_OPEN || s == NAME_PENDING ? -EINVAL : names_missing(s);
}

// What a link of /proc says of a captured file without a name yet: the one that it will have. Its length, or 0. `text`
// has PATH_MAX bytes.
static size_t name_behind(int dirfd, const char *path, bool follow, char *text) {
    if (LIKELY(names_native()) || !guard_readable(path) || guard_foreign()) {
        return 0;
    }
    guard_depth++;
    struct file *f = names_linked(dirfd, path, follow);
    bool nameless = f != NULL && !f->followed && !f->published && !f->closed && !f->inherited && !f->dropped;
    int dir = nameless ? lost_pin_dir(f) : -ENOENT;
    int n = dir < 0 ? dir : policy_text(dir, f->name, text, PATH_MAX);
    if (dir >= 0) {
        lost_unpin_dir(f);
    }
    guard_depth--;
    return n > 0 ? (size_t)n : 0;
}

// The kernel has answered, so `buf` is there.
static ssize_t by_name(ssize_t r, int dirfd, const char *path, char *buf, size_t len) {
    char text[PATH_MAX];
    size_t n = r < 0 ? 0 : name_behind(dirfd, path, false, text);
    if (LIKELY(n == 0)) {
        return r;
    }
    n = n < len ? n : len;
    memcpy(buf, text, n);
    return (ssize_t)n;
}

ssize_t hook_readlink(const char *path, char *buf, size_t len) {
    int r = not_a_link(AT_FDCWD, path, len);
    return r < 0 ? hook_ret(r)
                 : by_name(NATIVE_OR(readlink, RAW(SYS_readlinkat, AT_FDCWD, path, buf, len), path, buf, len),
                           AT_FDCWD, path, buf, len);
}

ssize_t hook_readlinkat(int dirfd, const char *path, char *buf, size_t len) {
    int r = not_a_link(dirfd, path, len);
    return r < 0 ? hook_ret(r)
                 : by_name(NATIVE(readlinkat, SYS_readlinkat, dirfd, path, buf, len), dirfd, path, buf, len);
}

ssize_t hook___readlink_chk(const char *path, char *buf, size_t len, size_t cap) {
    if (len <= cap) {
        return hook_readlink(path, buf, len);
    }
    return REAL(__readlink_chk) != NULL ? real.__readlink_chk(path, buf, len, cap) : hook_ret(-ENOSYS);
}

ssize_t hook___readlinkat_chk(int dirfd, const char *path, char *buf, size_t len, size_t cap) {
    if (len <= cap) {
        return hook_readlinkat(dirfd, path, buf, len);
    }
    return REAL(__readlinkat_chk) != NULL ? real.__readlinkat_chk(dirfd, path, buf, len, cap) : hook_ret(-ENOSYS);
}

// ---- Where a name leads

// The canonical path of a name that its directory does not show yet, or shows as the symlink that it replaces. Its
// length with the terminator; 0: libc's; or the error of one that is going to be deleted.
static int canonical(const char *path, char *text) {
    struct place p;
    struct stat st;
    uint64_t word;
    int n = (int)name_behind(AT_FDCWD, path, true, text);
    enum name_state s = n > 0 || path == NULL || names_native() ? NAME_NONE : names_state(AT_FDCWD, path, true);
    if (n > 0) {
        return n + 1;
    }
    if (way_may_differ() && guard_readable(path) && path[0] != '/' && names_cwd_gone()) {
        return -ENOENT;
    }
    if (names_missing(s) < 0) {
        return names_missing(s);
    }
    if (s != NAME_OPEN && s != NAME_PENDING) {
        return 0;
    }
    guard_depth++;
    if (names_find_place(&p, AT_FDCWD, path, true, &word) == 0) {
        int r = os_fstatat(p.dir, p.name, &st, AT_SYMLINK_NOFOLLOW);
        if (r == -ENOENT || (r == 0 && S_ISLNK(st.st_mode))) {
            r = policy_text(p.dir, p.name, text, PATH_MAX);
            n = r > 0 ? r + 1 : 0;
        }
        place_close(&p);
    }
    guard_depth--;
    return n;
}

char *hook_realpath(const char *path, char *buf) {
    char text[PATH_MAX];
    int n = canonical(path, text);
    if (LIKELY(n == 0)) {
        return REAL(realpath) != NULL ? real.realpath(path, buf) : (missing(), NULL);
    }
    if (n < 0) {
        hook_ret(n);
        return NULL;
    }
    char *ret = buf != NULL ? buf : malloc((size_t)n); // the program frees it
    return ret != NULL ? memcpy(ret, text, (size_t)n) : NULL;
}

char *hook___realpath_chk(const char *path, char *buf, size_t cap) {
    if (cap >= PATH_MAX) {
        return hook_realpath(path, buf);
    }
    return REAL(__realpath_chk) != NULL ? real.__realpath_chk(path, buf, cap) : (missing(), NULL);
}

char *hook_canonicalize_file_name(const char *path) {
    char text[PATH_MAX];
    if (UNLIKELY(canonical(path, text) != 0)) {
        return hook_realpath(path, NULL);
    }
    return REAL(canonicalize_file_name) != NULL ? real.canonicalize_file_name(path) : (missing(), NULL);
}

// A working directory that is going to be deleted.
static inline bool no_cwd(void) {
    return UNLIKELY(!names_native()) && names_cwd_gone() && hook_ret(-ENOENT) < 0;
}

char *hook_getcwd(char *buf, size_t len) {
    return no_cwd() ? NULL : REAL(getcwd) != NULL ? real.getcwd(buf, len) : (missing(), NULL);
}

char *hook___getcwd_chk(char *buf, size_t len, size_t cap) {
    return no_cwd() ? NULL : REAL(__getcwd_chk) != NULL ? real.__getcwd_chk(buf, len, cap) : (missing(), NULL);
}

char *hook_getwd(char *buf) {
    return no_cwd() ? NULL : REAL(getwd) != NULL ? real.getwd(buf) : (missing(), NULL);
}

char *hook___getwd_chk(char *buf, size_t cap) {
    return no_cwd() ? NULL : REAL(__getwd_chk) != NULL ? real.__getwd_chk(buf, cap) : (missing(), NULL);
}

char *hook_get_current_dir_name(void) {
    return no_cwd() ? NULL : REAL(get_current_dir_name) != NULL ? real.get_current_dir_name() : (missing(), NULL);
}

// A directory that is going to be deleted.
int hook_chdir(const char *path) {
    enum name_state s = LIKELY(names_native()) ? NAME_NONE : names_state(AT_FDCWD, path, true);
    int r = s == NAME_OPEN || s == NAME_PENDING ? -ENOTDIR : names_missing(s);
    return r < 0 ? (int)hook_ret(r) : (int)NATIVE(chdir, SYS_chdir, path);
}

// ---- The file system under it

int hook_statfs(const char *path, struct statfs *st) {
    struct lent l;
    if (lend(AT_FDCWD, path, true, &l)) {
        return done(&l, (int)hook_ret(l.fd < 0 ? l.error : OS_CALL(SYS_fstatfs, l.fd, st, 0, 0, 0, 0)));
    }
    return (int)NATIVE(statfs, SYS_statfs, path, st);
}

// libc fills its own structure: by the name of the lent descriptor.
int hook_statvfs(const char *path, struct statvfs *st) {
    struct lent l;
    if (REAL(statvfs) == NULL) {
        return missing();
    }
    return lend(AT_FDCWD, path, true, &l) ? done(&l, real.statvfs(l.path, st)) : real.statvfs(path, st);
}

long hook_pathconf(const char *path, int name) {
    struct lent l;
    if (REAL(pathconf) == NULL) {
        return missing();
    }
    if (lend(AT_FDCWD, path, true, &l)) {
        long r = real.pathconf(l.path, name);
        names_return(&l);
        return r;
    }
    return real.pathconf(path, name);
}

// ---- What has to find the name itself: it is published first

static inline int publish_first(int dirfd, const char *path, bool follow) {
    return LIKELY(names_native()) ? 0 : names_publish(dirfd, path, follow);
}

int hook_name_to_handle_at(int dirfd, const char *path, struct file_handle *h, int *mount, int flags) {
    if (!(flags & AT_EMPTY_PATH) || (path != NULL && path[0] != '\0')) {
        publish_first(dirfd, path, (flags & AT_SYMLINK_FOLLOW) != 0);
    }
    return (int)NATIVE(name_to_handle_at, SYS_name_to_handle_at, dirfd, path, h, mount, flags);
}

// A watched directory shows what was closed before, not events of it afterwards.
static void before_watch(int dirfd, const char *path, bool follow) {
    if (UNLIKELY(!names_native())) {
        names_publish(dirfd, path, follow);
        names_before_list(dirfd, path);
    }
}

int hook_inotify_add_watch(int fd, const char *path, uint32_t mask) {
    before_watch(AT_FDCWD, path, !(mask & 0x02000000)); // IN_DONT_FOLLOW
    return (int)NATIVE(inotify_add_watch, SYS_inotify_add_watch, fd, path, mask);
}

int hook_fanotify_mark(int fd, unsigned flags, uint64_t mask, int dirfd, const char *path) {
    before_watch(dirfd, path, !(flags & 4)); // FAN_MARK_DONT_FOLLOW
    return (int)NATIVE(fanotify_mark, SYS_fanotify_mark, fd, flags, mask, dirfd, path);
}

key_t hook_ftok(const char *path, int id) {
    publish_first(AT_FDCWD, path, true);
    return REAL(ftok) != NULL ? real.ftok(path, id) : missing();
}

// The loader opens by itself. Who has called it says where it looks: so these go on by a jump.
static void before_load(const char *path, int mode) {
    if (UNLIKELY(!names_native()) && !(mode & RTLD_NOLOAD) && guard_readable(path) && strchr(path, '/') != NULL) {
        names_publish(AT_FDCWD, path, true);
    }
}

void *hook_dlopen(const char *path, int mode) {
    before_load(path, mode);
    return REAL(dlopen) != NULL ? real.dlopen(path, mode) : NULL;
}

void *hook_dlmopen(long space, const char *path, int mode) {
    before_load(path, mode);
    return REAL(dlmopen) != NULL ? real.dlmopen(space, path, mode) : NULL;
}

// ---- What makes a name: EEXIST and EADDRINUSE are the kernel's to say

static inline int make_first(int dirfd, const char *path) {
    return LIKELY(names_native()) || guard_foreign() ? 0 : change_new(dirfd, path, false);
}

int hook_bind(int fd, const struct sockaddr *addr, socklen_t len) {
    struct sockaddr_un un;
    if (UNLIKELY(!names_native()) && len > offsetof(struct sockaddr_un, sun_path) && len <= sizeof un &&
        hook_fetch(&un, addr, len) && un.sun_family == AF_UNIX && un.sun_path[0] != '\0') {
        char path[sizeof un.sun_path + 1] = {0}; // the kernel needs no terminator
        memcpy(path, un.sun_path, len - offsetof(struct sockaddr_un, sun_path));
        change_new(AT_FDCWD, path, false);
    }
    return (int)NATIVE(bind, SYS_bind, fd, addr, len);
}

int hook_mknodat(int dirfd, const char *path, mode_t mode, dev_t dev) {
    int r = make_first(dirfd, path);
    return r < 0 ? (int)hook_ret(r) : (int)NATIVE(mknodat, SYS_mknodat, dirfd, path, mode, dev);
}

int hook_mknod(const char *path, mode_t mode, dev_t dev) {
    int r = make_first(AT_FDCWD, path);
    return r < 0 ? (int)hook_ret(r)
                 : (int)NATIVE_OR(mknod, RAW(SYS_mknodat, AT_FDCWD, path, mode, dev), path, mode, dev);
}

// Of programs built before glibc 2.33.
int hook___xmknod(int ver, const char *path, mode_t mode, dev_t *dev) {
    int r = make_first(AT_FDCWD, path);
    if (r < 0) {
        return (int)hook_ret(r);
    }
    return REAL(__xmknod) != NULL ? real.__xmknod(ver, path, mode, dev) : missing();
}

int hook___xmknodat(int ver, int dirfd, const char *path, mode_t mode, dev_t *dev) {
    int r = make_first(dirfd, path);
    if (r < 0) {
        return (int)hook_ret(r);
    }
    return REAL(__xmknodat) != NULL ? real.__xmknodat(ver, dirfd, path, mode, dev) : missing();
}

int hook_mkfifo(const char *path, mode_t mode) {
    int r = make_first(AT_FDCWD, path);
    return r < 0 ? (int)hook_ret(r)
                 : (int)NATIVE_OR(mkfifo, RAW(SYS_mknodat, AT_FDCWD, path, mode | S_IFIFO, 0), path, mode);
}

int hook_mkfifoat(int dirfd, const char *path, mode_t mode) {
    int r = make_first(dirfd, path);
    return r < 0 ? (int)hook_ret(r)
                 : (int)NATIVE_OR(mkfifoat, RAW(SYS_mknodat, dirfd, path, mode | S_IFIFO, 0), dirfd, path, mode);
}

#define HOOKS_WHERE
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
