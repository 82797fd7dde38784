// SPDX-License-Identifier: MIT
//
// io: how the engine reaches disks. Two seams, both swappable by tests:
//   struct io_calls  every blocking call on a file or a name, made only in worker threads
//   struct io        data writes in flight and jobs: the io_uring and the thread backend (io_uring.c, io_threads.c)
// The event loop submits and reaps and never blocks. Policy (what, when, in which order) is writer's and commit's.
//
//   engine loop ── io_write ──▶ ring (io_uring) or worker threads ──▶ done list ──▶ io_reap ── req->done()
//                └ io_job ────▶ worker threads, by device ──────────▶ done list ──▶ io_reap ── job->done()

#ifndef FASTCKPT_IO_H
#define FASTCKPT_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

/** Blocking calls; each returns >= 0 or a negative errno. The default table calls the kernel; tests put a simulated
 *  disk, or one whose n-th call fails, in its place before the engine starts. */
struct io_calls {
    int (*pwrite_all)(int fd, const void *buf, size_t len, off_t off);
    int (*fsync)(int fd);
    int (*write_out)(int fd); // of fsync only the writing: durable with a later change of its name, on one journal
    int (*fallocate)(int fd, int mode, off_t off, off_t len);
    int (*ftruncate)(int fd, off_t len);
    int (*futimens)(int fd, const struct timespec ts[2]);
    int (*link_fd)(int fd, int dirfd, const char *name); // gives the unnamed inode of `fd` a name
    int (*linkat)(int olddir, const char *old, int newdir, const char *name);
    int (*renameat)(int olddir, const char *old, int newdir, const char *name, unsigned flags); // as renameat2
    int (*unlinkat)(int dirfd, const char *name, int flags); // flags: 0 or AT_REMOVEDIR
    int (*sync_dir)(int dirfd);                              // dirfd may be O_PATH
    int (*sync_names)(int dirfd); // what the program has renamed by itself, where an fsync may overtake it (btrfs)
    int (*close)(int fd);
    int (*stat_name)(int dirfd, const char *name, struct stat *s); // of what has the name: no link is followed
};
extern struct io_calls io_calls; // the table in use
extern const struct io_calls io_calls_kernel;

#define DIRECT_ALIGN 4096u // of memory, offset and length of a direct write: holds for every disk sector size in use

/** One data write in flight. The caller owns the memory until done() has run. */
struct io_req {
    int fd;
    const void *buf; // direct: aligned to DIRECT_ALIGN, as len and off
    size_t len;
    off_t off;
    uint64_t device; // st_dev: queues are per device
    uint64_t number; // entry being served, for blame
    int result;      // 0 when all `len` bytes are written, else a negative errno; short writes are continued inside
    void (*done)(struct io_req *);
    void *arg;
    struct io_req *next; // the backend's
    size_t progress;     // the backend's
};

/** A piece of blocking work. `run` is called in a worker thread of `device`, `done` in the event loop. */
struct io_job {
    void (*run)(struct io_job *);
    void (*done)(struct io_job *);
    void *arg;
    uint64_t device;
    uint64_t number;
    int result; // for run() to set, done() to read
    struct io_job *next;
};

/** ext4 and xfs: fallocate works on the file and waits for direct writes (the fence). Elsewhere writes are buffered. */
bool io_known_fs(int fd);
/** One journal keeps the order in which names change: xfs, and ext4 that has one (its magic does not say). Elsewhere
 *  directories are synced one by one. `dev`: st_dev of the file system, which is looked at once. */
bool io_keeps_order(int fd, uint64_t dev);

struct io;

#define IO_DEPTH          4 // data writes in flight a device (measured: 1/4/8 give 3.0/3.4/3.5 GiB/s)
#define IO_WORKERS_DEVICE 8

/**
 * Opens the backend: `want` is enum config_io; IO_AUTO tries io_uring and falls back to threads, with the reason in
 * `why` (else empty). IO_URING falls back as well. Threads are made on demand, named "fastckpt-io", with all signals
 * blocked but those of faults (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP: blame). 0, or an error.
 * NULL-safe: io_close waits for all that was submitted and runs its done().
 */
int io_open(struct io **ret, int want, char *why, size_t cap);
void io_close(struct io *io);
const char *io_name(const struct io *io); // "uring" or "threads"
/** Becomes readable (poll/epoll) when io_reap has something to do. One descriptor for everything. */
int io_event_fd(const struct io *io);
/** Queues a write; at most IO_DEPTH a device are in flight, the rest waits inside, in order. Never blocks. */
void io_write(struct io *io, struct io_req *req);
/** Queues a job; at most IO_WORKERS_DEVICE run at once a device. Never blocks. */
void io_job(struct io *io, struct io_job *job);
/** Runs done() of all that has finished. Returns how many. */
int io_reap(struct io *io);
/** Writes and jobs submitted and not yet done. */
unsigned io_pending(const struct io *io);
/** The number of the entry that the calling worker thread serves, or 0: read by the crash handler (blame). */
uint64_t io_current_number(void);
/** For a job that serves several entries: which one this thread serves from here on. */
void io_serve(uint64_t number);

// What a backend implements (io.c picks one; jobs are always io_threads').
struct io_backend {
    const char *name;
    int (*open)(void **ret, int event_fd, char *why, size_t cap); // event_fd: eventfd to signal at completion
    void (*close)(void *b);
    /** Takes it at once; called with at most IO_DEPTH per device in flight. 0, or an error: not taken, use threads. */
    int (*write)(void *b, struct io_req *req);
    /** The finished writes, a list by `next`. A result of -ECANCELED asks for the write to be made by threads. */
    struct io_req *(*reap)(void *b);
};
extern const struct io_backend io_uring_backend; // for descriptors with O_DIRECT: others would only wait in the kernel
extern const struct io_backend io_threads_backend;

#endif
