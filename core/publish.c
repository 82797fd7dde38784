// SPDX-License-Identifier: MIT
//
// publish: see publish.h. Every step may find that an engine that died has done it already: inodes are compared first.

#include "publish.h"

#include "breakpoint.h"
#include "broken.h"
#include "fs.h"
#include "log.h"
#include "os.h"
#include "retry.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <string.h>

#define HOLE_UNIT    4096 // a hole behind the last bytes ends with its block
#define EXTENTS_ONCE 32
#define COARSE_NS    20000000 // how far an inode's time may be behind: a tick, of which the longest is 10 ms

static bool give_back(struct file_slot *f, uint64_t from, uint64_t to) {
    int r = io_calls.fallocate(f->fd_prog, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from, (off_t)(to - from));
    if (r < 0) {
        log_info("%s: a hole in it keeps its space: %s", f->name, log_errno(-r)); // costs nothing else
    }
    return r >= 0;
}

/** What the program has passed over was reserved with the rest, and is a hole natively: what is still unwritten when
 *  nothing is on its way. Not by SEEK_HOLE on ext4 and xfs: there, what was read of a hole counts as bytes. `*any`:
 *  there were some. 0, or what a sync says. */
static int give_back_holes(struct file_slot *f, uint64_t size, bool *any) {
    struct {
        struct fiemap head;
        struct fiemap_extent extent[EXTENTS_ONCE];
    } map;
    const struct fs_type *t = fs_of(f->fd_own);
    if (!t || !(t->traits & FS_HOLES)) {
        return 0;
    }
    if (t->traits & FS_LOG) { // what the pages say comes into the extents with an fsync alone
        off_t hole = os_lseek(f->fd_own, 0, SEEK_HOLE);
        int r = hole < 0 || (uint64_t)hole >= size ? 0 : io_calls.fsync(f->fd_own);
        if (r < 0 || hole < 0 || (uint64_t)hole >= size) {
            return r;
        }
    }
    size = align_up(size, HOLE_UNIT);
    for (uint64_t at = 0, from = 1; at < size && from != at;) {
        map.head = (struct fiemap){
            .fm_start = at, .fm_length = size - at, .fm_flags = FIEMAP_FLAG_SYNC, .fm_extent_count = EXTENTS_ONCE};
        if (ioctl(f->fd_own, FS_IOC_FIEMAP, &map) < 0 || map.head.fm_mapped_extents == 0) {
            return 0; // a failed write is told by the sync behind this
        }
        from = at;
        for (uint32_t i = 0; i < map.head.fm_mapped_extents; i++) {
            const struct fiemap_extent *e = &map.extent[i];
            uint64_t begin = max_u64(at, e->fe_logical), to = min_u64(size, e->fe_logical + e->fe_length);
            if (e->fe_flags & FIEMAP_EXTENT_UNWRITTEN && begin < to) {
                *any |= give_back(f, begin, to);
            }
            at = e->fe_flags & FIEMAP_EXTENT_LAST ? size : max_u64(at, to);
        }
    }
    return 0;
}

/** Gives back what was reserved and has no bytes. */
static int trim(struct file_slot *f) {
    struct stat s;
    int r = os_fstat(f->fd_own, &s);
    if (r < 0 || f->reserve_tried == 0) {
        return r;
    }
    bool cut = (uint64_t)s.st_size < f->reserve_tried;
    if (cut && (uint64_t)s.st_size < f->size_made) {
        log_info("%s: its size is below what was written: it has been cut off since", f->name);
    }
    // Only when no stranger can hold the file: what he writes between the look and the cut would be lost (design 8).
    if (f->close_flags & CLOSE_SPAWNED) {
        return 0;
    }
    bool changed = cut;
    r = cut ? io_calls.ftruncate(f->fd_prog, s.st_size) : 0;
    if (r >= 0 && !(f->close_flags & CLOSE_KEEP)) {
        r = give_back_holes(f, (uint64_t)s.st_size, &changed);
    }
    if (r >= 0 && changed && f->size_end == 0) { // nothing was staged: the kernel's times are the program's
        struct timespec ts[2] = {{.tv_nsec = UTIME_OMIT}, s.st_mtim};
        io_calls.futimens(f->fd_prog, ts);
    }
    return r;
}

