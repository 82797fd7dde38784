// SPDX-License-Identifier: MIT
//
// Copies from a device that are large enough to be adopted, and writes of them to files, in all the ways in which a
// program can change its memory in between. Arguments: a directory, cases or seeds. Each writes files there and prints
// sums: the same natively and under the shim.

#include "cuda_adopt.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

// ---- One buffer

static void plain(void) {
    int fd = begin("plain");
    for (unsigned i = 0; i < 2; i++) {
        char *buf = fetched(SIZE + i * 100003, i);
        put(fd, buf, SIZE + i * 100003);
        put(fd, "between", 7);
        printf("plain: %016lx\n", sum(buf, SIZE));
        free(buf);
    }
    close(fd);
}

static void after(void) {
    int fd = begin("after");
    char *buf = fetched(SIZE, 1);
    put_part(fd, buf);
    memset(buf, 0x11, SIZE);
    printf("after: %016lx\n", sum(buf, SIZE));
    close(fd);
}

static void some(void) {
    int fd = begin("some");
    char *buf = fetched(SIZE, 1);
    for (size_t i = 70001; i < SIZE; i += i < 8 * MIB ? 9000 : 3 * MIB) { // here many, there few
        buf[i] ^= 0x55;
    }
    buf[SIZE - 1] = buf[0] = 1;
    put(fd, buf, SIZE);
    printf("some: %016lx\n", sum(buf, SIZE));
    close(fd);
}

static void again(void) {
    int fd = begin("again");
    char *buf = fetched(SIZE, 1), *d = on_device(SIZE, 2);
    put_part(fd, buf);
    copy(buf, d, SIZE);
    put_part(fd, buf);
    put_part(fd, buf);
    printf("again: %016lx\n", sum(buf, SIZE));
    close(fd);
}

static void freed(void) {
    int fd = begin("freed");
    char *buf = fetched(SIZE, 1);
    free(buf);
    char *other = memory(SIZE);
    memset(other, 0x22, SIZE);
    put_part(fd, other);
    printf("freed: the same place %d, %016lx\n", buf == other, sum(other, SIZE));
    close(fd);
}

static void over(void) {
    int fd = create("over"), under = create("under");
    header(fd);
    header(under);
    header(under);
    char path[4096];
    snprintf(path, sizeof path, "%s/under", dir);
    close(under);
    char *buf = fetched(SIZE, 1), *at = (char *)(((uintptr_t)buf + 5 * MIB) & ~(uintptr_t)4095);
    under = open(path, O_RDONLY);
    if (mmap(at, 2 * MIB, PROT_READ, MAP_PRIVATE | MAP_FIXED, under, 0) != at) {
        perror("mmap");
        _exit(3);
    }
    put_part(fd, buf);
    printf("over: %016lx\n", sum(buf, SIZE));
    close(fd);
}

static void moved(void) {
    int fd = begin("moved");
    char *buf = realloc(fetched(SIZE, 1), SIZE + 9 * MIB);
    memset(buf + SIZE, 0x33, 9 * MIB);
    put_part(fd, buf);
    buf = realloc(buf, 33 * MIB);
    put_part(fd, buf);
    printf("moved: %016lx\n", sum(buf, 33 * MIB));
    close(fd);
}

