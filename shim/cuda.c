// SPDX-License-Identifier: MIT
//
// cuda: see cuda.h. What the runtime says about the pointers decides whether a copy is taken. Then: an event on the
// caller's stream; a stream of our own waits for it and brings the slices into pinned slots, a few ahead; each is
// copied to the destination while the next ones travel. Everything else is left to the runtime, as it came.
//
// The runtime is never linked: its functions come from the object in which the caller's own was found. Of its types
// only what their ABI fixes is used, so that the library is the same whether its header was there or not.

#include "cuda.h"

#include "../core/log.h"
#include "../core/os.h"
#include "../core/staging.h"
#include "guard.h"
#include "target.h"
#include "workers.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>

// ---- The runtime's ABI

enum {
    SUCCESS = 0,
    RESOURCE_HANDLE = 400, // cudaErrorInvalidResourceHandle
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

#if __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>
#if CUDART_VERSION >= 11000
#define SAME(a, b) _Static_assert((int)(a) == (int)(b), #b)
SAME(SUCCESS, cudaSuccess);
SAME(RESOURCE_HANDLE, cudaErrorInvalidResourceHandle);
SAME(CUDA_NO_RUNTIME, cudaErrorSharedObjectSymbolNotFound);
SAME(DEVICE_TO_HOST, cudaMemcpyDeviceToHost);
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

static const char *const names[] = {
#define NAME(name, params) #name,
    FUNCTIONS(NAME)
};
_Static_assert(sizeof(struct functions) == ARRAY_LEN(names) * sizeof(void *), "one pointer a name");

// ---- Runtimes

#define RUNTIMES_MAX 8 // there are two where a process has two versions

struct runtime {
    void *_Atomic base; // of its object; stored last
    const void *object; // an address in it
    _Atomic int version;
    struct functions f;
};

static struct runtime runtimes[RUNTIMES_MAX];
static _Atomic uint32_t runtimes_count;
static _Atomic bool off; // for this process, from some failure on

struct cuda_report cuda_report;

static void turn_off(const char *what, int err) {
    if (!atomic_exchange(&off, true)) {
        log_info("copies from CUDA devices are left to the CUDA runtime from here on: %s: error %d", what, err);
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

// What a failed call of ours has left behind must not meet the program's next question.
static int refused(const struct runtime *rt) {
    rt->f.cudaGetLastError();
    return -1;
}

// ---- Lanes

#define SLICE       (4 * MIB)
#define SLICE_UNIT  (64 * KIB)
#define SLOTS       4
#define LANE_BYTES  (SLOTS * SLICE)
#define LANES_MAX   8
#define DEVICES_MAX 64

/**
 * What one copy at a time needs: a stream, slots, an event a slot. Another copy beside it has a lane of its own: on one
 * stream it would wait for what the first one waits for, and that may be waiting for the second. Made when needed, and
 * never given back: at the end of a process no CUDA call is made, the driver does it all.
 */
struct lane {
    _Atomic uint32_t busy;
    struct runtime *_Atomic rt; // whose it is, NULL: not made yet. Stored once, behind `device`
    int device;
    uint32_t resets; // of the device, when it was made
    bool made;
    void *stream, *begun;
    void *done[SLOTS];
    char *slots;
};

static struct lane lanes[LANES_MAX];
static _Atomic uint32_t resets[DEVICES_MAX];
static _Atomic uint8_t page_tables[DEVICES_MAX]; // 0: not asked yet, 1: the device has its own, 2: it uses the host's

// Resident before they are registered: then the driver only looks the pages up. A fork child has none of them, so that
// nothing moves the pages of the parent, which the device writes to.
static char *make_slots(void) {
    int huge;
    if (staging_room() < 2 * LANE_BYTES) {
        return NULL;
    }
    char *p = staging_window(LANE_BYTES);
    if (p == NULL) {
        return NULL;
    }
    void *q = os_mmap(p, LANE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (os_is_err(q) || os_madvise(p, LANE_BYTES, MADV_DONTFORK) < 0 || staging_populate(p, LANE_BYTES, &huge) < 0) {
        os_munmap(p, LANE_BYTES);
        return NULL;
    }
    os_madvise(p, LANE_BYTES, MADV_DONTDUMP);
    return p;
}

// On the current device. False: it is off now.
static bool make(struct lane *l, const struct runtime *rt) {
    if (l->slots == NULL && (l->slots = make_slots()) == NULL) {
        turn_off("no memory for slots", 0);
        return false;
    }
    const char *what = "cudaHostRegister";
    int r = rt->f.cudaHostRegister(l->slots, LANE_BYTES, REGISTER_PORTABLE);
    if (r == SUCCESS) {
        what = "cudaStreamCreateWithFlags";
        r = rt->f.cudaStreamCreateWithFlags(&l->stream, STREAM_NON_BLOCKING);
    }
    for (int i = 0; r == SUCCESS && i <= SLOTS; i++) {
        what = "cudaEventCreateWithFlags";
        r = rt->f.cudaEventCreateWithFlags(i < SLOTS ? &l->done[i] : &l->begun, EVENT_NO_TIMING);
    }
    if (r != SUCCESS) {
        turn_off(what, r);
        return false;
    }
    target_keep(rt->object);
    return true;
}

static bool take(struct lane *l, struct runtime *rt, int device) {
    if (atomic_exchange_explicit(&l->busy, 1, memory_order_acquire) != 0) {
        return false;
    }
    if (atomic_load(&l->rt) == NULL) {
        l->device = device;
        atomic_store(&l->rt, rt);
    }
    if (atomic_load(&l->rt) == rt && l->device == device) {
        uint32_t now = atomic_load(&resets[device]);
        l->made = l->made && l->resets == now; // what was there went with the reset, without a call of ours
        l->resets = now;
        return true;
    }
    atomic_store_explicit(&l->busy, 0, memory_order_release);
    return false;
}

static void leave(struct lane *l) {
    atomic_store_explicit(&l->busy, 0, memory_order_release);
}

// One that is there, else a new one. NULL: none is free; then two copies beside each other are as fast as ever.
static struct lane *take_lane(struct runtime *rt, int device) {
    for (int fresh = 0; fresh < 2; fresh++) {
        for (size_t i = 0; i < LANES_MAX; i++) {
            struct runtime *its = atomic_load(&lanes[i].rt);
            if ((fresh ? its == NULL : its == rt && lanes[i].device == device) && take(&lanes[i], rt, device)) {
                lanes[i].made = lanes[i].made || make(&lanes[i], rt);
                if (lanes[i].made) {
                    return &lanes[i];
                }
                leave(&lanes[i]);
                return NULL;
            }
        }
    }
    return NULL;
}

// ---- One copy

struct piece {
    char *dst;
    const char *src;
    size_t len;
};

static void copy_block(void *arg, uint32_t i) {
    const struct piece *p = arg;
    size_t at = (size_t)i * WORKERS_BLOCK;
    memcpy(p->dst + at, p->src + at, min_u64(p->len - at, WORKERS_BLOCK));
}

// By several threads, since most of it is the first touch of a fresh buffer.
static void copy_out(char *dst, const char *slot, size_t len) {
    struct piece p = {dst, slot, len};
    workers_run(copy_block, &p, (uint32_t)((len + WORKERS_BLOCK - 1) / WORKERS_BLOCK));
}

/** The slices of a copy. */
struct slices {
    const struct cuda_copy *c;
    size_t step;
    uint32_t n;
};

static size_t slice_len(const struct slices *s, uint32_t i) {
    return min_u64(s->c->len - i * s->step, s->step);
}

static int send_slice(const struct runtime *rt, const struct lane *l, const struct slices *s, uint32_t i) {
    char *slot = l->slots + i % SLOTS * SLICE;
    int r = rt->f.cudaMemcpyAsync(slot, s->c->src + i * s->step, slice_len(s, i), DEVICE_TO_HOST, l->stream);
    return r != SUCCESS ? r : rt->f.cudaEventRecord(l->done[i % SLOTS], l->stream);
}

// Until all that was sent has come to its end, the slots may still be written to.
static int give_up(const struct runtime *rt, const struct lane *l, int r) {
    int now = rt->f.cudaStreamSynchronize(l->stream);
    if (now != SUCCESS) {
        turn_off("cudaStreamSynchronize", now);
    }
    return r;
}

// A slice that has failed on its way is the device's word on the copy, or on what ran before it: the program would have
// had it too. What could not be sent is for the runtime's own function to say.
static int pump(const struct runtime *rt, const struct lane *l, const struct slices *s) {
    uint32_t sent = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        int r = SUCCESS;
        for (; r == SUCCESS && sent < s->n && sent < i + SLOTS; sent++) {
            r = send_slice(rt, l, s, sent);
        }
        if (r != SUCCESS) {
            give_up(rt, l, r);
            return refused(rt);
        }
#if FASTCKPT_BREAK != 10 // canary: a slot is copied before the slice is in it
        r = rt->f.cudaEventSynchronize(l->done[i % SLOTS]);
#endif
        if (r != SUCCESS) {
            return give_up(rt, l, r);
        }
        copy_out(s->c->dst + i * s->step, l->slots + i % SLOTS * SLICE, slice_len(s, i));
    }
    return SUCCESS;
}

static int bounce(struct runtime *rt, int device, const struct cuda_copy *c) {
    struct lane *l = take_lane(rt, device);
    if (l == NULL) {
        return refused(rt);
    }
    int r = rt->f.cudaEventRecord(l->begun, c->stream);
    r = r != SUCCESS ? r : rt->f.cudaStreamWaitEvent(l->stream, l->begun, 0);
    if (r != SUCCESS) {
        if (r == RESOURCE_HANDLE) { // another context than the device's own: not ours to find out which
            turn_off("a stream of another context", r);
        }
        leave(l);
        return refused(rt);
    }
    // Small copies in several slices too: the first is on its way out while the last comes in.
    size_t step = min_u64(SLICE, align_up((c->len + SLOTS - 1) / SLOTS, SLICE_UNIT));
    struct slices s = {c, step, (uint32_t)((c->len + step - 1) / step)};
    if (c->len >= WORKERS_MIN) {
        workers_there(guard_plain());
    }
    r = pump(rt, l, &s);
    leave(l);
    return r;
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
        return refused(rt);
    }
    return bounce(rt, device, c);
}

// A stream that is being captured takes no part; asked of the legacy stream, a capture beside it is an error.
static bool captured(const struct runtime *rt, void *stream) {
    int status = CAPTURE_NONE;
    if (rt->f.cudaStreamIsCapturing(stream, &status) != SUCCESS) {
        refused(rt);
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
            return refused(rt);
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
        return refused(rt);
    }
    int r = copy_if_ours(rt, c);
    if (rt->f.cudaThreadExchangeStreamCaptureMode(&mode) != SUCCESS) {
        refused(rt);
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
    if (r == SUCCESS) {
        atomic_fetch_add(&cuda_report.bounced, c->len);
    } else if (r < 0 && c->kind == DEVICE_TO_HOST) {
        atomic_fetch_add(&cuda_report.native, c->len);
    }
    return r;
}

void cuda_device_reset(uintptr_t runtime) {
    const struct runtime *rt = (const struct runtime *)runtime;
    int device;
    if (rt == NULL || !atomic_load_explicit(&shim.ready, memory_order_acquire) || shim.forked || guard_foreign()) {
        return;
    }
    bool any = false;
    for (size_t i = 0; i < LANES_MAX; i++) {
        any = any || atomic_load(&lanes[i].rt) != NULL;
    }
    if (any && rt->f.cudaGetDevice(&device) == SUCCESS && device >= 0 && device < DEVICES_MAX) {
#if FASTCKPT_BREAK != 13 // canary: a reset is not noticed
        atomic_fetch_add(&resets[device], 1);
#endif
    }
}

// A static runtime and programs without one (JAX, TensorFlow) call the driver.
bool cuda_out_of_reach(void) {
    return atomic_load(&runtimes_count) == 0 && !target_loaded(CUDA_LIBRARY) && target_loaded("libcuda.so");
}

void cuda_after_fork(void) {
    cuda_report.bounced = cuda_report.native = 0;
}
