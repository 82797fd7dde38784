// SPDX-License-Identifier: MIT
//
// namecalls: see namecalls.h. Everything behind the one load of names_idle.

#include "namecalls.h"

#include "../core/log.h"
#include "../core/os.h"
#include "creds.h"
#include "fdtable.h"
#include "lost.h"
#include "starved.h"
#include "way.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>

uint64_t names_word(const struct place *p) {
    const struct tables *t = client_tables();
    if (names_idle()) {
        return 0;
    }
    uint64_t word = names_find(t, name_hash(p->dev, p->ino, "", 0)); // is the directory going to be deleted?
    if (word == 0) {
        word = names_find(t, name_hash(p->dev, p->ino, p->name, strlen(p->name)));
    }
    if (word != 0 && !client_alive() && client_connect() < 0) {
        return 0; // the table of an engine that is gone says nothing
    }
    return word;
}

struct file *names_own(uint64_t word) {
    const struct tables *t = client_tables();
    if (t == NULL || name_word_file(word) >= FILES_MAX) {
        return NULL;
    }
    uint64_t id = atomic_load_explicit(&t->files[name_word_file(word)].id, memory_order_acquire);
    struct file *f = id != 0 ? file_by_id(id) : NULL;
    return f != NULL && !f->closed && !f->inherited ? f : NULL;
}

int names_lend_place(const struct place *p, uint64_t word, unsigned flags, struct lent *ret) {
    struct msg q = {.type = MSG_LEND};
    int fds[MSG_FDS_MAX], n = MSG_FDS_MAX;
    ret->own = names_own(word);
    if (ret->own != NULL && flags != 0) {
        file_settle(ret->own, fd_of(ret->own)); // its error is for its own calls
        ret->own->native = true;                   // who reads while it grows sees every byte
    }
    q.u.lend.flags = flags;
    memcpy(q.u.lend.name, p->name, strlen(p->name) + 1);
    int r = client_ask(&q, &p->dir, 1, fds, &n, -1);
    if (starved(r)) {
        starved_place(p); // no room for the inode, here or there
    }
    if (r < 0) {
        return r;
    }
    if (n < 1) {
        return -ENOENT;
    }
    while (n > 1) {
        os_close(fds[--n]);
    }
    ret->fd = fds[0];
    ret->size = q.u.lend.size;
    ret->mtime = q.u.lend.mtime;
    ret->taken = q.u.lend.taken;
    ret->pending = q.u.lend.state == NAME_PENDING; // the table may not have our own close yet
    log_format(ret->path, sizeof ret->path, "/proc/self/fd/%d", ret->fd);
    return 0;
}

void names_return(struct lent *l) {
    if (l->fd >= 0) {
        os_close(l->fd);
    }
}

// A symlink that is going to be deleted or replaced: it is a file by now, or nothing.
static bool no_link(const struct place *p) {
    uint64_t word = names_word(p);
    return names_gone(word) || name_word_hidden(word);
}

int names_find_place(struct place *p, int dirfd, const char *path, bool follow, uint64_t *word) {
    int r = place_find(p, dirfd, path, follow, no_link);
    if (r < 0 || way_may_differ()) {
        int way = names_idle() ? 0 : way_check(dirfd, path, follow ? WAY_FOLLOW : WAY_LINK);
        if (way < 0 && r == 0) {
            place_close(p);
        }
        if (way < 0) {
            r = way == -ENOENT ? PLACE_GONE : way == -ENOTDIR ? PLACE_NOT_DIR : way;
        }
    }
    if (starved(r) && !names_idle()) {
        starved_path(dirfd, path, follow);
    }
    *word = r == 0 ? names_word(p) : 0;
    return r;
}

uint64_t names_word_of(const struct stat *st) {
    const struct tables *t = client_tables();
    uint64_t word = names_idle() ? 0 : names_find(t, name_hash(st->st_dev, st->st_ino, "", 0));
    return word != 0 && client_alive() ? word : 0;
}

int names_link_inode(int fd) {
    struct msg q = {.type = MSG_SYNC, .scope = SYNC_INODE | SYNC_PUBLISH | SYNC_SPAWNED};
    return client_ask(&q, &fd, 1, NULL, NULL, -1);
}

