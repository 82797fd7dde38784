// SPDX-License-Identifier: MIT
//
// hook_names: changes of names. With nothing captured or pending they are native at once; else change.c says.

#include "capture.h"
#include "change.h"
#include "lost.h"
#include "namecalls.h"
#include "real.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static inline bool leave_alone(void) {
    return LIKELY(names_native()) || guard_foreign();
}

// The call is made only if nothing else has been decided.
#define UNLESS(decided, call)                                                                                          \
    do {                                                                                                               \
        int d_ = (decided);                                                                                            \
        return d_ == CHANGE_NATIVE ? (int)(call) : d_ == CHANGE_DONE ? 0 : (int)hook_ret(d_);                          \
    } while (0)

// What `change`, which deletes or replaces, decides. Not where closed files were lost with keeper and engine, and the
// program has not been told yet: it may be what is left.
#define DELETING(change) (UNLIKELY(lost_owed()) ? -EIO : leave_alone() ? CHANGE_NATIVE : (change))

static int before_rename(int fromdir, const char *from, int todir, const char *to, unsigned flags) {
    return DELETING(change_rename(fromdir, from, todir, to, flags));
}

// What the real call said; a success may have brought an unmatched file under a matched name.
static int renamed(int r, int fromdir, const char *from, int todir, const char *to) {
    if (r == 0) {
        capture_renamed(fromdir, from, todir, to, __builtin_return_address(0));
    }
    return r;
}

int hook_rename(const char *from, const char *to) {
    UNLESS(before_rename(AT_FDCWD, from, AT_FDCWD, to, 0),
           renamed((int)NATIVE_OR(rename, os_renameat2(AT_FDCWD, from, AT_FDCWD, to, 0), from, to), AT_FDCWD, from,
                   AT_FDCWD, to));
}

int hook_renameat(int fromdir, const char *from, int todir, const char *to) {
    UNLESS(before_rename(fromdir, from, todir, to, 0),
           renamed((int)NATIVE_OR(renameat, os_renameat2(fromdir, from, todir, to, 0), fromdir, from, todir, to),
                   fromdir, from, todir, to));
}

int hook_renameat2(int fromdir, const char *from, int todir, const char *to, unsigned flags) {
    UNLESS(before_rename(fromdir, from, todir, to, flags),
           renamed((int)NATIVE(renameat2, SYS_renameat2, fromdir, from, todir, to, flags), fromdir, from, todir, to));
}

static int before_remove(int dirfd, const char *path, int flags) {
    return DELETING(change_remove(dirfd, path, flags));
}

int hook_unlink(const char *path) {
    UNLESS(before_remove(AT_FDCWD, path, 0), NATIVE_OR(unlink, os_unlinkat(AT_FDCWD, path, 0), path));
}

int hook_unlinkat(int dirfd, const char *path, int flags) {
    bool odd = (flags & ~AT_REMOVEDIR) != 0; // the kernel's to refuse
    UNLESS(odd ? CHANGE_NATIVE : before_remove(dirfd, path, flags), NATIVE(unlinkat, SYS_unlinkat, dirfd, path, flags));
}

int hook_remove(const char *path) {
    UNLESS(DELETING(change_remove_any(path)),
           REAL(remove) != NULL ? real.remove(path) : hook_ret(os_unlinkat(AT_FDCWD, path, 0)));
}

int hook_rmdir(const char *path) {
    UNLESS(before_remove(AT_FDCWD, path, AT_REMOVEDIR),
           NATIVE_OR(rmdir, os_unlinkat(AT_FDCWD, path, AT_REMOVEDIR), path));
}

static int before_link(int fromdir, const char *from, int todir, const char *to) {
    return leave_alone() ? CHANGE_NATIVE : change_link(fromdir, from, todir, to);
}

int hook_link(const char *from, const char *to) {
    UNLESS(before_link(AT_FDCWD, from, AT_FDCWD, to),
           NATIVE_OR(link, os_linkat(AT_FDCWD, from, AT_FDCWD, to, 0), from, to));
}

// With these flags an open file, perhaps one without a name, is given one.
static int before_linkat(int fromdir, const char *from, int todir, const char *to, int flags) {
    if ((flags & ~(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH)) != 0) {
        return CHANGE_NATIVE; // refused
    }
    bool open = (flags & AT_SYMLINK_FOLLOW) || ((flags & AT_EMPTY_PATH) && guard_readable(from) && from[0] == '\0');
    int r = UNLIKELY(open) && guard_depth == 0 && !guard_foreign() ? change_link_fd(fromdir, from) : CHANGE_NATIVE;
    return r < 0 ? r : before_link(fromdir, from, todir, to);
}

int hook_linkat(int fromdir, const char *from, int todir, const char *to, int flags) {
    UNLESS(before_linkat(fromdir, from, todir, to, flags), NATIVE(linkat, SYS_linkat, fromdir, from, todir, to, flags));
}

// A new name: an open captured file of this name is released, so that the kernel says EEXIST.
static int before_new(int dirfd, const char *path) {
    return leave_alone() ? CHANGE_NATIVE : change_new(dirfd, path, true);
}

int hook_symlink(const char *target, const char *path) {
    UNLESS(before_new(AT_FDCWD, path), NATIVE_OR(symlink, RAW(SYS_symlinkat, target, AT_FDCWD, path), target, path));
}

int hook_symlinkat(const char *target, int dirfd, const char *path) {
    UNLESS(before_new(dirfd, path), NATIVE(symlinkat, SYS_symlinkat, target, dirfd, path));
}

// A new directory deletes and replaces nothing: only a name that is pending has to be there first.
static int before_mkdir(int dirfd, const char *path) {
    return leave_alone() ? CHANGE_NATIVE : change_new(dirfd, path, false);
}

int hook_mkdir(const char *path, mode_t mode) {
    UNLESS(before_mkdir(AT_FDCWD, path), NATIVE_OR(mkdir, os_mkdirat(AT_FDCWD, path, mode), path, mode));
}

int hook_mkdirat(int dirfd, const char *path, mode_t mode) {
    UNLESS(before_mkdir(dirfd, path), NATIVE(mkdirat, SYS_mkdirat, dirfd, path, mode));
}

#define HOOKS_NAMES
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
