// SPDX-License-Identifier: MIT
//
// hook_names: changes of names. With nothing captured or pending they are native at once. Else a change that touches a
// matched, captured or pending name, or moves a directory, happens behind what was closed before it (design, P4); if
// some of that has failed, it does not happen: EIO.

#include "capture.h"
#include "namecalls.h"
#include "real.h"

#include <string.h>
#include <unistd.h>

static inline bool leave_alone(void) {
    return LIKELY(names_native()) || guard_foreign();
}

// One name goes or is made. 0: do it; or the error to return.
static __attribute__((noinline)) int before_one(int dirfd, const char *path, enum change_how how, struct change *c) {
    guard_depth++;
    int r = names_before_change(dirfd, path, how, c);
    r = r < 0 ? r : names_change_wait(c);
    guard_depth--;
    return r;
}

static __attribute__((noinline)) int before_two(int fromdir, const char *from, int todir, const char *to,
                                                enum change_how how) {
    struct change c = {false, false};
    guard_depth++;
    int r = names_before_change(fromdir, from, CHANGE_RELEASE, &c);
    r = r < 0 ? r : names_before_change(todir, to, how, &c);
    r = r < 0 ? r : names_change_wait(&c);
    guard_depth--;
    return r;
}

// What a rename goes over is published first, not dropped: the rename may fail.
static int before_rename(int fromdir, const char *from, int todir, const char *to) {
    return leave_alone() ? 0 : before_two(fromdir, from, todir, to, CHANGE_RELEASE);
}

// What the real call said; a success may have brought an unmatched file under a matched name.
static int renamed(int r, int fromdir, const char *from, int todir, const char *to) {
    if (r == 0) {
        capture_renamed(fromdir, from, todir, to, __builtin_return_address(0));
    }
    return r;
}

int hook_rename(const char *from, const char *to) {
    int r = before_rename(AT_FDCWD, from, AT_FDCWD, to);
    if (r < 0) {
        return (int)hook_ret(r);
    }
    r = (int)NATIVE_OR(rename, os_renameat2(AT_FDCWD, from, AT_FDCWD, to, 0), from, to);
    return renamed(r, AT_FDCWD, from, AT_FDCWD, to);
}

int hook_renameat(int fromdir, const char *from, int todir, const char *to) {
    int r = before_rename(fromdir, from, todir, to);
    if (r < 0) {
        return (int)hook_ret(r);
    }
    r = (int)NATIVE_OR(renameat, os_renameat2(fromdir, from, todir, to, 0), fromdir, from, todir, to);
    return renamed(r, fromdir, from, todir, to);
}

int hook_renameat2(int fromdir, const char *from, int todir, const char *to, unsigned flags) {
    int r = before_rename(fromdir, from, todir, to);
    if (r < 0) {
        return (int)hook_ret(r);
    }
    r = (int)NATIVE(renameat2, SYS_renameat2, fromdir, from, todir, to, flags);
    return renamed(r, fromdir, from, todir, to);
}

// After the real unlink of a name whose captured file was dropped: an older file may have stood there, or none.
static int after_unlink(int r, int saved, const struct change *c) {
    if (UNLIKELY(r < 0 && c->dropped && errno == ENOENT)) {
        errno = saved;
        return 0;
    }
    return r;
}

int hook_unlink(const char *path) {
    struct change c = {false, false};
    int saved = errno;
    int r = leave_alone() ? 0 : before_one(AT_FDCWD, path, CHANGE_DROP, &c);
    if (r < 0) {
        return (int)hook_ret(r);
    }
    return after_unlink((int)NATIVE_OR(unlink, os_unlinkat(AT_FDCWD, path, 0), path), saved, &c);
}

int hook_unlinkat(int dirfd, const char *path, int flags) {
    struct change c = {false, false};
    int saved = errno;
    int r = leave_alone() ? 0 : before_one(dirfd, path, CHANGE_DROP, &c);
    if (r < 0) {
        return (int)hook_ret(r);
    }
    return after_unlink((int)NATIVE(unlinkat, SYS_unlinkat, dirfd, path, flags), saved, &c);
}

int hook_remove(const char *path) {
    struct change c = {false, false};
    int saved = errno;
    int r = leave_alone() ? 0 : before_one(AT_FDCWD, path, CHANGE_DROP, &c);
    if (r < 0) {
        return (int)hook_ret(r);
    }
    return after_unlink(REAL(remove) != NULL ? real.remove(path) : (int)hook_ret(os_unlinkat(AT_FDCWD, path, 0)), saved,
                        &c);
}

int hook_rmdir(const char *path) {
    struct change c = {false, false};
    int r = leave_alone() ? 0 : before_one(AT_FDCWD, path, CHANGE_RELEASE, &c);
    return r < 0 ? (int)hook_ret(r) : (int)NATIVE_OR(rmdir, os_unlinkat(AT_FDCWD, path, AT_REMOVEDIR), path);
}

static int before_link(int fromdir, const char *from, int todir, const char *to) {
    return leave_alone() ? 0 : before_two(fromdir, from, todir, to, CHANGE_RELEASE);
}

int hook_link(const char *from, const char *to) {
    int r = before_link(AT_FDCWD, from, AT_FDCWD, to);
    return r < 0 ? (int)hook_ret(r) : (int)NATIVE_OR(link, os_linkat(AT_FDCWD, from, AT_FDCWD, to, 0), from, to);
}

int hook_linkat(int fromdir, const char *from, int todir, const char *to, int flags) {
    int r = before_link(fromdir, from, todir, to);
    return r < 0 ? (int)hook_ret(r) : (int)NATIVE(linkat, SYS_linkat, fromdir, from, todir, to, flags);
}

// A new name: an open captured file of this name is released, so that the kernel says EEXIST.
static int before_new(int dirfd, const char *path) {
    struct change c = {false, false};
    return leave_alone() ? 0 : before_one(dirfd, path, CHANGE_RELEASE, &c);
}

int hook_symlink(const char *target, const char *path) {
    int r = before_new(AT_FDCWD, path);
    return r < 0 ? (int)hook_ret(r) : (int)NATIVE_OR(symlink, RAW(SYS_symlinkat, target, AT_FDCWD, path), target, path);
}

int hook_symlinkat(const char *target, int dirfd, const char *path) {
    int r = before_new(dirfd, path);
    return r < 0 ? (int)hook_ret(r) : (int)NATIVE(symlinkat, SYS_symlinkat, target, dirfd, path);
}

// A new directory deletes and replaces nothing: only a name that is pending has to be there first.
static int before_mkdir(int dirfd, const char *path) {
    return LIKELY(names_native()) ? 0 : names_publish(dirfd, path, false);
}

int hook_mkdir(const char *path, mode_t mode) {
    int r = before_mkdir(AT_FDCWD, path);
    return r < 0 ? (int)hook_ret(r) : (int)NATIVE_OR(mkdir, os_mkdirat(AT_FDCWD, path, mode), path, mode);
}

int hook_mkdirat(int dirfd, const char *path, mode_t mode) {
    int r = before_mkdir(dirfd, path);
    return r < 0 ? (int)hook_ret(r) : (int)NATIVE(mkdirat, SYS_mkdirat, dirfd, path, mode);
}

#define HOOKS_NAMES
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
