// SPDX-License-Identifier: MIT
//
// fam_raw: the calls that matter by syscall(), as ONNX, jemalloc and Rust make them: openat2 and open forms, writes,
// copies, renames, closes in ranges, fork, exec and exit. Prints results for a diff between a native and a shimmed run.

#include "fam_rig.h"

#include <linux/openat2.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define PIECE (1 << 20)

static char *block;

static void look(const char *name) {
    static char buf[65536];
    struct stat st;
    unsigned long sum = 5381;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY);
    int r = (int)syscall(SYS_newfstatat, AT_FDCWD, name, &st, 0);
    for (ssize_t n; (n = syscall(SYS_read, fd, buf, sizeof buf)) > 0;) {
        sum = add_sum(sum, buf, n);
    }
    syscall(SYS_close, fd);
    show_file(name, r, &st, sum);
}

static void fill(int fd) {
    for (int i = 0; i < 3; i++) {
        memset(block, 'a' + i, PIECE);
        show("  write", syscall(SYS_write, fd, block, PIECE));
    }
}

static void opens(void) {
    struct open_how how = {.flags = O_WRONLY | O_CREAT | O_TRUNC, .mode = 0640};
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, "two", &how, sizeof how);
    show("openat2", fd);
    fill(fd);
    show("close", syscall(SYS_close, fd));
    look("two");
    fd = (int)syscall(SYS_openat2, AT_FDCWD, "two", &how, sizeof how);
    show("again", fd);
    fill(fd);
    fill(fd);
    show("close", syscall(SYS_close, fd));
    look("two");
    how.resolve = RESOLVE_BENEATH;
    fd = (int)syscall(SYS_openat2, AT_FDCWD, "two", &how, sizeof how);
    show("beneath", fd);
    show("write", syscall(SYS_write, fd, block, 10));
    show("close", syscall(SYS_close, fd));
    look("two");
    show("beneath ..", syscall(SYS_openat2, AT_FDCWD, "../two", &how, sizeof how));
    how.resolve = 0;
    how.mode = 0100000;
    show("odd mode", syscall(SYS_openat2, AT_FDCWD, "three", &how, sizeof how));
    how = (struct open_how){.flags = O_WRONLY | O_CREAT | O_TRUNC | (1ull << 40), .mode = 0600};
    show("odd flags", syscall(SYS_openat2, AT_FDCWD, "three", &how, sizeof how));
    how = (struct open_how){.flags = O_RDONLY, .mode = 0600};
    show("mode alone", syscall(SYS_openat2, AT_FDCWD, "two", &how, sizeof how));
    show("short", syscall(SYS_openat2, AT_FDCWD, "two", &how, sizeof how - 1));
    show("wild", syscall(SYS_openat2, AT_FDCWD, "two", (void *)8, sizeof how));
    show("wild path", syscall(SYS_openat, AT_FDCWD, (void *)8, O_WRONLY | O_CREAT | O_TRUNC, 0600));
    fd = (int)syscall(SYS_openat, AT_FDCWD, "at", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    fill(fd);
    show("close", syscall(SYS_close, fd));
    look("at");
#ifdef SYS_open
    fd = (int)syscall(SYS_open, "old", O_WRONLY | O_CREAT | O_TRUNC, 0604);
    fill(fd);
    show("dup2", syscall(SYS_dup2, fd, 40));
    show("close", syscall(SYS_close, fd));
    show("write", syscall(SYS_write, 40, "behind", 6));
    show("close", syscall(SYS_close, 40));
    look("old");
    fd = (int)syscall(SYS_creat, "creat", 0600);
    fill(fd);
    show("close", syscall(SYS_close, fd));
    look("creat");
#endif
}

