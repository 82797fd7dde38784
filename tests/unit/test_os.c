// SPDX-License-Identifier: MIT
//
// Proves: the raw system calls return what the kernel says, as negative errno, and leave errno alone.
// How: each is used once for real on temporary files, memory and sockets, and once wrongly.
// Cannot see: the aarch64 stubs; short writes (os_pwrite_all's loop is only driven by a size limit here).

#include "core/os.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static int scratch(void) {
    char name[] = "/tmp/fastckpt-os-XXXXXX";
    int fd = mkstemp(name);
    cr_assert_geq(fd, 0);
    unlink(name);
    return fd;
}

Test(os, errors_are_negative_and_errno_is_kept) {
    errno = 4711;
    char buf[8];
    struct stat st;
    cr_expect_eq(os_openat(AT_FDCWD, "/nonexistent/x", O_RDONLY, 0), -ENOENT);
    cr_expect_eq(os_close(-1), -EBADF);
    cr_expect_eq(os_read(-1, buf, 8), -EBADF);
    cr_expect_eq(os_write(-1, buf, 8), -EBADF);
    cr_expect_eq(os_pwrite(-1, buf, 8, 0), -EBADF);
    cr_expect_eq(os_pread(-1, buf, 8, 0), -EBADF);
    cr_expect_eq(os_pwrite_all(-1, buf, 8, 0), -EBADF);
    cr_expect_eq(os_read_file("/nonexistent", buf, 8), -ENOENT);
    cr_expect_eq(os_lseek(-1, 0, SEEK_SET), -EBADF);
    cr_expect_eq(os_fcntl(-1, F_GETFD, 0), -EBADF);
    cr_expect_eq(os_fstat(-1, &st), -EBADF);
    cr_expect_eq(os_fstatat(AT_FDCWD, "", &st, 0), -ENOENT);
    cr_expect_eq(os_ftruncate(-1, 0), -EBADF);
    cr_expect_eq(os_fallocate(-1, 0, 0, 1), -EBADF);
    cr_expect_eq(os_fsync(-1), -EBADF);
    cr_expect_eq(os_syncfs(-1), -EBADF);
    cr_expect_eq(os_flock(-1, 1), -EBADF);
    cr_expect_eq(os_linkat(AT_FDCWD, "/nonexistent", AT_FDCWD, "/tmp/x", 0), -ENOENT);
    cr_expect_eq(os_renameat2(AT_FDCWD, "/nonexistent", AT_FDCWD, "/tmp/x", 0), -ENOENT);
    cr_expect_eq(os_unlinkat(AT_FDCWD, "/nonexistent", 0), -ENOENT);
    cr_expect_eq(os_mkdirat(AT_FDCWD, "/tmp", 0700), -EEXIST);
    cr_expect_eq(os_readlinkat(AT_FDCWD, "/tmp", buf, 8), -EINVAL);
    cr_expect_eq(os_connect(-1, buf, 8), -EBADF);
    cr_expect_eq(os_pidfd_open(-1), -EINVAL);
    cr_expect_eq(os_munmap((void *)1, 1), -EINVAL);
    void *p = os_mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_expect(os_is_err(p));
    cr_expect_eq((int)(intptr_t)p, -EINVAL);
    cr_expect_lt(os_now_ns(12345), 0);
    cr_expect_eq(errno, 4711);
}

Test(os, data_goes_where_it_should) {
    int fd = scratch();
    char buf[16] = {0};
    struct stat st;
    cr_expect_eq(os_write(fd, "abc", 3), 3);
    cr_expect_eq(os_pwrite(fd, "XY", 2, 10), 2);
    cr_expect_eq(os_pwrite_all(fd, "zz", 2, 3), 0);
    cr_expect_eq(os_pread(fd, buf, sizeof buf, 0), 12);
    cr_expect_eq(memcmp(buf, "abczz\0\0\0\0\0XY", 12), 0);
    cr_expect_eq(os_lseek(fd, 0, SEEK_CUR), 3);
    cr_expect_eq(os_lseek(fd, 1, SEEK_SET), 1);
    cr_expect_eq(os_read(fd, buf, 2), 2);
    cr_expect_eq(memcmp(buf, "bc", 2), 0);
    cr_expect_eq(os_fallocate(fd, 0, 0, 100), 0);
    cr_expect_eq(os_fstat(fd, &st), 0);
    cr_expect_eq(st.st_size, 100);
    cr_expect_eq(os_ftruncate(fd, 7), 0);
    cr_expect_eq(os_fsync(fd), 0);
    struct timespec ts[2] = {{1, 2}, {3, 4}};
    cr_expect_eq(os_utimensat(fd, NULL, ts, 0), 0);
    cr_expect_eq(os_fstat(fd, &st), 0);
    cr_expect_eq(st.st_size, 7);
    cr_expect_eq(st.st_mtim.tv_sec, 3);
    cr_expect_eq(st.st_atim.tv_nsec, 2);
    os_close(fd);
}

Test(os, a_short_write_ends_in_its_error) {
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {10, RLIM_INFINITY};
    int fd = scratch();
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int ret = os_pwrite_all(fd, "0123456789abcdef", 16, 0);
    struct stat st;
    os_fstat(fd, &st);
    limit.rlim_cur = RLIM_INFINITY;
    setrlimit(RLIMIT_FSIZE, &limit);
    cr_expect_eq(ret, -EFBIG);
    cr_expect_eq(st.st_size, 10);
}

