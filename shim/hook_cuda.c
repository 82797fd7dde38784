// SPDX-License-Identifier: MIT
//
// hook_cuda: the copies and allocations of the CUDA runtime, in the two forms in which programs have them: with the
// suffix, stream 0 is the calling thread's own. Which runtime a caller means is target's business, what is done with a
// copy is cuda's.

#include "arena.h"
#include "cuda.h"
#include "guard.h"
#include "late.h"
#include "real.h"
#include "target.h"

#include <string.h>

#define SYMBOL(name) static const struct target_symbol name##_symbol = {#name, CUDA_LIBRARY, cuda_runtime}
SYMBOL(cudaMemcpy);
SYMBOL(cudaMemcpy_ptds);
SYMBOL(cudaMemcpyAsync);
SYMBOL(cudaMemcpyAsync_ptsz);
SYMBOL(cudaDeviceReset);

/** Where this call would have gone. */
#define TARGET(name) target_of(&name##_symbol, (uintptr_t)__builtin_return_address(0))
/** That function, called as it was called here. */
#define NEXT(name, target, ...)                                                                                        \
    ({                                                                                                                 \
        __typeof__(real.name) next_;                                                                                   \
        memcpy(&next_, &(target).function, sizeof next_);                                                              \
        LIKELY(next_ != NULL) ? next_(__VA_ARGS__) : CUDA_NO_RUNTIME;                                                  \
    })

// Of what the runtime itself reads or writes nothing is late: it may hold meanwhile what our thread's calls wait for.
static void bring(const void *mem, size_t len) {
    const char *p = mem;
    struct range *r = UNLIKELY(arena_in_use()) && !guard_foreign() ? arena_hold(p, len) : NULL;
    if (r) {
        const char *from = r->addr > p ? r->addr : p;
        const char *to = r->addr + r->body < p + len ? r->addr + r->body : p + len;
        arena_drop(r);
        if (arena_promised(from) || arena_promised(to - 1)) {
            late_settle();
            arena_before_move((char *)(uintptr_t)p, len);
        }
    }
}

static void bring_both(const void *dst, const void *src, size_t len) {
    bring(dst, len);
    bring(src, len);
}

static int large(const struct target *t, void *dst, const void *src, size_t len, int kind, void *stream) {
    struct cuda_copy c = {dst, src, len, kind, stream};
    return cuda_copy(t->more, &c);
}

int hook_cudaMemcpy(void *dst, const void *src, size_t len, int kind) {
    struct target t = TARGET(cudaMemcpy);
    int r = LIKELY(len < CUDA_MIN) ? -1 : large(&t, dst, src, len, kind, NULL);
    return r >= 0 ? r : (bring_both(dst, src, len), NEXT(cudaMemcpy, t, dst, src, len, kind));
}

int hook_cudaMemcpy_ptds(void *dst, const void *src, size_t len, int kind) {
    struct target t = TARGET(cudaMemcpy_ptds);
    int r = LIKELY(len < CUDA_MIN) ? -1 : large(&t, dst, src, len, kind, CUDA_STREAM_PER_THREAD);
    return r >= 0 ? r : (bring_both(dst, src, len), NEXT(cudaMemcpy_ptds, t, dst, src, len, kind));
}

int hook_cudaMemcpyAsync(void *dst, const void *src, size_t len, int kind, void *stream) {
    struct target t = TARGET(cudaMemcpyAsync);
    int r = LIKELY(len < CUDA_MIN) ? -1 : large(&t, dst, src, len, kind, stream);
    return r >= 0 ? r : (bring_both(dst, src, len), NEXT(cudaMemcpyAsync, t, dst, src, len, kind, stream));
}

int hook_cudaMemcpyAsync_ptsz(void *dst, const void *src, size_t len, int kind, void *stream) {
    struct target t = TARGET(cudaMemcpyAsync_ptsz);
    int r = -1;
    if (UNLIKELY(len >= CUDA_MIN)) {
        r = large(&t, dst, src, len, kind, stream != NULL ? stream : CUDA_STREAM_PER_THREAD);
    }
    return r >= 0 ? r : (bring_both(dst, src, len), NEXT(cudaMemcpyAsync_ptsz, t, dst, src, len, kind, stream));
}

int hook_cudaDeviceReset(void) {
    struct target t = TARGET(cudaDeviceReset);
    cuda_device_reset(t.more);
    int r = NEXT(cudaDeviceReset, t);
    cuda_device_reset(t.more);
    return r;
}

// Nor does a driver wait, while it pins pages, for one that is late.
SYMBOL(cudaHostRegister);
int hook_cudaHostRegister(void *p, size_t len, unsigned flags) {
    struct target t = TARGET(cudaHostRegister);
    bring(p, len);
    return NEXT(cudaHostRegister, t, p, len, flags);
}

// ---- Allocations: what fails for lack of memory is tried once more when there is less of ours

#define ALLOCATION(name, params, ...)                                                                                  \
    SYMBOL(name);                                                                                                      \
    int hook_##name params {                                                                                           \
        struct target t = TARGET(name);                                                                                \
        int r = NEXT(name, t, __VA_ARGS__);                                                                            \
        return UNLIKELY(r != 0) && cuda_make_room(t.more, r) ? NEXT(name, t, __VA_ARGS__) : r;                         \
    }
ALLOCATION(cudaMalloc, (void **p, size_t len), p, len)
ALLOCATION(cudaMallocManaged, (void **p, size_t len, unsigned flags), p, len, flags)
ALLOCATION(cudaMallocPitch, (void **p, size_t *pitch, size_t width, size_t height), p, pitch, width, height)
ALLOCATION(cudaMallocHost, (void **p, size_t len), p, len)
ALLOCATION(cudaHostAlloc, (void **p, size_t len, unsigned flags), p, len, flags)
ALLOCATION(cudaMallocAsync, (void **p, size_t len, void *stream), p, len, stream)
ALLOCATION(cudaMallocAsync_ptsz, (void **p, size_t len, void *stream), p, len, stream)
ALLOCATION(cudaMallocFromPoolAsync, (void **p, size_t len, void *pool, void *stream), p, len, pool, stream)
ALLOCATION(cudaMallocFromPoolAsync_ptsz, (void **p, size_t len, void *pool, void *stream), p, len, pool, stream)

#define HOOKS_CUDA
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
