// SPDX-License-Identifier: MIT
//
// Copies from a device that a program does not wait for, and all that it may do while they are on their way: look,
// write, move, fork, exec, end, run short of memory; and copies that fail then. Arguments: a directory and a case.
// Prints what is the same natively and under the shim, but for the cases of a failure and of speed.

#include "cuda_adopt.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6; // milliseconds
}

// ---- Who looks

static char *looked_at;

static void *look(void *arg) {
    size_t from = (size_t)arg;
    return (void *)sum(looked_at + from, 2 * MIB);
}

// Several threads, at several places, from the last to the first; some store, too.
static void threads(void) {
    int fd = begin("threads");
    pthread_t t[12];
    looked_at = sent(SIZE, 1);
    for (size_t i = 0; i < 12; i++) {
        looked_at[i * 3 * MIB + 5 * MIB / 2] = 'x'; // what nobody sums
        pthread_create(&t[i], NULL, look, (void *)(36 * MIB - i * 3 * MIB));
    }
    for (size_t i = 0; i < 12; i++) {
        void *h;
        pthread_join(t[i], &h);
        printf("threads: %016lx\n", (unsigned long)h);
    }
    put(fd, looked_at, SIZE);
    close(fd);
}

// More of them than faults are kept for, all at the end.
static void crowd(void) {
    enum { N = 200 };
    int fd = begin("crowd");
    pthread_t t[N];
    looked_at = sent(SIZE, 1);
    for (size_t i = 0; i < N; i++) {
        pthread_create(&t[i], NULL, look, (void *)(SIZE - 2 * MIB - i * 4096));
    }
    uint64_t all = 0;
    for (size_t i = 0; i < N; i++) {
        void *h;
        pthread_join(t[i], &h);
        all = all * 31 + (uintptr_t)h;
    }
    put(fd, looked_at, SIZE);
    printf("crowd: %016lx\n", (unsigned long)all);
    close(fd);
}

static void snapshot(void) {
    int fd = begin("snapshot");
    char *a = sent(SIZE, 1);
    put(fd, a, SIZE);
    printf("snapshot: %016lx\n", sum(a, SIZE));
    close(fd);
}

// The kernel: writes to a file that nobody captures and to a pipe, and reads into it.
static void calls(void) {
    int fd = begin("calls"), other = create("not-captured.log"), p[2];
    char *a = sent(SIZE, 1), *b = sent(SIZE, 2), part[4096];
    put(other, a + 100, SIZE - 100);
    printf("calls: %016lx\n", sum(a, SIZE));
    if (pipe(p) < 0 || write(p[1], b + 20 * MIB - 7, 4096) != 4096 || read(p[0], part, 4096) != 4096) {
        _exit(3);
    }
    printf("calls: %016lx\n", sum(part, 4096));
    lseek(other, 0, SEEK_SET);
    int again = open("/dev/zero", O_RDONLY);
    if (read(again, b + 5 * MIB + 9, 2 * MIB) != (ssize_t)(2 * MIB)) {
        _exit(3);
    }
    put(fd, b, SIZE);
    put(fd, a, SIZE);
    printf("calls: %016lx\n", sum(b, SIZE));
    close(fd);
    close(other);
}

// To another buffer of the device, by the runtime; and pinned.
static void back(void) {
    int fd = begin("back");
    char *a = sent(SIZE, 1), *d, *c = calloc(1, SIZE);
    MUST(cudaMalloc((void **)&d, SIZE));
    MUST(cudaMemcpy(d, a, SIZE, cudaMemcpyHostToDevice));
    MUST(cudaMemcpy(c, d, 9 * MIB, cudaMemcpyDeviceToHost));
    printf("back: %016lx\n", sum(c, SIZE));
    put(fd, a, SIZE);
    close(fd);
}

// A part of calloc's, the rest of which stays zero.
static void zeroed(void) {
    int fd = begin("zeroed");
    char *d = on_device(SIZE, 7), *buf = calloc(1, SIZE + 9 * MIB);
    copy(buf, d, SIZE);
    put(fd, buf, SIZE + 9 * MIB);
    printf("zeroed: %016lx\n", sum(buf, SIZE + 9 * MIB));
    close(fd);
}

