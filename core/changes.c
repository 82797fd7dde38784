// SPDX-License-Identifier: MIT
//
// changes: the entries that delete or rename. Each becomes a slot of the commit queue, behind what was closed before
// it, and from its answer on the names table says how the names will be. What the kernel would refuse, the client has
// found out already; where that cannot be known (a name open elsewhere, no room), the client waits and asks the kernel.

#include "breakpoint.h"
#include "broken.h"
#include "engine.h"
#include "log.h"
#include "names.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

static bool frees_space(const struct file_slot *f, const void *arg) {
    (void)arg;
    return f->kind != SLOT_FILE || f->flags & OPEN_REPLACES;
}

unsigned changes_before(const struct engine *e, uint64_t number) {
    return commit_before(&e->commit, number, frees_space, NULL) + files_leaving(e);
}

/** While a device is broken, nothing is deleted or replaced, and the program is told. What may lift that, and is in the
 *  queue before this entry, is waited for. True: *v is the verdict. */
static bool is_refused(struct engine *e, struct entry *en, enum verdict *v) {
    if (!state_broken(e->p.st)) {
        return false;
    }
    bool hope = commit_before(&e->commit, en->msg.number, broken_hopes, e->p.st) > 0;
    *v = hope ? WAIT : entries_say(e, en, -EIO);
    return true;
}

/** The first steps of every change: a slot for the name in `dir`, which queue() takes; or NULL, and *v is the verdict.
 *  `loses`: something is deleted or replaced. */
static struct file_slot *begin(struct engine *e, struct entry *en, const struct stat *dir, bool loses,
                               enum verdict *v) {
    if (loses && is_refused(e, en, v)) {
        return NULL;
    }
    int slot = files_crowded(en) ? -ENFILE : files_free_slot(e, en);
    if (slot < 0) { // those in the queue give theirs back
        *v = e->commit.n_queue > 0 ? WAIT : entries_say(e, en, -EMFILE);
        return NULL;
    }
    struct file_slot *f = &e->p.st->files[slot];
    f->fd_dir = en->fds[0];
    f->dir_dev = dir->st_dev;
    f->dir_ino = dir->st_ino;
    memcpy(f->name, en->msg.u.change.name, sizeof f->name);
    return f;
}

/** The last steps of every change: the slot is filled. */
static enum verdict queue(struct engine *e, struct entry *en, struct file_slot *f) {
    unsigned slot = (unsigned)(f - e->p.st->files);
    struct stat s;
    if (os_fstat(f->fd_own, &s) == 0) {
        f->dev = s.st_dev;
        f->ino = s.st_ino;
        f->way = f->kind != SLOT_RENAME && (S_ISDIR(s.st_mode) || S_ISLNK(s.st_mode));
    }
    f->publish = f->sync_wanted = en->msg.number;
    files_take(e, slot, FILE_CLOSED);
    files_count(e, f);
    BREAK_POINT("change-made");
    entries_keep_fds(en, f);
    commit_publish(&e->commit, slot, en->msg.number);
    en->msg.file = f->id;
    en->msg.slot = slot;
    return entries_say(e, en, 0);
}

/** Our own description of what the client has sent by O_PATH, to be synced; or an error. */
static int reopen(int fd) {
    char path[64];
    log_format(path, sizeof path, "/proc/self/fd/%d", fd);
    return os_openat(AT_FDCWD, path, O_RDONLY | O_NONBLOCK, 0);
}

/** Is `fd` what its directory has under the name? A file may have been published there since the client looked. (The
 *  client has just asked the same: the kernel has it in memory.) */
static bool still_there(int dirfd, const char *name, int fd) {
    struct stat is, was;
    return os_fstatat(dirfd, name, &is, AT_SYMLINK_NOFOLLOW) == 0 && os_fstat(fd, &was) == 0 &&
           is.st_ino == was.st_ino && is.st_dev == was.st_dev;
}

