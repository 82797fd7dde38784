// SPDX-License-Identifier: MIT
//
// fam_more: rarer families in the current directory: aio, descriptors sent to another process, and names of files just
// closed that are asked for by realpath, readlink, statfs, pathconf, handles, watches, bind, mkfifo, walks and exec.
// Prints results for a diff between a native and a shimmed run.

#include "fam_rig.h"

#include <aio.h>
#include <dirent.h>
#include <fts.h>
#include <ftw.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <wchar.h>
#include <wordexp.h>

#define PIECE (1 << 20)

static char *block;

static int begin(const char *name) {
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    for (int i = 0; i < 3; i++) {
        memset(block, 'a' + i, PIECE);
        if (write(fd, block, PIECE) != PIECE) {
            show("  write", -1);
        }
    }
    return fd;
}

static void save(const char *name) {
    close(begin(name));
}

static void aio(void) {
    int fd = begin("aio");
    struct aiocb cb = {.aio_fildes = fd, .aio_buf = block, .aio_nbytes = 100000, .aio_offset = 2 * PIECE - 50,
                       .aio_sigevent.sigev_notify = SIGEV_NONE};
    struct aiocb second = {.aio_fildes = fd, .aio_buf = block, .aio_nbytes = 3, .aio_offset = 4 * PIECE,
                           .aio_lio_opcode = LIO_WRITE, .aio_sigevent.sigev_notify = SIGEV_NONE};
    const struct aiocb *const one[] = {&cb};
    struct aiocb *const list[] = {NULL, &second};
    show("aio_write", aio_write(&cb));
    aio_suspend(one, 1, NULL);
    show("aio_error", aio_error(&cb));
    show("aio_return", aio_return(&cb));
    show("lio_listio", lio_listio(LIO_WAIT, list, 2, NULL));
    show("write", write(fd, block, PIECE));
    show("aio_fsync", aio_fsync(O_SYNC, &cb));
    aio_suspend(one, 1, NULL);
    show("aio_return", aio_return(&cb));
    cb.aio_fildes = -1;
    show("bad aio", aio_write(&cb));
    aio_suspend(one, 1, NULL);
    show("aio_error", aio_error(&cb));
    show("close", close(fd));
    show_content("aio");
}

static void send_fd(int sock, int fd) {
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec iov = {"x", 1};
    struct mmsghdr m = {.msg_hdr = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
                                    .msg_controllen = sizeof control}};
    control.head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    show("sendmsg", sendmsg(sock, &m.msg_hdr, 0));
    show("sendmmsg", sendmmsg(sock, &m, 1, 0));
    m.msg_hdr.msg_control = (void *)8;
    show("wild control", sendmsg(sock, &m.msg_hdr, 0));
    struct msghdr *volatile wild = (void *)8;
    show("wild message", sendmsg(sock, wild, 0));
}

static int receive_fd(int sock) {
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    char x;
    int fd = -1;
    struct iovec iov = {&x, 1};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (recvmsg(sock, &m, 0) == 1 && CMSG_FIRSTHDR(&m) != NULL) {
        memcpy(&fd, CMSG_DATA(&control.head), sizeof fd);
    }
    return fd;
}

static void passing(void) {
    int s[2], status;
    socketpair(AF_UNIX, SOCK_STREAM, 0, s);
    pid_t pid = fork();
    if (pid == 0) {
        int a = receive_fd(s[1]), b = receive_fd(s[1]);
        int ok = write(a, "first", 5) == 5 && pwrite(b, "second", 6, 2 * PIECE) == 6;
        _exit(ok && write(b, block, PIECE) == PIECE ? 0 : 1);
    }
    int fd = begin("passed");
    send_fd(s[0], fd);
    waitpid(pid, &status, 0);
    show("status", status);
    show("write", write(fd, "parent", 6));
    show("close", close(fd));
    close(s[0]);
    close(s[1]);
    show_content("passed");
}

static void print_path(const char *what, char *path) {
    char here[PATH_MAX];
    size_t n = strlen(getcwd(here, sizeof here));
    printf("%-26s %s\n", what, path == NULL ? strerrorname_np(errno) : strncmp(path, here, n) == 0 ? path + n : path);
    errno = 0;
}

static void paths(void) {
    char buf[PATH_MAX], *p;
    struct statfs fs;
    struct statvfs vfs;
    mkdir("sub", 0700);
    symlink("sub", "dirlink");
    symlink("sub/deep", "filelink");
    int fd = begin("sub/deep");
    print_path("open", realpath("dirlink/../sub/./deep", buf));
    print_path("by link", realpath("filelink", buf));
    show("readlink", readlink("sub/deep", buf, sizeof buf));
    show("readlinkat", readlinkat(AT_FDCWD, "filelink", buf, sizeof buf));
    close(fd);
    print_path("closed", p = realpath("dirlink/deep", NULL));
    free(p);
    save("again");
    print_path("canonicalize", p = canonicalize_file_name("again"));
    free(p);
    print_path("none", realpath("nothing", buf));
    save("fs");
    show("statfs", statfs("fs", &fs));
    show("same", fs.f_bsize == 4096);
    show("statvfs", statvfs("fs", &vfs));
    show("pathconf", pathconf("fs", _PC_NAME_MAX));
    show("no statfs", statfs("nothing", &fs));
    show("ftok", ftok("fs", 1) != -1);
    show("lchmod", lchmod("fs", 0640));
    show_content("fs");
}