/** What comes before its sync. */
static int prepare(struct file_slot *f) {
#if FASTCKPT_BREAK == 4 // an entry that kills the engine each time: blame must find it
    if (strcmp(f->name, "poison.pt") == 0) {
        abort();
    }
#endif
#if FASTCKPT_BREAK == 5 // whatever is synced kills the engine: it must close, and the clients go on natively
    raise(SIGSEGV);
#endif
    bool shadow = !(f->flags & OPEN_FOLLOWED) && !f->linked && !f->taken;
    int r = shadow && f->publish ? trim(f) : 0;
    if (r < 0) {
        return r;
    }
    if (shadow && f->state == FILE_CLOSED && (f->close_flags & CLOSE_TIMES || f->size_end > 0)) {
        struct timespec ts[2] = {f->atime, f->mtime};
        r = io_calls.futimens(f->fd_prog, ts);
        if (r < 0) {
            log_info("%s: times not set: %s", f->name, log_errno(-r));
        }
    }
    return 0;
}

/** The kernel tells a write error once per description; what an engine heard before it died the next one repeats. */
static int tell_both(const struct state *st, const struct file_slot *f, int (*call)(int fd)) {
#if FASTCKPT_BREAK == 1 // canary: a publish without sync
    return 0;
#endif
    int r = call(f->fd_own);
    BREAK_POINT("sync-synced");
    if (r == 0 && st->generation > 1 && f->fd_prog > 0) {
        r = call(f->fd_prog);
    }
    return r == -EINVAL || r == -EROFS ? 0 : r;
}

bool publish_with_name(const struct file_slot *f) {
    return f->kind == SLOT_FILE && f->state == FILE_CLOSED && !(f->flags & (OPEN_FOLLOWED | OPEN_HIDDEN)) &&
           !f->linked && !f->taken && f->size_end == 0 && io_keeps_order(f->fd_own, f->dev);
}

/** Does the data lie on another device than the journal, which its commit does not flush? XFS says so of an inode. */
static bool on_realtime_device(int fd) {
    struct fsxattr x;
    return ioctl(fd, FS_IOC_FSGETXATTR, &x) == 0 && x.fsx_xflags & FS_XFLAG_REALTIME;
}

int publish_write_out(struct state *st, struct file_slot *f) {
    int r = prepare(f);
    return r < 0 ? r : tell_both(st, f, on_realtime_device(f->fd_own) ? io_calls.fsync : io_calls.write_out);
}

int publish_sync(struct state *st, struct file_slot *f) {
    if (f->kind != SLOT_FILE && (f->kind != SLOT_RENAME || f->base_id)) {
        return 0; // nothing to sync, or a captured file, which was synced at its own turn
    }
    if (f->kind == SLOT_RENAME) { // what is renamed to a matched name
        int e = io_calls.fsync(f->fd_own);
        return e == -EINVAL || e == -EROFS ? 0 : e;
    }
    int r = prepare(f);
    return r < 0 ? r : tell_both(st, f, io_calls.fsync);
}

void publish_start_writeback(const struct file_slot *f) {
    OS_CALL(SYS_sync_file_range, f->fd_own, 0, 0, SYNC_FILE_RANGE_WRITE, 0, 0);
}

static bool is_our_inode(const struct file_slot *f, int dirfd, const char *name) {
    struct stat s;
    return os_fstatat(dirfd, name, &s, AT_SYMLINK_NOFOLLOW) == 0 && s.st_dev == f->dev && s.st_ino == f->ino;
}

/** The hidden name is the same each time, so what a power cut leaves between the two steps goes with the next save. */
void publish_step(const struct file_slot *f, char ret[PUBLISH_STEP_CAP]) {
    log_format(ret, PUBLISH_STEP_CAP, ".fastckpt-%lx", (unsigned long)fnv1a(FNV1A_INIT, f->name, strlen(f->name)));
}

