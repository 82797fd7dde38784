// SPDX-License-Identifier: MIT
//
// os: one raw system call a function (os.h says why). No policy and no state; retries only where the name says so
// (os_pwrite_all, os_pread_all, os_read_file). Nothing here may call a libc function that the preloaded library hooks.

#include "os.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

// Newer than the C library's headers may be.
#define USERFAULTFD_NEW _IO(0xAA, 0)
#define FEATURE_POISON  (1 << 14)

int os_openat(int dirfd, const char *path, int flags, mode_t mode) {
    return (int)OS_CALL(SYS_openat, dirfd, path, flags, mode, 0, 0);
}

int os_close(int fd) {
    return (int)OS_CALL(SYS_close, fd, 0, 0, 0, 0, 0);
}

void os_close_all(const int *fds, int n) {
    for (int i = 0; i < n; i++) {
        os_close(fds[i]);
    }
}

bool os_fds_scarce(int fd, unsigned spare) {
    struct {
        uint64_t cur, max;
    } r;
    return OS_CALL(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &r, 0, 0) == 0 && (uint64_t)fd + spare > r.cur;
}

ssize_t os_read(int fd, void *buf, size_t len) {
    return OS_CALL(SYS_read, fd, buf, len, 0, 0, 0);
}

ssize_t os_write(int fd, const void *buf, size_t len) {
    return OS_CALL(SYS_write, fd, buf, len, 0, 0, 0);
}

ssize_t os_pwrite(int fd, const void *buf, size_t len, off_t off) {
    return OS_CALL(SYS_pwrite64, fd, buf, len, off, 0, 0);
}

ssize_t os_pread(int fd, void *buf, size_t len, off_t off) {
    return OS_CALL(SYS_pread64, fd, buf, len, off, 0, 0);
}

int os_pwrite_all(int fd, const void *buf, size_t len, off_t off) {
    const char *p = buf;
    while (len > 0) {
        ssize_t n = os_pwrite(fd, p, len, off);
        if (n == -EINTR) {
            continue;
        }
        if (n < 0) {
            return (int)n;
        }
        if (n == 0) {
            return -EIO; // a file system that takes nothing and names no reason would loop for ever
        }
        p += n;
        off += n;
        len -= (size_t)n;
    }
    return 0;
}

int os_pread_all(int fd, void *buf, size_t len, off_t off, size_t *got) {
    for (*got = 0; *got < len;) {
        ssize_t n = os_pread(fd, (char *)buf + *got, len - *got, off + (off_t)*got);
        if (n == 0 || (n < 0 && n != -EINTR)) {
            return (int)n;
        }
        *got += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

ssize_t os_read_file(const char *path, char *buf, size_t cap) {
    assert(cap > 0);
    buf[0] = '\0';
    int fd = os_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) {
        return fd;
    }
    size_t got = 0;
    ssize_t n = 0;
    while (got < cap - 1) {
        n = os_read(fd, buf + got, cap - 1 - got);
        if (n == -EINTR) {
            continue;
        }
        if (n <= 0) {
            break;
        }
        got += (size_t)n;
    }
    os_close(fd);
    buf[got] = '\0';
    return n < 0 ? n : (ssize_t)got;
}

off_t os_lseek(int fd, off_t off, int whence) {
    return OS_CALL(SYS_lseek, fd, off, whence, 0, 0, 0);
}

int os_fcntl(int fd, int cmd, long arg) {
    return (int)OS_CALL(SYS_fcntl, fd, cmd, arg, 0, 0, 0);
}

int os_move_high(int fd, int min) {
    int high = os_fcntl(fd, F_DUPFD_CLOEXEC, min);
    os_close(fd);
    return high;
}

int os_fstat(int fd, struct stat *st) {
    return (int)OS_CALL(SYS_fstat, fd, st, 0, 0, 0, 0);
}

int os_fstatat(int dirfd, const char *path, struct stat *st, int flags) {
    return (int)OS_CALL(SYS_newfstatat, dirfd, path, st, flags, 0, 0);
}

int os_birth(int dirfd, const char *path, int flags, struct timespec *born) {
    struct statx x;
    int r = (int)OS_CALL(SYS_statx, dirfd, path, flags | AT_SYMLINK_NOFOLLOW, STATX_BTIME, &x, 0);
    if (r < 0 || !(x.stx_mask & STATX_BTIME)) {
        return r < 0 ? r : -EOPNOTSUPP;
    }
    *born = (struct timespec){.tv_sec = x.stx_btime.tv_sec, .tv_nsec = x.stx_btime.tv_nsec};
    return 0;
}

int os_ftruncate(int fd, off_t len) {
    return (int)OS_CALL(SYS_ftruncate, fd, len, 0, 0, 0, 0);
}

int os_fallocate(int fd, int mode, off_t off, off_t len) {
    return (int)OS_CALL(SYS_fallocate, fd, mode, off, len, 0, 0);
}

int os_fsync(int fd) {
    return (int)OS_CALL(SYS_fsync, fd, 0, 0, 0, 0, 0);
}

int os_syncfs(int fd) {
    return (int)OS_CALL(SYS_syncfs, fd, 0, 0, 0, 0, 0);
}

int os_flock(int fd, int op) {
    return (int)OS_CALL(SYS_flock, fd, op, 0, 0, 0, 0);
}

int os_utimensat(int dirfd, const char *path, const struct timespec ts[2], int flags) {
    return (int)OS_CALL(SYS_utimensat, dirfd, path, ts, flags, 0, 0);
}

int os_linkat(int olddir, const char *oldpath, int newdir, const char *newpath, int flags) {
    return (int)OS_CALL(SYS_linkat, olddir, oldpath, newdir, newpath, flags, 0);
}

int os_renameat2(int olddir, const char *oldpath, int newdir, const char *newpath, unsigned flags) {
    return (int)OS_CALL(SYS_renameat2, olddir, oldpath, newdir, newpath, flags, 0);
}

int os_unlinkat(int dirfd, const char *path, int flags) {
    return (int)OS_CALL(SYS_unlinkat, dirfd, path, flags, 0, 0, 0);
}

int os_mkdirat(int dirfd, const char *path, mode_t mode) {
    return (int)OS_CALL(SYS_mkdirat, dirfd, path, mode, 0, 0, 0);
}

ssize_t os_readlinkat(int dirfd, const char *path, char *buf, size_t cap) {
    return OS_CALL(SYS_readlinkat, dirfd, path, buf, cap, 0, 0);
}

void *os_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off) {
    return (void *)OS_CALL(SYS_mmap, addr, len, prot, flags, fd, off);
}

