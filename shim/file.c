// SPDX-License-Identifier: MIT
//
// file: objects, settle, close. Writing is in file_write.c, fsync and release in file_sync.c, the chunks being filled
// in held.c, what happens to all files at fork, exec and exit in file_all.c, the way without an engine in lost.c.

#include "file.h"

#include "../core/log.h"
#include "../core/os.h"
#include "client.h"
#include "file_inside.h"
#include "held.h"
#include "lost.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>

#define PENDING_MIN 8 // closed and unpublished files that no limit forbids
#define PENDING_MAX 256
#define GOING       0x80000000u // refs of an object that is being taken or put away

struct file_report file_report;

static struct file files[FILES_MAX];
static _Atomic uint32_t files_high; // highest object ever taken + 1
static _Atomic uint32_t next_hint;  // where the search for a free one begins

// ---- Objects

_Static_assert(sizeof(struct file) - offsetof(struct file, held) - sizeof(((struct file *)0)->held) < 16,
               "what stands behind held would not be cleared");

static void file_init(struct file *f) {
    _Atomic uint32_t *refs = &f->refs;
    char *from = (char *)(refs + 1);
    memset(from, 0, (size_t)((char *)f->held - from));
    f->dir = -1;
    f->epoch = client_epoch();
    f->atime.tv_nsec = UTIME_OMIT;
    f->mtime.tv_nsec = UTIME_OMIT;
    f->spawned_at = atomic_load(&shim.spawned);
}

struct file *file_new(void) {
    uint32_t hint = atomic_load_explicit(&next_hint, memory_order_relaxed);
    for (uint32_t i = 0; i < FILES_MAX; i++) {
        uint32_t at = (hint + i) % FILES_MAX;
        struct file *f = &files[at];
        uint32_t none = 0;
        if (atomic_load_explicit(&f->refs, memory_order_relaxed) != 0 ||
            !atomic_compare_exchange_strong(&f->refs, &none, GOING)) {
            continue;
        }
        file_init(f);
        client_on_lost = lost_recover_all;
        uint32_t high = atomic_load(&files_high);
        while (high < at + 1 && !atomic_compare_exchange_weak(&files_high, &high, at + 1)) {
        }
        atomic_store(&f->refs, 1);
        return f;
    }
    return NULL;
}

void file_set_name(struct file *f, const char *name, const char *hidden) {
    log_format(f->name, sizeof f->name, "%s", name);
    log_format(f->hidden, sizeof f->hidden, "%s", hidden ? hidden : "");
}

void file_put(struct file *f) {
    uint32_t refs = atomic_load(&f->refs);
    for (;;) {
        if (refs == 0 || refs >= GOING) {
            return; // a second put: there is nothing left to spoil
        }
        if (refs > 1) {
            if (atomic_compare_exchange_weak(&f->refs, &refs, refs - 1)) {
                return;
            }
        } else {
            if (!f->closed) {
                file_close(f, -1);
            }
            if (atomic_compare_exchange_strong(&f->refs, &refs, GOING)) {
                break;
            }
        }
    }
    lost_drop_dir(f);
    atomic_store_explicit(&next_hint, (uint32_t)(f - files), memory_order_relaxed);
    atomic_store(&f->refs, 0);
}

struct file *file_by_id(uint64_t id) {
    uint32_t high = atomic_load(&files_high);
    for (uint32_t i = 0; i < high; i++) {
        uint32_t refs = atomic_load(&files[i].refs);
        if (refs > 0 && refs < GOING && files[i].id == id) {
            return &files[i];
        }
    }
    return NULL;
}

struct file *file_each(uint32_t *i) {
    uint32_t high = atomic_load(&files_high);
    while (*i < high) {
        struct file *f = &files[(*i)++];
        uint32_t refs = atomic_load(&f->refs);
        if (refs > 0 && refs < GOING) {
            return f;
        }
    }
    return NULL;
}

