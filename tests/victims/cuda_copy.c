// SPDX-License-Identifier: MIT
//
// cuda_copy: copies from a device in all the ways that a program can ask for, one argument a case, and says what came
// back: errors, checksums, what the last error is. Its lines are the same natively and under the shim. Built a second
// time with -DCUDA_API_PER_THREAD_DEFAULT_STREAM.

#include "cuda_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

// ---- Sizes, alignments, streams

// One copy into the middle of a buffer. Everything around it must stay as it was.
static int one(size_t len, size_t dst, size_t src, enum cudaMemcpyKind kind, int stream, unsigned char fill) {
    size_t room = dst + len + PAD;
    unsigned char *buf = malloc(room);
    memset(buf, fill, room);
    cudaError_t e = stream < 0 ? cudaMemcpy(buf + dst, device + src, len, kind)
                               : cudaMemcpyAsync(buf + dst, device + src, len, kind, streams[stream]);
    int wrong = e != cudaSuccess || memcmp(buf + dst, pattern + src, len) != 0; // nothing is pending: no sync
    for (size_t i = 0; i < dst; i++) {
        wrong |= buf[i] != fill;
    }
    for (size_t i = dst + len; i < room; i++) {
        wrong |= buf[i] != fill;
    }
    free(buf);
    return wrong;
}

static void sizes(void) {
    static const size_t lens[] = {1,           4096,        MIB - 1,          MIB,         MIB + 1,      3 * MIB + 77,
                                  4 * MIB - 1, 4 * MIB,     4 * MIB + 1,      5 * MIB,     8 * MIB - 64, 8 * MIB,
                                  8 * MIB + 1, 9 * MIB + 1, 9 * MIB + 4096ul, 2 * MIB + 513};
    static const size_t offsets[] = {0, 1, 64, 4095};
    int wrong = 0, n = 0;
    make_streams();
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        for (size_t j = 0; j < 4; j++, n++) {
            wrong += one(lens[i], offsets[j], offsets[(i + j) % 4], n % 3 ? cudaMemcpyDeviceToHost : cudaMemcpyDefault,
                         n % 7 - 1, (unsigned char)n);
        }
    }
    printf("sizes %d copies, %d wrong, last error %d\n", n, wrong, cudaGetLastError());
}

// What was queued before is in the copy, what is queued behind it is not: on every kind of stream.
static void order(void) {
    make_streams();
    size_t len = 6 * MIB;
    char *d;
    MUST(cudaMalloc((void **)&d, len));
    for (int s = 0; s < 6; s++) {
        int wrong = 0;
        for (int k = 1; k <= 4; k++) {
            unsigned char *buf = calloc(1, len);
            for (int w = 0; w < 20; w++) {
                MUST(cudaMemsetAsync(d, 100 + w, len, streams[s])); // keeps the stream busy
            }
            MUST(cudaMemsetAsync(d, k, len, streams[s]));
            MUST(cudaMemcpyAsync(buf, d, len, cudaMemcpyDeviceToHost, streams[s]));
            MUST(cudaMemsetAsync(d, 0xee, len, streams[s])); // the optimizer
            for (size_t i = 0; i < len; i++) {
                wrong += buf[i] != k;
            }
            free(buf);
        }
        MUST(cudaDeviceSynchronize());
        printf("order on %s: %d wrong\n", stream_names[s], wrong);
    }
    MUST(cudaFree(d));
}

// ---- Destinations and sources

static void place(const char *name, void *dst, const void *src, size_t len, enum cudaMemcpyKind kind) {
    make_streams();
    cudaError_t e = cudaMemcpyAsync(dst, src, len, kind, streams[3]);
    cudaError_t last = cudaGetLastError();
    MUST(cudaStreamSynchronize(streams[3]));
    struct cudaPointerAttributes a;
    MUST(cudaPointerGetAttributes(&a, dst));
    bool differs = e == cudaSuccess && a.type != cudaMemoryTypeDevice && memcmp(dst, pattern, len) != 0;
    printf("%s: error %d, last %d%s\n", name, e, last, differs ? ", other bytes" : "");
}

