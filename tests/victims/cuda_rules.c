// SPDX-License-Identifier: MIT
//
// cuda_rules NAME: asks a CUDA runtime for its rules about memory, copies and the order of streams. It would say the
// same of NVIDIA's, but for those that it names by the simulated one's limits.

#include "cuda_rules.h"

#include <sys/mman.h>

static char *device; // 8 MiB of bytes that are all different from their neighbours
static char *host;

static void fill(void) {
    host = malloc(8 * MIB);
    for (size_t i = 0; i < 8 * MIB; i++) {
        host[i] = i * 7 + i / 251;
    }
    OK(cudaMalloc((void **)&device, 8 * MIB));
    OK(cudaMemcpy(device, host, 8 * MIB, cudaMemcpyHostToDevice));
}

static void *map(size_t n) {
    return mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// ---------------------------------------------------------------------------------------------------- memory

static void bytes(void) {
    fill();
    char *other, *back = malloc(8 * MIB);
    OK(cudaMalloc((void **)&other, 8 * MIB));
    OK(cudaMemcpyAsync(other, device, 8 * MIB, cudaMemcpyDeviceToDevice, 0));
    OK(cudaMemsetAsync(other + 100, 9, 1000, 0));
    OK(cudaMemcpyAsync(back, other, 8 * MIB, cudaMemcpyDefault, 0)); // pageable: there when it returns
    TRUE(memcmp(back, host, 100) == 0 && memcmp(back + 1100, host + 1100, 8 * MIB - 1100) == 0);
    TRUE(back[100] == 9 && back[1099] == 9);
    OK(cudaMemcpy2D(back, 10, device, 4096, 10, 100, cudaMemcpyDeviceToHost));
    for (int row = 0; row < 100; row++) {
        TRUE(memcmp(back + row * 10, host + row * 4096, 10) == 0);
    }
    MUST(cudaMemcpy2D(back, 9, device, 4096, 10, 100, cudaMemcpyDeviceToHost), cudaErrorInvalidPitchValue);
    OK(cudaMemcpy(host, device, 0, cudaMemcpyDeviceToHost));
}

static void ranges(void) {
    fill();
    MUST(cudaMemcpy(host, device + 1, 8 * MIB, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    MUST(cudaMemcpy(host, device, MIB, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    MUST(cudaMemcpy(host, device, MIB, 77), cudaErrorInvalidMemcpyDirection);
    MUST(cudaMemset(host, 0, MIB), cudaErrorInvalidValue);
    MUST(cudaFree(device + 4096), cudaErrorInvalidValue);
    OK(cudaFree(device));
    OK(cudaFree(NULL));
    MUST(cudaFree(device), cudaErrorInvalidValue);
    MUST(cudaMemcpy(host, device, MIB, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
}

static void touch(void) {
    fill();
    puts("now");
    fflush(stdout);
    *(volatile char *)device = 1;
}

/** SIMCUDA_MEMORY=64. */
static void limit(void) {
    void *p, *q;
    size_t free, total;
    OK(cudaMalloc(&p, 40 * MIB));
    MUST(cudaMalloc(&q, 40 * MIB), cudaErrorMemoryAllocation);
    OK(cudaMemGetInfo(&free, &total));
    TRUE(free == 24 * MIB && total == 64 * MIB);
    OK(cudaFree(p));
    OK(cudaMalloc(&q, 64 * MIB));
}

static void in_order(void) {
    void *p;
    fill();
    cudaStream_t s;
    OK(cudaStreamCreate(&s));
    OK(cudaMallocAsync(&p, 8 * MIB, s));
    OK(cudaMemcpyAsync(p, device, 8 * MIB, cudaMemcpyDeviceToDevice, s));
    OK(cudaFreeAsync(p, s));
    OK(cudaStreamSynchronize(s));
    MUST(cudaMemcpy(host, p, 1, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
}

// ---------------------------------------------------------------------------------------------------- pinned memory

static enum cudaMemoryType type(const void *p) {
    struct cudaPointerAttributes a;
    OK(cudaPointerGetAttributes(&a, p));
    return a.type;
}

static void registered(void) {
    fill();
    char *p = map(8 * MIB);
    MUST(cudaHostRegister(p, 0, 0), cudaErrorInvalidValue);
    MUST(cudaGetLastError(), cudaErrorInvalidValue);
    OK(cudaHostRegister(p, 2 * MIB, cudaHostRegisterPortable));
    OK(cudaHostRegister(p + 2 * MIB, MIB, 0));
    MUST(cudaHostRegister(p + MIB, MIB, 0), cudaErrorHostMemoryAlreadyRegistered);
    MUST(cudaHostRegister(p + 2 * MIB + 4096, 2 * MIB, 0), cudaErrorHostMemoryAlreadyRegistered);
    // in one; in the next; over the edge between them; from the last into nothing; from nothing into one; in none
    OK(cudaMemcpy(p, device, 2 * MIB, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(p + 2 * MIB, device + 2 * MIB, MIB, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(p + MIB, device, MIB + 1, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    MUST(cudaMemcpyAsync(p + MIB, device, MIB + 1, cudaMemcpyDeviceToHost, 0), cudaErrorInvalidValue);
    MUST(cudaMemcpy(p + 2 * MIB, device, MIB + 1, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    OK(cudaHostUnregister(p));
    MUST(cudaMemcpy(p + MIB, device, MIB + 1, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    OK(cudaMemcpy(p + 3 * MIB, device + 3 * MIB, 5 * MIB, cudaMemcpyDeviceToHost));
    TRUE(memcmp(p, host, 8 * MIB) == 0);
    MUST(cudaHostUnregister(p), cudaErrorHostMemoryNotRegistered);
    MUST(cudaHostUnregister(p + 2 * MIB + 4096), cudaErrorHostMemoryNotRegistered);
    MUST(cudaHostRegister(device, MIB, 0), cudaErrorInvalidValue);
    munmap(p + 4 * MIB, 4096);
    MUST(cudaHostRegister(p + 3 * MIB, 2 * MIB, 0), cudaErrorInvalidValue);
}

static void attributes(void) {
    fill();
    char *p, *m, *r = map(MIB);
    OK(cudaHostAlloc((void **)&p, MIB, cudaHostAllocPortable));
    OK(cudaMallocManaged((void **)&m, MIB, cudaMemAttachGlobal));
    OK(cudaHostRegister(r, MIB / 2, 0));
    MUST(type(host), cudaMemoryTypeUnregistered);
    MUST(type(device), cudaMemoryTypeDevice);
    MUST(type(device + 8 * MIB - 1), cudaMemoryTypeDevice);
    MUST(type(p + MIB - 1), cudaMemoryTypeHost);
    MUST(type(m), cudaMemoryTypeManaged);
    MUST(type(r + MIB / 2 - 1), cudaMemoryTypeHost);
    MUST(type(r + MIB / 2), cudaMemoryTypeUnregistered);
    m[5] = 6; // the host has it, too
    OK(cudaMemcpy(p, m, MIB, cudaMemcpyDefault));
    MUST(p[5], 6);
    OK(cudaFreeHost(p));
    OK(cudaFree(m));
    MUST(cudaFreeHost(r), cudaErrorInvalidValue);
    MUST(cudaHostAlloc(NULL, MIB, 0), cudaErrorInvalidValue);
}

/** SIMCUDA_PINNED=4. */
static void pinned_limit(void) {
    char *p = map(8 * MIB), *q;
    OK(cudaHostRegister(p, 3 * MIB, 0));
    MUST(cudaHostRegister(p + 4 * MIB, 2 * MIB, 0), cudaErrorMemoryAllocation);
    MUST(cudaHostAlloc((void **)&q, 2 * MIB, 0), cudaErrorMemoryAllocation);
    OK(cudaHostUnregister(p));
    OK(cudaHostAlloc((void **)&q, 4 * MIB, 0));
}

/** A hole in what is pinned: the device's bytes do not arrive, and the runtime says so on stderr. */
static void hole(void) {
    fill();
    int fd = memfd_create("hole", 0);
    MUST(ftruncate(fd, 8 * MIB), 0);
    char *p = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    OK(cudaHostRegister(p, 8 * MIB, 0));
    OK(cudaMemcpy(p, device, 8 * MIB, cudaMemcpyDeviceToHost));
    TRUE(memcmp(p, host, 8 * MIB) == 0);
    MUST(madvise(p + MIB, MIB, MADV_REMOVE), 0);
    OK(cudaMemcpy(p, device, 8 * MIB, cudaMemcpyDeviceToHost));
    TRUE(memcmp(p + MIB, host + MIB, MIB) != 0);
}

// ---------------------------------------------------------------------------------------------------- the clock

/** Prints what copies of 8 MiB took, in µs: into pageable memory, into pinned until the call came back, until the
 *  bytes were there. */
static void rates(void) {
    fill();
    char *p;
    cudaStream_t s;
    OK(cudaStreamCreate(&s));
    OK(cudaHostAlloc((void **)&p, 8 * MIB, 0));
    double t = now();
    OK(cudaMemcpyAsync(host, device, 8 * MIB, cudaMemcpyDeviceToHost, s));
    double pageable = now() - t;
    t = now();
    for (int i = 0; i < 4; i++) {
        OK(cudaMemcpyAsync(p + i * 2 * MIB, device + i * 2 * MIB, 2 * MIB, cudaMemcpyDeviceToHost, s));
    }
    double back = now() - t;
    OK(cudaStreamSynchronize(s));
    printf("%.0f %.0f %.0f\n", pageable * 1e6, back * 1e6, (now() - t) * 1e6);
    TRUE(memcmp(p, host, 8 * MIB) == 0);
}

// ---------------------------------------------------------------------------------------------------- order

cudaError_t cudaMemcpyAsync_ptsz(void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t);
typedef cudaError_t copy_call(void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t);

/** A copy of stream 0 waits for what was queued in `s`: or it does not, and hangs here if it does. */
static void waits(cudaStream_t s, copy_call *copy, int yes) {
    struct held h = {.ms = yes ? 20 : -1};
    OK(cudaLaunchHostFunc(s, hold, &h));
    OK(copy(host, device, 4096, cudaMemcpyDeviceToHost, 0));
    MUST(passed(&h), yes);
    open_now(&h);
    OK(cudaStreamSynchronize(s));
}

static pthread_barrier_t three;

static void meet(void *arg) {
    (void)arg;
    pthread_barrier_wait(&three);
}

static void order(void) {
    cudaStream_t blocking, other, third;
    int least, greatest, priority;
    unsigned flags;
    fill();
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    OK(cudaStreamCreate(&blocking));
    OK(cudaStreamCreateWithPriority(&other, cudaStreamNonBlocking, greatest));
    OK(cudaStreamCreateWithFlags(&third, cudaStreamNonBlocking));
    OK(cudaStreamGetPriority(other, &priority));
    OK(cudaStreamGetFlags(other, &flags));
    TRUE(priority == greatest && flags == cudaStreamNonBlocking);
    waits(blocking, cudaMemcpyAsync, 1);
    waits(other, cudaMemcpyAsync, 0);
    waits(cudaStreamPerThread, cudaMemcpyAsync, 1);
    waits(blocking, cudaMemcpyAsync_ptsz, 0);
    waits(cudaStreamPerThread, cudaMemcpyAsync_ptsz, 1);
    waits(cudaStreamLegacy, cudaMemcpyAsync_ptsz, 1);
    // Streams that have nothing to do with each other go side by side: each waits for the others here.
    MUST(pthread_barrier_init(&three, NULL, 3), 0);
    OK(cudaLaunchHostFunc(blocking, meet, NULL));
    OK(cudaLaunchHostFunc(other, meet, NULL));
    OK(cudaLaunchHostFunc(third, meet, NULL));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamDestroy(third));
    MUST(cudaStreamSynchronize(third), cudaErrorInvalidResourceHandle);
    MUST(cudaStreamDestroy(0), cudaErrorInvalidResourceHandle);
}

static void *holds(void *h) {
    OK(cudaLaunchHostFunc(cudaStreamPerThread, hold, h));
    return NULL;
}

/** The thread's own stream is another one in each thread. */
static void own(void) {
    struct held h = {.ms = -1};
    fill();
    in_thread(holds, &h);
    OK(cudaMemcpyAsync_ptsz(host, device, 4096, cudaMemcpyDeviceToHost, 0));
    MUST(passed(&h), 0);
    open_now(&h);
    OK(cudaDeviceSynchronize());
    MUST(passed(&h), 1);
}

static void queued(void) {
    struct held h = {.ms = -1};
    cudaStream_t s;
    char *p;
    fill();
    OK(cudaHostAlloc((void **)&p, 8 * MIB, 0));
    memset(p, 0, 8 * MIB);
    OK(cudaStreamCreate(&s));
    OK(cudaLaunchHostFunc(s, hold, &h));
    OK(cudaMemsetAsync(device, 1, MIB, s));
    OK(cudaMemcpyAsync(p, device, 8 * MIB, cudaMemcpyDeviceToHost, s));
    OK(cudaMemsetAsync(device, 2, 8 * MIB, s)); // behind the copy
    MUST(p[0], 0);
    MUST(cudaStreamQuery(s), cudaErrorNotReady);
    open_now(&h);
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamQuery(s));
    TRUE(p[0] == 1 && memcmp(p + MIB, host + MIB, 7 * MIB) == 0);
    OK(cudaMemcpy(host, device, 8 * MIB, cudaMemcpyDeviceToHost));
    TRUE(host[0] == 2 && host[8 * MIB - 1] == 2);
}

static void events(void) {
    struct held h = {.ms = -1}, short_one = {.ms = 20};
    cudaStream_t a, b;
    cudaEvent_t e, f, untimed;
    float ms;
    fill();
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaEventCreate(&e));
    OK(cudaEventCreate(&f));
    OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    OK(cudaEventQuery(e)); // never recorded
    OK(cudaStreamWaitEvent(b, e, 0));
    OK(cudaEventRecord(e, a));
    OK(cudaLaunchHostFunc(a, hold, &h));
    OK(cudaEventRecord(f, a));
    MUST(cudaEventQuery(f), cudaErrorNotReady);
    MUST(cudaEventElapsedTime(&ms, e, f), cudaErrorNotReady);
    open_now(&h);
    OK(cudaLaunchHostFunc(a, hold, &short_one));
    OK(cudaEventRecord(f, a));
    OK(cudaStreamWaitEvent(b, f, 0));
    OK(cudaMemcpyAsync(host, device, 4096, cudaMemcpyDeviceToHost, b));
    MUST(passed(&short_one), 1);
    OK(cudaEventQuery(f));
    OK(cudaEventElapsedTime(&ms, e, f));
    TRUE(ms >= 20);
    OK(cudaEventRecord(untimed, a));
    OK(cudaEventSynchronize(untimed));
    MUST(cudaEventElapsedTime(&ms, e, untimed), cudaErrorInvalidResourceHandle);
    OK(cudaEventDestroy(e));
    MUST(cudaEventRecord(e, a), cudaErrorInvalidResourceHandle);
}

int main(int argc, char **argv) {
    static const struct rule rules[] = {
        {"bytes", bytes}, {"ranges", ranges}, {"touch", touch}, {"limit", limit}, {"in_order", in_order},
        {"registered", registered}, {"attributes", attributes}, {"pinned_limit", pinned_limit}, {"hole", hole},
        {"rates", rates}, {"order", order}, {"own", own}, {"queued", queued}, {"events", events}, {NULL, NULL}};
    return argc < 2 ? 2 : run_rule(rules, argv[1]);
}
