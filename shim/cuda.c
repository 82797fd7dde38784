// SPDX-License-Identifier: MIT
//
// cuda: see cuda.h. Which runtime it is, and what it says about the pointers and the stream: that decides whether a
// copy is ours (cuda_lane.c does it). Everything else is left to the runtime, as it came. The runtime is never linked:
// its functions come from the object in which the caller's own was found.

#include "cuda_inside.h"

#include "../core/log.h"
#include "guard.h"
#include "target.h"

#include <dlfcn.h>
#include <string.h>

#if __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>
#if CUDART_VERSION >= 11000
#define SAME(a, b) _Static_assert((int)(a) == (int)(b), #b)
SAME(SUCCESS, cudaSuccess);
SAME(RESOURCE_HANDLE, cudaErrorInvalidResourceHandle);
SAME(REGISTERED_ALREADY, cudaErrorHostMemoryAlreadyRegistered);
SAME(CUDA_NO_RUNTIME, cudaErrorSharedObjectSymbolNotFound);
SAME(OUT_OF_MEMORY, cudaErrorMemoryAllocation);
SAME(DEVICE_TO_HOST, cudaMemcpyDeviceToHost);
SAME(DEVICE_TO_DEVICE, cudaMemcpyDeviceToDevice);
SAME(DEFAULT, cudaMemcpyDefault);
SAME(UNREGISTERED, cudaMemoryTypeUnregistered);
SAME(DEVICE, cudaMemoryTypeDevice);
SAME(CAPTURE_NONE, cudaStreamCaptureStatusNone);
SAME(CAPTURE_RELAXED, cudaStreamCaptureModeRelaxed);
SAME(REGISTER_PORTABLE, cudaHostRegisterPortable);
SAME(STREAM_NON_BLOCKING, cudaStreamNonBlocking);
SAME(EVENT_NO_TIMING, cudaEventDisableTiming);
SAME(HOST_PAGE_TABLES, cudaDevAttrPageableMemoryAccessUsesHostPageTables);
SAME(offsetof(struct attributes, type), offsetof(struct cudaPointerAttributes, type));
SAME(offsetof(struct attributes, device), offsetof(struct cudaPointerAttributes, device));
_Static_assert(sizeof(struct attributes) >= sizeof(struct cudaPointerAttributes), "room for it");
_Static_assert(sizeof(enum cudaMemcpyKind) == sizeof(int) && sizeof(cudaError_t) == sizeof(int), "enums are ints");
#endif
#endif

static const char *const names[] = {
#define NAME(name, params) #name,
    FUNCTIONS(NAME)
};
_Static_assert(sizeof(struct functions) == ARRAY_LEN(names) * sizeof(void *), "one pointer a name");

// ---- Runtimes

#define RUNTIMES_MAX 8 // there are two where a process has two versions

static struct runtime runtimes[RUNTIMES_MAX];
static _Atomic uint32_t runtimes_count;
static _Atomic bool off; // for this process, from some failure on

struct cuda_report cuda_report;

void cuda_turn_off(const char *what, int err) {
    char error[32] = "";
    if (err != SUCCESS) {
        log_format(error, sizeof error, ": error %d", err);
    }
    if (!atomic_exchange(&off, true)) {
        log_info("copies from CUDA devices are left to the CUDA runtime from here on: %s%s", what, error);
    }
}

static bool fill(struct runtime *rt, const char *path) {
    char *slot = (char *)&rt->f;
    bool all = true;
    void *handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    for (size_t i = 0; handle != NULL && i < ARRAY_LEN(names); i++, slot += sizeof(void *)) {
        void *p = dlsym(handle, names[i]);
        memcpy(slot, &p, sizeof p);
        all = all && p != NULL;
    }
    if (handle != NULL) {
        dlclose(handle);
    }
    return handle != NULL && all;
}

// Two threads may find the same one at once, and have one each: no harm.
uintptr_t cuda_runtime(void *function) {
    Dl_info info;
    if (dladdr(function, &info) == 0) {
        return 0;
    }
    for (size_t i = 0; i < RUNTIMES_MAX; i++) {
        if (atomic_load(&runtimes[i].base) == info.dli_fbase) {
            return (uintptr_t)&runtimes[i];
        }
    }
    struct runtime rt = {.object = function};
    if (!fill(&rt, info.dli_fname)) {
        log_debug("%s has not all of a CUDA runtime's functions: device copies are left to it", info.dli_fname);
        return 0;
    }
    uint32_t n = atomic_fetch_add(&runtimes_count, 1);
    if (n >= RUNTIMES_MAX) {
        return 0;
    }
    runtimes[n].object = rt.object;
    runtimes[n].f = rt.f;
    atomic_store(&runtimes[n].base, info.dli_fbase);
    return (uintptr_t)&runtimes[n];
}

int cuda_refused(const struct runtime *rt) {
    rt->f.cudaGetLastError();
    return -1;
}

// ---- Which copies

static bool memory_is(const struct runtime *rt, const void *p, int type, int *device) {
    struct attributes a = {0};
    if (rt->f.cudaPointerGetAttributes(&a, p) != SUCCESS || a.type != type) {
        return false;
    }
    *device = a.device;
    return true;
}

