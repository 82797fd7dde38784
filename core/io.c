// SPDX-License-Identifier: MIT
//
// io: the choice of backend, the queue of each device and the table of real calls. Threads are always there: for jobs,
// for buffered writes, and for what the ring hands back. No thread or ring is made here, and no policy.

#include "io.h"

#include "config.h"
#include "fs.h"
#include "io_inside.h"
#include "log.h"
#include "os.h"
#include "path.h"
#include "util.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/sysmacros.h>
#include <unistd.h>

struct device {
    unsigned in_flight;
    struct io_req *head; // waiting, in order of submission
    struct io_req *tail;
};

struct io {
    int event_fd;
    void *threads;
    void *rings; // NULL: all writes go through threads
    unsigned pending;
    struct io_slots slots;
    struct device devices[IO_DEVICES_MAX];
};

// ---- The real calls

/** An empty path is taken from CAP_DAC_READ_SEARCH and, since Linux 6.10, from whoever opened the file; the name in
 *  /proc is taken from everybody, where there is a /proc. */
static int call_link_fd(int fd, int dirfd, const char *name) {
    // The short way first: half the cost of the other, which walks through /proc and back.
    int ret = os_linkat(fd, "", dirfd, name, AT_EMPTY_PATH);
    if (ret != -ENOENT) {
        return ret;
    }
    // Not allowed, or the directory is gone: the second way tells.
    char path[32];
    log_format(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = os_linkat(AT_FDCWD, path, dirfd, name, AT_SYMLINK_FOLLOW);
    return again == -ENOTDIR ? ret : again;
}

/** fsync of a directory that may be written but not read: any descriptor of the file system serves for syncfs, and who
 *  may create names there may create an unnamed file. */
static int sync_unreadable(int dirfd) {
    int fd = os_openat(dirfd, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) {
        return -EACCES;
    }
    int ret = os_syncfs(fd);
    os_close(fd);
    return ret;
}

static int call_stat_name(int dirfd, const char *name, struct stat *s) {
    return os_fstatat(dirfd, name, s, AT_SYMLINK_NOFOLLOW);
}

static int on_directory(int dirfd, int (*sync)(int fd)) {
    int fd = os_openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd == -EACCES) {
        return sync_unreadable(dirfd);
    }
    if (fd < 0) {
        return fd;
    }
    int ret = sync(fd);
    os_close(fd);
    return ret;
}

static int call_sync_dir(int dirfd) {
    int ret = on_directory(dirfd, os_fsync);
    return ret == -EINVAL ? 0 : ret; // a file system that knows no fsync of directories has nothing more to offer
}

/** btrfs writes what is fsynced into a log of its own: names that were changed before, elsewhere, may be lost all the
 *  same. Only a commit of everything keeps them. */
static int call_sync_names(int dirfd) {
    const struct fs_type *t = fs_of(dirfd);
    return t && t->traits & FS_LOG ? on_directory(dirfd, os_syncfs) : 0;
}

/** Waits for the bytes, and tells of their errors as fsync does. The device may still have them in its cache, and the
 *  inode is as durable as the journal: by the next sync on this file system that comes behind a change of it. */
static int call_write_out(int fd) {
    return (int)OS_CALL(SYS_sync_file_range, fd, 0, 0,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER, 0, 0);
}

static int call_futimens(int fd, const struct timespec ts[2]) {
    return os_utimensat(fd, NULL, ts, 0);
}

static int call_linkat(int olddir, const char *old, int newdir, const char *name) {
    return os_linkat(olddir, old, newdir, name, 0);
}

static int call_unlinkat(int dirfd, const char *name, int flags) {
    return os_unlinkat(dirfd, name, flags);
}

static int call_close(int fd) {
    int ret = os_close(fd);
    return ret == -EINTR ? 0 : ret; // Linux has released the number all the same
}

#define IO_CALLS_KERNEL                                                                                                \
    {                                                                                                                  \
        .pwrite_all = os_pwrite_all, .fsync = os_fsync, .write_out = call_write_out, .fallocate = os_fallocate,        \
        .ftruncate = os_ftruncate, .futimens = call_futimens, .link_fd = call_link_fd, .linkat = call_linkat,          \
        .renameat = os_renameat2, .unlinkat = call_unlinkat, .sync_dir = call_sync_dir,                               \
        .sync_names = call_sync_names, .close = call_close, .stat_name = call_stat_name,                               \
    }

const struct io_calls io_calls_kernel = IO_CALLS_KERNEL;
struct io_calls io_calls = IO_CALLS_KERNEL;

bool io_known_fs(int fd) {
    const struct fs_type *t = fs_of(fd);
    return t && (t->traits & FS_DIRECT);
}

// The kernel lists the journals of ext4 as /proc/fs/jbd2/DEVICE-INODE. One on another device is not found: then the
// slower way is taken.
static bool has_journal(uint64_t dev) {
    char path[64], target[256];
    log_format(path, sizeof path, "/sys/dev/block/%u:%u", major(dev), minor(dev));
    ssize_t n = os_readlinkat(AT_FDCWD, path, target, sizeof target - 1);
    if (n <= 0) {
        return false;
    }
    target[n] = '\0';
    log_format(path, sizeof path, "/proc/fs/jbd2/%s-8", path_base(target));
    struct stat st;
    return os_fstatat(AT_FDCWD, path, &st, 0) == 0;
}

