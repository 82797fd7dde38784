// SPDX-License-Identifier: MIT
//
// change: see change.h. Renames are change_rename.c's.

#include "change_inside.h"

#include "../core/os.h"
#include "creds.h"
#include "fdtable.h"
#include "lost.h"
#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int change_look(int dir, const char *name, int flags, struct statx *x) {
    return (int)OS_CALL(SYS_statx, dir, name, flags | AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_MNT_ID, x, 0);
}

bool change_matched(const struct subject *t, int dirfd, const char *path) {
    const char *patterns = shim.config.paths;
    return policy_match(patterns, dirfd, path) || policy_match_in(patterns, t->p.dir, t->p.name);
}

// Closed by place_close(&t->p). FIND_NONE: it has no place, the call is native. FIND_STARVED: nor could one be looked
// for; native likewise, but behind what was closed before.
enum found { FIND_FOUND, FIND_NONE, FIND_STARVED };
static enum found find(struct subject *t, int dirfd, const char *path) {
    int r = guard_readable(path) ? names_find_place(&t->p, dirfd, path, false, &t->word) : -EFAULT;
    if (r != 0) {
        return starved(r) ? FIND_STARVED : FIND_NONE;
    }
    t->matched = change_matched(t, dirfd, path);
    return FIND_FOUND;
}

void change_look_again(struct subject *t) {
    t->word = names_word(&t->p);
    int r = change_look(t->p.dir, t->p.name, 0, &t->x);
    t->there = r == 0;
    t->missing = r == -ENOENT;
}

#define FIXED (STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND)

// Who owns what the program sees under the name: what is there, or the inode that is not there yet. False: unknown.
static bool owner_of(const struct subject *t, uid_t *owner) {
    struct lent l;
    struct stat st;
    if (!is_hidden(t)) {
        *owner = t->x.stx_uid;
        return true;
    }
    if (names_lend_place(&t->p, t->word, 0, &l) < 0) {
        return false;
    }
    bool known = os_fstat(l.fd, &st) == 0;
    *owner = st.st_uid;
    names_return(&l);
    return known;
}

// By the rights of this thread at this moment. The engine, which may be somebody else, asks nobody.
static bool is_permitted(const struct subject *t) {
    struct statx dir;
    uid_t owner;
    if (change_look(t->p.dir, "", AT_EMPTY_PATH, &dir) < 0 || (dir.stx_attributes & FIXED) != 0 ||
        OS_CALL(SYS_faccessat2, t->p.dir, ".", W_OK | X_OK, AT_EACCESS, 0, 0) < 0 || !client_acts_for_us()) {
        return false;
    }
    bool nothing = !t->there && !is_hidden(t);
    return nothing || !(dir.stx_mode & S_ISVTX) || (owner_of(t, &owner) && creds_own(owner));
}

bool change_allowed(const struct subject *t) {
    if (!is_permitted(t) || (!shim.config.async_shared && shared_must_wait(t->p.dir))) {
        return false;
    }
    bool one = !t->there || is(t, S_IFDIR) || t->x.stx_nlink == 1;
    return one && (!t->there || (t->x.stx_attributes & (FIXED | STATX_ATTR_MOUNT_ROOT)) == 0);
}

// The way that is always right: behind everything that was closed before, by the kernel.
static int wait_then_native(enum wait_scope scope) {
    int r = names_wait(scope);
    return r < 0 ? r : CHANGE_NATIVE;
}

// By O_PATH: to close another descriptor would drop the program's locks.
int change_hold(const struct subject *t) {
    return t->there ? os_openat(t->p.dir, t->p.name, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0) : -ENOENT;
}

int change_ask(struct msg *q, const int *fds, int n) {
    int r = client_ask(q, fds, n, NULL, NULL, -1);
    if (r == 0) {
        file_wait_for_pending();
    }
    return r;
}

int change_alone(void) {
    return lost_owed() ? -EIO : CHANGE_NATIVE;
}

