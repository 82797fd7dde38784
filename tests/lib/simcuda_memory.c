// SPDX-License-Identifier: MIT
//
// Memory of the simulated CUDA runtime: that of devices, which the host may not touch and the engine has mapped
// elsewhere, managed memory, and what the host has pinned: exact ranges, so that a copy over the edge of one is found.

#include "tests/lib/simcuda_inside.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGN     512ul
#define MIB       (1ul << 20)
#define ROUND(n)  (((n) + ALIGN - 1) / ALIGN * ALIGN)

struct memory { // of a device
    char *host, *engine;
    size_t size, used;
    struct sim_range *first; // by address
};

static struct memory memories[SIM_DEVICES];
static struct sim_range *pinned; // and managed
static size_t pinned_bytes;

static size_t limit(const char *variable, size_t mib) {
    const char *text = getenv(variable);
    return (text != NULL ? strtoul(text, NULL, 0) : mib) * MIB;
}

/** The memory of a device; NULL if there is none to be had. */
static struct memory *memory_of(int device) {
    struct memory *m = &memories[device];
    if (m->host == NULL) {
        m->size = limit("SIMCUDA_MEMORY", 4096);
        int fd = memfd_create("simcuda", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, m->size) < 0) {
            return NULL;
        }
        void *host = mmap(NULL, m->size, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        void *engine = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        close(fd);
        if (host == MAP_FAILED || engine == MAP_FAILED) {
            return NULL;
        }
        madvise(engine, m->size, MADV_DONTFORK);
        m->host = host;
        m->engine = engine;
    }
    return m;
}

static struct sim_range *range(enum sim_place place, char *base, char *engine, size_t size) {
    struct sim_range *r = calloc(1, sizeof *r);
    *r = (struct sim_range){.place = place, .base = base, .engine = engine, .size = size, .device = sim_device()};
    return r;
}

static cudaError_t device_take(void **p, size_t n) {
    struct memory *m = memory_of(sim_device());
    if (m == NULL) {
        return cudaErrorMemoryAllocation;
    }
    char *at = m->host;
    struct sim_range **link = &m->first;
    while (*link != NULL && (size_t)((*link)->base - at) < ROUND(n)) {
        at = (*link)->base + ROUND((*link)->size);
        link = &(*link)->next;
    }
    if (m->size - (at - m->host) < n) {
        return cudaErrorMemoryAllocation;
    }
    struct sim_range *r = range(DEVICE, at, m->engine + (at - m->host), n);
    r->next = *link;
    *link = r;
    m->used += ROUND(n);
    *p = at;
    return cudaSuccess;
}

static void remember(struct sim_range *r) {
    r->next = pinned;
    pinned = r;
    if (r->place == PINNED) {
        pinned_bytes += r->size;
    }
}

/** Are all pages of it mapped, and, if `resident`, there? */
static bool mapped(const char *p, size_t n, bool resident) {
    uintptr_t begin = (uintptr_t)p / 4096 * 4096, end = ((uintptr_t)p + n + 4095) / 4096 * 4096;
    size_t count = (end - begin) / 4096;
    unsigned char *pages = malloc(count);
    bool yes = mincore((void *)begin, end - begin, pages) == 0;
    for (size_t i = 0; yes && resident && i < count; i++) {
        yes = (pages[i] & 1) != 0;
    }
    free(pages);
    return yes;
}

bool sim_pages_gone(const char *p, size_t n) {
    return !mapped(p, n, true);
}

/** Pinned pages are there. What cannot be written is left as it is. */
static void populate(const char *p, size_t n) {
    uintptr_t begin = (uintptr_t)p / 4096 * 4096, end = ((uintptr_t)p + n + 4095) / 4096 * 4096;
    madvise((void *)begin, end - begin, MADV_POPULATE_WRITE);
}

static bool too_much(size_t n) {
    size_t most = limit("SIMCUDA_PINNED", 0);
    return most != 0 && pinned_bytes + n > most;
}

cudaError_t sim_memory_take(void **p, size_t n, enum sim_place place) {
    if (p == NULL) {
        return cudaErrorInvalidValue;
    }
    if (n == 0) {
        *p = NULL;
        return place == MANAGED ? cudaErrorInvalidValue : cudaSuccess;
    }
    if (place == DEVICE) {
        return device_take(p, n);
    }
    void *base = too_much(n) ? MAP_FAILED : mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        return cudaErrorMemoryAllocation;
    }
    struct sim_range *r = range(place, base, base, n);
    r->allocated = true;
    remember(r);
    populate(base, n);
    *p = base;
    return cudaSuccess;
}

static void forget(struct sim_range **link) {
    struct sim_range *r = *link;
    *link = r->next;
    if (r->place == PINNED) {
        pinned_bytes -= r->size;
    }
    if (r->allocated) {
        munmap(r->base, r->size);
    }
    free(r);
}

