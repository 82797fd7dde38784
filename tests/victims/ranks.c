// SPDX-License-Identifier: MIT
//
// ranks: two processes of one job, and many that save at once.
//
//   ranks step SHARED RANK COUNT   rank 0 or 1. In step I the one saves s-I.pt, both meet at a barrier in the file
//                                  SHARED (no system call tells a kernel or a tracer of it), the other writes I into
//                                  `latest`, both meet again; then they change places.
//   ranks hold NAME SIZE           says "ready", waits for a line, saves SIZE bytes, says "held NANOSECONDS" of
//                                  open + write + close
//
// Each file is its number as a 64-bit word, again and again, so that "whole" is seen from the file alone.

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PIECE (1u << 20)

struct shared {
    _Atomic uint32_t arrived, round;
};

static int save(const char *name, const void *buf, size_t size, uint64_t number) {
    uint64_t *w = malloc(PIECE);
    for (size_t i = 0; w && !buf && i < PIECE / 8; i++) {
        w[i] = number;
    }
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    int bad = fd < 0 || !w;
    for (size_t done = 0; !bad && done < size;) {
        size_t n = size - done < PIECE ? size - done : PIECE;
        bad = write(fd, buf ? buf : w, n) != (ssize_t)n;
        done += n;
    }
    free(w);
    return (fd >= 0 && close(fd) != 0) || bad ? -1 : 0;
}

static void barrier(struct shared *s) {
    uint32_t round = atomic_load(&s->round);
    if (atomic_fetch_add(&s->arrived, 1) == 1) {
        atomic_store(&s->arrived, 0);
        atomic_store(&s->round, round + 1);
    }
    for (int i = 0; atomic_load(&s->round) == round; i++) {
        if (i < 20) {
            sched_yield();
        } else {
            nanosleep(&(struct timespec){0, 50000}, NULL);
        }
    }
}

static int steps(const char *path, int rank, int count) {
    int fd = open(path, O_RDWR);
    struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || s == MAP_FAILED) {
        return 2;
    }
    close(fd);
    for (int i = 1; i <= count; i++) {
        char text[32];
        if (i % 2 == rank) {
            snprintf(text, sizeof text, "s-%d.pt", i);
            size_t size = i % 10 < 2 ? 2600000 : 4096 + 8 * (size_t)(i * 7919 % 8000);
            if (save(text, NULL, size, (uint64_t)i) != 0) {
                return 1;
            }
        }
        barrier(s);
        if (i % 2 != rank) {
            int n = snprintf(text, sizeof text, "%d\n", i);
            if (save("latest", text, (size_t)n, 0) != 0) {
                return 1;
            }
        }
        barrier(s);
    }
    return 0;
}

static int hold(const char *name, size_t size) {
    char line[16];
    dprintf(1, "ready\n");
    if (read(0, line, sizeof line) <= 0) {
        return 2;
    }
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    int r = save(name, NULL, size, size);
    clock_gettime(CLOCK_MONOTONIC, &b);
    dprintf(1, "held %lld\n", (b.tv_sec - a.tv_sec) * 1000000000ll + b.tv_nsec - a.tv_nsec);
    return r != 0;
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "step") == 0) {
        return steps(argv[2], atoi(argv[3]), atoi(argv[4]));
    }
    return argc == 4 && strcmp(argv[1], "hold") == 0 ? hold(argv[2], strtoul(argv[3], NULL, 0)) : 2;
}