static void places(void) {
    const size_t len = 5 * MIB;
    char *pinned, *managed, *other;
    char *mem = mmap(NULL, 3 * len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(cudaHostAlloc((void **)&pinned, len, 0));
    MUST(cudaMallocManaged((void **)&managed, len, cudaMemAttachGlobal));
    MUST(cudaMalloc((void **)&other, len));
    place("pinned", pinned, device, len, cudaMemcpyDeviceToHost);
    place("pinned, default", pinned, device, len, cudaMemcpyDefault);
    place("managed", managed, device, len, cudaMemcpyDefault);
    place("from managed", mem, managed, len, cudaMemcpyDefault);
    MUST(cudaHostRegister(mem + len, len, 0));
    place("registered", mem + len, device, len, cudaMemcpyDeviceToHost);
    place("registered from within", mem + len + 64, device, len - 128, cudaMemcpyDeviceToHost);
    place("into a registration", mem + len / 2, device, len, cudaMemcpyDeviceToHost);
    place("out of a registration", mem + len + len / 2, device, len, cudaMemcpyDeviceToHost);
    place("beside it", mem, device, len, cudaMemcpyDeviceToHost);
    MUST(cudaHostUnregister(mem + len));
    place("no more", mem + len, device, len, cudaMemcpyDeviceToHost);
    place("to the device", device, pattern, len, cudaMemcpyHostToDevice);
    place("to the device, default", device, pattern, len, cudaMemcpyDefault);
    place("on the device", other, device, len, cudaMemcpyDeviceToDevice);
    place("on the host", mem, pattern, len, cudaMemcpyHostToHost);
    place("wrong way", mem, pattern, len, cudaMemcpyDeviceToHost);
    place("no such way", mem, device, len, (enum cudaMemcpyKind)9);
    place("beyond its end", mem, device + LARGE + PAD - MIB, 2 * MIB, cudaMemcpyDeviceToHost);
    place("nothing", mem, device, 0, cudaMemcpyDeviceToHost);
    MUST(cudaFree(other));
}

// ---- Errors

static void errors(void) {
    char *buf = malloc(LARGE);
    printf("no such device %d, ", cudaSetDevice(99));
    printf("copied %d, ", cudaMemcpy(buf, device, LARGE, cudaMemcpyDeviceToHost));
    printf("still %d, ", cudaPeekAtLastError());
    printf("taken %d, ", cudaGetLastError());
    printf("copied %d, ", cudaMemcpy(buf, device, LARGE, cudaMemcpyDeviceToHost));
    printf("none %d, %016lx\n", cudaGetLastError(), sum(buf, LARGE));
    free(buf);
}

// Only the simulated runtime says something about it: elsewhere anything may happen.
static void gone(void) {
    char *buf = malloc(LARGE);
    cudaStream_t s;
    MUST(cudaStreamCreate(&s));
    MUST(cudaStreamDestroy(s));
    printf("a stream that is gone: %d, ", cudaMemcpyAsync(buf, device, LARGE, cudaMemcpyDeviceToHost, s));
    printf("last %d\n", cudaGetLastError());
    free(buf);
}

// A save, whose device may fail at any call (SIMCUDA_FAIL, SIMCUDA_FAIL_WORK): what came back must be right or said.
static void save(void) {
    const char *path = getenv("SAVE");
    unsigned char *buf = calloc(1, LARGE), *want = malloc(LARGE);
    memset(want, 0x5a, LARGE);
    char *d = NULL;
    cudaError_t e = cudaMalloc((void **)&d, LARGE);
    e = e != cudaSuccess ? e : cudaMemset(d, 0x5a, LARGE);
    e = e != cudaSuccess ? e : cudaMemcpyAsync(buf, d, LARGE, cudaMemcpyDeviceToHost, NULL);
    e = e != cudaSuccess ? e : cudaStreamSynchronize(NULL);
    if (e != cudaSuccess) {
        printf("save: error %d, last %d\n", e, cudaGetLastError());
        return;
    }
    FILE *f = path != NULL ? fopen(path, "w") : NULL;
    int bad = f == NULL || fwrite(buf, 1, LARGE, f) != LARGE;
    bad |= f == NULL || fclose(f) != 0;
    printf("save: bytes %d, file %d, last %d\n", memcmp(buf, want, LARGE) != 0, bad, cudaGetLastError());
}

// ---- Captures

static void capture(void) {
    unsigned char *buf = malloc(LARGE);
    make_streams();
    printf("capturing itself:");
    MUST(cudaStreamBeginCapture(streams[3], cudaStreamCaptureModeThreadLocal));
    cudaError_t e = cudaMemcpyAsync(buf, device, LARGE, cudaMemcpyDeviceToHost, streams[3]);
    printf(" %d, last %d\n", e, cudaGetLastError());
    end_capture(streams[3]);
    printf("the legacy stream beside a capture:");
    MUST(cudaStreamBeginCapture(streams[3], cudaStreamCaptureModeRelaxed));
    e = cudaMemcpyAsync(buf, device, LARGE, cudaMemcpyDeviceToHost, cudaStreamLegacy);
    printf(" %d, last %d\n", e, cudaGetLastError());
    end_capture(streams[3]);
    printf("another stream beside a capture of this thread:");
    MUST(cudaStreamBeginCapture(streams[3], cudaStreamCaptureModeGlobal));
    MUST(cudaMemsetAsync(device, 0, 0, streams[3]));
    memset(buf, 0, LARGE);
    e = cudaMemcpyAsync(buf, device, LARGE, cudaMemcpyDeviceToHost, streams[4]);
    printf(" %d, last %d, %016lx\n", e, cudaGetLastError(), sum(buf, LARGE));
    end_capture(streams[3]);
    free(buf);
}

static _Atomic int step;

static void *capturer(void *unused) {
    (void)unused;
    cudaStream_t s;
    MUST(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    MUST(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    atomic_store(&step, 1);
    while (atomic_load(&step) != 2) {
        usleep(100);
    }
    MUST(cudaMemsetAsync(device + LARGE, 7, 16, s));
    end_capture(s);
    return NULL;
}

// Another thread captures in global mode: nothing that we call may spoil it, the first copy of the process either.
static void capture_elsewhere(void) {
    unsigned char *buf = calloc(1, LARGE);
    pthread_t t;
    make_streams();
    pthread_create(&t, NULL, capturer, NULL);
    while (atomic_load(&step) != 1) {
        usleep(100);
    }
    for (int i = 0; i < 3; i++) {
        cudaError_t e = cudaMemcpyAsync(buf, device, LARGE, cudaMemcpyDeviceToHost, streams[i + 3]);
        enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
        MUST(cudaThreadExchangeStreamCaptureMode(&mode));
        printf("copy beside it %d, last %d, %016lx, mode %d\n", e, cudaGetLastError(), sum(buf, LARGE), mode);
    }
    atomic_store(&step, 2);
    pthread_join(t, NULL);
    free(buf);
}

// ---- Several

static void two_devices(void) {
    unsigned char *buf = malloc(LARGE);
    char *d[2];
    for (int i = 0; i < 2; i++) {
        MUST(cudaSetDevice(i));
        MUST(cudaMalloc((void **)&d[i], LARGE));
        MUST(cudaMemset(d[i], 0x30 + i, LARGE));
    }
    for (int i = 0; i < 6; i++) {
        MUST(cudaSetDevice(i & 1));
        cudaError_t e = cudaMemcpy(buf, d[i / 2 & 1], LARGE, cudaMemcpyDeviceToHost); // also from the one not current
        printf("device %d from %d: %d, %016lx\n", i & 1, i / 2 & 1, e, sum(buf, LARGE));
    }
    MUST(cudaSetDevice(0));
    free(buf);
}

// On a stream of the other device: the runtime does that.
static void foreign(void) {
    unsigned char *buf = calloc(1, LARGE);
    cudaStream_t s;
    MUST(cudaSetDevice(1));
    MUST(cudaStreamCreate(&s));
    MUST(cudaSetDevice(0));
    for (int i = 0; i < 2; i++) {
        cudaError_t e = cudaMemcpyAsync(buf, device, LARGE, cudaMemcpyDeviceToHost, i == 0 ? s : NULL);
        printf("on a stream of device %d: %d, last %d, %016lx\n", i == 0, e, cudaGetLastError(), sum(buf, LARGE));
    }
    free(buf);
}

static void *many(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg;
    size_t wrong = 0;
    cudaStream_t s;
    MUST(cudaStreamCreateWithFlags(&s, seed % 2 ? cudaStreamNonBlocking : 0));
    for (int i = 0; i < 12; i++) {
        size_t len = MIB + (size_t)rand_r(&seed) % (LARGE - MIB), src = LARGE - len;
        unsigned char *buf = malloc(len);
        MUST(cudaMemcpyAsync(buf, device + src, len, cudaMemcpyDeviceToHost, i % 3 ? s : cudaStreamPerThread));
        wrong += memcmp(buf, pattern + src, len) != 0;
        free(buf);
    }
    return (void *)wrong;
}

static void threads(void) {
    enum { N = 12 };
    pthread_t t[N];
    size_t wrong = 0;
    for (uintptr_t i = 0; i < N; i++) {
        pthread_create(&t[i], NULL, many, (void *)(i + 1));
    }
    for (int i = 0; i < N; i++) {
        void *r;
        pthread_join(t[i], &r);
        wrong += (size_t)r;
    }
    printf("threads: %zu wrong, last error %d\n", wrong, cudaGetLastError());
}

// ---- Forks, resets, ends

static void forked(void) {
    unsigned char *buf = malloc(LARGE);
    MUST(cudaMemcpy(buf, device, LARGE, cudaMemcpyDeviceToHost));
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        cudaError_t e = cudaMemcpy(buf, device, LARGE, cudaMemcpyDeviceToHost);
        printf("in a child: %d, last %d\n", e, cudaGetLastError());
        fflush(stdout);
        _exit(0);
    }
    memset(buf, 0, LARGE); // the parent's pages are its own again, and the device still writes to the same ones
    MUST(cudaMemcpy(buf, device, LARGE, cudaMemcpyDeviceToHost));
    waitpid(pid, NULL, 0);
    printf("in the parent: %016lx\n", sum(buf, LARGE));
    free(buf);
}

static void reset(void) {
    unsigned char *buf = malloc(LARGE);
    for (int i = 0; i < 3; i++) {
        char *d;
        MUST(cudaMalloc((void **)&d, LARGE));
        MUST(cudaMemset(d, 0x41 + i, LARGE));
        cudaError_t e = cudaMemcpy(buf, d, LARGE, cudaMemcpyDeviceToHost);
        printf("before reset %d: %d, %016lx, last %d\n", i, e, sum(buf, LARGE), cudaGetLastError());
        MUST(cudaDeviceReset());
    }
    memset(streams, 0, sizeof streams);
    pattern = NULL;
    free(buf);
}

static void last_copy(void) {
    static char buf[LARGE];
    cudaError_t e = cudaMemcpy(buf, device, LARGE, cudaMemcpyDeviceToHost);
    printf("at exit: %d, last %d\n", e, cudaGetLastError());
}

static bool copies_at_end;

__attribute__((destructor)) static void behind_everything(void) {
    if (copies_at_end) {
        last_copy();
    }
}

static void at_end(void) {
    atexit(last_copy);
    copies_at_end = true;
}

static void small(void) {
    static char buf[MIB];
    for (int i = 0; i < 3; i++) {
        MUST(cudaMemcpyAsync(buf, device, 4, cudaMemcpyDeviceToHost, 0));
        MUST(cudaMemcpy(buf, device, MIB - 1, cudaMemcpyDeviceToHost));
    }
    printf("small %016lx\n", sum(buf, MIB - 1));
}

// ---- Times

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static size_t number_of(const char *variable, size_t otherwise) {
    const char *text = getenv(variable);
    return text != NULL ? strtoul(text, NULL, 10) : otherwise;
}

// Four storages (of MEBI MiB) to fresh memory each, as torch.save copies them; and the same to pinned memory: the link.
// The best of some rounds.
static void rate(void) {
    enum { N = 4 };
    const size_t len = number_of("MEBI", 64) * MIB, rounds = number_of("ROUNDS", 3);
    char *d, *pinned, *fresh[N];
    MUST(cudaMalloc((void **)&d, len));
    MUST(cudaMemset(d, 1, len));
    MUST(cudaHostAlloc((void **)&pinned, len, 0));
    memset(pinned, 1, len);
    MUST(cudaDeviceSynchronize());
    double ms[3] = {1e9, 1e9, 1e9};
    for (size_t round = 0; round < rounds; round++) {
        char path[4096];
        snprintf(path, sizeof path, "%s-%zu", getenv("SAVE") != NULL ? getenv("SAVE") : "", round);
        int fd = getenv("SAVE") != NULL ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644) : -1;
        double t = now();
        for (int i = 0; i < N; i++) {
            MUST(cudaMemcpyAsync(pinned, d, len, cudaMemcpyDeviceToHost, 0));
            MUST(cudaStreamSynchronize(0));
        }
        double link = (now() - t) * 1e3;
        t = now();
        for (int i = 0; i < N; i++) {
            fresh[i] = malloc(len);
            MUST(cudaMemcpyAsync(fresh[i], d, len, cudaMemcpyDeviceToHost, 0));
            MUST(cudaStreamSynchronize(0));
        }
        double copies = (now() - t) * 1e3;
        t = now();
        for (int i = 0; i < N && fd >= 0; i++) {
            if (pwrite(fd, fresh[i], len, (off_t)((size_t)i * len + MIB)) != (ssize_t)len) {
                printf("pwrite: %s\n", strerror(errno));
            }
        }
        double writes = (now() - t) * 1e3;
        for (int i = 0; i < N; i++) {
            free(fresh[i]);
        }
        if (fd >= 0) {
            fsync(fd); // nothing is on its way when the next round begins
            close(fd);
        }
        ms[0] = link < ms[0] ? link : ms[0];
        ms[1] = copies < ms[1] ? copies : ms[1];
        ms[2] = writes < ms[2] ? writes : ms[2];
    }
    printf("link %.0f ms, copies %.0f ms, writes %.0f ms\n", ms[0], ms[1], ms[2]);
}

// Nanoseconds of a call that copies nothing.
static void cost(void) {
    enum { N = 2000000 };
    static char buf[8];
    double best = 1e9;
    for (int round = 0; round < 9; round++) {
        double t = now();
        for (int i = 0; i < N; i++) {
            cudaMemcpyAsync(buf, buf, 0, cudaMemcpyHostToHost, 0);
        }
        double ns = (now() - t) * 1e9 / N;
        best = ns < best ? ns : best;
    }
    printf("%.1f ns a call\n", best);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"sizes", sizes},     {"order", order},     {"places", places},
    {"errors", errors},   {"save", save},       {"capture", capture},
    {"elsewhere", capture_elsewhere},           {"devices", two_devices},
    {"threads", threads}, {"fork", forked},     {"reset", reset},
    {"end", at_end},      {"small", small},     {"rate", rate},
    {"cost", cost},       {"gone", gone},
    {"foreign", foreign},
};

int main(int argc, char **argv) {
    for (int a = 1; a < argc; a++) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            if (strcmp(argv[a], cases[i].name) == 0) {
                if (strcmp(argv[a], "save") != 0 && strcmp(argv[a], "cost") != 0) {
                    set_up();
                }
                cases[i].run();
                fflush(stdout);
            }
        }
    }
    return 0;
}