// A part of it moves; more copies than there is room for come behind it.
static void elsewhere(void) {
    int fd = begin("elsewhere");
    char *buf = fetched(SIZE, 1), *at = (char *)(((uintptr_t)buf + 5 * MIB) & ~(uintptr_t)4095);
    char *to = mmap(NULL, 2 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    to = mremap(at, 2 * MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    put(fd, to, 2 * MIB);
    put(fd, buf, MIB);
    free(buf);
    for (unsigned i = 2; i < 6; i++) {
        buf = fetched(SIZE, i);
        put_part(fd, buf);
        free(buf);
        printf("elsewhere: %016lx\n", sum(to, 2 * MIB));
    }
    put(fd, to, 2 * MIB);
    close(fd);
}

// Its file is closed by another program, in its place.
static void execs(void) {
    int fd = begin("execs");
    put_part(fd, fetched(SIZE, 1));
    fflush(stdout);
    execl("/bin/true", "true", NULL);
}

static void zeros(void) {
    int fd = begin("zeros");
    char *buf = fetched(SIZE, 1), *at = (char *)(((uintptr_t)buf + 5 * MIB) & ~(uintptr_t)4095);
    madvise(at, 3 * MIB, MADV_DONTNEED);
    printf("zeros: %016lx\n", sum(buf, SIZE));
    put_part(fd, buf);
    close(fd);
}

// Advice that the kernel refuses changes nothing.
static void advice(void) {
    int fd = begin("advice");
    char *buf = fetched(SIZE, 1), *at = (char *)(((uintptr_t)buf + 5 * MIB) & ~(uintptr_t)4095);
    printf("advice: %d", madvise(at, MIB, MADV_REMOVE));
    printf(" %d", madvise(at + 1, MIB, MADV_DONTNEED));
    printf(" %d", mlock(at + 2 * MIB, 8192));
    printf(" %d", madvise(at + 2 * MIB, 8192, MADV_DONTNEED));
    printf(" %016lx", sum(buf, SIZE));
    printf(" %ld", syscall(SYS_madvise, at + 4 * MIB, MIB, MADV_DONTNEED));
    printf(" %d", madvise(at + 6 * MIB, 1, MADV_DONTNEED));
    struct iovec two[] = {{at + 7 * MIB, 4096}, {at + 8 * MIB, 2 * MIB}}; // of oneself, which newer kernels allow
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    printf(" %zd", process_madvise(self, two, 2, MADV_DONTNEED, 0));
    two[0].iov_base = at + 11 * MIB;
    printf(" %ld", syscall(SYS_process_madvise, self, two, 1, MADV_DONTNEED, 0));
    close(self);
    printf(" %016lx\n", sum(buf, SIZE));
    put_part(fd, buf);
    close(fd);
}

// The kernel writes there, as the program would.
static void filled(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/source", dir);
    int fd = create("filled"), in = create("source");
    header(fd);
    header(in);
    close(in);
    char *buf = fetched(SIZE, 1), *from = host + 50 * MIB;
    in = open(path, O_RDONLY);
    struct iovec here = {from, MIB}, there = {buf + 9 * MIB + 3, MIB},
                 two[] = {{buf + 7 * MIB, 9000}, {buf + 11 * MIB + 5, 1}};
    printf("filled: %ld", (long)pread(in, buf + 3 * MIB + 77, MIB, 0));
    printf(" %ld", (long)read(in, buf + 8 * MIB, 4096));
    printf(" %ld", (long)readv(in, two, 2));
    printf(" %ld", (long)process_vm_writev(getpid(), &here, 1, &there, 1, 0));
    put_part(fd, buf);
    printf(" %016lx\n", sum(buf, SIZE));
    close(in);
    close(fd);
}

static void middle(void) {
    int fd = begin("middle");
    char *buf = fetched(SIZE, 1);
    if (pwrite(fd, buf + 10 * MIB + 5, 8 * MIB, 4 * MIB + 1) != 8 * MIB ||
        pwrite(fd, buf + MIB, 8 * MIB, 9 * MIB + 3) != 8 * MIB || // over it
        pwrite(fd, "small", 5, 6 * MIB + 1) != 5 || pwrite(fd, buf, 2 * MIB, 7 * MIB) != 2 * MIB ||
        pwrite(fd, "small", 5, 10 * MIB) != 5) {
        perror("pwrite");
    }
    close(fd);
}

static void locked(void) {
    int fd = begin("locked");
    char *buf = fetched(SIZE, 1), *at = (char *)(((uintptr_t)buf + 5 * MIB) & ~(uintptr_t)4095);
    mprotect(at, 3 * MIB, PROT_READ);
    put_part(fd, buf);
    if (fork() == 0) {
        printf("locked: %016lx in the child\n", sum(buf, SIZE));
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    printf("locked: %016lx\n", sum(buf, SIZE));
    close(fd);
}

// ---- Several

// More than the arena has room for, all alive; changed behind their writes, in part.
static void many(void) {
    int fd = create("many");
    char *buf[8];
    header(fd);
    for (unsigned i = 0; i < 11; i++) {
        char **b = &buf[i % 8];
        if (i >= 8) {
            printf("many: %016lx\n", sum(*b, SIZE));
            free(*b);
        }
        *b = fetched(SIZE, i);
        put_part(fd, *b);
        (*b)[i * MIB] ^= 1;
    }
    for (unsigned i = 0; i < 8; i++) {
        printf("many: %016lx\n", sum(buf[i], SIZE));
    }
    close(fd);
}

// More than the arena has room for, and only then written: those that are there stay until they are.
static void kept(void) {
    int fd = create("kept");
    char *buf[6];
    header(fd);
    for (unsigned i = 0; i < 6; i++) {
        buf[i] = fetched(SIZE, i);
    }
    for (unsigned i = 0; i < 6; i++) {
        put_part(fd, buf[i]);
        printf("kept: %016lx\n", sum(buf[i], SIZE));
    }
    close(fd);
}

// A child goes on reading what its parent had, while that fills the same memory with other bytes.
static void child(void) {
    int fd = create("child"), go[2];
    header(fd);
    char *a = fetched(SIZE, 1), *b = fetched(SIZE, 2);
    put(fd, a, SIZE);
    if (pipe(go) < 0) {
        _exit(3);
    }
    pid_t pid = fork();
    if (pid == 0) {
        char c;
        close(go[1]);
        printf("child: %ld\n", (long)read(go[0], &c, 1));
        printf("child: %016lx %016lx\n", sum(a, SIZE), sum(b, SIZE));
        madvise((char *)(((uintptr_t)a + 5 * MIB) & ~(uintptr_t)4095), 3 * MIB, MADV_DONTNEED);
        printf("child: %016lx\n", sum(a, SIZE));
        fflush(stdout);
        _exit(0);
    }
    free(a);
    free(b);
    for (unsigned i = 3; i < 9; i++) {
        char *x = fetched(SIZE, i);
        put_part(fd, x);
        free(x);
    }
    close(go[1]);
    int status;
    waitpid(pid, &status, 0);
    printf("child: status %d\n", status);
    close(fd);
}

static char *cloned_has;

static int cloned_child(void *unused) {
    (void)unused;
    char line[64];
    int n = snprintf(line, sizeof line, "cloned: %016lx in the child\n", (unsigned long)sum(cloned_has, SIZE));
    return write(1, line, (size_t)n) != n;
}

// A child that no fork handler sees.
static void cloned(void) {
    int fd = create("cloned"), status = -1;
    char *stack = malloc(MIB);
    header(fd);
    cloned_has = fetched(SIZE, 1);
    put_part(fd, cloned_has);
    fflush(stdout);
    pid_t pid = clone(cloned_child, stack + MIB, SIGCHLD, NULL);
    waitpid(pid, &status, 0);
    put_part(fd, cloned_has);
    printf("cloned: status %d, %016lx\n", status, (unsigned long)sum(cloned_has, SIZE));
    close(fd);
    free(stack);
}

static void killed(void) {
    int fd = begin("killed");
    char *buf = fetched(SIZE, 1);
    put(fd, buf, SIZE);
    close(fd);
    fflush(stdout);
    kill(getpid(), SIGKILL);
}

// What the driver had is gone with the device's context, and made again.
static void reset(void) {
    int fd = begin("reset");
    for (unsigned i = 0; i < 2; i++) {
        char *buf = fetched(SIZE, i);
        put_part(fd, buf);
        MUST(cudaDeviceReset());
        streams[1] = NULL;
        there = NULL;
        printf("reset: %016lx\n", sum(buf, SIZE));
        free(buf);
    }
    close(fd);
}

// One that may fail: what it says, and what is in the file if it did not.
static void save(void) {
    int fd = create("save");
    char *d, *buf = memory(SIZE);
    header(fd);
    host = calloc(1, SIZE);
    cudaError_t e = cudaMalloc((void **)&d, SIZE);
    e = e != cudaSuccess ? e : cudaMemset(d, 0x5a, SIZE);
    e = e != cudaSuccess ? e : cudaMemcpyAsync(buf, d, SIZE, cudaMemcpyDeviceToHost, NULL);
    e = e != cudaSuccess ? e : cudaStreamSynchronize(NULL);
    cudaError_t last = cudaGetLastError();
    if (e == cudaSuccess) {
        memset(host, 0x5a, SIZE);
        put(fd, buf, SIZE);
    }
    printf("save: error %d, last %d, other bytes %d\n", e, last, e == cudaSuccess && memcmp(host, buf, SIZE) != 0);
    close(fd);
}

// Waits in the middle for a line on stdin.
static void paused(void) {
    int fd = begin("paused");
    char *a = fetched(SIZE, 1), *b = fetched(SIZE, 2);
    put(fd, a, SIZE);
    memset(a, 0x11, SIZE);
    printf("paused\n");
    fflush(stdout);
    getchar();
    put_part(fd, b);
    put_part(fd, a);
    char *c = fetched(SIZE, 3);
    put_part(fd, c);
    printf("paused: %016lx %016lx %016lx\n", sum(a, SIZE), sum(b, SIZE), sum(c, SIZE));
    close(fd);
}

// Each with buffers and a file of its own, while another one forks.
static char *of_threads[4];

static void *in_thread(void *arg) {
    char name[32], **d = arg;
    snprintf(name, sizeof name, "thread%ld", (long)(d - of_threads));
    int fd = create(name);
    header(fd);
    for (int i = 0; i < 2; i++) {
        char *buf = memory(SIZE);
        MUST(cudaMemcpyAsync(buf, *d, SIZE, cudaMemcpyDeviceToHost, cudaStreamPerThread));
        put_part(fd, buf);
        memset(buf, 1, SIZE);
        free(buf);
    }
    close(fd);
    return NULL;
}

static void threads(void) {
    pthread_t t[4];
    char *mine = fetched(SIZE, 9);
    for (unsigned i = 0; i < 4; i++) {
        of_threads[i] = on_device(SIZE, i);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_create(&t[i], NULL, in_thread, &of_threads[i]);
    }
    for (unsigned i = 0; i < 5; i++) {
        if (fork() == 0) {
            _exit(sum(mine, SIZE) & 1);
        }
        int status;
        wait(&status);
        printf("threads: status %d\n", status);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
    }
}

// What is being sent by aio may be read later.
static void aio(void) {
    unsigned long context = 0;
    int fd = begin("aio");
    printf("aio: %ld\n", syscall(SYS_io_setup, 8, &context));
    for (unsigned i = 0; i < 6; i++) {
        char *buf = fetched(SIZE, i);
        put(fd, buf, SIZE);
        free(buf);
    }
    close(fd);
}

// As many, with a descriptor that direct writes go to.
static void direct(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/direct", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT, 0644);
    many();
    close(fd);
}

// Sizes, lives and changes of buffers by a seed; a child now and then.
static void seeded(unsigned seed) {
    char name[32], *live[4] = {0};
    size_t len[4] = {0};
    srandom(seed);
    for (unsigned n = 0; n < 6; n++) {
        unsigned i = (unsigned)random() % 4;
        snprintf(name, sizeof name, "seeded-%u-%u", seed, n);
        int fd = create(name);
        header(fd);
        free(live[i]);
        len[i] = 33 * MIB + (size_t)random() % (30 * MIB);
        live[i] = fetched(len[i], (unsigned)random());
        for (unsigned k = 0; k < 4; k++) {
            size_t from = len[k] > 0 ? (size_t)random() % len[k] : 0;
            if (len[k] > 0 && random() % 2 == 0) {
                memset(live[k] + from, k, (len[k] - from) % (5 * MIB));
            }
            put(fd, live[k] + from, len[k] - from);
        }
        if (random() % 4 == 0 && fork() == 0) {
            for (unsigned k = 0; k < 4; k++) {
                printf("seeded: %016lx in the child\n", len[k] > 0 ? sum(live[k], len[k]) : 0);
            }
            fflush(stdout);
            _exit(0);
        }
        while (wait(NULL) > 0) {
        }
        close(fd);
    }
    for (unsigned k = 0; k < 4; k++) {
        printf("seeded: %016lx\n", len[k] > 0 ? sum(live[k], len[k]) : 0);
        free(live[k]);
    }
    fflush(stdout);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {{"plain", plain}, {"after", after},   {"some", some},     {"again", again}, {"freed", freed},
             {"advice", advice}, {"filled", filled}, {"kept", kept}, {"elsewhere", elsewhere}, {"execs", execs},
             {"over", over},   {"moved", moved},   {"zeros", zeros},   {"middle", middle}, {"locked", locked},
             {"many", many},   {"child", child},   {"killed", killed}, {"cloned", cloned},
             {"reset", reset}, {"save", save},     {"paused", paused},
             {"threads", threads}, {"aio", aio},       {"direct", direct}};

int main(int argc, char **argv) {
    dir = argv[1];
    for (int i = 2; i < argc; i++) {
        if (argv[i][0] >= '0' && argv[i][0] <= '9') {
            seeded((unsigned)atoi(argv[i]));
        }
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            if (strcmp(cases[k].name, argv[i]) == 0) {
                cases[k].run();
            }
        }
    }
    return 0;
}
