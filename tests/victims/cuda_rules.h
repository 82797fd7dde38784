// SPDX-License-Identifier: MIT
//
// What the programs that ask a CUDA runtime for its rules share: a call must give what is said here, or the program
// says what it gave and ends with 1.

#ifndef FASTCKPT_CUDA_RULES_H
#define FASTCKPT_CUDA_RULES_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ul << 20)

#define MUST(call, wanted)                                                                                             \
    do {                                                                                                               \
        long got_ = (long)(call), wanted_ = (long)(wanted);                                                            \
        if (got_ != wanted_) {                                                                                         \
            printf("line %d: %s is %ld, not %ld\n", __LINE__, #call, got_, wanted_);                                   \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define OK(call) MUST(call, cudaSuccess)
#define TRUE(condition) MUST((condition) != 0, 1)

struct rule {
    const char *name;
    void (*run)(void);
};

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static inline void nap(void *ms) {
    usleep((long)ms * 1000);
}

/** Work that takes a while. */
static inline void delay(cudaStream_t stream, long ms) {
    OK(cudaLaunchHostFunc(stream, nap, (void *)ms));
}

/** Something that a thread of its own does. */
static inline void in_thread(void *(*fn)(void *), void *arg) {
    pthread_t t;
    MUST(pthread_create(&t, NULL, fn, arg), 0);
    MUST(pthread_join(t, NULL), 0);
}

static inline int run_rule(const struct rule *rules, const char *name) {
    for (; rules->name != NULL; rules++) {
        if (strcmp(rules->name, name) == 0) {
            rules->run();
            puts("ok");
            return 0;
        }
    }
    return 2;
}

#endif
