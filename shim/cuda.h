// SPDX-License-Identifier: MIT
//
// cuda: large copies from a CUDA device to ordinary memory, in slices through pinned memory. The call stays what it
// was: when it returns, the bytes are in the destination and nothing is on its way; or, with FASTCKPT_CUDA=defer, they
// are there for whoever looks. Exports nothing (hook_cuda.c).

#ifndef FASTCKPT_CUDA_H
#define FASTCKPT_CUDA_H

#include "../core/util.h"

/** Begins the names of the files that the runtime is in. */
#define CUDA_LIBRARY "libcudart.so"

/** Copies below this are the runtime's own business. */
#define CUDA_MIN (1 * MIB)

/** What a runtime says to a call that has nowhere to go: cudaErrorSharedObjectSymbolNotFound. */
#define CUDA_NO_RUNTIME 302

/** The stream that 0 stands for where the default stream is each thread's own: cudaStreamPerThread. */
#define CUDA_STREAM_PER_THREAD ((void *)2)

struct cuda_copy {
    char *dst;
    const char *src;
    size_t len;
    int kind;     // enum cudaMemcpyKind
    void *stream; // cudaStream_t; 0 is the legacy stream
};

/** What is to be known of the CUDA runtime that has `function`, one of its own: for struct target's `more`. 0: nothing
 *  can be done with it. */
uintptr_t cuda_runtime(void *function);

/** Copies, and returns a cudaError_t; or -1: nothing was done, nothing was changed, no error is left behind: the
 *  runtime's own function is to be called as the program called ours. */
int cuda_copy(uintptr_t runtime, const struct cuda_copy *c);

/** The current device is being reset: what we have made there is gone, or going. Before the real call, and after it. */
void cuda_device_reset(uintptr_t runtime);

/** An allocation of the program's has failed with `err`. True: there is more memory now, try again, once. */
bool cuda_make_room(uintptr_t runtime, int err);

/** Fork handler of the child: it makes no CUDA call of ours. */
void cuda_after_fork(void);

/** Sums for FASTCKPT_REPORT, in bytes: what went through pinned memory, what straight to where it stays (and of that,
 *  what came after its call), and what was as large but was left to the runtime (which may have had pinned memory for
 *  it). */
struct cuda_report {
    _Atomic uint64_t bounced, adopted, deferred, native;
};
extern struct cuda_report cuda_report;

/** Does this process use a device without a runtime that can be reached? Takes the loader's lock. */
bool cuda_out_of_reach(void);

#endif
