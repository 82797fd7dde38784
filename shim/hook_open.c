// SPDX-License-Identifier: MIT
//
// hook_open: open and its siblings, creat, mkstemp's family. Each hook is: captured? else, does the name mean an
// inode that its directory does not show yet? else the real call. What is captured is capture.c's decision.

#include "capture.h"
#include "hook_inside.h"
#include "namecalls.h"
#include "starved.h"

#include <stdarg.h>

// What openat2 accepts; openat ignores the rest.
#define OPEN_FLAGS                                                                                                     \
    (O_ACCMODE | O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC | O_APPEND | O_NONBLOCK | O_SYNC | O_ASYNC | O_DIRECT |         \
     00100000 | O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC | O_PATH | O_TMPFILE)

// The mode is there only if the flags say so, and always forwarded: the kernel ignores what it does not need.
static inline bool takes_mode(int flags) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
}

// What is not simply the real call. CAPTURE_NATIVE: it is.
__attribute__((noinline)) long hook_open_slow(int dirfd, const char *path, int flags, mode_t mode, const void *caller) {
    struct lent lent;
    long r = capture_open(dirfd, path, flags, mode, caller);
    if (r != CAPTURE_NATIVE || names_native()) {
        return r;
    }
    r = names_before_open(dirfd, path, flags, &lent);
    if (r <= 0) {
        return r < 0 ? r : CAPTURE_NATIVE;
    }
    r = os_openat(AT_FDCWD, lent.path, names_open_flags(flags), 0);
    names_return(&lent);
    if (starved((int)r)) { // the lent one was the last
        starved_path(dirfd, path, !(flags & O_NOFOLLOW));
        return CAPTURE_NATIVE;
    }
    return r;
}

static inline long open_any(int dirfd, const char *path, int flags, mode_t mode, const void *caller) {
    if (LIKELY((flags & O_ACCMODE) == O_RDONLY && !(flags & (O_CREAT | O_TRUNC)) && names_native())) {
        return CAPTURE_NATIVE;
    }
    return hook_open_slow(dirfd, path, flags, mode, caller);
}

int hook_open(const char *path, int flags, ...) {
    mode_t mode = 0;
    if (takes_mode(flags)) {
        va_list ap;
        va_start(ap, flags);
        mode = va_arg(ap, mode_t);
        va_end(ap);
    }
    long r = open_any(AT_FDCWD, path, flags, mode, __builtin_return_address(0));
    return r != CAPTURE_NATIVE ? (int)hook_ret(r)
                               : (int)NATIVE_OR(open, os_openat(AT_FDCWD, path, flags, mode), path, flags, mode);
}

int hook_openat(int dirfd, const char *path, int flags, ...) {
    mode_t mode = 0;
    if (takes_mode(flags)) {
        va_list ap;
        va_start(ap, flags);
        mode = va_arg(ap, mode_t);
        va_end(ap);
    }
    long r = open_any(dirfd, path, flags, mode, __builtin_return_address(0));
    return r != CAPTURE_NATIVE ? (int)hook_ret(r) : (int)NATIVE(openat, SYS_openat, dirfd, path, flags, mode);
}

int hook_creat(const char *path, mode_t mode) {
    int flags = O_WRONLY | O_CREAT | O_TRUNC;
    long r = open_any(AT_FDCWD, path, flags, mode, __builtin_return_address(0));
    return r != CAPTURE_NATIVE ? (int)hook_ret(r)
                               : (int)NATIVE_OR(creat, os_openat(AT_FDCWD, path, flags, mode), path, mode);
}

// glibc 2.43's. `how` stays the program's: it is copied, and what is odd about it the kernel says. With a restricted
// lookup the name is the kernel's to find: it is native, published first, and followed afterwards.
int hook_openat2(int dirfd, const char *path, const struct open_how *how, size_t size) {
    long r = hook_openat2_slow(dirfd, path, how, size, __builtin_return_address(0));
    return r != CAPTURE_NATIVE ? (int)hook_ret(r) : (int)NATIVE(openat2, SYS_openat2, dirfd, path, how, size);
}