static void data(void) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, "data", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    struct iovec iov[2] = {{block, 3000}, {block + 9000, 100000}};
    struct stat st;
    fill(fd);
    show("writev", syscall(SYS_writev, fd, iov, 2));
    show("pwritev", syscall(SYS_pwritev, fd, iov, 2, 2L * PIECE, 0));
    show("pwritev2", syscall(SYS_pwritev2, fd, iov, 2, -1L, -1L, 0));
    show("pwrite64", syscall(SYS_pwrite64, fd, "x", 1, 5L * PIECE));
    show("lseek", syscall(SYS_lseek, fd, 0, SEEK_END));
    int in = (int)syscall(SYS_openat, AT_FDCWD, "at", O_RDONLY);
    loff_t off = 77;
    show("sendfile", syscall(SYS_sendfile, fd, in, &off, 500000));
    show("offset", off);
    show("copy_file_range", syscall(SYS_copy_file_range, in, NULL, fd, NULL, 400000, 0));
    show("fstat", syscall(SYS_fstat, fd, &st));
    show("size", st.st_size);
    show("ftruncate", syscall(SYS_ftruncate, fd, 4 * PIECE + 3));
    show("fallocate", syscall(SYS_fallocate, fd, 0, 0L, 6L * PIECE));
    int two = (int)syscall(SYS_dup, fd), three = (int)syscall(SYS_fcntl, fd, F_DUPFD, 60L);
    show("dup", two);
    show("F_DUPFD", three);
    show("fsync", syscall(SYS_fsync, fd));
    show("fdatasync", syscall(SYS_fdatasync, two));
    show("write", syscall(SYS_write, three, "end", 3));
    show("close_range", syscall(SYS_close_range, 60, 70, 0));
    show("dup3", syscall(SYS_dup3, two, fd, O_CLOEXEC));
    show("close", syscall(SYS_close, two));
    show("close", syscall(SYS_close, fd));
    show("close", syscall(SYS_close, in));
    show("bad write", syscall(SYS_write, fd, "x", 1));
    show("no such call", syscall(100000, 1, 2, 3));
    show("negative call", syscall(-1));
    look("data");
}

static void names(void) {
    show("renameat2", syscall(SYS_renameat2, AT_FDCWD, "data", AT_FDCWD, "moved", 0));
    show("linkat", syscall(SYS_linkat, AT_FDCWD, "moved", AT_FDCWD, "linked", 0));
    show("unlinkat", syscall(SYS_unlinkat, AT_FDCWD, "linked", 0));
    show("faccessat", syscall(SYS_faccessat, AT_FDCWD, "data", F_OK));
    show("mkdirat", syscall(SYS_mkdirat, AT_FDCWD, "moved", 0700));
    show("truncate", syscall(SYS_truncate, "moved", 1000L));
#ifdef SYS_rename
    show("rename", syscall(SYS_rename, "moved", "data"));
    show("unlink", syscall(SYS_unlink, "nothing"));
#endif
    char to[10];
    show("readlinkat", syscall(SYS_readlinkat, AT_FDCWD, "data", to, sizeof to));
    look("data");
}

static void processes(void) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, "tree", O_WRONLY | O_CREAT | O_TRUNC, 0600), status;
    fill(fd);
    long pid = syscall(SYS_clone, SIGCHLD, 0L, 0L, 0L, 0L);
    if (pid == 0) {
        syscall(SYS_write, fd, "child", 5);
        syscall(SYS_exit_group, 3);
    }
    waitpid((pid_t)pid, &status, 0);
    show("status", status);
    pid = _Fork();
    if (pid == 0) {
        syscall(SYS_write, fd, "Fork", 4);
        _exit(4);
    }
    waitpid((pid_t)pid, &status, 0);
    show("status", status);
    show("write", syscall(SYS_write, fd, block, PIECE));
    pid = fork();
    if (pid == 0) {
        char *argv[] = {"sh", "-c", "echo from exec >&$0", "7", NULL}, *envp[] = {NULL};
        dup2(fd, 7);
        syscall(SYS_execve, "/bin/sh", argv, envp);
        _exit(9);
    }
    waitpid((pid_t)pid, &status, 0);
    show("status", status);
    show("lseek", syscall(SYS_lseek, fd, 0L, SEEK_CUR));
    show("close", syscall(SYS_close, fd));
    look("tree");
}

int main(void) {
    umask(022);
    block = malloc(PIECE);
    opens();
    data();
    names();
    processes();
    int fd = (int)syscall(SYS_openat, AT_FDCWD, "left", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    fill(fd);
    syscall(SYS_exit_group, 0);
}