bool io_keeps_order(int fd, uint64_t dev) {
    static _Atomic uint64_t known[64]; // by device: dev * 2 + 1 if it keeps order. Workers may look at the same time
    _Atomic uint64_t *k = &known[dev % ARRAY_LEN(known)];
    uint64_t v = atomic_load(k);
    if (v / 2 == dev && v != 0) {
        return v & 1;
    }
    const struct fs_type *t = fs_of(fd);
    bool keeps = t && (t->magic == XFS_SUPER_MAGIC || (t->magic == EXT4_SUPER_MAGIC && has_journal(dev)));
    atomic_store(k, dev * 2 + keeps);
    return keeps;
}

// ---- Opening and closing

int io_open(struct io **ret, int want, char *why, size_t cap) {
    assert(cap > 0);
    why[0] = '\0';
    struct io *io = calloc(1, sizeof *io);
    if (!io) {
        return -ENOMEM;
    }
    // Not close-on-exec: the descriptor table is shared with the keeper, and nothing in it is (design 7, Keeper).
    io->event_fd = eventfd(0, EFD_NONBLOCK);
    int err = io->event_fd < 0 ? -errno : 0;
    if (!err) {
        err = io_threads_backend.open(&io->threads, io->event_fd, why, cap);
    }
    if (err) {
        io_close(io);
        return err;
    }
    if (want != IO_THREADS && io_uring_backend.open(&io->rings, io->event_fd, why, cap) < 0) {
        io->rings = NULL;
    }
    *ret = io;
    return 0;
}

void io_close(struct io *io) {
    if (!io) {
        return;
    }
    while (io->pending) {
        struct pollfd p = {.fd = io->event_fd, .events = POLLIN};
        poll(&p, 1, -1); // EINTR: the loop asks again
        io_reap(io);
    }
    if (io->rings) {
        io_uring_backend.close(io->rings);
    }
    if (io->threads) {
        io_threads_backend.close(io->threads);
    }
    if (io->event_fd >= 0) {
        os_close(io->event_fd);
    }
    free(io);
}

const char *io_name(const struct io *io) {
    return io->rings ? io_uring_backend.name : io_threads_backend.name;
}

int io_event_fd(const struct io *io) {
    return io->event_fd;
}

unsigned io_pending(const struct io *io) {
    return io->pending;
}

// ---- Submitting and reaping

/** Buffered writes would be handed on by the ring to threads of the kernel: ours can be counted, named and blamed. */
static bool is_direct(int fd) {
    int flags = os_fcntl(fd, F_GETFL, 0);
    return flags >= 0 && (flags & O_DIRECT);
}

static void submit(struct io *io, struct io_req *req) {
    req->next = NULL;
    req->progress = 0;
    req->result = 0;
    if (io->rings && is_direct(req->fd) && io_uring_backend.write(io->rings, req) == 0) {
        return;
    }
    io_threads_backend.write(io->threads, req);
}

static void start_waiting(struct io *io, struct device *d) {
    while (d->head && d->in_flight < IO_DEPTH) {
        struct io_req *req = d->head;
        d->head = req->next;
        d->in_flight++;
        submit(io, req);
    }
}

void io_write(struct io *io, struct io_req *req) {
    struct device *d = &io->devices[io_slot(&io->slots, req->device)];
    req->next = NULL;
    if (d->head) {
        d->tail->next = req;
    } else {
        d->head = req;
    }
    d->tail = req;
    io->pending++;
    start_waiting(io, d);
}

void io_job(struct io *io, struct io_job *job) {
    job->next = NULL;
    io->pending++;
    io_threads_job(io->threads, job);
}

static void finish(struct io *io, struct io_req *req) {
    struct device *d = &io->devices[io_slot(&io->slots, req->device)];
    assert(d->in_flight > 0 && io->pending > 0);
    d->in_flight--;
    io->pending--;
    start_waiting(io, d); // before done(): the device is not to wait for it
    req->done(req);
}

static int finish_list(struct io *io, struct io_req *list) {
    int count = 0;
    while (list) {
        struct io_req *req = list;
        list = req->next; // done() may free the request
        finish(io, req);
        count++;
    }
    return count;
}

/** Takes what the ring handed back out of `list` and gives it to the threads. */
static struct io_req *redo_cancelled(struct io *io, struct io_req *list) {
    struct io_req **link = &list;
    while (*link) {
        struct io_req *req = *link;
        if (req->result != -ECANCELED) {
            link = &req->next;
            continue;
        }
        *link = req->next;
        req->next = NULL;
        req->result = 0;
        io_threads_backend.write(io->threads, req);
    }
    return list;
}

int io_reap(struct io *io) {
    uint64_t signals;
    os_read(io->event_fd, &signals, sizeof signals); // before looking: what finishes later signals again
    int count = 0;
    if (io->rings) {
        count += finish_list(io, redo_cancelled(io, io_uring_backend.reap(io->rings)));
    }
    count += finish_list(io, io_threads_backend.reap(io->threads));
    struct io_job *jobs = io_threads_reap_jobs(io->threads);
    while (jobs) {
        struct io_job *job = jobs;
        jobs = job->next;
        assert(io->pending > 0);
        io->pending--;
        job->done(job);
        count++;
    }
    return count;
}