struct file *file_by_inode(dev_t dev, ino_t ino, bool inherited) {
    uint32_t i = 0;
    for (struct file *f; (f = file_each(&i));) {
        bool ours = !f->closed && (inherited || !f->inherited);
        if (f->ino == ino && f->dev == dev && ours && (f->id != 0 || f->followed)) {
            return f;
        }
    }
    return NULL;
}

// ---- Under the lock

// What the engine says of the file; NULL: nothing.
static const struct file_public *said(const struct file *f) {
    const struct tables *t = f->id != 0 && !f->lost && !f->inherited ? client_tables() : NULL;
    const struct file_public *p = t ? &t->files[f->slot % FILES_MAX] : NULL;
    return p && atomic_load_explicit(&p->id, memory_order_acquire) == f->id ? p : NULL;
}

int file_known_error(struct file *f) {
    const struct file_public *p = f->error == 0 ? said(f) : NULL;
    if (p) {
        f->error = atomic_load_explicit(&p->error, memory_order_acquire);
    }
    return f->error;
}

bool file_looked_at(const struct file *f) {
    const struct file_public *p = said(f);
    return p && UNLIKELY(atomic_load_explicit(&p->looked, memory_order_acquire) != 0);
}

// Asks about this file; -EPIPE has recovered it. An error of the file is kept.
int file_ask(struct file *f, int fd, unsigned type, unsigned scope) {
    struct msg q = {.type = (uint16_t)type, .scope = (uint16_t)scope, .file = f->id, .slot = f->slot};
    int r = client_ask(&q, NULL, 0, NULL, NULL, -1);
    if (r == -EPIPE) {
        lost_recover(f, fd);
        return -EPIPE;
    }
    if (r < 0 && f->error == 0) {
        f->error = r;
    }
    return r < 0 ? r : 0;
}

void file_forget_refs(struct file *f) {
    if (f->referred_end > 0) {
        client_refs_settled(f->id);
        f->referred_end = 0;
    }
}

int file_settle_locked(struct file *f, int fd) {
    // Closed by the end of the process, while another thread goes on: as long as the engine writes what it has, nothing
    // may go beside that into the page cache.
    if (f->staged_end > 0 && (!file_is_native(f) || f->closed)) {
        if (held_hand_over(f) == -EPIPE) {
            lost_recover(f, fd);
        } else if (file_ask(f, fd, MSG_SETTLE, 0) == 0) {
            f->staged_end = 0; // the kernel's size is right from here on
            file_forget_refs(f);
        }
    }
    return file_known_error(f);
}

void file_begin(struct file *f, int fd) {
    if (UNLIKELY(f->inherited)) {
        if (!f->settled && client_connect() == 0) {
            struct msg q = {.type = MSG_SETTLE, .file = f->id, .slot = f->slot};
            client_ask(&q, NULL, 0, NULL, NULL, -1);
            f->settled = true;
        }
        return;
    }
    if (UNLIKELY(f->epoch != client_epoch())) {
        lost_recover(f, fd);
    }
    if (!file_is_native(f) && file_looked_at(f)) {
        file_settle_locked(f, fd); // its error is kept
        f->native = true;
    }
}

int file_settle(struct file *f, int fd) {
    sigset_t saved;
    lock_take(&f->lock, &saved);
    file_begin(f, fd);
    int r = file_settle_locked(f, fd);
    lock_drop(&f->lock, &saved);
    return r;
}

// ---- Attributes

// Has another process had it published, or deleted its name?
static bool links_known(const struct file *f) {
    const struct file_public *p = said(f);
    return p && atomic_load(&p->links);
}

