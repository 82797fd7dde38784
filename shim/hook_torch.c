// SPDX-License-Identifier: MIT
//
// hook_torch: the checksum of torch.save. PyTorch writes its zip files by a copy of miniz inside libtorch_cpu, which
// sums up each tensor byte by byte, for longer than it takes to copy it. From 2.6 on that copy takes a checksum that
// its caller has, if a flag says so, and PyTorch calls it by its exported symbol: so we are its caller, and have one.
//
// Whatever is not known to take the flag is called as it came.

#include "../core/log.h"
#include "adopt.h"
#include "crc.h"
#include "hook_inside.h"
#include "target.h"
#include "workers.h"

#include <dlfcn.h>
#include <string.h>

#define LEVEL       0x0fu
#define COMPRESSED  0x400u   // the buffer is
#define CRC_GIVEN   0x80000u // PyTorch's own flag. Set by the program: it wants none, and gives 0
#define LARGE       (64 * KIB)

typedef __typeof__(real.mz_zip_writer_add_mem_ex_v2) add_mem;

// Since there is the flag, the constructors of its writer take a bool (b), whether checksums are to be computed.
static const char *const constructors[] = {
    "_ZN6caffe29serialize19PyTorchStreamWriterC1ESt8functionIFmPKvmEEb",  // 2.6
    "_ZN6caffe29serialize19PyTorchStreamWriterC1ESt8functionIFmPKvmEEbm", // later, with an alignment
};

// Is this the miniz of a PyTorch that has the flag?
static bool takes_crc(const void *function) {
    Dl_info object, other;
    void *handle = dladdr(function, &object) != 0 ? dlopen(object.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    bool takes = false;
    for (size_t i = 0; handle != NULL && i < ARRAY_LEN(constructors); i++) {
        void *p = dlsym(handle, constructors[i]); // looks into the objects that it needs, too
        takes |= p != NULL && dladdr(p, &other) != 0 && other.dli_fbase == object.dli_fbase;
    }
    if (handle != NULL) {
        dlclose(handle);
    }
    return takes;
}

static uintptr_t look_at(void *function) {
    bool takes = shim.config.crc == CRC_AUTO && takes_crc(function);
    log_debug("a zip writer is called: its checksums are %s", takes ? "ours" : "left to it");
    return takes;
}

static const struct target_symbol symbol = {"mz_zip_writer_add_mem_ex_v2", NULL, look_at};

static uint32_t checksum(const void *buf, size_t len) {
    int saved = errno;
    if (len >= WORKERS_MIN) {
        workers_there(guard_plain());
    }
    uint32_t crc = 0;
    for (size_t done = 0, n; done < len; done += n) { // what has just come from a device is read where it came to
        struct range *user;
        const char *p = adopt_see((const char *)buf + done, len - done, &n, &user);
        uint32_t part = crc_of(p, n);
        crc = done == 0 ? part : crc_join(crc, part, crc_shift(n));
        adopt_seen(user);
    }
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
    struct target t = target_of(&symbol, (uintptr_t)__builtin_return_address(0));
    if (t.function == NULL) {
        return 0; // cannot be: the caller was linked to something
    }
    add_mem next;
    memcpy(&next, &t.function, sizeof next);
    bool stored = (int)flags >= 0 && (flags & (LEVEL | COMPRESSED | CRC_GIVEN)) == 0;
    if (t.more && stored && buf != NULL && len >= LARGE &&
        atomic_load_explicit(&shim.ready, memory_order_relaxed)) {
        crc = checksum(buf, len);
        flags |= CRC_GIVEN;
    }
    return next(zip, name, buf, len, comment, comment_len, flags, full_len, crc, when, extra, extra_len, central,
                central_len);
}