long hook_openat2_slow(int dirfd, const char *path, const struct open_how *how, size_t size, const void *caller) {
    struct open_how h;
    if (!atomic_load_explicit(&shim.ready, memory_order_acquire) || size != sizeof h || !hook_fetch(&h, how, size) ||
        (h.flags & ~(uint64_t)OPEN_FLAGS) != 0 || (h.mode & ~07777ull) != 0 ||
        (h.mode != 0 && !takes_mode((int)h.flags))) {
        return CAPTURE_NATIVE;
    }
    if (h.resolve == 0) {
        return open_any(dirfd, path, (int)h.flags, (mode_t)h.mode, caller);
    }
    if (!names_native()) {
        names_publish(dirfd, path, !(h.flags & O_NOFOLLOW));
    }
    long fd = OS_CALL(SYS_openat2, dirfd, path, &h, sizeof h, 0, 0);
    if (fd >= 0 && ((h.flags & O_ACCMODE) == O_WRONLY || (h.flags & O_ACCMODE) == O_RDWR)) {
        capture_follow((int)fd, dirfd, path, (int)h.flags, caller);
    }
    return fd;
}

// The fortified forms end the program when a mode is missing: that stays theirs to say.
int hook___open_2(const char *path, int flags) {
    long r = takes_mode(flags) ? CAPTURE_NATIVE : open_any(AT_FDCWD, path, flags, 0, __builtin_return_address(0));
    return r != CAPTURE_NATIVE ? (int)hook_ret(r)
                               : (int)NATIVE_OR(__open_2, os_openat(AT_FDCWD, path, flags, 0), path, flags);
}

int hook___openat_2(int dirfd, const char *path, int flags) {
    long r = takes_mode(flags) ? CAPTURE_NATIVE : open_any(dirfd, path, flags, 0, __builtin_return_address(0));
    return r != CAPTURE_NATIVE ? (int)hook_ret(r) : (int)NATIVE(__openat_2, SYS_openat, dirfd, path, flags);
}

// mkstemp and kin: the inner open is invisible. The way to it is looked at before, and the file is followed afterwards.
static bool no_way(const char *tmpl) {
    int r = LIKELY(names_native()) ? 0 : names_way(AT_FDCWD, tmpl);
    return r < 0 && hook_ret(r) < 0;
}

static int made(int fd, const char *path, int flags, const void *caller) {
    if (fd >= 0) {
        capture_follow(fd, AT_FDCWD, path, flags | O_RDWR | O_CREAT | O_EXCL, caller);
    }
    return fd;
}

#define MADE(name, tmpl, flags, ...)                                                                                   \
    (REAL(name) == NULL ? missing()                                                                                    \
     : no_way(tmpl)     ? -1                                                                                           \
                        : made(real.name(__VA_ARGS__), tmpl, flags, __builtin_return_address(0)))

static int missing(void) {
    return (int)hook_ret(-ENOSYS);
}

int hook_mkstemp(char *tmpl) {
    return MADE(mkstemp, tmpl, 0, tmpl);
}

int hook_mkostemp(char *tmpl, int flags) {
    return MADE(mkostemp, tmpl, flags, tmpl, flags);
}

int hook_mkstemps(char *tmpl, int suffix) {
    return MADE(mkstemps, tmpl, 0, tmpl, suffix);
}

int hook_mkostemps(char *tmpl, int suffix, int flags) {
    return MADE(mkostemps, tmpl, flags, tmpl, suffix, flags);
}

char *hook_mkdtemp(char *tmpl) {
    return no_way(tmpl) ? NULL : REAL(mkdtemp) != NULL ? real.mkdtemp(tmpl) : (missing(), NULL);
}

#define HOOKS_OPEN
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