void file_fix_stat(struct file *f, int fd, struct stat *st) {
    bool named = false;
    struct stat now;
    if (f->followed) {
        return;
    }
    // Staged bytes of the parent's count, in a child; what a child or whoever has it open has cut off does not.
    if (f->inherited || (f->staged_end > 0 && (file_has_spawned(f) || file_looked_at(f)))) {
        file_settle(f, fd);
        const struct tables *t = client_tables();
        named = t && name_word_hidden(names_find(t, name_hash(f->dev, f->ino, "", 0)));
        os_fstat(fd, st); // behind that: its name may be given between the two
    }
    if (f->inherited) { // as long as the engine has it, it is going to get its name
        st->st_nlink = named && st->st_nlink == 0 ? 1 : st->st_nlink;
        return;
    }
    st->st_size = (off_t)max_u64((uint64_t)st->st_size, f->staged_end);
    if (st->st_nlink == 0 && !f->dropped && !f->published) { // what is known may have come about since it was asked
        st->st_nlink = !links_known(f) ? 1 : os_fstat(fd, &now) == 0 ? now.st_nlink : 0;
    }
    // Else the kernel's are right: they were set there, too.
    bool set = f->times_set && !f->times_native && file_engine_changes(f);
    if ((f->staged_end > 0 || set) && f->mtime.tv_nsec != UTIME_OMIT) {
        st->st_mtim = f->mtime;
    }
    if (set && f->atime.tv_nsec != UTIME_OMIT) {
        st->st_atim = f->atime;
    }
}

static void set_time(struct timespec *to, const struct timespec *from, const struct timespec *now) {
    if (from->tv_nsec == UTIME_NOW) {
        *to = *now;
    } else if (from->tv_nsec != UTIME_OMIT) {
        *to = *from;
    }
}

void file_times(const struct file *f, int fd, struct timespec ts[2]) {
    struct stat st;
    bool native = f->times_native && os_fstat(fd, &st) == 0;
    ts[0] = native ? st.st_atim : f->atime;
    ts[1] = native ? st.st_mtim : f->mtime;
}

void file_before_times(struct file *f, int fd) {
    sigset_t saved;
    lock_take(&f->lock, &saved);
    if (f->stdio && !f->followed) {
        file_settle_locked(f, fd); // its error is kept
        f->native = true;
        f->times_native = true;
    }
    lock_drop(&f->lock, &saved);
}

int file_set_times(struct file *f, const struct timespec ts[2]) {
    int64_t ns = os_now_ns(CLOCK_REALTIME_COARSE);
    struct timespec now = {ns / 1000000000, ns % 1000000000};
    for (int i = 0; i < 2; i++) {
        if (ts[i].tv_nsec != UTIME_NOW && ts[i].tv_nsec != UTIME_OMIT &&
            (ts[i].tv_nsec < 0 || ts[i].tv_nsec > 999999999)) {
            return -EINVAL;
        }
    }
    sigset_t saved;
    lock_take(&f->lock, &saved);
    set_time(&f->atime, &ts[0], &now);
    set_time(&f->mtime, &ts[1], &now);
    f->times_set = true;
    lock_drop(&f->lock, &saved);
    return 0;
}

int file_drop(struct file *f) {
    sigset_t saved;
    lock_take(&f->lock, &saved);
    file_begin(f, -1);
    int r = 0;
    if (!f->dropped && !f->lost && !f->closed && !f->inherited) {
        if (f->log && !f->replaces && !f->published) {
            file_sync_locked(f, -1, true); // its link may be under way: it must not come behind the unlink
        }
        file_settle_locked(f, -1);
        r = file_ask(f, -1, MSG_DROP, 0);
        r = r == -EPIPE ? 0 : r;
    }
    f->dropped = true;
    lock_drop(&f->lock, &saved);
    return r;
}

// ---- Close

static void report(const struct file *f) {
    _Atomic uint64_t *class = f->followed           ? &file_report.files_followed
                              : f->bytes_staged > 0 ? &file_report.files_staged
                                                    : &file_report.files_captured;
    atomic_fetch_add(class, 1);
    atomic_fetch_add(&file_report.bytes_staged, f->bytes_staged);
    atomic_fetch_add(&file_report.bytes_native, f->bytes_native);
    int64_t never = 0;
    if (atomic_load_explicit(&file_report.first_close_ns, memory_order_relaxed) == never) {
        atomic_compare_exchange_strong(&file_report.first_close_ns, &never, os_now_ns(CLOCK_MONOTONIC));
    }
}

