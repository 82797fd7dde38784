// SPDX-License-Identifier: MIT
//
// hook_torch: the checksum of torch.save. PyTorch writes its zip files by a copy of miniz inside libtorch_cpu, which
// sums up each tensor byte by byte, for longer than it takes to copy it. From 2.6 on that copy takes a checksum that
// its caller has, if a flag says so, and PyTorch calls it by its exported symbol: so we are its caller, and have one.
//
// The function is nobody's in libc, and several libraries of a process may have a miniz. Which one a caller would have
// reached without us is looked up once for each place that calls; whatever is not known to take the flag is called as
// it came.

#include "../core/log.h"
#include "crc.h"
#include "hook_inside.h"
#include "workers.h"

#include <dlfcn.h>
#include <string.h>

#define LEVEL       0x0fu
#define COMPRESSED  0x400u   // the buffer is
#define CRC_GIVEN   0x80000u // PyTorch's own flag. Set by the program: it wants none, and gives 0
#define LARGE       (64 * KIB)
#define TARGETS_MAX 8

typedef __typeof__(real.mz_zip_writer_add_mem_ex_v2) add_mem;

/** Where the calls from one place go. */
struct target {
    _Atomic uintptr_t caller; // stored last
    add_mem real;
    bool takes_crc;
};

static struct target targets[TARGETS_MAX];
static _Atomic uint32_t targets_count;

// Since there is the flag, the constructors of its writer take a bool (b), whether checksums are to be computed.
static const char *const constructors[] = {
    "_ZN6caffe29serialize19PyTorchStreamWriterC1ESt8functionIFmPKvmEEb",  // 2.6
    "_ZN6caffe29serialize19PyTorchStreamWriterC1ESt8functionIFmPKvmEEbm", // later, with an alignment
};

// A handle of the object that `address` is in, or NULL. Never given back: the addresses that we keep stay good.
static void *object_of(const void *address, Dl_info *info) {
    return dladdr(address, info) != 0 && info->dli_fname != NULL ? dlopen(info->dli_fname, RTLD_LAZY | RTLD_NOLOAD)
                                                                 : NULL;
}

// Is this the miniz of a PyTorch that has the flag?
static bool takes_crc(const void *function) {
    Dl_info object, other;
    void *handle = object_of(function, &object);
    for (size_t i = 0; handle != NULL && i < ARRAY_LEN(constructors); i++) {
        void *p = dlsym(handle, constructors[i]); // looks into the objects that it needs, too
        if (p != NULL && dladdr(p, &other) != 0 && other.dli_fbase == object.dli_fbase) {
            return true;
        }
    }
    return false;
}

// What the caller would have reached: the first in the order of loading, else what its own object has or needs (Python
// keeps what an extension loads to itself).
static void look_up(struct target *t, uintptr_t caller) {
    Dl_info object;
    void *p = dlsym(RTLD_NEXT, "mz_zip_writer_add_mem_ex_v2");
    if (p == NULL) {
        void *handle = object_of((void *)caller, &object);
        p = handle != NULL ? dlsym(handle, "mz_zip_writer_add_mem_ex_v2") : NULL;
    }
    memcpy(&t->real, &p, sizeof p);
    t->takes_crc = p != NULL && shim.config.crc == CRC_AUTO && takes_crc(p);
    dlerror(); // of ours
    log_debug("a zip writer is called: its checksums are %s", t->takes_crc ? "ours" : "left to it");
}

static const struct target *target_of(uintptr_t caller, struct target *spare) {
    uint32_t n = atomic_load(&targets_count);
    for (uint32_t i = 0; i < n && i < TARGETS_MAX; i++) {
        if (atomic_load_explicit(&targets[i].caller, memory_order_acquire) == caller) {
            return &targets[i];
        }
    }
    int saved = errno;
    n = atomic_fetch_add(&targets_count, 1); // two threads may look the same up: no harm
    struct target *t = n < TARGETS_MAX ? &targets[n] : spare;
    look_up(t, caller);
    atomic_store_explicit(&t->caller, caller, memory_order_release);
    errno = saved;
    return t;
}

static uint32_t checksum(const void *buf, size_t len) {
    int saved = errno;
    if (len >= WORKERS_MIN) {
        workers_there(guard_plain());
    }
    uint32_t crc = crc_of(buf, len);
    errno = saved;
#if FASTCKPT_BREAK == 8 // canary: a wrong checksum, which readers of zip files must notice
    crc ^= 1;
#endif
    return crc;
}

int hook_mz_zip_writer_add_mem_ex_v2(void *zip, const char *name, const void *buf, size_t len, const void *comment,
                                     uint16_t comment_len, unsigned flags, uint64_t full_len, uint32_t crc,
                                     time_t *when, const char *extra, unsigned extra_len, const char *central,
                                     unsigned central_len) {
    struct target spare = {0};
    const struct target *t = target_of((uintptr_t)__builtin_return_address(0), &spare);
    if (t->real == NULL) {
        return 0; // cannot be: the caller was linked to something
    }
    bool stored = (int)flags >= 0 && (flags & (LEVEL | COMPRESSED | CRC_GIVEN)) == 0;
    if (t->takes_crc && stored && buf != NULL && len >= LARGE &&
        atomic_load_explicit(&shim.ready, memory_order_relaxed)) {
        crc = checksum(buf, len);
        flags |= CRC_GIVEN;
    }
    return t->real(zip, name, buf, len, comment, comment_len, flags, full_len, crc, when, extra, extra_len, central,
                   central_len);
}
