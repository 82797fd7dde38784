// SPDX-License-Identifier: MIT
//
// cuda_adopt: fresh memory with bytes from a device in it, as PyTorch gets it, and files that it is written to.

#include "cuda_rig.h"

#include <fcntl.h>

#define SIZE (40 * MIB + 12345)

static const char *dir;
static char *host, *there;

/** `len` bytes that belong to `seed`, on the device at `d`. */
static void send(char *d, size_t len, unsigned seed) {
    if (host == NULL) {
        host = malloc(128 * MIB);
    }
    uint64_t x = seed * 88172645463325252ull + 1;
    for (size_t i = 0; i + 8 <= len; i += 8) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(host + i, &x, 8);
    }
    MUST(cudaMemcpy(d, host, len, cudaMemcpyHostToDevice));
}

static char *on_device(size_t len, unsigned seed) {
    char *d;
    MUST(cudaMalloc((void **)&d, len));
    send(d, len, seed);
    return d;
}

static void copy(char *dst, const char *d, size_t len) {
    make_streams();
    MUST(cudaMemcpyAsync(dst, d, len, cudaMemcpyDeviceToHost, streams[3]));
    MUST(cudaStreamSynchronize(streams[3]));
}

/** As PyTorch gets it. */
static char *memory(size_t len) {
    void *p;
    if (posix_memalign(&p, 64, len) != 0) {
        abort();
    }
    return p;
}

/** A fresh buffer with the bytes of `seed`; what is on the device is gone. */
static inline char *fetched(size_t len, unsigned seed) {
    char *buf = memory(len);
    if (there == NULL) {
        MUST(cudaMalloc((void **)&there, 64 * MIB));
    }
    send(there, len, seed);
    copy(buf, there, len);
    MUST(cudaMemset(there, 0xee, len));
    MUST(cudaDeviceSynchronize());
    return buf;
}

/** As fetched, but nobody waits for the device: the bytes may be on their way. What is on the device is gone. */
static inline char *sent(size_t len, unsigned seed) {
    char *buf = memory(len), *d = on_device(len, seed);
    copy(buf, d, len);
    MUST(cudaMemsetAsync(d, 0xee, len, streams[4]));
    MUST(cudaStreamSynchronize(streams[4]));
    return buf;
}

static int create(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0) {
        perror(path);
        _exit(3);
    }
    return fd;
}

static void put(int fd, const char *p, size_t len) {
    for (ssize_t n; len > 0; p += n, len -= (size_t)n) {
        n = write(fd, p, len);
        if (n <= 0) {
            perror("write");
            _exit(3);
        }
    }
}

/** Of a buffer, where programs change it: from 3 MiB on. */
static inline void put_part(int fd, const char *buf) {
    put(fd, buf + 3 * MIB + 5, 9 * MIB);
}

static void header(int fd) {
    char buf[MIB + 77];
    memset(buf, 'h', sizeof buf);
    put(fd, buf, sizeof buf);
}

/** A file that has its beginning: what follows is staged. */
static inline int begin(const char *name) {
    int fd = create(name);
    header(fd);
    return fd;
}