enum dir_use { DIR_UNUSED, DIR_QUEUED, DIR_HOLDS };

/** What the queue has to do with a directory: nothing, something that will be over when its turn comes, or names that
 *  will be there then. */
static enum dir_use use_of(const struct engine *e, uint64_t dev, uint64_t ino) {
    enum dir_use use = DIR_UNUSED;
    enum name_state state;
    for (unsigned i = 0; i < e->files_high; i++) {
        const struct file_slot *f = &e->p.st->files[i];
        bool to = f->kind == SLOT_RENAME && f->to_dev == dev && f->to_ino == ino;
        bool in = f->dir_dev == dev && f->dir_ino == ino;
        if (f->state == FILE_FREE || f->error || f->dropped || f->flags & OPEN_FOLLOWED || !(to || in)) {
            continue;
        }
        use = DIR_QUEUED;
        const char *name = to ? f->to : f->name;
        if ((to || f->kind == SLOT_FILE) && names_latest(&e->p, dev, ino, name, &state) == f &&
            (state == NAME_OPEN || state == NAME_PENDING)) {
            return DIR_HOLDS;
        }
    }
    return use;
}

static enum verdict remove_dir(struct engine *e, struct entry *en) {
    const struct msg_change *m = &en->msg.u.change;
    struct stat parent, self;
    if (en->fds[1] <= 0 || os_fstat(en->fds[0], &parent) < 0 || os_fstat(en->fds[1], &self) < 0) {
        return entries_say(e, en, -EBADF);
    }
    enum dir_use use = use_of(e, self.st_dev, self.st_ino);
    if (use == DIR_HOLDS) {
        return entries_say(e, en, -ENOTEMPTY);
    }
    if (use == DIR_UNUSED && m->flags & REMOVE_EMPTY) {
        en->msg.value = 1;
        return entries_say(e, en, 0);
    }
    enum verdict v;
    struct file_slot *f = begin(e, en, &parent, true, &v);
    if (!f) {
        return v;
    }
    f->kind = SLOT_RMDIR;
    f->fd_own = en->fds[1];
    return queue(e, en, f);
}

enum verdict changes_remove(struct engine *e, struct entry *en) {
    const struct msg_change *m = &en->msg.u.change;
    struct stat dir;
    enum name_state state;
    if (m->flags & REMOVE_DIR) {
        return remove_dir(e, en);
    }
    if (os_fstat(en->fds[0], &dir) < 0) {
        return entries_say(e, en, -EBADF);
    }
    enum verdict v;
    struct file_slot *f = begin(e, en, &dir, true, &v);
    if (!f) {
        return v;
    }
    struct file_slot *there = names_latest(&e->p, dir.st_dev, dir.st_ino, m->name, &state);
    if (there && state == NAME_OPEN) { // its program goes on with an inode that has no name; an older one goes in order
        en->msg.value = 1; // in the answer, and to whoever goes on with this entry after a restart
        there->unnamed = 1;
        atomic_store(&e->p.t->files[there - e->p.st->files].links, 1);
        files_unname(e, (unsigned)(there - e->p.st->files));
        there = names_latest(&e->p, dir.st_dev, dir.st_ino, m->name, &state);
    }
    if (there && state == NAME_ABSENT) {
        return entries_say(e, en, en->msg.value ? 0 : -ENOENT);
    }
    bool pending = there && state == NAME_PENDING && !there->error;
    if (!pending && (en->fds[1] <= 0 || !still_there(en->fds[0], m->name, en->fds[1]))) {
        return entries_say(e, en, -EAGAIN); // published since the client looked, or nothing is left: it looks again
    }
    f->fd_own = pending ? os_fcntl(there->fd_own, F_DUPFD, 3) : en->fds[1];
    if (f->fd_own < 0) {
        return entries_say(e, en, f->fd_own);
    }
    f->kind = SLOT_UNLINK;
    return queue(e, en, f);
}

