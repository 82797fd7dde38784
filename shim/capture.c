// SPDX-License-Identifier: MIT
//
// capture: see capture.h. Cheap rejections first: an open that only reads, or whose name does not match, pays for text
// alone. Any surprise ends in a native open.

#include "capture.h"

#include "../core/log.h"
#include "../core/os.h"
#include "callsite.h"
#include "fdtable.h"
#include "lost.h"
#include "namecalls.h"
#include "own.h"
#include "report.h"
#include "shadow.h"
#include "shared.h"
#include "starved.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define OPEN_WAIT_MS 2000
#define OPEN_LOOKS   3
#define OPEN_AGAIN   (-5002) // no errno: a closer look may find that the file can be a shadow

// An open by the program.
struct request {
    int dirfd;
    const char *path;
    int flags;
    mode_t mode;
    const void *caller;
    int looks; // so many times it was not certain
};

enum class { CLASS_NATIVE, CLASS_FOLLOW, CLASS_SHADOW };

static enum class classify(int flags) {
    bool excl = (flags & O_CREAT) && (flags & O_EXCL);
    if (flags & (O_DIRECT | O_DSYNC | O_SYNC | O_PATH | O_DIRECTORY | __O_TMPFILE | O_ASYNC)) {
        return CLASS_NATIVE;
    }
    bool shadow = (flags & O_ACCMODE) == O_WRONLY && (flags & O_TRUNC) && !(flags & O_APPEND) && !excl;
    return shadow ? CLASS_SHADOW : CLASS_FOLLOW;
}

// Tells the engine of `fd` and enters it; may take p->dir. 0, or an error: all is the caller's, as it was.
static int enlist(struct place *p, const struct request *rq, int fd, const struct shadow *s) {
    struct stat st;
    struct file *f = fd < FDTABLE_MAX && os_fstat(fd, &st) == 0 ? file_new() : NULL;
    if (f == NULL) {
        return -EMFILE;
    }
    struct msg q = {.type = MSG_OPEN};
    struct msg_open *o = &q.u.open;
    o->flags = s == NULL ? OPEN_FOLLOWED : (s->replaces ? OPEN_REPLACES : 0) | (s->hidden[0] ? OPEN_HIDDEN : 0);
    memcpy(o->name, p->name, sizeof o->name);
    if (s != NULL) {
        memcpy(o->hidden, s->hidden, sizeof o->hidden);
    }
    callsite_describe(rq->caller, o->where, sizeof o->where);
    const int fds[] = {fd, p->dir, s != NULL ? s->old : -1};
    int r = client_ask(&q, fds, fds[2] >= 0 ? 3 : 2, NULL, NULL, OPEN_WAIT_MS);
    if (r < 0) {
        if (r == -ETIMEDOUT) {
            log_error("%s: opened natively, outside the order: no answer from the engine for 2 s", p->name);
        }
        file_put(f);
        return r;
    }
    f->slot = q.slot;
    f->id = q.file != 0 ? q.file : q.number;
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    f->followed = s == NULL;
    f->must_wait = s != NULL && !shim.config.async_shared && shared_must_wait(p->dir);
    f->replaces = s != NULL && s->replaces;
    f->spawned_at = atomic_load(&shim.spawned);
    file_set_name(f, p->name, s != NULL && s->hidden[0] ? s->hidden : NULL);
    if (s != NULL && lost_keep_dir(f, p->dir, p->dev, p->ino)) {
        p->dir = -1;
    }
    fd_enter(fd, f);
    report_keep_stderr();
    return 0;
}

// Inodes that this process made by O_EXCL, the last few: an empty one is no lock but a temporary that is opened again
// (Lightning closes it first). Lossy on purpose: who is forgotten is native.
static _Atomic uint64_t made[16];

static uint64_t made_mark(const struct stat *st) {
    return (uint64_t)st->st_ino ^ (uint64_t)st->st_dev << 40;
}

static void note_made(const struct stat *st) {
    static _Atomic unsigned next;
    atomic_store_explicit(&made[atomic_fetch_add(&next, 1) % ARRAY_LEN(made)], made_mark(st), memory_order_relaxed);
}

