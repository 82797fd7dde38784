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

// Work that is done when the program says so, or, after `ms`, by itself.
struct held {
    long ms;
    int open, passed;
};

static inline void hold(void *arg) {
    struct held *h = arg;
    for (long left = h->ms; !__atomic_load_n(&h->open, __ATOMIC_ACQUIRE) && left != 0; left--) {
        usleep(1000);
    }
    __atomic_store_n(&h->passed, 1, __ATOMIC_RELEASE);
}

static inline int passed(const struct held *h) {
    return __atomic_load_n(&h->passed, __ATOMIC_ACQUIRE);
}

static inline void open_now(struct held *h) {
    __atomic_store_n(&h->open, 1, __ATOMIC_RELEASE);
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