// What an engine that cannot take the entry leaves to do. -EAGAIN: the name has been published meanwhile. -EIO: a
// device is broken, and nothing is deleted.
static int refused(int r) {
    bool told = r == -ENOENT || r == -ENOTEMPTY || r == -EAGAIN || r == -EIO;
    return told ? r : r == -EPIPE ? change_alone() : wait_then_native(WAIT_CHANGE);
}

// What is open gets its name, and goes on as a native file: in this process, in another, or in the one that this was
// forked from. 0 or -EIO.
static int release_open(const struct subject *t) {
    struct file *f = names_own(t->word);
    struct lent l;
    if (f != NULL) {
        return file_release(f, fd_of(f)) < 0 ? -EIO : 0;
    }
    if (names_lend_place(&t->p, t->word, false, &l) == 0) {
        if (!l.pending) {
            names_link_inode(l.fd);
        }
        names_return(&l);
    }
    return 0;
}

// ---- Deletion

static int remove_file(struct subject *t) {
    struct file *f = state_of(t) == NAME_OPEN ? names_own(t->word) : NULL;
    if (names_gone(t->word)) {
        return t->dropped ? CHANGE_DONE : -ENOENT;
    }
    // What has no content, or is no file, takes nothing with it.
    bool empty = t->there && !is(t, S_IFLNK) && (!is(t, S_IFREG) || t->x.stx_size == 0);
    bool native = state_of(t) == NAME_NONE || state_of(t) == NAME_FOLLOWED;
    if (native && (!t->there || empty || (t->word == 0 && !t->matched))) {
        return t->dropped && !t->there ? CHANGE_DONE : CHANGE_NATIVE;
    }
    if (state_of(t) == NAME_OPEN && !is_permitted(t)) {
        int r = release_open(t); // the kernel finds it, and refuses
        return r < 0 ? r : wait_then_native(WAIT_CHANGE);
    }
    if (f != NULL && !t->dropped && file_drop(f) == 0) {
        t->dropped = true;
        return -EAGAIN; // and an older file of this name goes in order
    }
    if (is(t, S_IFDIR) || !change_allowed(t)) {
        return wait_then_native(WAIT_CHANGE);
    }
    struct msg q = {.type = MSG_REMOVE};
    memcpy(q.u.change.name, t->p.name, sizeof q.u.change.name);
    int fds[2] = {t->p.dir, change_hold(t)};
    if (starved(fds[1])) {
        return wait_then_native(WAIT_CHANGE);
    }
    int r = change_ask(&q, fds, fds[1] >= 0 ? 2 : 1);
    t->dropped |= q.value == 1;
    if (fds[1] >= 0) {
        os_close(fds[1]);
    }
    return r == 0 ? CHANGE_DONE : refused(r);
}

// Does the directory hold nothing but what is going to be deleted? `*absent`: it holds such names. 1, 0, or an error.
static int is_empty(int dir, bool *absent) {
    char buf[4096] __attribute__((aligned(8)));
    struct stat st;
    struct place p = {.dir = -1};
    int fd = os_openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    long n = fd < 0 ? fd : os_fstat(fd, &st);
    bool empty = n == 0;
    while (empty && (n = OS_CALL(SYS_getdents64, fd, buf, sizeof buf, 0, 0, 0)) > 0) {
        for (long at = 0; at < n && empty; at += ((struct os_dirent *)(buf + at))->len) {
            const char *name = ((struct os_dirent *)(buf + at))->name;
            if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
                continue;
            }
            p.dev = st.st_dev;
            p.ino = st.st_ino;
            memcpy(p.name, name, strlen(name) + 1);
            empty = names_gone(names_word(&p));
            *absent = true;
        }
    }
    if (fd >= 0) {
        os_close(fd);
    }
    return starved((int)n) ? (int)n : empty && n == 0;
}

