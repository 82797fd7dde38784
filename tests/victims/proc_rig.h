// SPDX-License-Identifier: MIT
//
// proc_rig: what proc.c and proc_fds.c share: files whose bytes follow from a seed, made by calls that a signal handler
// may make, and lines of output by write(2).

#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)

static inline void say(const char *format, ...) {
    char line[300];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    if (write(1, line, (size_t)n) != n) {
        _exit(90);
    }
}

// Bytes that depend on the seed and the place; no async-signal-unsafe call here or in what writes them.
static inline void fill(char *buf, size_t len, size_t off, unsigned seed) {
    for (size_t i = 0; i + 8 <= len; i += 8) {
        uint64_t v = (off + i + 1) * 0x9e3779b97f4a7c15ull ^ seed;
        memcpy(buf + i, &v, 8);
    }
}

static inline int put(int fd, size_t off, size_t len, unsigned seed) {
    char buf[64 << 10]; // on the stack: a signal handler saves, too
    while (len > 0) {
        size_t n = len < sizeof buf ? len : sizeof buf;
        fill(buf, n, off, seed);
        if (write(fd, buf, n) != (ssize_t)n) {
            return -errno;
        }
        off += n;
        len -= n;
    }
    return 0;
}

static inline int create(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0) {
        say("open %s: %s\n", path, strerrorname_np(errno));
        _exit(91);
    }
    return fd;
}

static inline void save(const char *path, size_t len, unsigned seed) {
    int fd = create(path);
    int r = put(fd, 0, len, seed);
    struct stat st;
    if (r < 0 || fstat(fd, &st) < 0 || st.st_size != (off_t)len || close(fd) < 0) {
        say("save %s: %d %s\n", path, r, strerrorname_np(errno));
        _exit(92);
    }
}

static inline void reap(const char *what, pid_t pid) {
    int status = 0;
    pid_t r = waitpid(pid, &status, 0);
    if (r != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        say("%s: wait %d, status %x\n", what, r == pid, status);
    }
}

static inline void finish(int fd) {
    say("at %ld\n", (long)lseek(fd, 0, SEEK_CUR));
    say("close %d\n", close(fd));
}
