// SPDX-License-Identifier: MIT
//
// saver, whose bytes come from a device: each save is in fresh memory that is large enough to be adopted, is written,
// and freed. Arguments and lines are the saver's.

#define main saver
#include "saver.c"
#undef main
#include "cuda_rig.h"

#define LEAST (33 * MIB)

static char *from_device(const void *buf, size_t size) {
    static char *there;
    static size_t room;
    size_t len = size > LEAST ? size : LEAST;
    void *p;
    if (size < MIB) {
        return NULL;
    }
    if (len > room) {
        MUST(cudaMalloc((void **)&there, len));
        room = len;
    }
    if (posix_memalign(&p, 64, len) != 0) {
        abort();
    }
    MUST(cudaMemcpy(there, buf, size, cudaMemcpyHostToDevice));
    MUST(cudaMemcpyAsync(p, there, len, cudaMemcpyDeviceToHost, cudaStreamPerThread));
    MUST(cudaStreamSynchronize(cudaStreamPerThread));
    MUST(cudaMemset(there, 0xee, size));
    return p;
}

int main(int argc, char **argv) {
    fetch = from_device;
    return saver(argc, argv);
}
