// SPDX-License-Identifier: MIT
//
// bench_calls: what calls cost that are none of ours. Driven line by line, so that scripts/bench can let native and
// preloaded processes take turns; answers with the nanoseconds a call takes in the median batch, "error WHY" otherwise.
//
//   write|fwrite|open|create|stat PATH CALLS BATCHES     write, fwrite: one byte; open, create: with close

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 10000 };

typedef int call(const char *path, int fd);

static int call_write(const char *path, int fd) {
    (void)path;
    return write(fd, "x", 1) == 1 ? 0 : -1;
}

static FILE *stream;

static int call_fwrite(const char *path, int fd) {
    (void)path, (void)fd;
    return fwrite("x", 1, 1, stream) == 1 ? 0 : -1;
}

static int call_open(const char *path, int fd) {
    fd = open(path, O_RDONLY);
    return fd < 0 ? -1 : close(fd);
}

static int call_create(const char *path, int fd) {
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    return fd < 0 ? -1 : close(fd);
}

static int call_stat(const char *path, int fd) {
    (void)fd;
    struct stat st;
    return stat(path, &st);
}

static const struct verb {
    const char *name;
    call *call;
} verbs[] = {{"write", call_write}, {"fwrite", call_fwrite}, {"open", call_open}, {"create", call_create},
             {"stat", call_stat}};
#define VERBS (sizeof verbs / sizeof *verbs)

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/** Nanoseconds a call in the median batch; negative: a call failed. */
static double measure(call *one, const char *path, int fd, long calls, long batches) {
    static double took[MOST];
    for (long b = 0; b < batches; b++) {
        double start = now_ns();
        for (long i = 0; i < calls; i++)
            if (one(path, fd))
                return -1;
        took[b] = (now_ns() - start) / (double)calls;
    }
    qsort(took, (size_t)batches, sizeof(took[0]), order);
    return took[batches / 2];
}

int main(void) {
    char name[16], path[4096];
    long calls, batches;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (scanf("%15s %4095s %ld %ld", name, path, &calls, &batches) == 4 && calls > 0 && batches > 0) {
        const struct verb *v = verbs;
        while (v < verbs + VERBS && strcmp(v->name, name))
            v++;
        if (v == verbs + VERBS || batches > MOST)
            return 2;
        stream = v->call == call_fwrite ? fopen(path, "we") : NULL;
        int fd = v->call == call_write ? open(path, O_WRONLY | O_CLOEXEC) : -1;
        double ns = measure(v->call, path, fd, calls, batches);
        if (ns < 0)
            printf("error %s\n", strerror(errno));
        else
            printf("%.3f\n", ns);
        if (fd >= 0)
            close(fd);
        if (stream)
            fclose(stream);
    }
    return 0;
}