static void device_give(struct memory *m, struct sim_range **link) {
    struct sim_range *r = *link;
    // Whole pages only: what lies beside it may be in use.
    uintptr_t begin = ((uintptr_t)r->engine + 4095) / 4096 * 4096, end = ((uintptr_t)r->engine + r->size) / 4096 * 4096;
    if (end > begin) {
        madvise((void *)begin, end - begin, MADV_REMOVE);
    }
    m->used -= ROUND(r->size);
    *link = r->next;
    free(r);
}

cudaError_t sim_memory_free(int device, void *p) {
    for (int i = 0; i < SIM_DEVICES; i++) {
        int d = (device + i) % SIM_DEVICES;
        for (struct sim_range **link = &memories[d].first; *link != NULL; link = &(*link)->next) {
            if ((*link)->base == p) {
                device_give(&memories[d], link);
                return cudaSuccess;
            }
        }
    }
    for (struct sim_range **link = &pinned; *link != NULL; link = &(*link)->next) {
        if ((*link)->base == p && (*link)->place == MANAGED) {
            forget(link);
            return cudaSuccess;
        }
    }
    return cudaErrorInvalidValue;
}

void sim_memory_reset(int device) {
    while (memories[device].first != NULL) {
        device_give(&memories[device], &memories[device].first);
    }
    for (struct sim_range **link = &pinned; *link != NULL;) {
        if ((*link)->device == device) {
            forget(link);
        } else {
            link = &(*link)->next;
        }
    }
}

static struct sim_range *range_at(const void *p) {
    const char *c = p;
    for (int d = 0; d < SIM_DEVICES; d++) {
        struct memory *m = &memories[d];
        if (m->host != NULL && c >= m->host && c < m->host + m->size) {
            for (struct sim_range *r = m->first; r != NULL; r = r->next) {
                if (c >= r->base && c < r->base + r->size) {
                    return r;
                }
            }
        }
    }
    for (struct sim_range *r = pinned; r != NULL; r = r->next) {
        if (c >= r->base && c < r->base + r->size) {
            return r;
        }
    }
    return NULL;
}

static bool device_address(const char *p) {
    for (int d = 0; d < SIM_DEVICES; d++) {
        if (memories[d].host != NULL && p >= memories[d].host && p < memories[d].host + memories[d].size) {
            return true;
        }
    }
    return false;
}

static bool overlaps(const char *p, size_t n) {
    for (struct sim_range *r = pinned; r != NULL; r = r->next) {
        if (p < r->base + r->size && r->base < p + n) {
            return true;
        }
    }
    return false;
}

cudaError_t sim_where(const void *p, size_t n, enum sim_place *place, char **engine, int *device) {
    const char *c = p;
    struct sim_range *r = range_at(p);
    if (r == NULL) {
        *place = PAGEABLE;
        *engine = (char *)p;
        return c == NULL || device_address(c) || overlaps(c, n) ? cudaErrorInvalidValue : cudaSuccess;
    }
    *place = r->place;
    *engine = r->engine + (c - r->base);
    *device = r->device;
    return (size_t)(r->base + r->size - c) < n ? cudaErrorInvalidValue : cudaSuccess;
}

// ---------------------------------------------------------------------------------------------------- devices' memory