void publish_give_up(struct file_slot *f) {
    char tmp[PUBLISH_STEP_CAP];
    publish_step(f, tmp);
    if (f->temporary && !f->linked && is_our_inode(f, f->fd_dir, tmp)) {
        io_calls.unlinkat(f->fd_dir, tmp, 0);
    }
    f->temporary = 0;
}

/** An unnamed inode gets its first name once in its life: the hidden one stays while the rename may be tried again, and
 *  is used by an engine that finds it. */
static int replace(struct file_slot *f) {
    char tmp[PUBLISH_STEP_CAP];
    int r = 0;
    if (fs_dir_only_grows(f->fd_dir)) {
        return -EPERM; // since its open: the hidden name could not go again
    }
    publish_step(f, tmp);
    *(volatile uint32_t *)&f->temporary = 1;
    if (!is_our_inode(f, f->fd_dir, tmp)) {
        r = io_calls.link_fd(f->fd_own, f->fd_dir, tmp);
        if (r == -EEXIST) {
            io_calls.unlinkat(f->fd_dir, tmp, 0);
            r = io_calls.link_fd(f->fd_own, f->fd_dir, tmp);
        }
    }
    if (r < 0) {
        return r;
    }
    BREAK_POINT("publish-hidden");
    return io_calls.renameat(f->fd_dir, tmp, f->fd_dir, f->name, 0);
}

static bool later(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec > b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec > b->tv_nsec);
}

/** By a recovery of this pair, which makes what was saved before anything of ours? (An inode's time may be behind.) */
static bool is_recovered(const struct state *st, const struct timespec *born) {
    int64_t ns = born->tv_sec * 1000000000 + born->tv_nsec;
    return ns >= st->recovery_from - COARSE_NS && ns <= st->recovery_to;
}

/** Has somebody without us (a library loaded by dlmopen, another machine) made another file of that name since ours was
 *  closed? Natively the later one stays. By the birth of what stands there: a file that was published before ours was
 *  opened before ours was closed. Where inodes have no birth time, ours stays. */
static bool beaten(const struct state *st, const struct file_slot *f) {
    struct timespec born;
    if (f->state != FILE_CLOSED || os_birth(f->fd_dir, f->name, 0, &born) < 0 || !later(&born, &f->closed) ||
        is_recovered(st, &born)) {
        return false;
    }
    log_error("%s: not published: somebody has made another file of that name since it was closed", f->name);
    return true;
}

/** Does something stand in the way of a deletion or a replacement: a failure before it, or a broken device (P6)? */
static bool is_forbidden(const struct state *st, const struct file_slot *f) {
    return state_behind_failure(st, f->publish) || broken_forbids(st, f);
}

/** `*new_name`: a name was made where there was none. */
static int name_one(struct state *st, struct file_slot *f, bool *new_name) {
    bool redone = st->generation > 1 && is_our_inode(f, f->fd_dir, f->name);
    if (f->flags & OPEN_FOLLOWED || f->linked || redone) {
        return 0;
    }
    if (f->flags & OPEN_HIDDEN) {
        struct stat s;
        if (is_forbidden(st, f) && os_fstatat(f->fd_dir, f->name, &s, AT_SYMLINK_NOFOLLOW) == 0) {
            return -ECANCELED;
        }
        return beaten(st, f) ? 0 : io_calls.renameat(f->fd_dir, f->hidden, f->fd_dir, f->name, 0);
    }
    int r = io_calls.link_fd(f->fd_own, f->fd_dir, f->name);
    *new_name = r == 0;
    if (r == -EEXIST) {
        r = is_forbidden(st, f) ? -ECANCELED : beaten(st, f) ? 0 : replace(f);
    }
    // The directory was deleted with all in it, as it would have been natively; or this inode was published by an
    // engine that died, and replaced since.
    return r == -ENOENT ? 0 : r;
}

/** A deletion or a rename. What is not as it was at the call has been changed by a stranger since, or by an engine that
 *  died after it: it is left alone. */
