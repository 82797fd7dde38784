// SPDX-License-Identifier: MIT
//
// odd_rig: what the programs of odd calls (odd_*.c) share: the files and pointers that the calls are about, and the
// lines that say what a call answered and what it left. Makes no call that is tested.
//   odd_* GROUP BYTES     the calls of one group, on captured files of so many bytes
//   odd_names GROUP BYTES STATES    only in the first so many states

#pragma once

#include "fam_rig.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#define UNUSED   __attribute__((unused)) // by one of the programs
#define BLOCK    (3 << 20)
#define LONG_AGO 1000000000 // times before are those that a call has set

// The calls are wrong on purpose.
#pragma GCC diagnostic ignored "-Wnonnull"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Wstringop-overread"

static char *block, *out, *wild = (char *)8;
UNUSED static char *null;
static char *long_name;
static int piece, ro, dirf, pipes[2], sockf, nullf;
static char proc[64]; // the link of the captured descriptor

#define IOV(...)      (struct iovec[]){__VA_ARGS__}
#define OFF(x)        (off_t[]){x}
#define TIMES(a, b)   (struct timespec[2]){{1000, a}, {2000, b}}
#define TVS(a, b)     (struct timeval[2]){{1000, a}, {2000, b}}
#define ARGS          (char *[]){"x", NULL}, (char *[]){NULL}
#define AS(type)      ((struct type *)out)
#define BAD(type)     ((struct type *)wild)

// A captured file, of which what comes behind the first MiB is staged.
static int begin(const char *name) {
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, block, (size_t)piece) != piece) {
        show(name, -1);
    }
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd);
    return fd;
}

// What lies under a name.
static void show_left(const char *name) {
    struct stat st;
    if (lstat(name, &st) < 0) {
        show(name, -1);
        return;
    }
    printf("    links %ld time %ld.%ld ", (long)st.st_nlink, st.st_mtime < LONG_AGO ? st.st_mtim.tv_sec : -1,
           st.st_mtime < LONG_AGO ? st.st_mtim.tv_nsec : -1);
    if (S_ISREG(st.st_mode)) {
        show_content(name);
    } else {
        show_file(name, 0, &st, 0);
    }
}

// The result of a call: below -1 or very large, it is a pointer or a time.
static void show_call(const char *text, long r) {
    int e = errno;
    printf("%s = %ld %s\n", text, r < -1 || r > LONG_AGO ? 777 : r, r < 0 ? strerrorname_np(e) : "");
    fflush(stdout);
}

static void show_fd(int fd) {
    struct stat st;
    int r = fstat(fd, &st);
    printf("    at %ld links %ld ", (long)lseek(fd, 0, SEEK_CUR), r < 0 ? -1 : (long)st.st_nlink);
    show_file("", r, &st, 0);
}

// A call on `fd`, a captured file of this name.
#define F(call)                                                                                                        \
    do {                                                                                                               \
        int fd = begin("f");                                                                                           \
        errno = 0;                                                                                                     \
        show_call(#call, (long)(call));                                                                                \
        show_fd(fd);                                                                                                   \
        show("    close", close(fd));                                                                                  \
        show_left("f");                                                                                                \
        unlink("f");                                                                                                   \
        unlink("g");                                                                                                   \
    } while (0)

struct group {
    const char *name;
    void (*calls)(void);
};

UNUSED static int run_groups(int argc, char **argv, const struct group *groups) {
    int sockets[2];
    umask(022);
    block = malloc(BLOCK);
    out = malloc(BLOCK);
    memset(block, 'a', BLOCK);
    long_name = malloc(600);
    memset(long_name, 'x', 599);
    long_name[599] = '\0';
    int fd = open("ro", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (argc < 3 || write(fd, block, 5000) != 5000 || close(fd) < 0 || mkdir("d", 0755) < 0 ||
        pipe2(pipes, O_NONBLOCK) < 0 || write(pipes[1], block, 19) != 19 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets) < 0) {
        return 2;
    }
    close(open("d/in", O_WRONLY | O_CREAT | O_EXCL, 0600));
    ro = open("ro", O_RDONLY);
    dirf = open(".", O_RDONLY | O_DIRECTORY);
    nullf = open("/dev/null", O_RDWR);
    sockf = sockets[0];
    piece = atoi(argv[2]);
    for (; groups->name != NULL; groups++) {
        if (strcmp(groups->name, argv[1]) == 0) {
            groups->calls();
        }
    }
    return 0;
}
