// SPDX-License-Identifier: MIT
//
// os: system calls made directly, without libc. Every function returns a result >= 0 or a negative errno and leaves
// `errno` alone.
//
// Why not libc's own wrappers: the preloaded library interposes them. A call through libc from inside a hook would run
// our hook again, would be a thread cancellation point in the middle of our bookkeeping, and would write the program's
// errno. The engine uses the same functions, so that there is one way of calling the kernel.
// No policy, no retries but EINTR in the *_all forms, no allocation.

#ifndef FASTCKPT_OS_H
#define FASTCKPT_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "fastckpt needs system call stubs for this processor: add them to core/os.h"
#endif

static inline long os_call6(long nr, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
    long ret;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return ret;
#else
    register long x8 __asm__("x8") = nr;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory", "cc");
    return x0;
#endif
}

#define OS_CALL(nr, a, b, c, d, e, f)                                                                                  \
    os_call6((long)(nr), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

struct iovec;
struct msghdr;
struct pollfd;
struct statx;

// Descriptors and data. Offsets and lengths in bytes.
int os_openat(int dirfd, const char *path, int flags, mode_t mode);
int os_close(int fd);
void os_close_all(const int *fds, int n);
/** Are there fewer than `spare` numbers left to this process above `fd`, which has just come? The kernel gives the
 *  lowest free one: how high it is says how full the table is. */
bool os_fds_scarce(int fd, unsigned spare);
ssize_t os_read(int fd, void *buf, size_t len);
ssize_t os_write(int fd, const void *buf, size_t len);
ssize_t os_pwrite(int fd, const void *buf, size_t len, off_t off);
ssize_t os_pread(int fd, void *buf, size_t len, off_t off);
/** Writes all `len` bytes at `off`, retrying short writes and EINTR. 0, or the first error. */
int os_pwrite_all(int fd, const void *buf, size_t len, off_t off);
/** Reads `len` bytes at `off`, retrying short reads and EINTR. 0, or the first error; *got: how many are there, fewer
 *  behind an error and where the file ends. */
int os_pread_all(int fd, void *buf, size_t len, off_t off, size_t *got);
/** Reads at most `cap - 1` bytes of the small file `path` and terminates them. Bytes read, or an error. */
ssize_t os_read_file(const char *path, char *buf, size_t cap);
off_t os_lseek(int fd, off_t off, int whence);
int os_fcntl(int fd, int cmd, long arg);
/** Moves `fd` to the lowest free number >= `min`, close-on-exec; closes `fd`. The new number, or an error with `fd`
 *  closed. */
int os_move_high(int fd, int min);
int os_fstat(int fd, struct stat *st);
int os_fstatat(int dirfd, const char *path, struct stat *st, int flags);
/** When the inode was made that is under the name, or, with AT_EMPTY_PATH and "", behind `dirfd`. Follows no symlink.
 *  0 or an error; -EOPNOTSUPP: the file system keeps no such time. */
int os_birth(int dirfd, const char *path, int flags, struct timespec *born);
int os_ftruncate(int fd, off_t len);
int os_fallocate(int fd, int mode, off_t off, off_t len);
int os_fsync(int fd);
int os_syncfs(int fd);
int os_flock(int fd, int op);
int os_utimensat(int dirfd, const char *path, const struct timespec ts[2], int flags);

/** What SYS_getdents64 fills in. */
struct os_dirent {
    uint64_t ino;
    int64_t off;
    uint16_t len; // of this record
    uint8_t type; // DT_*
    char name[];
};

// Names.
int os_linkat(int olddir, const char *oldpath, int newdir, const char *newpath, int flags);
int os_renameat2(int olddir, const char *oldpath, int newdir, const char *newpath, unsigned flags);
int os_unlinkat(int dirfd, const char *path, int flags);
int os_mkdirat(int dirfd, const char *path, mode_t mode);
ssize_t os_readlinkat(int dirfd, const char *path, char *buf, size_t cap);

// Memory.
void *os_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off); // (void *)-errno on failure
int os_munmap(void *addr, size_t len);
int os_madvise(void *addr, size_t len, int advice);
int os_memfd(const char *name, unsigned flags);
/** A userfaultfd, non-blocking, that serves the kernel's own faults as well as the program's, and can say that
 *  memory is lost (Linux 6.6). -EPERM: without CAP_SYS_PTRACE that takes vm.unprivileged_userfaultfd=1 or
 *  /dev/userfaultfd. */
int os_userfaultfd(void);
/** True when a pointer returned by os_mmap is an error; the error is then (int)(intptr_t)p. */
static inline int os_is_err(const void *p) {
    return (uintptr_t)p >= (uintptr_t)-4095;
}

// Sockets.
int os_socket(int domain, int type, int proto);
int os_connect(int fd, const void *addr, unsigned len);
ssize_t os_sendmsg(int fd, const struct msghdr *m, int flags);
ssize_t os_recvmsg(int fd, struct msghdr *m, int flags);
/** poll(2); `timeout_ms` < 0 waits for ever. Does not hide EINTR. */
int os_poll(struct pollfd *fds, unsigned n, int timeout_ms);

// Processes and time.
int os_getpid(void);
int os_gettid(void);
int os_pidfd_open(int pid);
/** Seconds and nanoseconds of `clock` as one number of nanoseconds. */
int64_t os_now_ns(int clock);
void os_sleep_ms(unsigned ms);
/** FUTEX_WAIT on a private word: returns 0, -EAGAIN when *word != expect, -ETIMEDOUT, -EINTR. `ns` < 0: no limit. */
int os_futex_wait(const void *word, uint32_t expect, int64_t ns);
int os_futex_wake(const void *word, int count);

#endif