static int change_one(struct state *st, struct file_slot *f) {
    struct stat s;
    if (f->linked) {
        return 0;
    }
    // To give a new name to what is complete replaces nothing: so a save gets through while a device is broken.
    bool new_name = f->kind == SLOT_RENAME && os_fstatat(f->fd_to, f->to, &s, AT_SYMLINK_NOFOLLOW) == -ENOENT;
    if (new_name ? state_behind_failure(st, f->publish) : is_forbidden(st, f)) {
        return -ECANCELED;
    }
    if (!is_our_inode(f, f->fd_dir, f->name)) {
        if (st->generation == 1 || os_fstatat(f->fd_dir, f->name, &s, AT_SYMLINK_NOFOLLOW) != -ENOENT) {
            log_info("%s: left alone: it is not what was to be %s", f->name,
                     f->kind == SLOT_RENAME ? "renamed" : "deleted");
        }
        return 0;
    }
    if (f->kind == SLOT_RENAME) {
        f->summed = os_fstat(f->fd_own, &s) == 0 ? s.st_ctim : f->summed; // its checksums stay good (sums.h)
        int r = io_calls.renameat(f->fd_dir, f->name, f->fd_to, f->to, 0);
        return r == -ENOENT ? 0 : r;
    }
    int r = io_calls.unlinkat(f->fd_dir, f->name, f->kind == SLOT_RMDIR ? AT_REMOVEDIR : 0);
    if (r == -ENOTEMPTY) {
        log_info("%s: not deleted: another process has put something into it", f->name);
        return 0;
    }
    return r == -ENOENT ? 0 : r;
}

struct dir_id {
    int fd;
    uint64_t dev, ino;
};

/** Natively a directory's mtime changes when a name is made, at the open, and not at all when a file is overwritten:
 *  savers sort directories by it and delete the oldest. A deletion or a rename is noted at its call. */
struct dir_times {
    int fd; // of the directory whose names are being changed; 0: none
    uint64_t dev, ino;
    struct timespec want;
};

static void put_mtime_back(struct dir_times *d) {
    if (d->fd > 0) {
        char path[32];
        struct timespec ts[2] = {{.tv_nsec = UTIME_OMIT}, d->want};
        log_format(path, sizeof path, "/proc/self/fd/%d", d->fd);
        os_utimensat(AT_FDCWD, path, ts, 0); // not ours to change: fine, then it stays
    }
    d->fd = 0;
}

/** Called before each change; the times of a directory are put back once for all changes in a row. */
static void note_mtime(struct dir_times *d, const struct file_slot *f) {
    struct stat s;
    if (d->fd > 0 && d->dev == f->dir_dev && d->ino == f->dir_ino) {
        return;
    }
    put_mtime_back(d);
    if (os_fstat(f->fd_dir, &s) == 0) {
        *d = (struct dir_times){f->fd_dir, f->dir_dev, f->dir_ino, s.st_mtim};
    }
}

/** Must the directories changed so far be durable before this name changes? One journal keeps its own order. */
static bool needs_sync_between(const struct file_slot *before, const struct file_slot *f) {
    bool made = before->kind == SLOT_FILE && f->kind == SLOT_FILE; // nothing is lost by a name that is made early
    if (made && before->dir_dev == f->dir_dev && before->dir_ino == f->dir_ino) {
        return false;
    }
    return before->dir_dev != f->dir_dev || !io_keeps_order(f->fd_own, f->dev);
}

/** Directory number `k` that a slot changes. False: it has no such. */
static bool dir_of(const struct file_slot *f, int k, struct dir_id *d) {
    *d = k == 0 ? (struct dir_id){f->fd_dir, f->dir_dev, f->dir_ino} : (struct dir_id){f->fd_to, f->to_dev, f->to_ino};
    return k == 0 || f->kind == SLOT_RENAME;
}

static bool changes_dir(const struct file_slot *f, const struct dir_id *d) {
    struct dir_id mine;
    for (int k = 0; k < 2; k++) {
        if (dir_of(f, k, &mine) && mine.dev == d->dev && mine.ino == d->ino) {
            return true;
        }
    }
    return false;
}

