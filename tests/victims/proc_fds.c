// SPDX-License-Identifier: MIT
//
// proc_fds: a program that takes every descriptor away while it saves, in several ways, and one that tries all numbers.
// `proc_fds MODE` prints what it saw; a test compares that and the files with a native run.

#include "proc_rig.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>

static void close_loop(void) {
    for (int fd = 3; fd < 1024; fd++) {
        close(fd);
    }
}

static void close_rest(void) {
    say("close_range %d\n", close_range(3, ~0u, 0));
}

static void close_from(void) {
    closefrom(3);
}

// Behind every hook's back; then the numbers are used for something else, and closed.
static void close_raw(void) {
    static bool taken[1024];
    say("raw %d\n", (int)syscall(SYS_close_range, 3, ~0u, 0));
    int null = open("/dev/null", O_RDWR);
    for (int last = 0, fd = 3; fd >= 0; last = fd) {
        fd = fcntl(null, F_DUPFD, last);
        taken[fd < 0 ? 0 : fd] = fd >= 0;
    }
    for (int fd = 0; fd < 1024; fd++) {
        struct stat st;
        if (taken[fd] && (fstat(fd, &st) < 0 || close(fd) < 0)) {
            say("%d is not ours\n", fd);
        }
    }
}

static void dup_over(void) {
    int null = open("/dev/null", O_RDWR);
    for (int fd = 3; fd < 1024; fd++) {
        if (fd != null && dup2(null, fd) != fd) {
            say("dup2 %d: %s\n", fd, strerrorname_np(errno));
        }
    }
    for (int fd = 3; fd < 1024; fd++) {
        close(fd);
    }
}

// A program that takes every descriptor away, with files closed, and one in mid-save.
static void lose_all(void (*lose)(void)) {
    save("a.bin", 9 * MIB, 1);
    int fd = create("open.bin");
    put(fd, 0, 5 * MIB, 2);
    lose();
    struct stat st = {0};
    int r = fstat(fd, &st);
    say("fstat %d %s\n", r, r < 0 ? strerrorname_np(errno) : "");
    fd = create("b.bin");
    put(fd, 0, 9 * MIB, 3);
    say("close %d\n", close(fd));
    stat("open.bin", &st);
    say("open.bin %ld\n", (long)st.st_size);
    stat("a.bin", &st);
    say("a.bin %ld\n", (long)st.st_size);
}

// What a program that tries every number finds open.
static void numbers(void) {
    save("m.bin", 5 * MIB, 1);
    int max = (int)sysconf(_SC_OPEN_MAX);
    for (int fd = 3; fd < max && fd < 1 << 20; fd++) {
        struct stat st;
        if (fstat(fd, &st) == 0 || fcntl(fd, F_GETFD) >= 0 || fcntl(fd, F_GETFL) >= 0) {
            say("%d is open\n", fd);
        }
        int copy = dup(fd);
        if (copy >= 0) {
            say("%d can be duplicated\n", fd);
            close(copy);
        }
    }
}

static const struct {
    const char *name;
    void (*lose)(void);
} modes[] = {
    {"loop", close_loop}, {"range", close_rest}, {"from", close_from}, {"raw", close_raw}, {"dup", dup_over},
};

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "numbers") == 0) {
        numbers();
        return 0;
    }
    for (size_t i = 0; argc > 1 && i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            lose_all(modes[i].lose);
            return 0;
        }
    }
    return 99;
}
