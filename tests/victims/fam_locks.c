// SPDX-License-Identifier: MIT
//
// fam_locks: locks and leases on files just opened for writing, seen from a second description and from a second
// process: new names, names that replace an older file, duplicates, children. Prints results for a diff.

#include "fam_rig.h"

#include <stdlib.h>
#include <sys/file.h>
#include <sys/wait.h>

static void look(const char *name) {
    char buf[200] = "";
    struct stat st;
    int fd = open(name, O_RDONLY);
    ssize_t n = read(fd, buf, sizeof buf - 1);
    fstat(fd, &st);
    close(fd);
    printf("%-10s %zd \"%.40s\" size %ld links %ld\n", name, n, buf, (long)st.st_size, (long)st.st_nlink);
}

static void make(const char *name, const char *text) {
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    show("make", write(fd, text, strlen(text)));
    close(fd);
    int in = open(name, O_RDONLY); // published, so that the next open replaces it
    fsync(in);
    close(in);
}

// What a process that knows nothing finds: can it lock the name?
static void other(const char *name) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(name, O_RDWR);
        struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        int a = flock(fd, LOCK_EX | LOCK_NB) == 0, b = fcntl(fd, F_SETLK, &fl) == 0;
        _exit(fd < 0 ? 9 : a + 2 * b);
    }
    waitpid(pid, &status, 0);
    printf("%s: another gets %d\n", name, WEXITSTATUS(status));
    fflush(stdout);
}

static int kind;

static long lock(int fd) {
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    switch (kind) {
    case 0: return flock(fd, LOCK_EX | LOCK_NB);
    case 1: return fcntl(fd, F_SETLK, &fl);
    case 2: return fcntl(fd, F_OFD_SETLK, &fl);
    default: return lockf(fd, F_TLOCK, 0);
    }
}

static void all_kinds(const char *name, const char *old) {
    for (kind = 0; kind < 4; kind++) {
        printf("kind %d\n", kind);
        unlink(name);
        int holder = -1;
        if (old != NULL) {
            make(name, old);
            holder = open(name, O_RDONLY);
        }
        int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        int two = dup(fd);
        show("write", write(fd, "before ", 7));
        show("lock", lock(fd));
        other(name);
        show("write", write(two, "after", 5));
        show("seek", lseek(fd, 0, SEEK_CUR));
        if (holder >= 0) {
            char buf[40] = "";
            show("holder reads", pread(holder, buf, sizeof buf - 1, 0));
            printf("  %s\n", buf);
            close(holder);
        }
        look(name);
        close(fd);
        show("write", write(two, "!", 1));
        show("close", close(two));
        other(name);
        look(name);
    }
}

// The lock is taken by a child on its parent's descriptor: a shell's `exec 9> lock; flock 9`.
static void in_a_child(int exec) {
    int status, fd = open("shell", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    pid_t pid = fork();
    if (pid == 0) {
        if (exec) {
            dup2(fd, 9);
            execlp("flock", "flock", "-n", "9", (char *)NULL);
        }
        _exit(flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : 1);
    }
    waitpid(pid, &status, 0);
    show("child's lock", status);
    other("shell");
    show("write", write(fd, "mine", 4));
    show("close", close(fd));
    look("shell");
    unlink("shell");
}

int main(void) {
    umask(022);
    all_kinds("new", NULL);
    all_kinds("old", "what was there\n");
    in_a_child(0);
    in_a_child(1);
    int fd = open("lease", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    show("write", write(fd, "x", 1));
    show("get lease", fcntl(fd, F_GETLEASE));
    show("append", fcntl(fd, F_SETFL, O_APPEND));
    show("seek", lseek(fd, 0, SEEK_SET));
    show("write", write(fd, "y", 1));
    show("flags", fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
    show("close", close(fd));
    look("lease");
    int dir = open(".", O_RDONLY);
    show("notify", fcntl(dir, F_NOTIFY, 0));
    return 0;
}