/** Fills in which inode is renamed. 0 or an error. */
static int rename_source(struct engine *e, const struct entry *en, struct file_slot *f) {
    enum name_state state;
    struct file_slot *from = names_latest(&e->p, f->dir_dev, f->dir_ino, f->name, &state);
    if (from && state == NAME_ABSENT) {
        return -ENOENT;
    }
    if (from && state == NAME_OPEN) {
        return -EBUSY;
    }
    bool pending = from && state == NAME_PENDING;
    if (!pending && (en->fds[2] <= 0 || !still_there(en->fds[0], f->name, en->fds[2]))) {
        return -EAGAIN;
    }
    if (pending && from->kind == SLOT_FILE) {
        f->base = (uint32_t)(from - e->p.st->files);
        f->base_id = from->id;
    } else if (pending) { // a rename of what a rename has made
        f->base = from->base;
        f->base_id = from->base_id;
    }
    f->fd_own = pending ? os_fcntl(from->fd_own, F_DUPFD, 3) : reopen(en->fds[2]);
    return f->fd_own < 0 ? f->fd_own : 0;
}

/** Holds what the rename replaces: whoever has it open sees that it has lost its name, and its number is no other's as
 *  long as that is said. The client has just looked it up: the kernel has it in memory. */
static void rename_target(struct file_slot *f, const struct file_slot *there, enum name_state state) {
    struct stat s;
    bool pending = there && state == NAME_PENDING;
    int fd = pending                         ? os_fcntl(there->fd_own, F_DUPFD, 3)
             : there && state == NAME_ABSENT ? -ENOENT
                                             : os_openat(f->fd_to, f->to, O_PATH | O_NOFOLLOW, 0);
    if (fd >= 0 && os_fstat(fd, &s) == 0) {
        f->fd_prog = fd;
        f->over_dev = s.st_dev;
        f->over_ino = s.st_ino;
    }
}

/** Is there something under the new name? The client has just looked it up: this waits for no disk. */
static bool replaces(const struct engine *e, const struct entry *en, const struct stat *to) {
    struct stat s;
    enum name_state state;
    const char *name = en->msg.u.change.to;
    if (names_latest(&e->p, to->st_dev, to->st_ino, name, &state)) {
        return state != NAME_ABSENT;
    }
    return os_fstatat(en->fds[1], name, &s, AT_SYMLINK_NOFOLLOW) == 0;
}

enum verdict changes_rename(struct engine *e, struct entry *en) {
    const struct msg_change *m = &en->msg.u.change;
    struct stat from, to;
    enum name_state state;
    if (os_fstat(en->fds[0], &from) < 0 || os_fstat(en->fds[1], &to) < 0) {
        return entries_say(e, en, -EBADF);
    }
    enum verdict v;
    struct file_slot *f = begin(e, en, &from, replaces(e, en, &to), &v);
    if (!f) {
        return v;
    }
    const struct file_slot *there = names_latest(&e->p, to.st_dev, to.st_ino, m->to, &state);
    if (there && state == NAME_OPEN) {
        return entries_say(e, en, -EBUSY);
    }
    bool over = there && state == NAME_PENDING;
    f->fd_to = en->fds[1];
    f->to_dev = to.st_dev;
    f->to_ino = to.st_ino;
    memcpy(f->to, m->to, sizeof f->to);
    int r = rename_source(e, en, f);
    if (r < 0) {
        f->fd_own = 0;
        return entries_say(e, en, r);
    }
    f->kind = SLOT_RENAME;
    if (over && os_fstat(f->fd_own, &from) == 0 && from.st_dev == there->dev && from.st_ino == there->ino) {
        os_close(f->fd_own); // two names of one file: nothing happens
        f->fd_own = 0;
        return entries_say(e, en, 0);
    }
    rename_target(f, there, state);
    return queue(e, en, f);
}