static void *move(void *from, void *to, bool by_number) {
    return by_number ? (void *)syscall(SYS_mremap, from, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to)
                     : mremap(from, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to);
}

static void moves(const char *name, bool by_number) {
    int fd = begin(name);
    char *buf = sent(SIZE, 1), *at = (char *)(((uintptr_t)buf + 5 * MIB) & ~(uintptr_t)4095);
    void *to = mmap(NULL, 4 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *new = move(at, to, by_number);
    printf("moved: %d %016lx\n", new == to, sum(new, 4 * MIB));
    put(fd, buf, 4 * MIB);
    put(fd, new, 4 * MIB);
    put(fd, at + 4 * MIB, 20 * MIB);
    close(fd);
}

static void moved(void) {
    moves("moved", false);
}

static void moved_by_number(void) {
    moves("moved_by_number", true);
}

// ---- Other processes, and the end

static void forked(void) {
    int fd = begin("forked");
    char *a = sent(SIZE, 1);
    put(fd, a, SIZE);
    char *b = sent(SIZE, 2);
    if (fork() == 0) {
        printf("forked: %016lx %016lx in the child\n", sum(a, SIZE), sum(b, SIZE));
        fflush(stdout);
        _exit(0);
    }
    memset(b + MIB, 3, 20 * MIB);
    wait(NULL);
    put(fd, b, SIZE);
    printf("forked: %016lx %016lx\n", sum(a, SIZE), sum(b, SIZE));
    close(fd);
}

static void spawned(void) {
    int fd = begin("spawned"), status;
    char *a = sent(SIZE, 1), *argv[] = {"true", NULL};
    put(fd, a, SIZE);
    pid_t pid;
    if (posix_spawnp(&pid, "true", NULL, NULL, argv, environ) != 0 || waitpid(pid, &status, 0) != pid) {
        _exit(3);
    }
    printf("spawned: %d %016lx\n", status, sum(a, SIZE));
    close(fd);
}

/** The process ends while bytes of a closed and of an open file are on their way. */
static void last_words(const char *name) {
    char other[64];
    snprintf(other, sizeof other, "%s-open", name);
    char *a = memory(SIZE), *b = memory(SIZE), *on_a = on_device(SIZE, 1), *on_b = on_device(SIZE, 2);
    int fd = begin(name), open = begin(other);
    copy(a, on_a, SIZE);
    put(fd, a, SIZE);
    close(fd);
    copy(b, on_b, SIZE);
    put(open, b, SIZE);
    printf("%s\n", name);
    fflush(stdout);
}

static void returned(void) {
    last_words("returned");
}

static void exited(void) {
    last_words("exited");
    _exit(0);
}

static void quick(void) {
    last_words("quick");
    quick_exit(0);
}

static void execed(void) {
    last_words("execed");
    execlp("true", "true", (char *)NULL);
    _exit(3);
}

static void killed(void) {
    char old[4096], new[4096];
    snprintf(old, sizeof old, "%s/old", dir);
    snprintf(new, sizeof new, "%s/killed", dir);
    last_words("killed");
    printf("killed: unlink %d\n", unlink(old));
    printf("killed: stat %d\n", access(new, F_OK));
    fflush(stdout);
    kill(getpid(), SIGKILL);
}

// Waits in the middle for a line on stdin.
static void paused(void) {
    int fd = begin("paused");
    char *a = sent(SIZE, 1), *b = sent(SIZE, 2);
    put(fd, a, SIZE);
    printf("paused\n");
    fflush(stdout);
    getchar();
    put(fd, b, SIZE);
    close(fd);
    printf("paused: %016lx %016lx\n", sum(a, SIZE), sum(b, SIZE));
}

// Waits in the middle; behind that there is as much room as before.
static void reborn(void) {
    int fd = begin("reborn");
    char *a = sent(SIZE, 1);
    put(fd, a, SIZE);
    printf("reborn\n");
    fflush(stdout);
    getchar();
    printf("reborn: %016lx\n", sum(a, SIZE));
    close(fd);
    free(a);
    fd = begin("reborn-2");
    a = sent(SIZE, 2);
    put(fd, a, SIZE);
    close(fd);
    printf("reborn: %016lx\n", sum(a, SIZE));
}

// Three tensors, one behind the other: what is said of their bytes is said again and again.
static void late(void) {
    int fd = begin("late");
    for (unsigned i = 0; i < 3; i++) {
        put(fd, sent(SIZE, i), SIZE);
    }
    close(fd);
}

// ---- Memory runs short

static void full(void) {
    int fd = begin("full");
    char *a = sent(SIZE, 1), *d[3] = {NULL}, *h;
    put(fd, a, SIZE);
    size_t free, total;
    MUST(cudaMemGetInfo(&free, &total));
    cudaError_t e = cudaMalloc((void **)&d[0], total - 4 * MIB);
    printf("full: %d, last %d\n", e, cudaGetLastError());
    e = cudaMalloc((void **)&d[1], total);
    printf("full: %d, last %d\n", e, cudaGetLastError());
    MUST(cudaFree(d[0]));
    MUST(cudaMallocAsync((void **)&d[2], total - 4 * MIB, 0));
    MUST(cudaHostAlloc((void **)&h, MIB, 0));
    MUST(cudaFreeAsync(d[2], 0));
    MUST(cudaDeviceSynchronize());
    char *b = sent(SIZE, 2);
    put(fd, b, SIZE);
    printf("full: %016lx %016lx\n", sum(a, SIZE), sum(b, SIZE));
    close(fd);
}

// ---- A late copy fails

static void save(const char *name, char *buf) {
    int fd = create(name);
    header(fd);
    ssize_t n = write(fd, buf, SIZE);
    printf("%s: write %ld %d", name, n, n < 0 ? errno : 0);
    char *d;
    cudaError_t e = cudaMalloc((void **)&d, MIB); // until the error has come
    for (int i = 0; i < 2000 && (e = cudaDeviceSynchronize()) == cudaSuccess; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    int f = fsync(fd);
    printf(", error %d, fsync %d %d", e, f, f < 0 ? errno : 0);
    f = close(fd);
    printf(", close %d %d\n", f, f < 0 ? errno : 0);
    fflush(stdout);
}

static void fails(void) {
    char *a = memory(SIZE), *d = on_device(SIZE, 1), path[4096];
    make_streams();
    int fd = begin("good");
    cudaError_t e = cudaMemcpyAsync(a, d, SIZE, cudaMemcpyDeviceToHost, streams[3]);
    printf("fails: copy %d\n", e);
    save("fails", a);
    int other = create("not-captured.log");
    ssize_t n = write(other, a + 30 * MIB, MIB);
    printf("fails: elsewhere %ld %d\n", n, n < 0 ? errno : 0);
    n = write(fd, a, SIZE);
    printf("fails: a second file %ld %d", n, n < 0 ? errno : 0);
    n = close(fd);
    printf(", close %ld %d\n", n, n < 0 ? errno : 0);
    snprintf(path, sizeof path, "%s/old", dir);
    n = unlink(path);
    printf("fails: unlink %ld\n", n);
    fflush(stdout);
    if (fork() == 0) {
        printf("fails: %016lx\n", sum(a, SIZE));
        _exit(0);
    }
    int status;
    wait(&status);
    printf("fails: the child %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    fflush(stdout);
    printf("fails: %016lx\n", sum(a + SIZE - 4 * MIB, 4 * MIB));
}

// A piece fails, the device does not: what came behind it does not stand for it.
static void gap(void) {
    char *a = memory(SIZE), *d = on_device(SIZE, 1);
    make_streams();
    int fd = begin("gap"), again = begin("gap-again");
    MUST(cudaMemcpyAsync(a, d, SIZE, cudaMemcpyDeviceToHost, streams[3]));
    ssize_t n = write(fd, a, SIZE);
    printf("gap: write %ld", n);
    struct pollfd none = {.fd = -1};
    poll(&none, 1, 1000); // all has come that will
    int f = fsync(fd);
    printf(", fsync %d %d", f, f < 0 ? errno : 0);
    f = close(fd);
    printf(", close %d %d\n", f, f < 0 ? errno : 0);
    n = write(again, a, SIZE);
    printf("gap: again %ld %d", n, n < 0 ? errno : 0);
    f = close(again);
    printf(", close %d %d\n", f, f < 0 ? errno : 0);
}

// One that may fail at any call: what it says, and what is in the file if it did not.
static void once(void) {
    char *d, *buf = memory(SIZE);
    int fd = begin("once");
    cudaError_t e = cudaMalloc((void **)&d, SIZE);
    e = e != cudaSuccess ? e : cudaMemset(d, 0x5a, SIZE);
    e = e != cudaSuccess ? e : cudaMemcpyAsync(buf, d, SIZE, cudaMemcpyDeviceToHost, NULL);
    e = e != cudaSuccess ? e : cudaStreamSynchronize(NULL);
    cudaError_t last = cudaGetLastError();
    ssize_t n = e == cudaSuccess ? write(fd, buf, SIZE) : 0;
    int err = n < 0 ? errno : 0, c = close(fd);
    printf("once: error %d, last %d, write %ld %d, close %d\n", e, last, n, err, c);
}

// ---- Speed

/** Milliseconds of a step: a batch goes to the device, and is worked on there. */
static double step(char *batch, char *d, size_t len) {
    double t = now();
    MUST(cudaMemcpyAsync(d, batch, len, cudaMemcpyHostToDevice, streams[3]));
    MUST(cudaMemsetAsync(d, 0, len, streams[3]));
    MUST(cudaStreamSynchronize(streams[3]));
    return now() - t;
}

static int by_size(const void *a, const void *b) {
    return *(const double *)a > *(const double *)b ? 1 : -1;
}

// The median step, without a save and while one is on its way.
static void steps(void) {
    enum { N = 41 };
    const size_t len = 2 * MIB, state = 120 * MIB;
    char *batch, *d, *tensor = on_device(state, 1);
    double ms[2][N];
    make_streams();
    MUST(cudaHostAlloc((void **)&batch, len, 0));
    MUST(cudaMalloc((void **)&d, len));
    int fd = begin("steps");
    for (int saving = 0; saving < 2; saving++) {
        double t = now();
        char *buf = saving ? memory(state) : NULL;
        if (saving) {
            copy(buf, tensor, state);
            put(fd, buf, state);
            close(fd);
        }
        double held = now() - t;
        for (int i = 0; i < N; i++) {
            ms[saving][i] = step(batch, d, len);
        }
        printf("held %.1f ms, steps took %.1f ms\n", held, now() - t - held);
        qsort(ms[saving], N, sizeof ms[0][0], by_size);
    }
    double t = now();
    MUST(cudaDeviceSynchronize());
    printf("median step %.3f ms, and with a save on its way %.3f ms, of which %.0f ms were left\n", ms[0][N / 2],
           ms[1][N / 2], now() - t);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"threads", threads}, {"snapshot", snapshot}, {"calls", calls},       {"back", back},     {"zeroed", zeroed},
    {"crowd", crowd},     {"gap", gap},           {"reborn", reborn},
    {"moved", moved},     {"forked", forked},     {"spawned", spawned},   {"returned", returned},
    {"exited", exited},   {"quick", quick},       {"execed", execed},     {"killed", killed}, {"paused", paused},
    {"full", full}, {"late", late},       {"fails", fails},       {"once", once},         {"steps", steps},
    {"moved_by_number", moved_by_number},
};

int main(int argc, char **argv) {
    dir = argv[1];
    for (int i = 2; i < argc; i++) {
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            if (strcmp(cases[k].name, argv[i]) == 0) {
                if (host == NULL && cases[k].run != once) { // what goes to the device goes fast
                    MUST(cudaHostAlloc((void **)&host, 128 * MIB, 0));
                }
                cases[k].run();
                fflush(stdout);
            }
        }
    }
    return 0;
}