static int remove_dir(struct subject *t) {
    bool absent = false;
    if (names_gone(t->word)) {
        return -ENOENT;
    }
    if (state_of(t) == NAME_OPEN || state_of(t) == NAME_PENDING) {
        return -ENOTDIR;
    }
    int dir = is(t, S_IFDIR) ? change_hold(t) : -ENOTDIR;
    if (dir < 0) {
        return starved(dir) ? wait_then_native(WAIT_CHANGE) : CHANGE_NATIVE;
    }
    int r = CHANGE_NATIVE, empty = is_empty(dir, &absent);
    if (starved(empty)) {
        r = wait_then_native(WAIT_CHANGE);
    } else if (empty > 0) {
        struct msg q = {.type = MSG_REMOVE};
        q.u.change.flags = REMOVE_DIR | (absent ? 0 : REMOVE_EMPTY);
        memcpy(q.u.change.name, t->p.name, sizeof q.u.change.name);
        int fds[2] = {t->p.dir, dir};
        if (!change_allowed(t)) {
            r = wait_then_native(WAIT_CHANGE);
        } else {
            r = change_ask(&q, fds, 2);
            r = r < 0 ? refused(r) : q.value == 1 ? CHANGE_NATIVE : CHANGE_DONE;
        }
    }
    os_close(dir);
    return r;
}

const char *change_without_slashes(const char *path, char *buf) {
    size_t n = strnlen(path, PATH_MAX), all = n;
    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    if (n == all || all == PATH_MAX) {
        return path;
    }
    memcpy(buf, path, n);
    buf[n] = '\0';
    return buf;
}

int change_remove(int dirfd, const char *path, int flags) {
    struct subject t = {.dropped = false};
    int r = -EAGAIN;
    char buf[PATH_MAX];
    if ((flags & AT_REMOVEDIR) && guard_readable(path)) {
        path = change_without_slashes(path, buf);
    }
    guard_depth++;
    enum found found = find(&t, dirfd, path);
    if (found == FIND_STARVED) {
        r = wait_then_native(WAIT_CHANGE);
    } else if (found == FIND_NONE) {
        enum name_state s = names_state(dirfd, path, false);
        r = s == NAME_NO_DIR ? names_way(dirfd, path) : s == NAME_NOT_DIR ? -ENOTDIR : CHANGE_NATIVE;
        r = s == NAME_NO_DIR && r == 0 ? wait_then_native(WAIT_CHANGE) : r;
    } else {
        for (int i = 0; i < CHANGE_LOOKS && r == -EAGAIN; i++) {
            change_look_again(&t);
            r = flags & AT_REMOVEDIR ? remove_dir(&t) : remove_file(&t);
            r = r == -ENOENT && t.dropped ? CHANGE_DONE : r;
        }
        r = r == -EAGAIN ? wait_then_native(WAIT_CHANGE) : r;
        place_close(&t.p);
    }
    guard_depth--;
    return r;
}

int change_remove_any(const char *path) {
    struct stat st;
    bool dir = guard_readable(path) && os_fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
    return change_remove(AT_FDCWD, path, dir ? AT_REMOVEDIR : 0);
}

// ---- What waits

int change_link_fd(int fromdir, const char *from) {
    struct stat st;
    if (!guard_readable(from) || os_fstatat(fromdir, from, &st, AT_EMPTY_PATH) < 0 || !S_ISREG(st.st_mode) ||
        st.st_nlink > 0) {
        return CHANGE_NATIVE;
    }
    int r = CHANGE_NATIVE;
    guard_depth++;
    struct file *f = file_by_inode(st.st_dev, st.st_ino, true);
    int fd = f != NULL ? fd_of(f) : os_openat(fromdir, from, O_PATH | O_CLOEXEC, 0);
    if (f != NULL && !f->followed) {
        file_fix_stat(f, fd, &st);
        r = st.st_nlink == 0 ? -ENOENT : CHANGE_NATIVE; // its name was deleted: the kernel would give it one
    }
    if (r == CHANGE_NATIVE && f != NULL && !f->inherited && !f->followed) {
        r = file_release(f, fd) < 0 ? -EIO : CHANGE_NATIVE;
    } else if (r == CHANGE_NATIVE && name_word_hidden(names_word_of(&st))) {
        if (fd >= 0) {
            names_link_inode(fd); // open in another process
        }
        r = wait_then_native(WAIT_ALL); // closed
    }
    if (f == NULL && fd >= 0) {
        os_close(fd);
    }
    guard_depth--;
    return r;
}

