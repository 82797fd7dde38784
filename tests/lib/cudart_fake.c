// SPDX-License-Identifier: MIT
//
// cudart_fake: shared objects around one function of the CUDA runtime that copies nothing but says whose it is.
// Compiled in several ways, for tests/system/cuda_loader.py:
//   -DRUNTIME=n  it is a runtime, whose calls return n
//   -DCALLER     it calls the function: of its own if it is a runtime, else of what it needs
//   -DTRACER     it stands before the runtime (LD_PRELOAD), and adds 1000 to what that says
//   -DPROGRAM    a program that says what its call returns, or that there is no such function

#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#ifdef PROGRAM
__attribute__((weak))
#endif
int cudaMemcpyAsync(void *dst, const void *src, size_t len, int kind, void *stream);

#ifdef RUNTIME
int cudaMemcpyAsync(void *dst, const void *src, size_t len, int kind, void *stream) {
    (void)dst, (void)src, (void)kind, (void)stream;
    return RUNTIME + (int)len;
}
#endif

#ifdef TRACER
int cudaMemcpyAsync(void *dst, const void *src, size_t len, int kind, void *stream) {
    int (*next)(void *, const void *, size_t, int, void *) = dlsym(RTLD_NEXT, "cudaMemcpyAsync");
    return 1000 + next(dst, src, len, kind, stream);
}
#endif

#ifdef CALLER
int caller_copy(int len);
int caller_copy(int len) {
    return 0x10000 + cudaMemcpyAsync(NULL, NULL, (size_t)len, 2, NULL); // the sum: no tail call
}

// The first call of the process, in a signal handler.
static int in_handler;
static void handle(int sig) {
    (void)sig;
    in_handler = 0x10000 + cudaMemcpyAsync(NULL, NULL, 3, 2, NULL);
}

int caller_handler(void);
int caller_handler(void) {
    signal(SIGUSR1, handle);
    raise(SIGUSR1);
    return in_handler;
}

// Nanoseconds of a call.
double caller_cost(void);
double caller_cost(void) {
    double best = 1e9;
    for (int round = 0; round < 15; round++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        for (int i = 0; i < 1000000; i++) {
            cudaMemcpyAsync(NULL, NULL, 4, 2, NULL);
        }
        clock_gettime(CLOCK_MONOTONIC, &b);
        double ns = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / 1e6;
        best = ns < best ? ns : best;
    }
    return best;
}
#endif

#ifdef PROGRAM
int main(void) {
    if (cudaMemcpyAsync == NULL) {
        puts("none");
    } else {
        printf("%d\n", cudaMemcpyAsync(NULL, NULL, 4, 2, NULL));
    }
    return 0;
}
#endif