void names_fix_stat(const struct lent *l, struct stat *st) {
    if (l->own != NULL) {
        int fd = fd_of(l->own);
        file_fix_stat(l->own, fd >= 0 ? fd : l->fd, st);
        return;
    }
    st->st_nlink = 1;
    if ((uint64_t)st->st_size < l->size) {
        st->st_size = (off_t)l->size;
    }
    if (l->mtime.tv_sec != 0 || l->mtime.tv_nsec != 0) {
        st->st_mtim = l->mtime;
    }
}

// Stands for what is not there any more: whatever is asked of it, by descriptor or by path, is refused.
static void lend_nothing(struct lent *l, int error) {
    *l = (struct lent){.fd = -1, .error = error};
    log_format(l->path, sizeof l->path, error == -ENOTDIR ? "/dev/null/none" : "/proc/self/fd/-1");
}

// The file that a link of /proc leads to, which no text says. A descriptor, or an error; *own: this process has it.
static int open_linked(int dirfd, const char *path, struct stat *st, struct file **own) {
    int fd = os_openat(dirfd, path, O_PATH | O_CLOEXEC, 0);
    int r = fd < 0 ? fd : os_fstat(fd, st);
    if (starved(r) && !names_idle()) {
        starved_path(dirfd, path, true);
    }
    r = r == 0 && !S_ISREG(st->st_mode) ? -ENOENT : r;
    *own = r == 0 ? file_by_inode(st->st_dev, st->st_ino, true) : NULL;
    if (fd >= 0 && r < 0) {
        os_close(fd);
    }
    return r < 0 ? r : fd;
}

// names_lend where place_find has said -ELOOP.
static int lend_linked(int dirfd, const char *path, unsigned flags, struct lent *ret) {
    struct stat st;
    struct file *f;
    int fd = open_linked(dirfd, path, &st, &f);
    uint64_t word = fd >= 0 && f == NULL ? names_word_of(&st) : 0;
    if (fd < 0 || (f != NULL ? f->followed || f->dropped : !name_word_hidden(word))) {
        os_close(fd);
        return 0;
    }
    *ret = (struct lent){.fd = fd, .own = f, .pending = word != 0 && name_word_state(word) == NAME_PENDING};
    log_format(ret->path, sizeof ret->path, "/proc/self/fd/%d", fd);
    if (f != NULL && flags != 0) {
        file_settle(f, fd_of(f)); // its error is for its own calls
        f->native = true;         // as for who opens it by its name
    }
    return 1;
}

struct file *names_linked(int dirfd, const char *path, bool follow) {
    struct place p;
    struct stat st;
    struct file *f = NULL;
    int r = place_find(&p, dirfd, path, follow, NULL);
    if (r == -ELOOP || (r == 0 && place_in_proc(&p))) {
        os_close(open_linked(dirfd, path, &st, &f));
    }
    if (r == 0) {
        place_close(&p);
    }
    return f;
}

int names_lend(int dirfd, const char *path, bool follow, unsigned flags, struct lent *ret) {
    struct place p;
    uint64_t word;
    ret->error = 0;
    if (!guard_readable(path) || guard_foreign()) {
        return 0;
    }
    guard_depth++;
    int r = names_find_place(&p, dirfd, path, follow, &word), hit = 0;
    if (r > 0 || (r == 0 && names_gone(word))) {
        lend_nothing(ret, r == PLACE_NOT_DIR ? -ENOTDIR : -ENOENT);
        hit = 1;
    } else if (r == 0) {
        hit = name_word_hidden(word) && names_lend_place(&p, word, flags, ret) == 0;
    } else if (r == -ELOOP) {
        hit = lend_linked(dirfd, path, flags, ret);
    }
    if (r == 0) {
        place_close(&p);
    }
    guard_depth--;
    return hit;
}

static int wait_for(struct msg *q) {
    int r = client_ask(q, NULL, 0, NULL, NULL, -1);
    return r >= 0 ? 0 : r == -EINTR ? r : -EIO;
}

int names_wait(enum wait_scope scope) {
    struct msg q = {.type = MSG_WAIT, .scope = scope};
    return wait_for(&q);
}

int names_wait_dir(enum wait_scope scope, const struct stat *dir) {
    struct msg q = {.type = MSG_WAIT, .scope = scope, .u.wait = {dir->st_dev, dir->st_ino}};
    return wait_for(&q);
}

