// SPDX-License-Identifier: MIT
//
// fam_fd: descriptors that are duplicated, replaced, closed in ranges, inherited by fork, vfork and spawn, locked,
// mapped and truncated, in the current directory. Prints results for a diff between a native and a shimmed run.

#include "fam_rig.h"

#include <linux/close_range.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define PIECE (1 << 20)

extern char **environ;
static char *block;

static int begin(const char *name) {
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    show(name, fd);
    for (int i = 0; i < 3; i++) {
        memset(block, 'a' + i, PIECE);
        show("  write", write(fd, block, PIECE));
    }
    return fd;
}

static void duplicates(void) {
    int fd = begin("dup");
    int two = dup(fd), three = fcntl(fd, F_DUPFD, 20), four = dup2(fd, 30), five = dup3(fd, 31, O_CLOEXEC);
    printf("%d %d %d %d\n", two, three, four, five);
    show("close", close(fd));
    show("write", write(two, block, 5000));
    show("seek", lseek(three, 0, SEEK_CUR));
    show("seek end", lseek(three, -10, SEEK_END));
    show("write", write(four, "0123456789ABC", 13));
    show("seek", lseek(five, 0, SEEK_CUR));
    show("dup2 of a bad one", dup2(99, two));
    show("dup2 onto itself", dup2(two, two));
    show("dup3 onto itself", dup3(two, two, 0));
    show("close_range", close_range(20, 40, 0));
    show("closed", fcntl(three, F_GETFD));
    show("close", close(two));
    show("close again", close(two));
    show_content("dup");
    int a = begin("over1"), b = begin("over2");
    show("dup2", dup2(a, b));
    show("write", write(b, "end", 3));
    close(a);
    close(b);
    show_content("over1");
    show_content("over2");
}

static void children(void) {
    int fd = begin("fork");
    pid_t pid = fork();
    if (pid == 0) {
        _exit(write(fd, "child", 5) == 5 ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    show("status", status);
    show("write", write(fd, "parent", 6));
    pid = vfork();
    if (pid == 0) {
        close(fd);
        dup2(1, 50);
        close_range(3, ~0u, 0);
        _exit(3);
    }
    waitpid(pid, &status, 0);
    show("status", status);
    show("after vfork", write(fd, block, PIECE));
    posix_spawn_file_actions_t fa;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, fd, 1);
    char *argv[] = {"echo", "spawned", NULL};
    show("spawn", posix_spawnp(&pid, "echo", &fa, NULL, argv, environ));
    waitpid(pid, &status, 0);
    show("status", status);
    show("write", write(fd, "last", 4));
    show("system", system("exit 7"));
    show("close", close(fd));
    show_content("fork");
}

static void sizes(void) {
    int fd = begin("sizes");
    struct stat st;
    struct iovec iov[3] = {{block, 1000}, {NULL, 0}, {block, 70000}};
    show("writev", writev(fd, iov, 3));
    show("pwritev", pwritev(fd, iov, 3, 2 * PIECE));
    show("pwritev2", pwritev2(fd, iov, 3, -1, 0));
    show("pwrite beyond", pwrite(fd, "x", 1, 9 * PIECE));
    fstat(fd, &st);
    show("size", st.st_size);
    show("truncate", ftruncate(fd, 5 * PIECE));
    show("grow", ftruncate(fd, 6 * PIECE));
    show("fallocate", fallocate(fd, 0, 0, 7 * PIECE));
    show("posix_fallocate", posix_fallocate(fd, 0, -1));
    fstat(fd, &st);
    show("size", st.st_size);
    void *volatile wild = (void *)8;
    show("EFAULT", write(fd, wild, 100));
    show("read", read(fd, block, 10));
    show("zero", write(fd, block, 0));
    show("bad seek", lseek(fd, -5, SEEK_SET));
    show("hole", lseek(fd, 0, SEEK_DATA));
    show("fsync", fsync(fd));
    show("mode", fchmod(fd, 0600));
    struct timespec ts[2] = {{100, 0}, {200, 0}};
    show("times", futimens(fd, ts));
    fstat(fd, &st);
    show("mtime", st.st_mtime);
    show("close", close(fd));
    stat("sizes", &st);
    show("mtime", st.st_mtime);
    show_content("sizes");
}

static void others(void) {
    int in = open("sizes", O_RDONLY), fd = begin("others");
    off_t off = 10;
    show("sendfile", sendfile(fd, in, &off, 300000));
    show("offset", off);
    show("sendfile", sendfile(fd, in, NULL, 2 * PIECE));
    show("in", lseek(in, 0, SEEK_CUR));
    show("copy_file_range", copy_file_range(in, NULL, fd, NULL, 400000, 0));
    show("out", lseek(fd, 0, SEEK_CUR));
    int p[2];
    show("pipe", pipe(p));
    show("fill", write(p[1], "pipe", 4));
    show("splice", splice(p[0], NULL, fd, NULL, 4, 0));
    close(p[0]);
    close(p[1]);
    int n = 0;
    show("FIONREAD", ioctl(fd, FIONREAD, &n));
    show("FIOCLEX", ioctl(fd, FIOCLEX));
    show("cloexec", fcntl(fd, F_GETFD));
    show("isatty", isatty(fd));
    errno = 0;
    show("mmap", mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
    show("flock", flock(fd, LOCK_EX | LOCK_NB));
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    show("setlk", fcntl(fd, F_SETLK, &fl));
    show("write", write(fd, block, PIECE));
    show("append", fcntl(fd, F_SETFL, O_APPEND));
    show("seek", lseek(fd, 0, SEEK_SET));
    show("write", write(fd, "appended", 8));
    show("close", close(fd));
    close(in);
    show_content("others");
}

int main(void) {
    umask(022);
    block = malloc(PIECE);
    duplicates();
    children();
    sizes();
    others();
    show("left open", begin("left"));
    return 0;
}
