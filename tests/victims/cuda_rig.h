// SPDX-License-Identifier: MIT
//
// cuda_rig: what the programs that copy from a device share: a pattern there, streams of all kinds, and an end for what
// must not fail.

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB   (1ul << 20)
#define LARGE (9 * MIB + 4097)
#define PAD   8192

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t e_ = (call);                                                                                       \
        if (e_ != cudaSuccess) {                                                                                       \
            printf("%s: error %d at line %d\n", #call, e_, __LINE__);                                                  \
            fflush(stdout);                                                                                            \
            _exit(3);                                                                                                  \
        }                                                                                                              \
    } while (0)

static unsigned char *pattern; // LARGE + PAD bytes
static char *device;           // the same there

static inline uint64_t sum(const void *data, size_t len) {
    const unsigned char *p = data;
    uint64_t h = 0xcbf29ce484222325ull, word;
    for (; len >= 8; len -= 8, p += 8) {
        memcpy(&word, p, 8);
        h = (h ^ word) * 0x100000001b3ull;
    }
    for (; len > 0; len--) {
        h = (h ^ *p++) * 0x100000001b3ull;
    }
    return h;
}

static inline void set_up(void) {
    if (pattern != NULL) {
        return;
    }
    pattern = malloc(LARGE + PAD);
    uint64_t x = 88172645463325252ull;
    for (size_t i = 0; i < LARGE + PAD; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        pattern[i] = (unsigned char)(x >> 32);
    }
    MUST(cudaMalloc((void **)&device, LARGE + PAD));
    MUST(cudaMemcpy(device, pattern, LARGE + PAD, cudaMemcpyHostToDevice));
    MUST(cudaDeviceSynchronize());
}

static cudaStream_t streams[6];
static const char *const stream_names[] = {"0", "legacy", "per-thread", "blocking", "non-blocking", "priority"};

static inline void make_streams(void) {
    if (streams[1] == NULL) {
        streams[1] = cudaStreamLegacy;
        streams[2] = cudaStreamPerThread;
        MUST(cudaStreamCreate(&streams[3]));
        MUST(cudaStreamCreateWithFlags(&streams[4], cudaStreamNonBlocking));
        MUST(cudaStreamCreateWithPriority(&streams[5], cudaStreamNonBlocking, -1));
    }
}

static inline void end_capture(cudaStream_t s) {
    cudaGraph_t g = NULL;
    cudaError_t e = cudaStreamEndCapture(s, &g);
    printf("  end of the capture %d, a graph %d, last %d\n", e, g != NULL, cudaGetLastError());
}