int os_munmap(void *addr, size_t len) {
    return (int)OS_CALL(SYS_munmap, addr, len, 0, 0, 0, 0);
}

int os_madvise(void *addr, size_t len, int advice) {
    return (int)OS_CALL(SYS_madvise, addr, len, advice, 0, 0, 0);
}

int os_memfd(const char *name, unsigned flags) {
    return (int)OS_CALL(SYS_memfd_create, name, flags, 0, 0, 0, 0);
}

int os_userfaultfd(void) {
    const unsigned long flags = O_CLOEXEC | O_NONBLOCK;
    int fd = (int)OS_CALL(SYS_userfaultfd, flags, 0, 0, 0, 0, 0);
    int dev = fd == -EPERM ? os_openat(AT_FDCWD, "/dev/userfaultfd", O_RDWR | O_CLOEXEC, 0) : -1;
    if (dev >= 0) {
        fd = (int)OS_CALL(SYS_ioctl, dev, USERFAULTFD_NEW, flags, 0, 0, 0);
        os_close(dev);
    }
    struct uffdio_api api = {.api = UFFD_API, .features = FEATURE_POISON};
    int r = fd < 0 ? fd : (int)OS_CALL(SYS_ioctl, fd, UFFDIO_API, &api, 0, 0, 0);
    if (r < 0 && fd >= 0) {
        os_close(fd);
    }
    return r < 0 ? r : fd;
}

int os_socket(int domain, int type, int proto) {
    return (int)OS_CALL(SYS_socket, domain, type, proto, 0, 0, 0);
}

int os_connect(int fd, const void *addr, unsigned len) {
    return (int)OS_CALL(SYS_connect, fd, addr, len, 0, 0, 0);
}

ssize_t os_sendmsg(int fd, const struct msghdr *m, int flags) {
    return OS_CALL(SYS_sendmsg, fd, m, flags, 0, 0, 0);
}

ssize_t os_recvmsg(int fd, struct msghdr *m, int flags) {
    return OS_CALL(SYS_recvmsg, fd, m, flags, 0, 0, 0);
}

int os_poll(struct pollfd *fds, unsigned n, int timeout_ms) {
    // ppoll: aarch64 has no poll.
    struct timespec ts = {.tv_sec = timeout_ms / 1000, .tv_nsec = (timeout_ms % 1000) * 1000000L};
    return (int)OS_CALL(SYS_ppoll, fds, n, timeout_ms < 0 ? NULL : &ts, NULL, 0, 0);
}

int os_getpid(void) {
    return (int)OS_CALL(SYS_getpid, 0, 0, 0, 0, 0, 0);
}

int os_gettid(void) {
    return (int)OS_CALL(SYS_gettid, 0, 0, 0, 0, 0, 0);
}

int os_pidfd_open(int pid) {
    return (int)OS_CALL(SYS_pidfd_open, pid, 0, 0, 0, 0, 0);
}

int64_t os_now_ns(int clock) {
    struct timespec ts = {0};
    long ret = 0;
    if (clock == CLOCK_MONOTONIC || clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
        clock_gettime(clock, &ts); // libc's: not hooked, it cannot fail, and it makes no system call
    } else {
        ret = OS_CALL(SYS_clock_gettime, clock, &ts, 0, 0, 0, 0);
    }
    return ret < 0 ? ret : ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

void os_sleep_ms(unsigned ms) {
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000L};
    OS_CALL(SYS_nanosleep, &ts, NULL, 0, 0, 0, 0);
}

int os_futex_wait(const void *word, uint32_t expect, int64_t ns) {
    struct timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return (int)OS_CALL(SYS_futex, word, FUTEX_WAIT_PRIVATE, expect, ns < 0 ? NULL : &ts, NULL, 0);
}

int os_futex_wake(const void *word, int count) {
    return (int)OS_CALL(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}
