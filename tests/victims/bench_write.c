// SPDX-License-Identifier: MIT
//
// bench_write: what a write costs that is none of ours. For each line "N" on stdin it writes one byte to /dev/null N
// times and answers with the nanoseconds per call; scripts/bench lets a native and a preloaded process take turns.

#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(void) {
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    long n;
    while (scanf("%ld", &n) == 1 && n > 0) {
        double start = now_ns();
        for (long i = 0; i < n; i++)
            if (write(fd, "x", 1) != 1)
                return 1;
        printf("%.3f\n", (now_ns() - start) / (double)n);
    }
    return 0;
}