int names_clear(uint64_t word) {
    if (names_gone(word)) {
        return names_wait(WAIT_ALL);
    }
    if (!name_word_hidden(word)) {
        return 0;
    }
    struct file *f = name_word_state(word) == NAME_OPEN ? names_own(word) : NULL;
    if (f != NULL) {
        return file_release(f, fd_of(f)) < 0 ? -EIO : 0;
    }
    int r = names_wait(WAIT_ALL);
    const struct tables *t = client_tables();
    uint64_t now = t != NULL ? names_find(t, word) : 0;
    return r < 0 ? r : now != 0 && name_word_state(now) == NAME_OPEN;
}

enum name_state names_state(int dirfd, const char *path, bool follow) {
    struct place p;
    uint64_t word = 0;
    enum name_state state = NAME_NONE;
    if (!guard_readable(path) || guard_foreign()) {
        return NAME_NONE;
    }
    guard_depth++;
    int r = names_find_place(&p, dirfd, path, follow, &word);
    if (r == 0) {
        state = word != 0 ? name_word_state(word) : NAME_NONE;
        place_close(&p);
    } else if (r > 0) {
        state = r == PLACE_GONE ? NAME_NO_DIR : NAME_NOT_DIR;
    }
    guard_depth--;
    return state;
}

bool names_cwd_gone(void) {
    struct stat st;
    return way_may_differ() && !guard_foreign() && os_fstatat(AT_FDCWD, ".", &st, 0) == 0 &&
           names_gone(names_word_of(&st));
}

int names_way(int dirfd, const char *path) {
    if (!guard_readable(path) || guard_foreign()) {
        return 0;
    }
    guard_depth++;
    int r = way_check(dirfd, path, WAY_PARENTS);
    r = starved(r) ? (names_wait(WAIT_ALL), 0) : r;
    guard_depth--;
    return r;
}

int names_way_new(int dirfd, const char *path) {
    int r = names_way(dirfd, path);
    return r < 0 ? r : -EEXIST;
}

int names_publish(int dirfd, const char *path, bool follow) {
    struct place p;
    uint64_t word;
    int r = 0;
    if (!guard_readable(path) || guard_foreign()) {
        return 0;
    }
    guard_depth++;
    int found = names_find_place(&p, dirfd, path, follow, &word);
    if (found == 0) {
        bool no_dir = word != 0 && name_word_state(word) == NAME_NO_DIR;
        r = no_dir ? -ENOENT : names_clear(word);
        place_close(&p);
    } else if (found > 0) {
        r = found == PLACE_GONE ? names_wait(WAIT_ALL) : names_way_new(dirfd, path);
    }
    guard_depth--;
    return r < 0 ? r : 0;
}

int names_open_flags(int flags) {
    return flags & ~(O_NOFOLLOW | O_CREAT | O_EXCL);
}

bool names_may_create(const struct place *p, int flags, const struct lent *l) {
    struct stat st;
    return !(flags & O_CREAT) || !(p->mode & S_ISVTX) || (os_fstat(l->fd, &st) == 0 && creds_own(st.st_uid));
}

// The open of a name that its directory shows wrongly. As names_before_open.
static int open_hidden(const struct place *p, uint64_t word, int flags, struct lent *ret) {
    bool excl = (flags & O_CREAT) && (flags & O_EXCL);
    if ((flags & O_CREAT) && (flags & O_DIRECTORY)) {
        int r = names_clear(word); // refused, or a file, according to the kernel
        return r < 0 ? r : 0;
    }
    if (names_gone(word)) {
        bool makes = (flags & O_CREAT) && name_word_state(word) == NAME_ABSENT;
        return makes ? names_clear(word) : -ENOENT;
    }
    if (!name_word_hidden(word)) {
        return 0;
    }
    unsigned lend = LEND_SETTLE; // by O_PATH, too: fstat is the kernel's
    if (excl || (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC)) {
        lend |= flags & O_PATH ? 0 : LEND_WRITE;
        int r = names_clear(word);
        if (r != 1 || excl) {
            return r == 1 ? -EEXIST : r;
        }
    }
    if (names_lend_place(p, word, lend, ret) < 0) {
        return 0;
    }
    if (!names_may_create(p, flags, ret)) {
        if (ret->pending) {
            names_wait(WAIT_ALL);
        } else {
            names_link_inode(ret->fd);
        }
        names_return(ret);
        return 0;
    }
    return 1;
}