/** Syncs one directory, unless a slot before `i` has had it synced; a failure is that of all who changed it. */
static void sync_dir(struct state *st, const uint32_t *slots, unsigned from, unsigned i, unsigned to,
                     const struct dir_id *d, int *result) {
    for (unsigned k = from; k < i; k++) {
        if (result[k] == 0 && changes_dir(&st->files[slots[k]], d)) {
            return;
        }
    }
    int r = io_calls.sync_dir(d->fd);
    if (r == -EACCES) { // we may not read it: the whole file system then; by O_PATH there is no way
        r = os_syncfs(st->files[slots[i]].fd_own);
        r = r == -EBADF ? 0 : r;
    }
    for (unsigned k = from; r < 0 && r != -ENOENT && k < to; k++) {
        if (result[k] == 0 && changes_dir(&st->files[slots[k]], d)) {
            result[k] = r;
        }
    }
}

static void sync_dirs(struct state *st, const uint32_t *slots, unsigned from, unsigned to, int *result) {
    struct dir_id d;
    for (unsigned i = from; i < to; i++) {
        for (int k = 0; k < 2 && result[i] == 0; k++) {
            if (dir_of(&st->files[slots[i]], k, &d)) {
                sync_dir(st, slots, from, i, to, &d, result);
            }
        }
    }
}

/** Those behind what failed, up to number `last`, must not replace anything: the loop thread learns of it later. */
static void tell_failures(struct state *st, const uint32_t *slots, unsigned from, unsigned to, uint64_t last,
                          const int *result) {
    for (unsigned i = from; i < to; i++) {
        if (result[i] < 0) {
            state_fail(st, st->files[slots[i]].publish, last);
        }
    }
}

/** What the kernel has renamed for the program (a directory) is no slot, and may be what makes a deletion safe. Once a
 *  batch for a device; whether it fails says nothing of this slot. */
static void sync_before_change(const struct file_slot *f, uint64_t *synced_dev) {
    if (f->kind != SLOT_FILE && *synced_dev != f->dev && !io_keeps_order(f->fd_own, f->dev)) {
        io_calls.sync_names(f->fd_dir);
        *synced_dev = f->dev;
    }
}

unsigned publish_names(struct state *st, const uint32_t *slots, unsigned n, int *result) {
    unsigned from = 0;
    struct dir_times times = {0};
    uint64_t synced_dev = 0, last = st->files[slots[n - 1]].publish;
    for (unsigned i = 0; i < n; i++) {
        struct file_slot *f = &st->files[slots[i]];
        io_serve(f->id);
        bool change = f->kind != SLOT_FILE, new_name = change, native = f->flags & OPEN_FOLLOWED || f->linked;
        if (i > from && needs_sync_between(&st->files[slots[i - 1]], f)) {
            put_mtime_back(&times);
            sync_dirs(st, slots, from, i, result);
            tell_failures(st, slots, from, i, last, result);
            from = i;
        }
        if (!native) {
            note_mtime(&times, f);
        }
        sync_before_change(f, &synced_dev);
        *(volatile uint32_t *)&f->tried = 1;
        BREAK_POINT("publish-begin");
        result[i] = change ? change_one(st, f) : name_one(st, f, &new_name);
        BREAK_POINT("publish-named");
        // Behind a file that was tried in vain, one attempt is enough: a long queue must not wait for each of them.
        if (result[i] < 0 && f->state == FILE_CLOSED && !state_behind_failure(st, f->publish) &&
            retry_allowed(st, f, result[i])) {
            n = i;
            break;
        }
        if (result[i] == 0) {
            *(volatile uint32_t *)&f->linked = 1;
            if (!change) {
                state_close_fd(&f->fd_to); // a replaced file goes here, in no loop, and its space is free
            }
            times.want = new_name && later(&f->opened, &times.want) ? f->opened : times.want;
        } else {
            tell_failures(st, slots, i, i + 1, last, result);
        }
    }
    put_mtime_back(&times);
    BREAK_POINT("publish-linked");
    sync_dirs(st, slots, from, n, result);
    BREAK_POINT("publish-durable");
    return n;
}
