// SPDX-License-Identifier: MIT
//
// file: one captured (or followed) file of this process: which bytes are staged, settle, release, close. The program's
// descriptor is a real one on the real inode and its offset is the kernel's (design 3); what this module holds is
// only what is not in the kernel yet. Decides nothing about names (capture.c) and hooks no symbol (hook_*.c).
//
// Locking: struct file's lock serialises writers, settle and close of one file; it may be held while waiting for the
// engine. No other lock is taken inside it but client.c's chunk lock. Order: file -> client. fdtable has no lock.

#ifndef FASTCKPT_FILE_H
#define FASTCKPT_FILE_H

#include "../core/protocol.h"
#include "guard.h"

#include <sys/stat.h>
#include <sys/uio.h>

#define FILE_HELD_MAX 8 // partial chunks one file holds: beyond, the oldest is handed over

/** A chunk being filled: in this process's hands. */
struct held {
    uint64_t index; // which chunk of the file
    uint32_t chunk; // staging chunk
    uint32_t n;
    struct extent extent[EXTENTS_MAX];
    void *mem;
};

struct file {
    _Atomic uint32_t refs; // descriptors in fdtable; 0: the slot is free
    uint32_t slot;         // the engine's
    uint64_t id;           // the engine's: number of the open entry
    struct lock lock;
    dev_t dev; // identity: checked before an operation, since descriptors can be closed behind our back
    ino_t ino;
    bool followed;         // native inode under its own name
    bool replaces;         // there was an older file of that name
    bool must_wait;        // on a shared file system in a job of several nodes (shared.h)
    bool native;           // released, lost or failed: the kernel alone; close still tells the engine
    bool dropped;          // its name was deleted: never published
    bool times_set;        // futimens: kept, applied last
    bool times_native;     // but the inode's are right: it was the kernel's alone by then (file_before_times)
    bool stdio;            // a FILE has stood on it: ask fd_has_stream
    bool published;        // fsync or release has linked it
    bool inherited;        // of the parent's, in a fork child: settled through the engine at its first use, then native
    bool settled;          // an inherited one that has been
    bool lost;             // keeper and engine were killed: recovered, native, published by file_close itself
    bool closed;           // CLOSE has been sent (file_close): nothing is staged any more
    bool reserved;         // the engine has reserved space in it and will cut that, which moves its times
    bool allocated;        // the program has asked for space in it, which stays
    bool sparse;           // it has a large hole: the kernel alone, since staging would fill it
    bool failed;           // the last write was refused: not to be published if nothing succeeds after it
    int dir;               // lost.c's directory of the name, -1: none
    uint32_t epoch;        // client_epoch() at open
    char name[NAME_CAP];   // its last component, and
    char hidden[NAME_CAP]; // the hidden one of a shadow without O_TMPFILE: for lost.c and messages
    int error;             // negative errno to be returned by the next write, fsync or close (P6), then kept
    uint64_t staged_end;   // end of the last byte staged since the last settle; 0: none, the kernel's size is right
    uint64_t referred_end; // likewise of what was handed over by reference
    _Atomic uint64_t at;   // where the descriptor's offset was last: only a guess, others move it too
    uint32_t spawned_at;   // shim.spawned at open
    _Atomic bool wanted;   // a child may want to read it: the write in hand hands over what is staged at its end
    struct timespec atime, mtime; // of the last write, or as set by the program; tv_nsec UTIME_OMIT: the kernel's
    uint32_t n_held;
    // for the report
    uint64_t bytes_staged, bytes_native;
    // for the rule of logs (file_log.c)
    uint32_t log_writes, log_seconds;
    time_t log_second;
    bool log;                        // it is one: linked, or to be linked, while its program goes on
    struct held held[FILE_HELD_MAX]; // last: all before it is cleared for each file, this is only read below n_held
};

/** Sums for FASTCKPT_REPORT, added to atomically. Seconds are nanoseconds of time spent in hooks on captured files. */
struct file_report {
    _Atomic uint64_t files_staged, files_captured, files_followed;
    _Atomic uint64_t bytes_staged, bytes_native;
    _Atomic uint64_t bytes_referred; // of the staged ones, those that nobody copied
    _Atomic uint64_t held_ns, fsync_ns;
    _Atomic int64_t first_close_ns;
};
extern struct file_report file_report;

