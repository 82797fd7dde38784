// SPDX-License-Identifier: MIT
//
// Proves: the table of real calls does to files and names what it says, as root and as an unprivileged user, with /proc
// and without. How: each call once on a real file system, results compared with stat and read; errors by errno.
// Cannot see: whether a sync is durable (the power cut tests do), file systems other than that of the test directory.

#include "io_rig.h"

#include <sys/wait.h>

static char *dir;
static int dirfd;

static void set_up(void) {
    dir = rig_dir();
    dirfd = open(dir, O_PATH | O_DIRECTORY);
    cr_assert_geq(dirfd, 0);
}
static void tear_down(void) {
    rig_remove(dir);
}

static int unnamed(void) {
    int fd = openat(dirfd, ".", O_TMPFILE | O_RDWR, 0600);
    if (fd < 0) {
        tear_down();
        cr_skip_test("no O_TMPFILE in %s", dir);
    }
    return fd;
}

static ino_t inode_of(const char *name) {
    struct stat st;
    return fstatat(dirfd, name, &st, 0) == 0 ? st.st_ino : 0;
}

TestSuite(io_calls, .init = set_up, .fini = tear_down, .timeout = 60);

Test(io_calls, table_is_complete) {
    cr_assert_eq(memcmp(&io_calls, &io_calls_kernel, sizeof io_calls), 0);
    for (size_t i = 0; i < sizeof io_calls / sizeof(void *); i++) {
        cr_assert(((void **)&io_calls)[i], "entry %zu", i);
    }
}

Test(io_calls, names) {
    int fd = unnamed();
    struct stat st;
    fstat(fd, &st);
    cr_assert_eq(io_calls.link_fd(fd, dirfd, "a"), 0);
    cr_assert_eq(inode_of("a"), st.st_ino);
    cr_assert_eq(io_calls.link_fd(fd, dirfd, "a"), -EEXIST);
    cr_assert_eq(io_calls.linkat(dirfd, "a", dirfd, "b"), 0);
    cr_assert_eq(io_calls.renameat(dirfd, "b", dirfd, "c", 0), 0); // two names of one inode: nothing happens
    cr_assert_eq(inode_of("c"), st.st_ino);
    cr_assert_eq(io_calls.unlinkat(dirfd, "c", 0), 0);
    cr_assert_eq(io_calls.unlinkat(dirfd, "c", 0), -ENOENT);
    cr_assert_eq(io_calls.sync_dir(dirfd), 0);
    cr_assert_eq(io_calls.sync_names(dirfd), 0);
    cr_assert_eq(io_calls.close(fd), 0);
    cr_assert_eq(io_calls.close(fd), -EBADF);
}

Test(io_calls, link_into_removed_directory) {
    int fd = unnamed();
    cr_assert_eq(mkdirat(dirfd, "sub", 0700), 0);
    int sub = openat(dirfd, "sub", O_PATH);
    cr_assert_eq(unlinkat(dirfd, "sub", AT_REMOVEDIR), 0);
    cr_assert_eq(io_calls.link_fd(fd, sub, "a"), -ENOENT);
}

Test(io_calls, contents) {
    int fd = unnamed();
    struct timespec ts[2] = {{.tv_sec = 1000000000, .tv_nsec = 5}, {.tv_sec = 1100000000, .tv_nsec = 7}};
    cr_assert_eq(io_calls.pwrite_all(fd, "abc", 3, 5), 0);
    cr_assert_eq(io_calls.write_out(fd), 0);
    cr_assert_eq(io_calls.fsync(fd), 0);
    cr_assert_eq(io_calls.fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, MIB), 0);
    struct stat st;
    fstat(fd, &st);
    cr_assert_eq(st.st_size, 8);
    cr_assert_geq(st.st_blocks, (blkcnt_t)(MIB / 512));
    cr_assert_eq(io_calls.ftruncate(fd, 6), 0);
    cr_assert_eq(io_calls.futimens(fd, ts), 0);
    fstat(fd, &st);
    cr_assert_eq(st.st_size, 6);
    cr_assert(st.st_atim.tv_sec == 1000000000 && st.st_mtim.tv_sec == 1100000000 && st.st_mtim.tv_nsec == 7);
    cr_assert_eq(io_calls.fsync(dirfd), -EBADF); // O_PATH: the reason for sync_dir
}

/** What `check` returns in a child, which is an ordinary user and the directory's owner if `user`. */
static int in_child(int user, int (*check)(void)) {
    user = user && geteuid() == 0;
    cr_assert(!user || chown(dir, 65534, 65534) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(user && (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)) ? 99 : check());
    }
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

static int link_and_sync(void) {
    int fd = openat(dirfd, ".", O_TMPFILE | O_RDWR, 0600);
    int ret = fd < 0 ? 50 : -io_calls.link_fd(fd, dirfd, "user");
    return ret ? ret : -io_calls.sync_dir(dirfd);
}
static int sync_only(void) {
    return -io_calls.sync_dir(dirfd);
}

Test(io_calls, ordinary_user) {
    cr_assert_eq(in_child(1, link_and_sync), 0);
    cr_assert_neq(inode_of("user"), 0);
}

Test(io_calls, unreadable_directory) {
    chmod(dir, 0300);
    cr_assert_eq(in_child(1, link_and_sync), 0);
    chmod(dir, 0100); // not writable either: nothing can be synced by, and that is said
    cr_assert_eq(in_child(1, sync_only), EACCES);
    chmod(dir, 0700);
}

static int link_in_chroot(void) {
    int fd = openat(dirfd, ".", O_TMPFILE | O_RDWR, 0600);
    if (fd < 0 || chroot(dir) != 0) { // nothing is mounted in there
        return 50;
    }
    return -io_calls.link_fd(fd, dirfd, "bare");
}

Test(io_calls, without_proc) {
    if (geteuid() != 0) {
        tear_down(); // a skip does not
        cr_skip_test("chroot takes root");
    }
    cr_assert_eq(in_child(0, link_in_chroot), 0);
    cr_assert_neq(inode_of("bare"), 0);
}

Test(io_calls, order) {
    struct stat st;
    int fd = open("/dev/shm", O_RDONLY | O_DIRECTORY);
    cr_assert(fd >= 0 && fstat(fd, &st) == 0);
    cr_expect_not(io_keeps_order(fd, st.st_dev), "tmpfs has no journal");
    cr_expect_not(io_keeps_order(fd, st.st_dev), "and still has none");
    close(fd);
}