// An empty file that is there already is somebody's lock: it holds nothing whose order matters.
static bool is_lock(const struct place *p) {
    struct stat st;
    if (os_fstatat(p->dir, p->name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) || st.st_size > 0) {
        return false;
    }
    for (size_t i = 0; i < ARRAY_LEN(made); i++) {
        if (atomic_load_explicit(&made[i], memory_order_relaxed) == made_mark(&st)) {
            return false;
        }
    }
    return true;
}

// Follows a file opened natively, if it is the regular file under its name.
static void follow(struct place *p, const struct request *rq, int fd) {
    struct stat st, named;
    if (os_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && !shadow_useless_fs(p->dir) &&
        os_fstatat(p->dir, p->name, &named, AT_SYMLINK_NOFOLLOW) == 0 && named.st_dev == st.st_dev &&
        named.st_ino == st.st_ino) {
        if (rq->flags & O_EXCL) {
            note_made(&st);
        }
        enlist(p, rq, fd, NULL);
    }
}

// What truncates in place must not be seen before what was closed earlier is durable. 0, or the error to return.
static int before_truncation(const struct place *p, const struct request *rq) {
    struct stat st;
    if (!(rq->flags & O_TRUNC) || names_idle() || os_fstatat(p->dir, p->name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        !S_ISREG(st.st_mode) || st.st_size == 0) {
        return 0;
    }
    return names_wait(WAIT_CHANGE);
}

static int native(const struct place *p, const struct request *rq) {
    int r = before_truncation(p, rq);
    return r < 0 ? r : CAPTURE_NATIVE;
}

// Opens a lock. The engine does not hear of it; this process knows that it has it open, in case it gets content.
static int open_lock(const struct place *p, const struct request *rq) {
    struct stat st;
    int r = before_truncation(p, rq);
    int fd = r < 0 ? r : os_openat(rq->dirfd, rq->path, rq->flags, rq->mode);
    struct file *f = fd >= 0 && fd < FDTABLE_MAX && os_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? file_new() : NULL;
    if (f != NULL) {
        f->dev = st.st_dev;
        f->ino = st.st_ino;
        f->followed = f->native = f->settled = true;
        fd_enter(fd, f);
    }
    return fd;
}

static int open_followed(struct place *p, const struct request *rq) {
    struct stat st;
    int r = os_fstatat(p->dir, p->name, &st, AT_SYMLINK_NOFOLLOW);
    if (r == 0 && !S_ISREG(st.st_mode)) {
        return CAPTURE_NATIVE; // opening a fifo may block: as a cancellation point, outside of our bookkeeping
    }
    r = before_truncation(p, rq);
    if (r < 0) {
        return r;
    }
    int fd = os_openat(rq->dirfd, rq->path, rq->flags, rq->mode);
    if (fd >= 0) {
        follow(p, rq, fd);
    }
    return fd;
}

// `base`: the pending inode of this name, if there is one (fd -1: none).
static int open_shadow(struct place *p, const struct request *rq, const struct lent *base, uint64_t word) {
    struct shadow s;
    if (shadow_useless_fs(p->dir)) {
        return native(p, rq);
    }
    // Who has taken it back may be writing it still. When it has its name, the kernel says whether he is.
    bool taken = base->fd >= 0 && base->taken, gone = names_gone(word);
    int r = taken ? SHADOW_WRITTEN : shadow_make(p, base->fd, gone, rq->flags, rq->mode, &s);
    if ((r == -ENOSPC || r == -EDQUOT) && names_wait(WAIT_SPACE) >= 0) { // what was closed before may give some back
        r = shadow_make(p, base->fd, gone, rq->flags, rq->mode, &s);
    }
    if (r == SHADOW_WRITTEN && rq->looks + 1 < OPEN_LOOKS) {
        return OPEN_AGAIN;
    }
    if (r == SHADOW_NATIVE || r == SHADOW_WRITTEN) {
        r = names_clear(word); // a pending file of this name first, then over it
        return r < 0 ? r : is_lock(p) ? open_lock(p, rq) : open_followed(p, rq);
    }
    if (r < 0) {
        return r;
    }
    if (enlist(p, rq, s.fd, &s) < 0) {
        shadow_drop(p, &s);
        return native(p, rq);
    }
    shadow_forget_old(&s);
    return s.fd;
}

// The program, or its parent, has this inode open already, under whichever name: another one in its place would part
// them.
static bool is_held(const struct stat *st) {
    return file_by_inode(st->st_dev, st->st_ino, true) != NULL;
}

static bool held_open(const struct place *p) {
    struct stat st;
    return os_fstatat(p->dir, p->name, &st, AT_SYMLINK_NOFOLLOW) == 0 && is_held(&st);
}

// A pending file is taken back: its inode by the program's own flags, followed, so that what is written keeps its place
// in the order when it is closed.
static int take_back(struct place *p, const struct request *rq, enum class class, const struct lent *l) {
    int fd = os_openat(AT_FDCWD, l->path, names_open_flags(rq->flags), rq->mode);
    if (fd >= 0 && class == CLASS_FOLLOW) {
        enlist(p, rq, fd, NULL);
    }
    return fd;
}

// A closed file that is pending. True: *r is the result, or a new shadow takes after *base.
static bool open_pending(struct place *p, const struct request *rq, enum class class, uint64_t word, struct lent *base,
                         int *r) {
    bool excl = (rq->flags & O_CREAT) && (rq->flags & O_EXCL), shadow = class == CLASS_SHADOW;
    if (!shadow && !excl && (rq->flags & (O_TRUNC | O_PATH | O_DIRECTORY | __O_TMPFILE))) {
        return false; // its truncation is a barrier
    }
    if (names_own(word) != NULL || names_lend_place(p, word, shadow || excl ? 0 : LEND_WRITE, base) < 0) {
        return false;
    }
    struct stat st;
    if (base->pending && shadow && !(os_fstat(base->fd, &st) == 0 && is_held(&st))) {
        *r = CAPTURE_NATIVE;
        return true;
    }
    bool answered = base->pending && !shadow && (excl || names_may_create(p, rq->flags, base));
    if (answered) {
        *r = excl ? -EEXIST : take_back(p, rq, class, base);
    }
    names_return(base);
    base->fd = -1;
    return answered;
}

// A name that is captured already. Open: the same inode again, by a native open: ours becomes the kernel's, another
// process's is lent. Closed and pending: taken back, or a new shadow takes after it. True: *r is the result.
static bool open_again(struct place *p, const struct request *rq, enum class class, uint64_t word,
                       struct lent *base, int *r) {
    if (open_pending(p, rq, class, word, base, r)) {
        return base->fd < 0;
    }
    bool ours = names_own(word) != NULL;
    *r = names_clear(word);
    if (*r == 0 && !ours) {
        return false; // published by now
    }
    *r = *r < 0 ? *r : ours && class != CLASS_NATIVE ? open_followed(p, rq) : CAPTURE_NATIVE;
    return true;
}

// A name that is going to be deleted. A new file of that name is published behind that; any other way to make one is
// the kernel's, which has to see it gone.
static int open_gone(struct place *p, const struct request *rq, enum class class, uint64_t word) {
    struct lent none = {.fd = -1};
    if (!(rq->flags & O_CREAT) || name_word_state(word) == NAME_NO_DIR) {
        return -ENOENT;
    }
    if (class == CLASS_SHADOW) {
        return open_shadow(p, rq, &none, word);
    }
    int r = names_clear(word);
    return r < 0 ? r : class == CLASS_FOLLOW ? open_followed(p, rq) : CAPTURE_NATIVE;
}

static int open_named(struct place *p, const struct request *rq, uint64_t word) {
    enum class class = classify(rq->flags);
    struct lent base = {.fd = -1};
    int r;
    enum name_state state = word != 0 ? name_word_state(word) : NAME_NONE;
    if (names_gone(word)) {
        return open_gone(p, rq, class, word);
    }
    if ((state == NAME_OPEN || state == NAME_PENDING) && open_again(p, rq, class, word, &base, &r)) {
        return r;
    }
    if (class == CLASS_SHADOW && base.fd < 0 && held_open(p) && !is_lock(p)) {
        class = CLASS_FOLLOW;
    }
    r = class == CLASS_SHADOW   ? open_shadow(p, rq, &base, word)
        : class == CLASS_FOLLOW ? open_followed(p, rq)
                                : native(p, rq);
    if (base.fd >= 0) {
        names_return(&base);
    }
    return r;
}

// Who has the old file open for writing may be another process about to put a shadow into its place, which the table
// says a moment later; or the engine, until what was closed before is durable.
static int open_matched(struct place *p, struct request *rq) {
    if (client_connect() < 0 || !client_acts_for_us()) {
        return CAPTURE_NATIVE;
    }
    for (;; rq->looks++) {
        uint64_t word = names_word(p);
        int r = open_named(p, rq, word);
        if (r != OPEN_AGAIN) {
            return r;
        }
        if (word == 0) {
            os_sleep_ms(1);
        } else if (names_wait(WAIT_ALL) < 0) {
            rq->looks = OPEN_LOOKS;
        }
    }
}

// Finds the place of a name that matches, with its directory at a high descriptor. 0, or CAPTURE_NATIVE.
static int match(const struct request *rq, struct place *p) {
    const char *patterns = shim.config.paths;
    bool excl = (rq->flags & O_CREAT) && (rq->flags & O_EXCL);
    bool given = policy_match(patterns, rq->dirfd, rq->path);
    bool plain = rq->dirfd == AT_FDCWD && strchr(rq->path, '/') == NULL; // in the working directory: one text for both
    uint64_t word;
    if (names_find_place(p, rq->dirfd, rq->path, !excl && !(rq->flags & O_NOFOLLOW), &word) != 0) {
        return CAPTURE_NATIVE;
    }
    if (!given && ((plain && !p->linked) || !policy_match_in(patterns, p->dir, p->name))) {
        place_close(p);
        return CAPTURE_NATIVE;
    }
    p->dir = own_high(p->dir); // the program's descriptor gets the lowest number, as always
    return p->dir < 0 ? CAPTURE_NATIVE : 0;
}

int capture_open(int dirfd, const char *path, int flags, mode_t mode, const void *caller) {
    struct request rq = {dirfd, path, flags, mode, caller, 0};
    int access = flags & O_ACCMODE;
    if ((access != O_WRONLY && access != O_RDWR) || !atomic_load_explicit(&shim.ready, memory_order_acquire) ||
        guard_depth != 0 || !guard_readable(path) || guard_foreign()) {
        return CAPTURE_NATIVE;
    }
    struct place p;
    guard_depth++;
    int r = match(&rq, &p);
    if (r == 0) {
        r = open_matched(&p, &rq);
        r = starved(r) ? native(&p, &rq) : r; // ours were the last
        place_close(&p);
    }
    guard_depth--;
    return r;
}

void capture_follow(int fd, int dirfd, const char *path, int flags, const void *caller) {
    struct request rq = {dirfd, path, flags, 0, caller, 0};
    struct place p;
    if (!atomic_load_explicit(&shim.ready, memory_order_acquire) || path == NULL || guard_depth != 0 ||
        guard_foreign()) {
        return;
    }
    guard_depth++;
    if (match(&rq, &p) == 0) {
        if (client_connect() == 0) {
            follow(&p, &rq, fd);
        }
        place_close(&p);
    }
    guard_depth--;
}

void capture_renamed(int fromdir, const char *from, int todir, const char *to, const void *caller) {
    const char *patterns = shim.config.paths;
    if (!atomic_load_explicit(&shim.ready, memory_order_acquire) || guard_depth != 0 || guard_foreign() ||
        !policy_match(patterns, todir, to) || policy_match(patterns, fromdir, from)) {
        return;
    }
    int fd = os_openat(todir, to, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0); // by another one its close would drop locks
    fd = fd < 0 ? fd : own_high(fd);
    if (fd < 0) {
        return;
    }
    capture_follow(fd, todir, to, O_RDONLY | O_NOFOLLOW, caller);
    struct file *f = fd_get(fd, true);
    if (f != NULL) {
        fd_before_close(fd, f); // in the order of numbers, the engine syncs it by a description of its own
    }
    os_close(fd);
}