// It has to be there; likewise, and the kernel finds it first; must not be there; likewise, and comes behind nothing;
// may be there.
enum role { ROLE_OLD, ROLE_LINKED, ROLE_NEW, ROLE_MADE, ROLE_TARGET };

// One name of a change that the kernel makes: what is open gets its name first. `*wait`: it comes behind something. 0,
// -EIO, or the kernel's error where it is known before.
static int before(int dirfd, const char *path, enum role role, bool *wait) {
    struct subject t;
    struct stat st;
    if (!guard_readable(path)) {
        return 0;
    }
    *wait |= names_before_directory(dirfd, path); // a captured file may lie anywhere below a directory that moves
    enum found found = find(&t, dirfd, path);
    if (found == FIND_STARVED) {
        *wait = true;
        return 0;
    }
    if (found == FIND_NONE) {
        enum name_state s = names_state(dirfd, path, false);
        bool first = role == ROLE_LINKED && s == NAME_NONE && path[0] != '\0';
        int way = s == NAME_NO_DIR ? names_way(dirfd, path)
                  : first          ? os_fstatat(dirfd, path, &st, AT_SYMLINK_NOFOLLOW)
                                   : 0;
        *wait |= s == NAME_NO_DIR;
        return s != NAME_NOT_DIR ? way : role == ROLE_NEW || role == ROLE_MADE ? names_way_new(dirfd, path) : -ENOTDIR;
    }
    int r = 0;
    change_look_again(&t);
    *wait |= t.word != 0 || (t.matched && role != ROLE_MADE);
    bool gone = names_gone(t.word) || (t.missing && !is_hidden(&t));
    if (state_of(&t) == NAME_NO_DIR || (role <= ROLE_LINKED && gone)) {
        place_close(&t.p);
        return -ENOENT;
    }
    if (state_of(&t) == NAME_OPEN) {
        r = release_open(&t);
    }
    place_close(&t.p);
    return r;
}

// Two names, of which the second may be replaced.
static int two_names(int fromdir, const char *from, int todir, const char *to, enum role role) {
    bool wait = false;
    struct stat st;
    guard_depth++;
    int r = before(fromdir, from, role == ROLE_TARGET ? ROLE_OLD : ROLE_LINKED, &wait);
    r = r < 0 ? r : before(todir, to, role, &wait);
    bool replaces = role == ROLE_TARGET && r == 0 && os_fstatat(todir, to, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (replaces && S_ISDIR(st.st_mode)) {
        names_before_mode(todir, to); // what is open in it by whomever keeps it from being empty
    }
    r = r == 0 && wait ? wait_then_native(replaces ? WAIT_CHANGE : WAIT_ALL) : r;
    guard_depth--;
    return r;
}

int change_link(int fromdir, const char *from, int todir, const char *to) {
    return two_names(fromdir, from, todir, to, ROLE_NEW);
}

int change_rename_late(int fromdir, const char *from, int todir, const char *to) {
    return two_names(fromdir, from, todir, to, ROLE_TARGET);
}

int change_new(int dirfd, const char *path, bool ordered) {
    bool wait = false;
    guard_depth++;
    int r = before(dirfd, path, ordered ? ROLE_NEW : ROLE_MADE, &wait);
    r = r == 0 && wait ? wait_then_native(WAIT_ALL) : r;
    guard_depth--;
    return r;
}