static cudaError_t take(void **p, size_t n, enum sim_place place) {
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = sim_unsafe();
    if (e == cudaSuccess) {
        e = sim_memory_take(p, n, place);
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

cudaError_t cudaMalloc(void **p, size_t n) {
    return RUN(take(p, n, DEVICE), "%p %zu", p != NULL ? *p : NULL, n);
}

cudaError_t cudaMallocManaged(void **p, size_t n, unsigned flags) {
    return RUN(take(p, n, MANAGED), "%p %zu flags=%u", p != NULL ? *p : NULL, n, flags);
}

static cudaError_t give(void *p) {
    if (p == NULL) {
        return cudaSuccess;
    }
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = sim_unsafe();
    if (e == cudaSuccess) {
        e = sim_wait(NULL, sim_device());
    }
    if (e == cudaSuccess) {
        e = sim_memory_free(sim_device(), p);
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

cudaError_t cudaFree(void *p) {
    return RUN(give(p), "%p", p);
}

void sim_memory_info(int device, size_t *free, size_t *total) {
    struct memory *m = memory_of(device);
    *total = m != NULL ? m->size : 0;
    *free = *total - (m != NULL ? m->used : 0);
}

static cudaError_t info(size_t *free, size_t *total) {
    pthread_mutex_lock(&sim.lock);
    sim_memory_info(sim_device(), free, total);
    pthread_mutex_unlock(&sim.lock);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    return RUN(info(free, total), "%zu of %zu", *free, *total);
}

static cudaError_t take_in_order(void **p, size_t n, cudaStream_t handle, bool own) {
    pthread_mutex_lock(&sim.lock);
    struct sim_stream *s;
    cudaError_t e = sim_stream_for_work(handle, own, &s);
    if (e == cudaSuccess && s->capture != NULL) {
        e = sim_spoil(s, cudaErrorStreamCaptureUnsupported); // a node of its own kind: not here
    }
    if (e == cudaSuccess) {
        e = sim_memory_take(p, n, DEVICE);
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

PAIR(cudaMallocAsync, ptsz, (p, n, stream), void **p, size_t n, cudaStream_t stream) {
    return RUN_PAIR(take_in_order(p, n, stream, own), "%p %zu %s", p != NULL ? *p : NULL, n,
                    sim_stream_name(stream, own));
}

static cudaError_t give_in_order(void *p, cudaStream_t handle, bool own) {
    pthread_mutex_lock(&sim.lock);
    struct sim_stream *s;
    cudaError_t e = sim_stream_for_work(handle, own, &s);
    if (e == cudaSuccess && p != NULL) {
        struct sim_range *r = range_at(p);
        e = r == NULL || r->base != p || r->place != DEVICE ? cudaErrorInvalidValue : cudaSuccess;
    }
    if (e == cudaSuccess && p != NULL) {
        e = sim_submit(s, &(struct sim_op){.kind = RELEASE, .data = p});
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

PAIR(cudaFreeAsync, ptsz, (p, stream), void *p, cudaStream_t stream) {
    return RUN_PAIR(give_in_order(p, stream, own), "%p %s", p, sim_stream_name(stream, own));
}

// ---------------------------------------------------------------------------------------------------- pinned memory

static cudaError_t pin(void *p, size_t n, unsigned flags) {
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = sim_unsafe();
    if (e != cudaSuccess) {
    } else if (p == NULL || n == 0 || n > (size_t)-1 / 2 || flags > 15 || device_address(p) || !mapped(p, n, false)) {
        e = cudaErrorInvalidValue;
    } else if (overlaps(p, n)) {
        e = cudaErrorHostMemoryAlreadyRegistered;
    } else if (too_much(n)) {
        e = cudaErrorMemoryAllocation;
    } else {
        struct sim_range *r = range(PINNED, p, p, n);
        r->flags = flags;
        remember(r);
        populate(p, n);
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

cudaError_t cudaHostRegister(void *p, size_t n, unsigned flags) {
    return RUN(pin(p, n, flags), "%p %zu flags=%u", p, n, flags);
}

/** `allocated`: what cudaHostAlloc gave, else what cudaHostRegister did. */
static cudaError_t unpin(void *p, bool allocated) {
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = sim_unsafe();
    if (e == cudaSuccess) {
        e = sim_wait(NULL, sim_device());
    }
    if (e == cudaSuccess) {
        struct sim_range **link = &pinned;
        while (*link != NULL && ((*link)->base != p || (*link)->place != PINNED || (*link)->allocated != allocated)) {
            link = &(*link)->next;
        }
        if (*link != NULL) {
            forget(link);
        } else {
            e = allocated ? cudaErrorInvalidValue : cudaErrorHostMemoryNotRegistered;
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

cudaError_t cudaHostUnregister(void *p) {
    return RUN(unpin(p, false), "%p", p);
}

cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) {
    return RUN(take(p, n, PINNED), "%p %zu flags=%u", p != NULL ? *p : NULL, n, flags);
}

cudaError_t cudaMallocHost(void **p, size_t n) {
    return RUN(take(p, n, PINNED), "%p %zu", p != NULL ? *p : NULL, n);
}

cudaError_t cudaFreeHost(void *p) {
    return RUN(p == NULL ? cudaSuccess : unpin(p, true), "%p", p);
}

static cudaError_t pinned_at(void *p, void **device, unsigned *flags) {
    pthread_mutex_lock(&sim.lock);
    struct sim_range *r = range_at(p);
    bool yes = r != NULL && r->place == PINNED;
    if (yes && device != NULL) {
        *device = p;
    }
    if (yes && flags != NULL) {
        *flags = r->flags;
    }
    pthread_mutex_unlock(&sim.lock);
    return yes ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *p, unsigned flags) {
    return RUN(flags != 0 ? cudaErrorInvalidValue : pinned_at(p, device, NULL), "%p", p);
}

cudaError_t cudaHostGetFlags(unsigned *flags, void *p) {
    return RUN(pinned_at(p, NULL, flags), "%p", p);
}

static cudaError_t attributes_of(struct cudaPointerAttributes *a, const void *p) {
    if (a == NULL) {
        return cudaErrorInvalidValue;
    }
    memset(a, 0, sizeof *a);
    a->device = cudaInvalidDeviceId;
    a->type = cudaMemoryTypeUnregistered;
    pthread_mutex_lock(&sim.lock);
    struct sim_range *r = range_at(p);
    if (r != NULL) {
        a->device = r->device;
        a->devicePointer = (void *)p;
        a->hostPointer = r->place == DEVICE ? NULL : (void *)p;
        a->type = r->place == DEVICE ? cudaMemoryTypeDevice : r->place == PINNED ? cudaMemoryTypeHost
                                                                                 : cudaMemoryTypeManaged;
    }
    pthread_mutex_unlock(&sim.lock);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
    return RUN(attributes_of(a, p), "%p type=%d", p, a != NULL ? (int)a->type : -1);
}
