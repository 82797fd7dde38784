// SPDX-License-Identifier: MIT
//
// cuda_inside: what the two halves of cuda share: the CUDA runtime as we call it (cuda.c finds it and decides which
// copies are ours), and one such copy (cuda_lane.c). Of the runtime's types only what its ABI fixes is used, so that
// the library is the same whether its header was there or not.

#ifndef FASTCKPT_CUDA_INSIDE_H
#define FASTCKPT_CUDA_INSIDE_H

#include "cuda.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    SUCCESS = 0,
    RESOURCE_HANDLE = 400, // cudaErrorInvalidResourceHandle
    REGISTERED_ALREADY = 712, // cudaErrorHostMemoryAlreadyRegistered
    DEVICE_TO_HOST = 2,
    DEFAULT = 4,
    UNREGISTERED = 0, // cudaMemoryType*
    DEVICE = 2,
    CAPTURE_NONE = 0,
    CAPTURE_RELAXED = 2,
    REGISTER_PORTABLE = 1,
    STREAM_NON_BLOCKING = 1,
    EVENT_NO_TIMING = 2,
    HOST_PAGE_TABLES = 100, // cudaDevAttrPageableMemoryAccessUsesHostPageTables
    FIRST_VERSION = 11000,  // struct attributes was another one before
};

/** cudaPointerAttributes: version 13 has 64 bytes more than 11, to be zero. */
struct attributes {
    int type, device;
    void *on_device, *on_host;
    uint64_t reserved[16];
};

// What is called of it, by its plain names: stream 0 is the legacy stream.
#define FUNCTIONS(F)                                                                                                   \
    F(cudaRuntimeGetVersion, (int *version))                                                                           \
    F(cudaGetLastError, (void))                                                                                        \
    F(cudaPeekAtLastError, (void))                                                                                     \
    F(cudaGetDevice, (int *device))                                                                                    \
    F(cudaDeviceGetAttribute, (int *value, int attribute, int device))                                                 \
    F(cudaPointerGetAttributes, (struct attributes * a, const void *p))                                                \
    F(cudaThreadExchangeStreamCaptureMode, (int *mode))                                                                \
    F(cudaStreamIsCapturing, (void *stream, int *status))                                                              \
    F(cudaStreamCreateWithFlags, (void **stream, unsigned flags))                                                      \
    F(cudaStreamSynchronize, (void *stream))                                                                           \
    F(cudaStreamWaitEvent, (void *stream, void *event, unsigned flags))                                                \
    F(cudaEventCreateWithFlags, (void **event, unsigned flags))                                                        \
    F(cudaEventRecord, (void *event, void *stream))                                                                    \
    F(cudaEventSynchronize, (void *event))                                                                             \
    F(cudaHostRegister, (void *p, size_t len, unsigned flags))                                                         \
    F(cudaMemcpyAsync, (void *dst, const void *src, size_t len, int kind, void *stream))

struct functions {
#define MEMBER(name, params) int(*name) params;
    FUNCTIONS(MEMBER)
};

struct runtime {
    void *_Atomic base; // of its object; stored last
    const void *object; // an address in it
    _Atomic int version;
    struct functions f;
};

/** What a failed call of ours has left behind must not meet the program's next question. Returns -1. */
int cuda_refused(const struct runtime *rt);

/** From here on nothing is ours in this process: says so, once. `err`: a cudaError_t, or SUCCESS. */
void cuda_turn_off(const char *what, int err);

#define DEVICES_MAX 64 // those beyond are left to the runtime

/** Copies from memory of `device`, the current one, to ordinary memory. As cuda_copy. */
int cuda_lane_copy(struct runtime *rt, int device, const struct cuda_copy *c);

/** Has this process any lane? */
bool cuda_lane_any(void);
/** The lanes of a device are gone, with all that its context had. */
void cuda_lane_reset(int device);

#endif
