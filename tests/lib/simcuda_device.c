// SPDX-License-Identifier: MIT
//
// Devices of the simulated CUDA runtime: how many, which one a thread uses, what they say of themselves. And kernels:
// what is launched takes its turn in the queue and computes nothing, but for PyTorch's fill, which is what a test has
// to change a tensor where it lies.

#include "tests/lib/simcuda_inside.h"

#include <dlfcn.h>
#include <stdio.h>

#define VERSION 13020

static __thread int current;

int sim_device(void) {
    return current;
}

static cudaError_t checked(int device) {
    return device >= 0 && device < (int)sim.devices ? cudaSuccess : cudaErrorInvalidDevice;
}

static cudaError_t use(int device) {
    cudaError_t e = checked(device);
    if (e == cudaSuccess) {
        current = device;
    }
    return e;
}

cudaError_t cudaGetDeviceCount(int *n) {
    *n = sim.devices;
    return RUN(cudaSuccess, "%u", sim.devices);
}

cudaError_t cudaGetDevice(int *device) {
    return RUN((*device = current, cudaSuccess), "%d", current);
}

cudaError_t cudaSetDevice(int device) {
    return RUN(use(device), "%d", device);
}

cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
    return RUN(checked(device), "%d %u %u", device, device_flags, flags);
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
    return RUN(cudaSuccess, "%u", flags);
}

cudaError_t cudaGetDeviceFlags(unsigned *flags) {
    return RUN((*flags = 0, cudaSuccess), "%d", 0);
}

/** Everything of the device is gone afterwards, but not that its context has failed. */
static cudaError_t reset(void) {
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = sim_wait(NULL, current);
    sim_captures_reset(current);
    sim_streams_reset(current);
    sim_events_reset(current);
    sim_memory_reset(current);
    pthread_mutex_unlock(&sim.lock);
    return e;
}

cudaError_t cudaDeviceReset(void) {
    return RUN(reset(), "%d", current);
}

cudaError_t cudaDriverGetVersion(int *version) {
    return RUN((*version = VERSION, cudaSuccess), "%d", VERSION);
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    return RUN((*version = VERSION, cudaSuccess), "%d", VERSION);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    least != NULL ? *least = 0 : 0;
    greatest != NULL ? *greatest = -5 : 0;
    return RUN(cudaSuccess, "%d", current);
}

/** Of the attributes those that somebody asks for; SIMCUDA_ATTR=99=0,... changes them. */
static cudaError_t attribute(int *value, enum cudaDeviceAttr attr, int device) {
    if (value == NULL || checked(device) != cudaSuccess) {
        return value == NULL ? cudaErrorInvalidValue : cudaErrorInvalidDevice;
    }
    for (const char *text = getenv("SIMCUDA_ATTR"); text != NULL && *text != 0; text += *text == ',') {
        char *end;
        unsigned long which = strtoul(text, &end, 10);
        long wanted = *end == '=' ? strtol(end + 1, &end, 10) : 0;
        if (which == attr) {
            *value = wanted;
            return cudaSuccess;
        }
        text = end + strcspn(end, ",");
    }
    switch (attr) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrMultiProcessorCount: *value = 16; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 200 << 10; break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrAsyncEngineCount: *value = 1; break;
    default: *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device) {
    return RUN(attribute(value, attr, device), "%d of %d is %d", (int)attr, device, value != NULL ? *value : 0);
}

static cudaError_t properties(struct cudaDeviceProp *p, int device) {
    if (checked(device) != cudaSuccess) {
        return cudaErrorInvalidDevice;
    }
    size_t free;
    memset(p, 0, sizeof *p);
    strcpy(p->name, "Simulated");
    pthread_mutex_lock(&sim.lock);
    sim_memory_info(device, &free, &p->totalGlobalMem);
    pthread_mutex_unlock(&sim.lock);
    p->major = 9;
    p->multiProcessorCount = 16;
    p->warpSize = 32;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = p->sharedMemPerMultiprocessor = 200 << 10;
    p->l2CacheSize = 32 << 20;
    p->unifiedAddressing = p->canMapHostMemory = p->hostRegisterSupported = p->managedMemory = 1;
    for (int i = 0; i < 3; i++) {
        p->maxThreadsDim[i] = i < 2 ? 1024 : 64;
        p->maxGridSize[i] = i < 1 ? 0x7fffffff : 65535;
    }
    p->textureAlignment = 512;
    p->asyncEngineCount = 1;
    p->pciBusID = device + 1;
    p->uuid.bytes[0] = 's';
    p->uuid.bytes[15] = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    return RUN(properties(p, device), "%d", device);
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int n, int device) {
    return RUN((snprintf(id, n, "0000:%02x:00.0", device + 1), checked(device)), "%d", device);
}

cudaError_t cudaDeviceCanAccessPeer(int *yes, int device, int peer) {
    return RUN((*yes = 0, checked(device)), "%d %d", device, peer);
}

cudaError_t cudaProfilerStart(void) {
    return RUN(cudaSuccess, "%d", 0);
}

cudaError_t cudaProfilerStop(void) {
    return RUN(cudaSuccess, "%d", 0);
}

/** The driver's functions are those of the libcuda.so.1 beside us, which are mostly not there. */
static cudaError_t entry_point(const char *symbol, void **fn, enum cudaDriverEntryPointQueryResult *result) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    *fn = driver != NULL ? dlsym(driver, symbol) : NULL;
    if (result != NULL) {
        *result = *fn != NULL ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    }
    return cudaSuccess;
}

