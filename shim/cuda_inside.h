// SPDX-License-Identifier: MIT
//
// cuda_inside: what the parts of cuda share: the CUDA runtime as we call it (cuda.c finds it and decides which copies
// are ours), one such copy (cuda_lane.c), and one that the program does not wait for (cuda_ferry.c). Of the runtime's
// types only what its ABI fixes is used, so that the library is the same whether its header was there or not.

#ifndef FASTCKPT_CUDA_INSIDE_H
#define FASTCKPT_CUDA_INSIDE_H

#include "cuda.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    SUCCESS = 0,
    RESOURCE_HANDLE = 400, // cudaErrorInvalidResourceHandle
    REGISTERED_ALREADY = 712, // cudaErrorHostMemoryAlreadyRegistered
    OUT_OF_MEMORY = 2, // cudaErrorMemoryAllocation
    DEVICE_TO_HOST = 2,
    DEVICE_TO_DEVICE = 3,
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
    F(cudaMalloc, (void **p, size_t len))                                                                              \
    F(cudaFree, (void *p))                                                                                             \
    F(cudaSetDevice, (int device))                                                                                     \
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
/** How often the device has been reset. */
uint32_t cuda_lane_resets(int device);
/** The lanes of a device are gone, with all that its context had. */
void cuda_lane_reset(int device);

struct adopted;

/** A stream of the lane that makes the copy, behind what the program's stream had to do; and an event. */
struct ferry_way {
    void *stream, *event;
};

/** Takes a snapshot of what is to be copied, and has it brought to the range of `a` later (late.h). False: that cannot
 *  be, now or for ever; nothing was done. Else *ret is what the device has said, and if that is SUCCESS, adopt_later is
 *  owed. */
bool cuda_ferry_copy(struct runtime *rt, int device, const struct ferry_way *way, const struct cuda_copy *c,
                     const struct adopted *a, int *ret);
/** Gives scratch memory back, if there is any. False: there was none. */
bool cuda_ferry_give_back(const struct runtime *rt);
/** Waits until nothing is on its way from the device. */
void cuda_ferry_settle(void);

#endif