static void finders(void) {
    union {
        struct file_handle h;
        char bytes[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    } handle = {.h.handle_bytes = MAX_HANDLE_SZ};
    int mount, in = inotify_init1(IN_NONBLOCK);
    char events[4096];
    save("handle");
    show("name_to_handle_at", name_to_handle_at(AT_FDCWD, "handle", &handle.h, &mount, 0));
    save("watched");
    show("inotify_add_watch", inotify_add_watch(in, "watched", IN_ALL_EVENTS));
    show("no events", read(in, events, sizeof events));
    close(in);
    struct sockaddr_un un = {.sun_family = AF_UNIX, .sun_path = "sock"};
    save("sock");
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    show("bind", bind(s, (struct sockaddr *)&un, sizeof un));
    close(s);
    save("fifo");
    show("mkfifo", mkfifo("fifo", 0600));
    show("mknodat", mknodat(AT_FDCWD, "fifo", 0600 | S_IFIFO, 0));
    save("dirname");
    show("mkdir", mkdir("dirname", 0600));
    show_content("sock");
}

static int counted;

static int visit(const char *path, const struct stat *st, int type) {
    (void)path;
    counted += type == FTW_F && st->st_size == 3 * PIECE;
    return 0;
}

static void walks(void) {
    mkdir("walk", 0700);
    DIR *d = opendir("walk");
    int n = 0;
    save("walk/a");
    rewinddir(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        n += e->d_name[0] != '.';
    }
    show("rewinddir", n);
    save("walk/b");
    show("ftw", ftw("walk", visit, 5));
    show("seen", counted);
    save("walk/c");
    char *names[] = {"walk", NULL};
    FTS *fts = fts_open(names, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    n = 0;
    for (FTSENT *e; (e = fts_read(fts)) != NULL;) {
        n += e->fts_info == FTS_F;
    }
    fts_close(fts);
    show("fts", n);
    save("walk/d");
    wordexp_t w;
    show("wordexp", wordexp("walk/?", &w, 0));
    show("words", (long)w.we_wordc);
    wordfree(&w);
    save("walk/e");
    lseek(dirfd(d), 0, SEEK_SET);
    show("getdents64", getdents64(dirfd(d), block, PIECE) > 5 * 24);
    closedir(d);
}

static void streams(void) {
    int fd = begin("append");
    FILE *fp = fdopen(fd, "a");
    fputs("one", fp);
    fflush(fp);
    lseek(fd, 0, SEEK_SET);
    show("appends", write(fd, block, PIECE));
    fclose(fp);
    show_content("append");
    fp = fopen("reopened", "w");
    show("wide", fputws(L"wide", fp));
    fseek(fp, 3 * PIECE, SEEK_SET);
    fputwc(L'x', fp);
    show("ftell", ftell(fp));
    fp = freopen(NULL, "a", fp);
    show("reopen", fp == NULL ? -1 : 0);
    if (fp != NULL) {
        show("puts", fputs("more", fp));
        fclose(fp);
    }
    show_content("reopened");
}

static int cloned(void *arg) {
    return write(*(int *)arg, "clone", 5) == 5 ? 6 : 1;
}

static void programs(void) {
    int status, fd = begin("cloned");
    static char stack[65536];
    pid_t pid = clone(cloned, stack + sizeof stack, SIGCHLD, &fd);
    waitpid(pid, &status, 0);
    show("clone", status);
    close(fd);
    show_content("cloned");
    FILE *fp = fopen("script", "w");
    fputs("#!/bin/sh\nexit 5\n", fp);
    fchmod(fileno(fp), 0700);
    fclose(fp);
    show("system", system("./script"));
    fd = begin("daemon");
    pid = fork();
    if (pid == 0) {
        int mine = begin("daemons");
        write(mine, "before", 6);
        if (daemon(1, 1) == 0) {
            write(mine, "after", 5);
            close(mine);
            rename("daemons", "done");
        }
        _exit(0);
    }
    waitpid(pid, &status, 0);
    show("daemon", status);
    for (int i = 0; i < 500 && access("done", F_OK) < 0; i++) {
        usleep(10000);
    }
    show_content("done");
    close(fd);
}

// What the kernel answers by EFAULT, it answers under the shim.
static void wild(void) {
    char *volatile bad = (char *)8;
    struct stat st;
    save("wild");
    show("open", open(bad, O_RDONLY));
    show("open to write", open(bad, O_WRONLY | O_CREAT | O_TRUNC, 0600));
    save("wild");
    show("stat", stat(bad, &st));
    show("stat into", syscall(SYS_newfstatat, AT_FDCWD, "wild", bad, 0));
    show("rename", rename(bad, "x"));
    show("rename to", rename("wild", bad));
    show("unlink", unlink(bad));
    show("mkdir", mkdir(bad, 0700));
    show("access", access(bad, F_OK));
    show("readlink", readlink(bad, (char *)&st, 1));
    show("truncate", truncate(bad, 0));
    show("chmod", chmod(bad, 0600));
    show("execve", execve(bad, (char *[]){"x", NULL}, (char *[]){NULL}));
    show_content("wild");
}

int main(void) {
    umask(022);
    block = malloc(PIECE);
    aio();
    passing();
    paths();
    finders();
    walks();
    streams();
    programs();
    wild();
    return 0;
}