PAIR(cudaGetDriverEntryPointByVersion, ptsz, (symbol, fn, version, flags, result), const char *symbol, void **fn,
     unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    return RUN_PAIR(entry_point(symbol, fn, result), "%s %u %llu %d", symbol, version, flags, own);
}

// ---------------------------------------------------------------------------------------------------- kernels

struct kernel {
    const void *host;
    const char *name;
    struct kernel *next;
};

#define BUCKETS 65536

static struct kernel *kernels[BUCKETS];

static struct kernel **bucket(const void *host) {
    return &kernels[((uintptr_t)host >> 4) % BUCKETS];
}

static const char *kernel_name(const void *host) {
    struct kernel *k = *bucket(host);
    while (k != NULL && k->host != host) {
        k = k->next;
    }
    return k != NULL ? k->name : "?";
}

void **__cudaRegisterFatBinary(void *binary);
void **__cudaRegisterFatBinary(void *binary) {
    return binary;
}

void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaRegisterFatBinaryEnd(void **handle) {
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle);
void __cudaUnregisterFatBinary(void **handle) {
    (void)handle;
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int e, size_t n, int c, int g);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int e, size_t n, int c, int g) {
    (void)handle, (void)host, (void)device, (void)name, (void)e, (void)n, (void)c, (void)g;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, ...);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, ...) {
    (void)handle, (void)device;
    struct kernel *k = malloc(sizeof *k);
    pthread_mutex_lock(&sim.lock);
    *k = (struct kernel){host, name, *bucket(host)};
    *bucket(host) = k;
    pthread_mutex_unlock(&sim.lock);
}

struct configuration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};

static __thread struct configuration pushed[8];
static __thread unsigned n_pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    if (n_pushed == sizeof pushed / sizeof *pushed) {
        return 1;
    }
    pushed[n_pushed++] = (struct configuration){grid, block, shared, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    if (n_pushed == 0) {
        return cudaErrorUnknown;
    }
    struct configuration *c = &pushed[--n_pushed];
    *grid = c->grid;
    *block = c->block;
    *shared = c->shared;
    *(cudaStream_t *)stream = c->stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    *kernel = (cudaKernel_t)host;
    return cudaSuccess;
}

/** The size of what PyTorch's fill writes at a time, by its type as mangled; 0: it is another kernel. */
static size_t fill_unit(const char *name) {
    const char *functor = strstr(name, "FillFunctorI");
    if (functor == NULL || strstr(name, "vectorized_elementwise_kernel") == NULL) {
        return 0;
    }
    switch (functor[strlen("FillFunctorI")]) {
    case 'a': case 'b': case 'h': return 1;
    case 's': case 't': return 2;
    case 'f': case 'i': case 'j': return 4;
    case 'd': case 'l': case 'm': return 8;
    default: return strstr(functor, "BFloat16") == functor + 18 || strstr(functor, "4Half") == functor + 17 ? 2 : 0;
    }
}

static cudaError_t launch(const void *fn, void **args, cudaStream_t handle, bool own) {
    struct sim_stream *s = NULL;
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = sim_stream_for_work(handle, own, &s);
    struct sim_op op = {.kind = LAUNCH};
    size_t unit = fill_unit(kernel_name(fn));
    if (e == cudaSuccess && unit != 0) { // (int n, the value, the pointer)
        enum sim_place place;
        int device;
        op.unit = unit;
        op.width = *(int *)args[0] * unit;
        op.height = 1;
        memcpy(op.value, args[1], unit);
        e = sim_where(*(char **)args[2], op.width, &place, &op.dst, &device);
    }
    if (e == cudaSuccess) {
        e = sim_submit(s, &op);
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

#define LAUNCHED(fn, args, stream)                                                                                     \
    RUN_PAIR(launch(fn, args, stream, own), "%.100s %s", kernel_name(fn), sim_stream_name(stream, own))

PAIR(cudaLaunchKernel, ptsz, (fn, grid, block, args, shared, stream), const void *fn, dim3 grid, dim3 block,
     void **args, size_t shared, cudaStream_t stream) {
    (void)grid, (void)block, (void)shared;
    return LAUNCHED(fn, args, stream);
}

PAIR(__cudaLaunchKernel, ptsz, (fn, grid, block, args, shared, stream), cudaKernel_t fn, dim3 grid, dim3 block,
     void **args, size_t shared, cudaStream_t stream) {
    (void)grid, (void)block, (void)shared;
    return LAUNCHED(fn, args, stream);
}

PAIR(cudaLaunchKernelExC, ptsz, (config, fn, args), const cudaLaunchConfig_t *config, const void *fn, void **args) {
    return LAUNCHED(fn, args, config->stream);
}

cudaError_t cudaFuncSetAttribute(const void *fn, enum cudaFuncAttribute attr, int value) {
    return RUN(cudaSuccess, "%.100s %d %d", kernel_name(fn), (int)attr, value);
}

static cudaError_t function_attributes(struct cudaFuncAttributes *a) {
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 32;
    a->ptxVersion = a->binaryVersion = 90;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *fn) {
    return RUN(function_attributes(a), "%.100s", kernel_name(fn));
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *fn, int block, size_t shared) {
    return RUN((*n = 2, cudaSuccess), "%.100s %d %zu", kernel_name(fn), block, shared);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *fn, int block, size_t shared,
                                                                   unsigned flags) {
    return RUN((*n = 2, cudaSuccess), "%.100s %d %zu %u", kernel_name(fn), block, shared, flags);
}
