// SPDX-License-Identifier: MIT
//
// change_rename: renames. One that can be foretold becomes an entry; the others wait, and are the kernel's.

#include "change_inside.h"

#include "../core/os.h"
#include "file.h"
#include "lost.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

// No errno. OLD: the way of links. DOTS: the last component is "." or "..", or there is none.
enum { RENAME_OLD = -EAGAIN - 1000, RENAME_FOUND, RENAME_DOTS };

// What a name will be once all that is queued has happened.
static bool will_exist(const struct subject *t) {
    return is_hidden(t) || (!names_gone(t->word) && t->there);
}

// Its directory cannot be searched.
static bool is_beyond(const struct subject *t) {
    return !t->there && !t->missing;
}

static bool one_mount(const struct subject *a, const struct subject *b) {
    struct statx x, y;
    return a->p.dev == b->p.dev && change_look(a->p.dir, "", AT_EMPTY_PATH, &x) == 0 &&
           change_look(b->p.dir, "", AT_EMPTY_PATH, &y) == 0 && (x.stx_mask & STATX_MNT_ID) &&
           x.stx_mnt_id == y.stx_mnt_id;
}

// Is it a change of regular files that can be foretold? A close is not answered: what the table has as open may be
// closed. The engine knows when the turn has come.
static bool foretold(const struct subject *from, const struct subject *to, unsigned flags) {
    bool hidden = is_hidden(from), over = will_exist(to) && !is_hidden(to);
    bool same = from->p.ino == to->p.ino && from->p.dev == to->p.dev && strcmp(from->p.name, to->p.name) == 0;
    bool open = (hidden && names_own(from->word) != NULL) || (is_hidden(to) && names_own(to->word) != NULL);
    bool links = (hidden && over && to->x.stx_nlink > 1) || (!hidden && is_hidden(to) && from->x.stx_nlink > 1);
    if (same || open || links || (flags != 0 && will_exist(to)) || (!hidden && !is(from, S_IFREG)) ||
        (over && !is(to, S_IFREG))) { // a symlink that is replaced: paths lead through it until then
        return false;
    }
    return one_mount(from, to) && change_allowed(from) && change_allowed(to);
}

static int rename_one(struct subject *from, struct subject *to, unsigned flags) {
    if (from->p.dev != to->p.dev) {
        return CHANGE_NATIVE; // EXDEV, whatever the names are
    }
    if (is_beyond(from) || is_beyond(to)) {
        return CHANGE_NATIVE; // it finds both directories before it looks at either name
    }
    if (names_gone(from->word) || state_of(to) == NAME_NO_DIR) {
        return -ENOENT;
    }
    bool native = state_of(from) == NAME_NONE || state_of(from) == NAME_FOLLOWED;
    if (native && !from->there) {
        return CHANGE_NATIVE; // the kernel says what is missing
    }
    if ((from->slash || to->slash) && flags == RENAME_NOREPLACE && will_exist(to)) {
        return -EEXIST; // before what the slash says
    }
    if ((flags & RENAME_EXCHANGE) && !will_exist(to)) {
        return -ENOENT; // likewise
    }
    if (from->slash || to->slash || (flags & ~(unsigned)RENAME_NOREPLACE) != 0) {
        return RENAME_OLD;
    }
    if (from->word == 0 && to->word == 0 && !from->matched && !to->matched && !is(from, S_IFDIR)) {
        return CHANGE_NATIVE;
    }
    bool native_to = state_of(to) == NAME_NONE || state_of(to) == NAME_FOLLOWED;
    if (native && native_to && flags == 0 && from->there && to->there && from->x.stx_ino == to->x.stx_ino &&
        from->p.dev == to->p.dev) {
        return CHANGE_DONE; // two names of one file: nothing happens
    }
    if (!foretold(from, to, flags)) {
        return RENAME_OLD;
    }
    struct msg q = {.type = MSG_RENAME};
    memcpy(q.u.change.name, from->p.name, sizeof q.u.change.name);
    memcpy(q.u.change.to, to->p.name, sizeof q.u.change.to);
    int fds[3] = {from->p.dir, to->p.dir, change_hold(from)};
    if (starved(fds[2])) {
        return RENAME_OLD;
    }
    int r = change_ask(&q, fds, fds[2] >= 0 ? 3 : 2);
    if (fds[2] >= 0) {
        os_close(fds[2]);
    }
    if (r == 0) {
        lost_note_renamed(q.file, q.slot, from->p.dir, from->p.name);
        if (from->word == 0 && !from->matched) {
            atomic_fetch_add(&file_report.files_followed, 1); // it is synced before it has the name
        }
    }
    bool told = r == -ENOENT || r == -EAGAIN || r == -EIO;
    return r == 0 ? CHANGE_DONE : told ? r : r == -EPIPE ? change_alone() : RENAME_OLD;
}