// A link of /proc: the same inode again. Behind our settle the kernel opens it by itself.
static void before_linked(int dirfd, const char *path, int flags) {
    struct lent l;
    bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC);
    if (!lend_linked(dirfd, path, LEND_SETTLE, &l)) {
        return;
    }
    if (writes && l.own != NULL) {
        file_release(l.own, fd_of(l.own)); // its error is for its own calls
    } else if (writes && l.pending) {
        names_wait(WAIT_ALL); // nothing is cut off it any more
    }
    names_return(&l);
}

int names_before_open(int dirfd, const char *path, int flags, struct lent *ret) {
    struct place p;
    uint64_t word;
    bool excl = (flags & O_CREAT) && (flags & O_EXCL);
    if (!guard_readable(path) || guard_foreign()) {
        return 0;
    }
    guard_depth++;
    int r = names_find_place(&p, dirfd, path, !(flags & O_NOFOLLOW) && !excl, &word);
    if (r == 0) {
        r = open_hidden(&p, word, flags, ret);
        place_close(&p);
    } else if (r > 0) {
        bool slash = path[0] != '\0' && path[strlen(path) - 1] == '/'; // EISDIR, if the way to it is there
        int way = r == PLACE_GONE ? -ENOENT : -ENOTDIR;
        r = (flags & O_CREAT) && slash ? names_way(dirfd, path) : way;
    } else {
        if (r == -ELOOP && !(flags & O_PATH)) {
            before_linked(dirfd, path, flags);
        }
        r = 0;
    }
    guard_depth--;
    return r;
}

static void release_in(const struct stat *dir) {
    for (int fd = 0; fd < fd_limit(); fd++) {
        struct file *f = fd_peek(fd) != NULL ? fd_get(fd, false) : NULL;
        if (f != NULL && lost_in_dir(f, dir->st_dev, dir->st_ino)) {
            file_release(f, fd);
        }
    }
}

bool names_before_directory(int dirfd, const char *path) {
    struct stat st;
    if (os_fstatat(dirfd, path, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode)) {
        return false;
    }
    release_in(&st);
    return true;
}

void names_publish_dir(const struct stat *dir) {
    struct msg q = {.type = MSG_WAIT, .scope = WAIT_DIR, .value = 1, .u.wait = {dir->st_dev, dir->st_ino}};
    release_in(dir);
    client_ask(&q, NULL, 0, NULL, NULL, -1);
}

// The directory behind a path, by no descriptor.
static bool find_dir(int dirfd, const char *path, int flags, struct stat *st) {
    return guard_readable(path) && !guard_foreign() && os_fstatat(dirfd, path, st, flags) == 0 && S_ISDIR(st->st_mode);
}

static void wait_for_dir(int dirfd, const char *path, int flags) {
    struct stat st;
    if (find_dir(dirfd, path, flags, &st)) {
        guard_depth++;
        names_wait_dir(WAIT_DIR, &st); // a failure hides nothing that the directory has
        guard_depth--;
    }
}

void names_before_list(int dirfd, const char *path) {
    wait_for_dir(dirfd, path, 0);
}

void names_before_walk(int dirfd, const char *path) {
    wait_for_dir(dirfd, path, AT_SYMLINK_NOFOLLOW);
}

void names_before_mode(int dirfd, const char *path) {
    struct stat st;
    if (find_dir(dirfd, path, 0, &st)) {
        guard_depth++;
        names_publish_dir(&st);
        guard_depth--;
    }
}

void names_before_exec(int dirfd, const char *path) {
    struct place p;
    uint64_t word;
    if (!guard_readable(path)) {
        return;
    }
    guard_depth++; // in a vfork child, too: that is where a shell starts programs
    int r = names_find_place(&p, dirfd, path, true, &word);
    struct file *own = r == 0 && name_word_hidden(word) && !guard_foreign() ? names_own(word) : NULL;
    if (own != NULL) {
        file_release(own, fd_of(own)); // the kernel says that it is being written
    }
    if (r == PLACE_GONE || (r == 0 && word != 0)) {
        names_wait(WAIT_ALL);
        names_wait(WAIT_SPACE); // and closed: what is open to write cannot be executed
    }
    if (r == 0) {
        place_close(&p);
    }
    guard_depth--;
}