Test(os, read_file_terminates_and_cuts) {
    char name[] = "/tmp/fastckpt-os-XXXXXX";
    int fd = mkstemp(name);
    char buf[8];
    cr_assert_eq(write(fd, "0123456789", 10), 10);
    cr_expect_eq(os_read_file(name, buf, sizeof buf), 7);
    cr_expect_str_eq(buf, "0123456");
    char wide[32];
    cr_expect_eq(os_read_file(name, wide, sizeof wide), 10);
    cr_expect_str_eq(wide, "0123456789");
    cr_expect_eq(os_read_file(name, buf, 1), 0);
    cr_expect_str_eq(buf, "");
    cr_expect_eq(os_read_file("/tmp", wide, sizeof wide), -EISDIR);
    cr_expect_str_eq(wide, "");
    unlink(name);
}

Test(os, move_high_leaves_one_descriptor) {
    int fd = scratch();
    int high = os_move_high(fd, 500);
    cr_expect_geq(high, 500);
    cr_expect_eq(os_fcntl(fd, F_GETFD, 0), -EBADF);
    cr_expect_eq(os_fcntl(high, F_GETFD, 0), FD_CLOEXEC);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    int low = scratch();
    cr_expect_lt(os_move_high(low, (int)limit.rlim_cur), 0);
    cr_expect_eq(os_fcntl(low, F_GETFD, 0), -EBADF, "closed on failure as well");
}

Test(os, names) {
    char dir[] = "/tmp/fastckpt-os-XXXXXX";
    cr_assert_not_null(mkdtemp(dir));
    int d = os_openat(AT_FDCWD, dir, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    int fd = os_openat(d, "a", O_WRONLY | O_CREAT | O_EXCL, 0640);
    struct stat st;
    cr_expect_eq(os_fstatat(d, "a", &st, 0), 0);
    cr_expect_eq(st.st_mode & 0777 & ~0640u, 0);
    cr_expect_eq(os_linkat(d, "a", d, "b", 0), 0);
    cr_expect_eq(os_renameat2(d, "a", d, "b", 1), -EEXIST, "RENAME_NOREPLACE");
    cr_expect_eq(os_renameat2(d, "a", d, "c", 0), 0);
    cr_expect_eq(os_mkdirat(d, "sub", 0700), 0);
    cr_expect_eq(os_unlinkat(d, "sub", 0), -EISDIR);
    cr_expect_eq(os_unlinkat(d, "sub", AT_REMOVEDIR), 0);
    cr_expect_eq(symlinkat("target", d, "l"), 0);
    char buf[16];
    cr_expect_eq(os_readlinkat(d, "l", buf, sizeof buf), 6);
    cr_expect_eq(os_unlinkat(d, "l", 0), 0);
    cr_expect_eq(os_unlinkat(d, "b", 0), 0);
    cr_expect_eq(os_unlinkat(d, "c", 0), 0);
    cr_expect_eq(os_syncfs(fd), 0);
    cr_expect_eq(rmdir(dir), 0);
}

Test(os, memory) {
    int fd = os_memfd("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert_geq(fd, 0);
    cr_expect_eq(os_fcntl(fd, F_GETFD, 0), FD_CLOEXEC);
    cr_expect_eq(os_ftruncate(fd, 8192), 0);
    char *p = os_mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_not(os_is_err(p));
    p[4096] = 'x';
    char c = 0;
    cr_expect_eq(os_pread(fd, &c, 1, 4096), 1);
    cr_expect_eq(c, 'x');
    cr_expect_eq(os_madvise(p, 8192, MADV_DONTFORK), 0);
    cr_expect_eq(os_munmap(p, 8192), 0);
    cr_expect_not(os_is_err(p));
}

Test(os, sockets_and_poll) {
    int s[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s), 0);
    struct pollfd f = {.fd = s[0], .events = POLLIN};
    int64_t start = os_now_ns(CLOCK_MONOTONIC);
    cr_expect_eq(os_poll(&f, 1, 30), 0);
    cr_expect_geq(os_now_ns(CLOCK_MONOTONIC) - start, 29000000);
    char out[] = "hi", in[8] = "";
    struct iovec iov = {out, 2};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
    cr_expect_eq(os_sendmsg(s[1], &h, 0), 2);
    cr_expect_eq(os_poll(&f, 1, -1), 1);
    iov = (struct iovec){in, sizeof in};
    cr_expect_eq(os_recvmsg(s[0], &h, 0), 2);
    cr_expect_str_eq(in, "hi");
    cr_expect_eq(os_recvmsg(s[0], &h, MSG_DONTWAIT), -EAGAIN);
    close(s[1]);
    cr_expect_eq(os_sendmsg(s[0], &h, MSG_NOSIGNAL), -EPIPE);
    int n = os_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    cr_expect_geq(n, 0);
}

Test(os, processes_and_time) {
    cr_expect_eq(os_getpid(), getpid());
    cr_expect_eq(os_gettid(), gettid());
    int p = os_pidfd_open(os_getpid());
    cr_expect_geq(p, 0);
    uint32_t word = 1;
    cr_expect_eq(os_futex_wait(&word, 2, -1), -EAGAIN);
    cr_expect_eq(os_futex_wait(&word, 1, 1000000), -ETIMEDOUT);
    cr_expect_eq(os_futex_wake(&word, 1), 0);
    int64_t start = os_now_ns(CLOCK_MONOTONIC);
    os_sleep_ms(20);
    int64_t slept = os_now_ns(CLOCK_MONOTONIC) - start;
    cr_expect(slept >= 20000000 && slept < 2000000000);
}
