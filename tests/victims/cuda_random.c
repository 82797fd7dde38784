// SPDX-License-Identifier: MIT
//
// cuda_random: copies of all kinds between places of all kinds, with other devices, captures and errors between them,
// as a seed says (its argument). What is pending is waited for, so that each run prints the same, under the shim too.

#include "cuda_rig.h"

#include <sys/mman.h>

#define AREA (12 * MIB)

static uint64_t dice;

static size_t roll(size_t below) {
    dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
    return (dice >> 20) % below;
}

// As often small as large, and often at a limit of something.
static size_t random_len(void) {
    size_t len = roll(2) ? MIB << roll(4) : 1ul << roll(23);
    len += roll(3) == 0 ? roll(len) : roll(3) - 1;
    return len > 9 * MIB ? 9 * MIB : len;
}

struct areas {
    char *mem[5]; // ordinary, pinned, managed, partly registered, heap (another one each time)
    cudaStream_t capturing;
    bool captures;
    int device, devices;
    char *on_device[2];
};

static void random_copy(struct areas *a, uint64_t *h) {
    size_t len = random_len(), to = roll(8), place = roll(8) < 5 ? 4 : roll(4);
    int stream = (int)roll(7) - 1;
    enum cudaMemcpyKind kind = roll(4) ? cudaMemcpyDeviceToHost : roll(3) ? cudaMemcpyDefault : roll(6);
    char *dst = place == 4 ? malloc(len + 8) : a->mem[place];
    size_t off = place == 4 ? to : roll(2) ? roll(AREA - len) : to * 64;
    if (place == 3 && off < 3 * MIB && off + len > 7 * MIB) {
        place = 0; // registered memory in the middle only: an error natively, and not seen under the shim
        dst = a->mem[0];
    }
    char *src = roll(9) ? a->on_device[roll(9) ? a->device : a->devices - 1 - a->device] : a->mem[2];
    if (place == 2 && src == a->mem[2]) {
        src = a->on_device[a->device]; // a copy to what it comes from, perhaps: what is there then is not defined
    }
    src += roll(2) ? roll(AREA - len) : 0;
    if (a->captures && stream == 1) {
        stream = 4; // the legacy stream beside a capture makes that invalid: another case
    }
    memset(dst + off, 0x77, len);
    MUST(cudaDeviceSynchronize()); // what memset wrote to managed memory, too
    cudaStream_t on = streams[stream < 0 ? 4 : stream];
    cudaError_t e = stream < 0 && !a->captures ? cudaMemcpy(dst + off, src, len, kind)
                                               : cudaMemcpyAsync(dst + off, src, len, kind, on);
    cudaError_t last = roll(4) ? cudaGetLastError() : cudaPeekAtLastError();
    bool ordinary = place == 0 || place == 4;
    uint64_t now = ordinary && e == cudaSuccess ? sum(dst + off, len) : 0; // before anything is waited for
    MUST(cudaDeviceSynchronize());
    now ^= e == cudaSuccess ? sum(dst + off, len) * 31 : 0;
    uint64_t said[] = {len, place, (uint64_t)e, (uint64_t)last, now};
    *h = *h * 1099511628211ull ^ sum(said, sizeof said);
    printf("copy %zu to %zu by %d on %d: %d, last %d, %016lx\n", len, place, kind, stream, e, last, now);
    if (place == 4) {
        free(dst);
    }
}

static void random_step(struct areas *a, uint64_t *h) {
    size_t what = roll(20);
    if (what == 0 && !a->captures) {
        MUST(cudaDeviceSynchronize()); // what was set there may be copied from here, and no stream of here waits for it
        a->device = a->devices > 1 && !a->device;
        MUST(cudaSetDevice(a->device));
        memset(streams, 0, sizeof streams); // those of the other device are left alone
        make_streams();
    } else if (what == 1) {
        size_t off = roll(AREA / 2);
        MUST(cudaMemset(a->on_device[a->device] + off, (int)roll(256), 1 + roll(AREA / 2)));
    } else if (what == 2 && !a->captures) {
        MUST(cudaStreamCreateWithFlags(&a->capturing, cudaStreamNonBlocking));
        MUST(cudaStreamBeginCapture(a->capturing, cudaStreamCaptureModeRelaxed));
        a->captures = true;
    } else if (what == 3 && a->captures) {
        printf("a graph:");
        end_capture(a->capturing);
        a->captures = false;
    } else if (what == 4) {
        printf("an error %d\n", cudaSetDevice(99));
    } else if (what == 5) {
        printf("taken %d\n", cudaGetLastError());
    } else {
        random_copy(a, h);
    }
}

int main(int argc, char **argv) {
    struct areas a = {0};
    uint64_t h = 0;
    dice = 0x9e3779b97f4a7c15ull * (argc > 1 ? strtoul(argv[1], NULL, 10) + 1 : 1);
    set_up();
    MUST(cudaGetDeviceCount(&a.devices));
    a.devices = a.devices < 2 ? a.devices : 2;
    for (int d = a.devices - 1; d >= 0; d--) {
        MUST(cudaSetDevice(d));
        MUST(cudaMalloc((void **)&a.on_device[d], AREA));
        MUST(cudaMemset(a.on_device[d], 0x11 * (d + 1), AREA));
        MUST(cudaMemcpy(a.on_device[d] + d * MIB, pattern, LARGE, cudaMemcpyHostToDevice));
    }
    a.mem[0] = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    a.mem[3] = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(cudaHostAlloc((void **)&a.mem[1], AREA, 0));
    MUST(cudaMallocManaged((void **)&a.mem[2], AREA, cudaMemAttachGlobal));
    memset(a.mem[2], 3, AREA);
    MUST(cudaHostRegister(a.mem[3] + 3 * MIB, 4 * MIB, 0));
    make_streams();
    for (int i = 0; i < 60; i++) {
        random_step(&a, &h);
    }
    printf("all: %016lx\n", h);
    return 0;
}

