// SPDX-License-Identifier: MIT
//
// bench_step: training steps with nothing in them but work: the same amount for every step, about SECONDS on all cores
// at the start, so that a step that takes longer was disturbed. scripts/bench drives it line by line:
//
//   bench_step SECONDS MIB
//   step               work                                         answer: seconds of work, 0
//   step PATH [OLD]    write MIB to PATH, close, remove OLD; work   answer: seconds of work, seconds held before it
//   quit

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FLOATS (64 * 1024) // a thread's working set, 256 KiB

static pthread_barrier_t begin, end;
static volatile long rounds; // of work in a step
static float sink;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static float work(float *a, long n) {
    for (long r = 0; r < n; r++)
        for (int i = 0; i < FLOATS; i++)
            a[i] = a[i] * 0.999f + 0.001f;
    return a[n % FLOATS];
}

static float *make_floats(void) {
    float *a = malloc(FLOATS * sizeof(*a));
    if (!a)
        exit(1);
    for (int i = 0; i < FLOATS; i++)
        a[i] = (float)i;
    return a;
}

static void *worker(void *unused) {
    (void)unused;
    float *a = make_floats();
    for (;;) {
        pthread_barrier_wait(&begin);
        float x = work(a, rounds);
        if (x < 0)
            sink = x;
        pthread_barrier_wait(&end);
    }
    return NULL;
}

static double step(float *a) {
    double start = now();
    pthread_barrier_wait(&begin);
    float x = work(a, rounds);
    if (x < 0)
        sink = x;
    pthread_barrier_wait(&end);
    return now() - start;
}

static int save(const char *path, const char *old, const char *data, size_t bytes) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return -errno;
    int result = write(fd, data, bytes) == (ssize_t)bytes ? 0 : -EIO;
    if (close(fd) && !result)
        result = -errno;
    if (old[0] && unlink(old) && !result)
        result = -errno;
    return result;
}

static void start_threads(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
    pthread_barrier_init(&begin, NULL, (unsigned)n);
    pthread_barrier_init(&end, NULL, (unsigned)n);
    for (int i = 1; i < n; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, NULL))
            exit(1);
    }
}

/** Sets `rounds` so that an undisturbed step takes about `seconds`: by the fastest of some short ones. */
static void calibrate(float *a, double seconds) {
    rounds = 2000;
    for (int i = 0; i < 2; i++) {
        double best = 1e9;
        for (int k = 0; k < 6; k++) {
            double took = step(a);
            best = took < best ? took : best;
        }
        double next = (double)rounds * (i ? seconds : 0.1) / best;
        rounds = next > 1 ? (long)next : 1;
    }
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    size_t bytes = strtoull(argv[2], NULL, 10) << 20;
    char *data = malloc(bytes);
    if (!data)
        return 1;
    for (size_t i = 0; i < bytes; i++)
        data[i] = (char)(i * 2654435761u >> 13);
    float *a = make_floats();
    start_threads();
    calibrate(a, strtod(argv[1], NULL));
    setvbuf(stdout, NULL, _IOLBF, 0);
    char line[9000], verb[32], path[4096], old[4096];
    while (fgets(line, sizeof(line), stdin)) {
        path[0] = old[0] = 0;
        if (sscanf(line, "%31s %4095s %4095s", verb, path, old) < 1 || strcmp(verb, "step"))
            break;
        double start = now();
        int result = path[0] ? save(path, old, data, bytes) : 0;
        double held = path[0] ? now() - start : 0;
        if (result)
            printf("error %s\n", strerror(-result));
        else
            printf("%.9f %.9f\n", step(a), held);
    }
    return 0;
}