static _Atomic uint8_t page_tables[DEVICES_MAX]; // 0: not asked yet, 1: the device has its own, 2: it uses the host's

// A device that reads and writes pageable memory by the host's page tables needs no slots.
static bool has_own_tables(const struct runtime *rt, int device) {
    int value = 0;
    if (device < 0 || device >= DEVICES_MAX) {
        return false;
    }
    if (atomic_load(&page_tables[device]) == 0) {
        int r = rt->f.cudaDeviceGetAttribute(&value, HOST_PAGE_TABLES, device);
        atomic_store(&page_tables[device], r == SUCCESS && value == 0 ? 1 : 2);
    }
    return atomic_load(&page_tables[device]) == 1;
}

// From memory of the current device to ordinary memory: registered or managed memory, a peer's and what is not known
// to the runtime are none of ours.
static int copy_if_ours(struct runtime *rt, const struct cuda_copy *c) {
    int device, current, none;
    if (!memory_is(rt, c->dst, UNREGISTERED, &none) || !memory_is(rt, c->dst + c->len - 1, UNREGISTERED, &none) ||
        !memory_is(rt, c->src, DEVICE, &device) || rt->f.cudaGetDevice(&current) != SUCCESS || current != device ||
        !has_own_tables(rt, device)) {
        return cuda_refused(rt);
    }
    return cuda_lane_copy(rt, device, c);
}

// A stream that is being captured takes no part; asked of the legacy stream, a capture beside it is an error.
static bool captured(const struct runtime *rt, void *stream) {
    int status = CAPTURE_NONE;
    if (rt->f.cudaStreamIsCapturing(stream, &status) != SUCCESS) {
        cuda_refused(rt);
        return true;
    }
#if FASTCKPT_BREAK == 11 // canary: captures are not seen
    status = CAPTURE_NONE;
#endif
    return status != CAPTURE_NONE;
}

static int copy(struct runtime *rt, const struct cuda_copy *c) {
    int version = atomic_load(&rt->version);
    if (rt->f.cudaPeekAtLastError() != SUCCESS) {
        return -1; // the program's own, which it has not seen yet
    }
    if (version == 0) {
        if (rt->f.cudaRuntimeGetVersion(&version) != SUCCESS) {
            return cuda_refused(rt);
        }
        atomic_store(&rt->version, version);
    }
    // What we call would spoil a capture that another thread has begun in global mode.
    int mode = CAPTURE_RELAXED;
#if FASTCKPT_BREAK == 12 // canary: as the program's thread is
    mode = 0;
#endif
    if (version < FIRST_VERSION || captured(rt, c->stream)) {
        return -1;
    }
    if (rt->f.cudaThreadExchangeStreamCaptureMode(&mode) != SUCCESS) {
        return cuda_refused(rt);
    }
    int r = copy_if_ours(rt, c);
    if (rt->f.cudaThreadExchangeStreamCaptureMode(&mode) != SUCCESS) {
        cuda_refused(rt);
        rt->f.cudaThreadExchangeStreamCaptureMode(&mode);
    }
    return r;
}

int cuda_copy(uintptr_t runtime, const struct cuda_copy *c) {
    struct runtime *rt = (struct runtime *)runtime;
    if (rt == NULL || c->len < CUDA_MIN || (c->kind != DEVICE_TO_HOST && c->kind != DEFAULT) ||
        !atomic_load_explicit(&shim.ready, memory_order_acquire) || shim.config.cuda == CUDA_OFF ||
        atomic_load(&off) || shim.forked || guard_foreign()) {
        return -1;
    }
    int r = copy(rt, c);
    if (r < 0 && c->kind == DEVICE_TO_HOST) {
        atomic_fetch_add(&cuda_report.native, c->len);
    }
    return r;
}

void cuda_device_reset(uintptr_t runtime) {
    const struct runtime *rt = (const struct runtime *)runtime;
    int device;
    if (rt == NULL || !cuda_lane_any() || shim.forked || guard_foreign()) {
        return;
    }
    cuda_ferry_settle();
    bool pending = rt->f.cudaPeekAtLastError() != SUCCESS;
    if (rt->f.cudaGetDevice(&device) == SUCCESS) {
        cuda_lane_reset(device);
    } else if (!pending) {
        cuda_refused(rt);
    }
}

bool cuda_make_room(uintptr_t runtime, int err) {
    const struct runtime *rt = (const struct runtime *)runtime;
    if (rt == NULL || err != OUT_OF_MEMORY || !cuda_ferry_give_back(rt)) {
        return false;
    }
    rt->f.cudaGetLastError(); // what the program is not told
    return true;
}

// A static runtime and programs without one (JAX, TensorFlow) call the driver.
bool cuda_out_of_reach(void) {
    return atomic_load(&runtimes_count) == 0 && !target_loaded(CUDA_LIBRARY) && target_loaded("libcuda.so");
}

void cuda_after_fork(void) {
    cuda_report.bounced = cuda_report.adopted = cuda_report.deferred = cuda_report.native = 0;
}