// RENAME_FOUND: closed by place_close. CHANGE_NATIVE: the kernel refuses it. RENAME_DOTS, -ENAMETOOLONG: likewise, for
// the last component. -ENOENT, -ENOTDIR: what it would say of the others. RENAME_OLD: no descriptor to look with.
static int find_parent(struct subject *t, int dirfd, const char *path) {
    if (!guard_readable(path)) {
        return CHANGE_NATIVE;
    }
    char buf[PATH_MAX];
    const char *plain = change_without_slashes(path, buf);
    t->slash = plain != path;
    int r = names_find_place(&t->p, dirfd, plain, false, &t->word);
    if (r == 0) {
        t->matched = change_matched(t, dirfd, plain);
        return RENAME_FOUND;
    }
    return r == PLACE_GONE    ? -ENOENT
         : r == PLACE_NOT_DIR ? -ENOTDIR
         : r == -EISDIR       ? RENAME_DOTS
         : r == -ENAMETOOLONG ? r
         : starved(r)         ? RENAME_OLD
                              : CHANGE_NATIVE;
}

// Does the kernel find the directory that the last component is in, which is dots or too long?
static bool has_parent(int dirfd, const char *path) {
    struct stat st;
    int r = os_fstatat(dirfd, path, &st, AT_SYMLINK_NOFOLLOW);
    return r == 0 || (r == -ENAMETOOLONG && strnlen(path, PATH_MAX) < PATH_MAX);
}

// The kernel finds both directories before it looks at either last component. Returns as find_parent.
static int find_both(struct subject *a, int fromdir, const char *from, struct subject *b, int todir, const char *to) {
    int r = find_parent(a, fromdir, from);
    if (r == RENAME_DOTS || r == -ENAMETOOLONG) {
        r = has_parent(fromdir, from) ? find_parent(b, todir, to) : CHANGE_NATIVE;
        if (r == RENAME_FOUND) {
            place_close(&b->p);
        }
        return r == -ENOENT || r == -ENOTDIR ? r : CHANGE_NATIVE;
    }
    if (r == RENAME_FOUND) {
        r = find_parent(b, todir, to);
        if (r == -ENAMETOOLONG && !has_parent(todir, to)) {
            r = CHANGE_NATIVE;
        } else if (r == -ENAMETOOLONG) { // only then is the old name looked at
            change_look_again(a);
            r = names_gone(a->word) ? -ENOENT : is_hidden(a) ? r : CHANGE_NATIVE;
        }
        if (r != RENAME_FOUND) {
            place_close(&a->p);
        }
    }
    return r == RENAME_DOTS ? CHANGE_NATIVE : r;
}

static bool refused_flags(unsigned flags) {
    const unsigned known = RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT;
    return (flags & ~known) != 0 || ((flags & RENAME_EXCHANGE) && (flags & (RENAME_NOREPLACE | RENAME_WHITEOUT)));
}

int change_rename(int fromdir, const char *from, int todir, const char *to, unsigned flags) {
    struct subject a, b;
    if (refused_flags(flags)) {
        return CHANGE_NATIVE;
    }
    guard_depth++;
    int r = find_both(&a, fromdir, from, &b, todir, to);
    if (r == RENAME_FOUND) {
        r = -EAGAIN;
        for (int i = 0; i < CHANGE_LOOKS && r == -EAGAIN; i++) {
            change_look_again(&a);
            change_look_again(&b);
            r = rename_one(&a, &b, flags);
        }
        place_close(&b.p);
        place_close(&a.p);
    }
    guard_depth--;
    return r == RENAME_OLD || r == -EAGAIN ? change_rename_late(fromdir, from, todir, to) : r;
}
