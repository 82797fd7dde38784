// SPDX-License-Identifier: MIT
//
// fam_rig: what the programs of the families (fam_*.c) share: the line of a call's result, and that of what a file
// holds. Makes no file itself.

#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// The result of a call, and the error that it left.
static inline void show(const char *what, long r) {
    int e = errno;
    printf("%-28s %ld%s%s\n", what, r, r < 0 ? " " : "", r < 0 ? strerrorname_np(e) : "");
    fflush(stdout);
    errno = 0;
}

static inline unsigned long add_sum(unsigned long sum, const char *buf, ssize_t n) {
    for (ssize_t i = 0; i < n; i++) {
        sum = sum * 33 + (unsigned char)buf[i];
    }
    return sum;
}

// `r`: of the call that filled `st`.
static inline void show_file(const char *name, int r, const struct stat *st, unsigned long sum) {
    printf("%-10s size %ld mode %o sum %lx\n", name, r < 0 ? -1L : (long)st->st_size, r < 0 ? 0 : st->st_mode, sum);
    fflush(stdout);
}

static inline void show_content(const char *name) {
    static char buf[65536];
    struct stat st;
    unsigned long sum = 5381;
    int fd = open(name, O_RDONLY);
    int r = fstat(fd, &st);
    for (ssize_t n; (n = read(fd, buf, sizeof buf)) > 0;) {
        sum = add_sum(sum, buf, n);
    }
    close(fd);
    show_file(name, r, &st, sum);
}
