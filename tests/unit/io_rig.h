// SPDX-License-Identifier: MIT
//
// io_rig: what the tests of io share: a scratch directory on a disk, filled buffers, a loop that reaps until nothing is
// pending, and seccomp filters that make one system call fail. Static functions only.

#ifndef FASTCKPT_IO_RIG_H
#define FASTCKPT_IO_RIG_H

#include "core/config.h"
#include "core/io.h"
#include "core/util.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RIG __attribute__((unused)) static

/** A new directory, below FASTCKPT_TEST_DIR or /var/tmp: a real file system, as tmpfs knows no direct I/O. */
RIG char *rig_dir(void) {
    static char path[256];
    const char *base = getenv("FASTCKPT_TEST_DIR");
    snprintf(path, sizeof path, "%s/fastckpt-io-XXXXXX", base ? base : "/var/tmp");
    cr_assert(mkdtemp(path), "mkdtemp %s: %s", path, strerror(errno));
    return path;
}

RIG int rig_remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

/** Without a child process: some tests have clone fail. */
RIG void rig_remove(const char *dir) {
    cr_assert_eq(nftw(dir, rig_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0, "%s: %s", dir, strerror(errno));
}

/** A file in `dir`, open for reading and writing. */
RIG int rig_file(const char *dir, const char *name, int flags) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDWR | O_CREAT | flags, 0600);
    if (fd < 0 && errno == EINVAL && (flags & O_DIRECT)) {
        rig_remove(dir); // a skip runs no .fini
        cr_skip_test("no direct I/O in %s", dir);
    }
    cr_assert_geq(fd, 0, "open %s: %s", path, strerror(errno));
    return fd;
}

/** `len` bytes, aligned for direct I/O, different for each seed and at each place. */
RIG void *rig_bytes(size_t len, uint64_t seed) {
    unsigned char *p = aligned_alloc(4096, align_up(len, 4096));
    cr_assert(p);
    uint64_t x = seed * 0x9e3779b97f4a7c15ull + 1;
    for (size_t i = 0; i < len; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17; // xorshift64
        p[i] = (unsigned char)x;
    }
    return p;
}

RIG void rig_expect(int fd, off_t off, const void *want, size_t len) {
    void *got = aligned_alloc(4096, align_up(len, 4096));
    cr_assert(got);
    cr_assert_eq(pread(fd, got, align_up(len, 4096), off), (ssize_t)len, "short file");
    cr_assert_eq(memcmp(got, want, len), 0, "other bytes at %lld", (long long)off);
    free(got);
}

RIG struct io *rig_open(int want) {
    struct io *io = NULL;
    char why[256];
    cr_assert_eq(io_open(&io, want, why, sizeof why), 0);
    if (want == IO_URING && strcmp(io_name(io), "uring") != 0) {
        io_close(io);
        cr_skip_test("%s", why);
    }
    cr_assert_str_eq(why, "");
    return io;
}

/** What the engine's loop does, until nothing is pending. */
RIG void rig_drain(struct io *io) {
    while (io_pending(io)) {
        struct pollfd p = {.fd = io_event_fd(io), .events = POLLIN};
        int n = poll(&p, 1, 10000);
        cr_assert(n > 0 || (n < 0 && errno == EINTR), "nothing finishes: %u pending", io_pending(io));
        io_reap(io);
    }
}

static unsigned rig_done_count;

RIG void rig_done(struct io_req *req) {
    rig_done_count++;
    req->arg = req; // seen
}

RIG struct io_req rig_req(int fd, const void *buf, size_t len, off_t off, uint64_t device) {
    return (struct io_req){
        .fd = fd, .buf = buf, .len = len, .off = off, .device = device, .number = 7, .result = -1, .done = rig_done};
}

/** From now on, the system calls `a` and `b` of this process fail with `err`. */
RIG void rig_refuse(int a, int b, int err) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)a, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)b, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)err),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {.len = ARRAY_LEN(code), .filter = code};
    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog), 0, "%s", strerror(errno));
}

#endif