/** Takes a free object, refs 1. NULL when all (4096) are in use: the file is native then. */
struct file *file_new(void);
/** Keeps the name for messages and for publishing without an engine. `hidden` may be NULL. */
void file_set_name(struct file *f, const char *name, const char *hidden);
/** Drops one reference; at the last, file_close is called if it was not. An object without an id just goes. */
void file_put(struct file *f);

/** The data calls. `fd` is the program's. Results as the system call's: count, or negative errno. Bytes below
 *  NATIVE_HEAD go to the kernel at once; behind it, they are staged: the range is reserved by lseek first. */
ssize_t file_write(struct file *f, int fd, const void *buf, size_t len);
ssize_t file_pwrite(struct file *f, int fd, const void *buf, size_t len, off_t off);
ssize_t file_writev(struct file *f, int fd, const struct iovec *iov, int n);
ssize_t file_pwritev(struct file *f, int fd, const struct iovec *iov, int n, off_t off);
off_t file_lseek(struct file *f, int fd, off_t off, int whence);
/** A FILE on `fd` goes to `to` (-1: to where the descriptor is). Libc writes there by itself, which no hook sees: bytes
 *  staged there or behind are settled first. Its error is for write, fsync and close. */
void file_before_libc(struct file *f, int fd, off_t to);
/** fallocate(KEEP_SIZE): true if the space is there by what the engine has reserved, and nothing is left to do. */
bool file_reserve(struct file *f, int fd, off_t off, off_t len);
/** Corrects what fstat said of `fd`, any descriptor of it: size = max(kernel size, staged end), one link, the program's
 *  times. Where only the kernel knows the size, it settles and asks again. */
void file_fix_stat(struct file *f, int fd, struct stat *st);

/** All bytes accepted so far are in the kernel's file and its size is right. 0, or the file's error. */
int file_settle(struct file *f, int fd);
/** Settle, publish now (durable, in order), and the kernel alone from then on. */
int file_release(struct file *f, int fd);
/** After a write that succeeded, the lock held: is it a log? Then its name is published without a wait. */
void file_count_write(struct file *f, int fd);
/** The same for a flush by libc, whose writes no hook sees. Takes the lock. */
void file_count_flush(struct file *f, int fd);
/** fsync and kin: waits until durable; a new name is published as well and native from then on. With
 *  FASTCKPT_FSYNC=defer it returns at once. */
int file_fsync(struct file *f, int fd);
/** Before the program's times are set on the inode. Libc's own writes change them later, and no hook sees them: where a
 *  FILE stands on the file, it is settled and the kernel's alone from here on. fd: the program's, or negative. */
void file_before_times(struct file *f, int fd);
/** Times set by the program (futimens semantics: UTIME_NOW, UTIME_OMIT understood): kept, applied at publish. Who calls
 *  sets them on the inode as well. */
int file_set_times(struct file *f, const struct timespec ts[2]);
/** The content has changed now, by a call of the kernel's: the mtime that file_set_times kept is over. */
void file_touch(struct file *f);
/** The name is deleted while open: never publish. */
int file_drop(struct file *f);

/** The last descriptor is about to be closed: hands everything over and sends CLOSE. Call before the real close.
 *  Returns 0 or the file's known error (to be returned by close). */
int file_close(struct file *f, int fd);

/** Back-pressure behind a close or a change of a name: waits while too much of this process is pending. */
void file_wait_for_pending(void);

/** For fork's prepare handler: every partial chunk of every file is handed over, so that a child can settle. */
void file_hand_over_all(void);
/** Before another program has our descriptors: settles those whose next write would fall on staged bytes. */
void file_before_program(void);
/** exec: settles all open files, tells the engine. */
void file_before_exec(void);
/** exit: hands over and closes (as far as the engine is concerned) all open files. */
void file_close_all(void);
/** Fork handler of the child: forgets all files. */
void file_after_fork(void);
/** Has this process started others since the file was opened? They may have its descriptor. */
static inline bool file_has_spawned(const struct file *f) {
    return UNLIKELY(atomic_load_explicit(&shim.spawned, memory_order_relaxed) != f->spawned_at);
}
/** Another process has it open, to read what is written or to write as well: nothing is staged from the next call on,
 *  and only the kernel knows its size. */
bool file_looked_at(const struct file *f);
/** The object of this process with the engine's id, or NULL. */
struct file *file_by_id(uint64_t id);
/** An open one of this process on this inode, or NULL; with `inherited`, also of the one that it was forked from. */
struct file *file_by_inode(dev_t dev, ino_t ino, bool inherited);

#endif