// The entry. -EPIPE: nobody takes it.
static int tell_close(struct file *f, int fd) {
    struct msg m = {.type = MSG_CLOSE, .file = f->id, .slot = f->slot};
    struct msg_close *c = &m.u.close;
    struct timespec ts[2];
    file_times(f, fd, ts);
    c->size = f->staged_end;
    // Where the kernel wrote every byte, its own times are right; what the engine does to the file changes them else.
    bool times = file_engine_changes(f), set = times && f->times_set;
    c->atime = set ? ts[0] : (struct timespec){0, UTIME_OMIT};
    c->mtime = times ? ts[1] : (struct timespec){0, UTIME_OMIT};
    c->flags = (set ? CLOSE_TIMES : 0) | (f->failed ? CLOSE_ABORT : 0) | (f->allocated ? CLOSE_KEEP : 0) |
               (file_has_spawned(f) ? CLOSE_SPAWNED : 0);
    return client_tell(&m);
}

static int close_locked(struct file *f, int fd) {
    if (!f->lost && held_hand_over(f) == -EPIPE) {
        lost_recover(f, fd);
    }
    if (f->failed && !f->followed && !f->published && !f->dropped) {
        log_error("%s is not published: a write to it failed, and nothing was written after that; %s", f->name,
                  f->replaces ? "its old content stays" : "there is no file of that name");
    }
    file_known_error(f); // before the engine hears of the close and lets the slot go
    if (!f->lost && tell_close(f, fd) == -EPIPE) {
        lost_recover(f, fd);
    }
    if (f->lost) {
        return lost_publish(f, fd);
    }
    if (!f->followed && !f->published && !f->dropped) {
        lost_note_closed(f);
    }
    return file_known_error(f);
}

static void wait_until_left(uint64_t most) {
    struct msg q = {.type = MSG_WAIT, .scope = WAIT_CLIENT, .value = most};
    client_ask(&q, NULL, 0, NULL, NULL, -1);
}

// Back-pressure: each unpublished file costs the engine descriptors, and us names that wait.
void file_wait_for_pending(void) {
    struct {
        uint64_t cur, max;
    } rl = {1024, 1024};
    const struct tables *t = client_tables();
    const struct client_public *me = t ? &t->clients[client_slot() % CLIENTS_MAX] : NULL;
    if (!me || atomic_load(&me->pending) <= PENDING_MIN) {
        return;
    }
    OS_CALL(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &rl, 0, 0);
    uint64_t most = max_u64(min_u64(PENDING_MAX, rl.cur / 4), PENDING_MIN);
    if (atomic_load(&me->pending) > most) {
        wait_until_left(most);
    }
}

// Is a file open that may want chunks? Without one, what is borrowed goes back: logs and locks stay open for long.
static bool any_staging(void) {
    uint32_t i = 0;
    for (struct file *f; (f = file_each(&i));) {
        if (!f->closed && !f->native && !f->followed && !f->inherited) {
            return true;
        }
    }
    return false;
}

int file_close(struct file *f, int fd) {
    int64_t begun = os_now_ns(CLOCK_MONOTONIC);
    sigset_t saved;
    lock_take(&f->lock, &saved);
    int r = 0;
    bool known = f->id != 0; // else an open that came to nothing: nobody hears the result
    if (!f->closed && !f->inherited) {
        file_begin(f, fd);
        if (known) {
            r = close_locked(f, fd);
            report(f);
        }
        lost_drop_dir(f);
        f->closed = true;
    }
    lock_drop(&f->lock, &saved);
    if (!any_staging()) {
        client_return_chunks();
    }
    if (known && f->must_wait) {
        wait_until_left(0);
    } else {
        file_wait_for_pending();
    }
    atomic_fetch_add(&file_report.held_ns, (uint64_t)(os_now_ns(CLOCK_MONOTONIC) - begun));
    return r < 0 || !known ? r : lost_error();
}

// ---- Fork

void file_after_fork(void) {
    uint32_t i = 0;
    for (struct file *f; (f = file_each(&i));) {
        f->lock = (struct lock){0};
        f->inherited = true;
        f->native = true;
        f->n_held = 0;
        f->dir = -1;
    }
    lost_after_fork();
    memset(&file_report, 0, sizeof file_report);
}
