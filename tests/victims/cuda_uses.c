// SPDX-License-Identifier: MIT
//
// What else programs do with large memory that has a device's bytes: give a part of it back, protect it, copy to it
// once more, let other processes and the device read it. Arguments: a directory, cases or seeds. Each writes files
// there and prints sums: the same natively and under the shim, whether the bytes are adopted or late.

#include "cuda_adopt.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

static char *page_at(char *buf, size_t off) {
    return (char *)(((uintptr_t)buf + off) & ~(uintptr_t)4095);
}

// The end of it is given back, and other memory comes to be there.
static void shrunk(void) {
    int fd = begin("shrunk");
    char *a = sent(100 * MIB, 1);
    uintptr_t top = (uintptr_t)a + 100 * MIB;
    a = realloc(a, 20 * MIB);
    char *b = sent(SIZE, 2);
    printf("shrunk: there %d\n", b > a && (uintptr_t)b < top);
    fflush(stdout);
    put(fd, b, SIZE);
    put(fd, a, 20 * MIB);
    printf("shrunk: %016lx %016lx\n", sum(a, 20 * MIB), sum(b, SIZE));
    close(fd);
}

static void grown(void) {
    int fd = begin("grown");
    char *a = realloc(sent(SIZE, 1), 100 * MIB);
    memset(a + SIZE, 1, 60 * MIB - SIZE);
    put(fd, a, 60 * MIB);
    printf("grown: %016lx\n", sum(a, 60 * MIB));
    close(fd);
}

// Pages that may not be read, or not be written to.
static void protected(void) {
    int fd = begin("protected");
    char *a = sent(SIZE, 1);
    mprotect(page_at(a, 5 * MIB), 4 * MIB, PROT_NONE);
    ssize_t n = write(fd, page_at(a, 6 * MIB), MIB);
    printf("protected: %zd %d\n", n, n < 0 ? errno : 0);
    n = write(fd, page_at(a, 4 * MIB), 2 * MIB);
    printf("protected: %zd\n", n);
    mprotect(page_at(a, 5 * MIB), 4 * MIB, PROT_READ);
    put(fd, a, SIZE);
    mprotect(page_at(a, 5 * MIB), 4 * MIB, PROT_READ | PROT_WRITE);
    a[6 * MIB] ^= 1;
    put(fd, a, SIZE);
    printf("protected: %016lx\n", sum(a, SIZE));
    close(fd);
}

// Ends a case: what the device has now comes here and is saved, too.
static void print_both(const char *name, int fd, const char *a, const char *dev) {
    char *b = memory(SIZE);
    copy(b, dev, SIZE);
    put(fd, b, SIZE);
    printf("%s: %016lx %016lx\n", name, sum(a, SIZE), sum(b, SIZE));
    close(fd);
}

// Over a part of what has come, or is on its way: large and small, and to the device and back.
static void once_more(void) {
    int fd = begin("once_more");
    char *d = on_device(SIZE, 2), *a = sent(SIZE, 1), *e;
    copy(a + 30 * MIB + 3, d + 9, 70000); // of the device's ways to here, the late ones wait for it
    copy(a + 7 * MIB + 3, d, 9 * MIB);
    copy(a + 20 * MIB + 3, d + 5, 70000);
    put(fd, a, SIZE);
    MUST(cudaMalloc((void **)&e, SIZE));
    MUST(cudaMemcpy(e, a, SIZE, cudaMemcpyHostToDevice));
    copy(a, e, SIZE);
    put(fd, a, SIZE);
    print_both("once_more", fd, a, e);
}

// Pinned: to the device at once, from there, and no more.
static void pinned(void) {
    int fd = begin("pinned");
    char *a = sent(SIZE, 1), *d = on_device(SIZE, 2);
    MUST(cudaHostRegister(a, SIZE, cudaHostRegisterDefault));
    put(fd, a, SIZE);
    MUST(cudaMemcpyAsync(a + MIB, d, 9 * MIB, cudaMemcpyDeviceToHost, streams[3]));
    MUST(cudaStreamSynchronize(streams[3]));
    put(fd, a, SIZE);
    MUST(cudaMemcpyAsync(d, a, SIZE, cudaMemcpyHostToDevice, streams[3]));
    MUST(cudaStreamSynchronize(streams[3]));
    MUST(cudaHostUnregister(a));
    print_both("pinned", fd, a, d);
}

// Another process reads it, and writes to it.
static void by_others(void) {
    int fd = begin("by_others"), in[2], out[2];
    char *a = sent(SIZE, 1), c;
    if (pipe(in) < 0 || pipe(out) < 0) {
        _exit(3);
    }
    fflush(stdout);
    pid_t child = fork(); // before: it has nothing of what comes
    if (child == 0) {
        char *copy = malloc(SIZE), *b;
        if (read(in[0], &b, sizeof b) != sizeof b) {
            _exit(3);
        }
        struct iovec here = {copy, SIZE}, there = {b, SIZE};
        ssize_t n = process_vm_readv(getppid(), &here, 1, &there, 1, 0);
        printf("by_others: %zd %016lx\n", n, sum(copy, SIZE));
        here.iov_len = there.iov_len = 2 * MIB;
        there.iov_base = b + 9 * MIB + 3;
        n = process_vm_writev(getppid(), &here, 1, &there, 1, 0);
        printf("by_others: %zd\n", n);
        fflush(stdout);
        _exit(write(out[1], "", 1) != 1);
    }
    char *b = sent(SIZE, 2);
    if (write(in[1], &b, sizeof b) != sizeof b || read(out[0], &c, 1) != 1) {
        _exit(3);
    }
    wait(NULL);
    put(fd, b, SIZE);
    put(fd, a, SIZE);
    printf("by_others: %016lx %016lx\n", sum(a, SIZE), sum(b, SIZE));
    close(fd);
}

// A debugger writes to read-only pages of it, as one sets a breakpoint.
static void poked(void) {
    int fd = begin("poked");
    char *a = sent(SIZE, 1);
    a[9 * MIB] = 1; // it has come
    printf("poked: %016lx\n", sum(a, SIZE));
    mprotect(page_at(a, 9 * MIB), MIB, PROT_READ);
    int mem = open("/proc/self/mem", O_RDWR);
    ssize_t n = pwrite(mem, "poked", 5, (off_t)(uintptr_t)page_at(a, 9 * MIB) + 70000);
    printf("poked: %zd\n", n);
    put(fd, a, SIZE);
    printf("poked: %016lx\n", sum(a, SIZE));
    close(mem);
    close(fd);
}

// A handler of SIGSEGV that opens pages, as a tracker of changes does.
static void on_fault(int sig, siginfo_t *s, void *context) {
    (void)sig, (void)context;
    mprotect(page_at(s->si_addr, 0), 4096, PROT_READ | PROT_WRITE);
}

static void tracked(void) {
    int fd = begin("tracked");
    char *a = sent(SIZE, 1);
    struct sigaction act = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &act, NULL);
    mprotect(page_at(a, MIB), 20 * MIB, PROT_READ);
    put(fd, a, SIZE);
    for (size_t i = 2 * MIB; i < 20 * MIB; i += 100001) {
        a[i] ^= 1;
    }
    put(fd, a, SIZE);
    printf("tracked: %016lx\n", sum(a, SIZE));
    close(fd);
}

// By direct writes, while it is changed behind them.
static void direct(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/direct", dir);
    int captured = begin("not-direct"), fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT, 0644);
    char *a = sent(SIZE, 1);
    put(captured, a, SIZE);
    for (size_t i = 0; i < 8; i++) {
        put(fd, page_at(a, MIB + i * 4 * MIB), 4 * MIB);
        memset(page_at(a, MIB + i * 4 * MIB), 1, 4 * MIB);
    }
    printf("direct: %016lx\n", sum(a, SIZE));
    close(fd);
    close(captured);
}

// From a pipe that has its pages, while it is still there.
static void *drain(void *arg) {
    static char into[32 * MIB];
    size_t n = 0;
    for (ssize_t k; n < sizeof into && (k = read(*(int *)arg, into + n, sizeof into - n)) > 0; n += (size_t)k) {
    }
    return (void *)sum(into, n);
}

static void spliced(void) {
    int fd = begin("spliced"), p[2];
    char *a = sent(SIZE, 1);
    pthread_t t;
    void *h;
    if (pipe(p) < 0 || pthread_create(&t, NULL, drain, &p[0]) != 0) {
        _exit(3);
    }
    struct iovec v = {a + 5 * MIB + 7, 20 * MIB};
    while (v.iov_len > 0) {
        ssize_t n = vmsplice(p[1], &v, 1, 0);
        if (n <= 0) {
            _exit(3);
        }
        v.iov_base = (char *)v.iov_base + n;
        v.iov_len -= (size_t)n;
    }
    close(p[1]);
    pthread_join(t, &h);
    put(fd, a, SIZE);
    printf("spliced: %016lx %016lx\n", (unsigned long)h, sum(a, SIZE));
    close(fd);
}

// Locked in memory, given advice, asked about.
static void advised(void) {
    static const int advice[] = {MADV_SEQUENTIAL, MADV_WILLNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_DONTFORK,
                                 MADV_DOFORK, MADV_DONTDUMP, MADV_DODUMP, MADV_COLD, MADV_PAGEOUT,
                                 22 /* MADV_POPULATE_READ */, 23 /* MADV_POPULATE_WRITE */};
    int fd = begin("advised");
    char *a = sent(SIZE, 1);
    for (size_t i = 0; i < sizeof advice / sizeof advice[0]; i++) {
        printf("advised: %d: %d\n", advice[i], madvise(page_at(a, (3 + 3 * i) * MIB), 2 * MIB, advice[i]));
    }
    put(fd, a, SIZE);
    printf("advised: %016lx, msync %d\n", sum(a, SIZE), msync(page_at(a, 3 * MIB), 9 * MIB, MS_SYNC));
    close(fd);
}

// Given back in the middle, with other memory there.
static void holed(void) {
    int fd = begin("holed");
    char *a = sent(SIZE, 1), *at = page_at(a, 9 * MIB);
    munmap(at, 3 * MIB);
    put(fd, a, 8 * MIB);
    mmap(at, 3 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    at[5] = 1;
    put(fd, a, SIZE);
    printf("holed: %016lx\n", sum(a, SIZE));
    close(fd);
}

// ---- All of it, as a seed says

#define LIVE 4

struct life {
    char *buf[LIVE];
    size_t len[LIVE];
    bool grown[LIVE]; // by realloc, which may have moved it to another place within its page
    char *there;
    int fd, zero;
};

static size_t roll(size_t below) {
    return (size_t)random() % below;
}

// One change. No change of pages where they may begin at other bytes of it than natively.
static void change(struct life *l, size_t k) {
    size_t from = roll(l->len[k] - 2 * MIB), n = 1 + roll(2 * MIB);
    char *p = l->buf[k] + from, *page = page_at(l->buf[k], 8192 + from / 2);
    switch (roll(l->grown[k] ? 6 : 9)) {
    case 0: memset(p, (int)n, n); break;
    case 1: copy(p, l->there, n); break;
    case 2:
        if (read(l->zero, p, n) != (ssize_t)n) {
            _exit(3);
        }
        break;
    case 6: madvise(page, n, MADV_DONTNEED); break;
    case 7:
        mmap(page, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        memset(page, 7, n / 2);
        break;
    case 8: mprotect(page, n, PROT_READ); break;
    case 3:
        l->len[k] -= roll(l->len[k] - 17 * MIB + 1);
        l->buf[k] = realloc(l->buf[k], l->len[k]);
        break;
    case 4: {
        size_t grown = l->len[k] + roll(9 * MIB);
        l->grown[k] = true;
        l->buf[k] = realloc(l->buf[k], grown);
        memset(l->buf[k] + l->len[k], 5, grown - l->len[k]);
        l->len[k] = grown;
        break;
    }
    default: MUST(cudaMemcpy(l->there + MIB, p, n, cudaMemcpyHostToDevice));
    }
    mprotect(page_at(l->buf[k], 4096), l->len[k] - 8192, PROT_READ | PROT_WRITE);
}

static void step(struct life *l) {
    size_t k = roll(LIVE), from;
    if (l->buf[k] == NULL || roll(5) == 0) {
        free(l->buf[k]);
        l->len[k] = 33 * MIB + roll(20 * MIB);
        l->grown[k] = false;
        l->buf[k] = memory(l->len[k]);
        copy(l->buf[k], l->there, l->len[k]);
        MUST(cudaMemsetAsync(l->there + roll(40 * MIB), (int)roll(256), MIB, streams[4]));
        MUST(cudaStreamSynchronize(streams[4]));
    }
    if (roll(2) == 0) {
        change(l, k);
    }
    from = roll(l->len[k]);
    if (roll(3) == 0 && pwrite(l->fd, l->buf[k] + from, l->len[k] - from, (off_t)(MIB + roll(9 * MIB))) < 0) {
        _exit(3);
    } else if (roll(3) == 0) {
        put(l->fd, l->buf[k] + from, l->len[k] - from);
    }
    if (roll(12) == 0) {
        printf("step: %016lx\n", sum(l->buf[k], l->len[k]));
    }
    fflush(stdout);
    if (roll(20) == 0 && fork() == 0) {
        printf("step: %016lx in the child\n", sum(l->buf[k], l->len[k]));
        fflush(stdout);
        _exit(0);
    }
    while (wait(NULL) > 0) {
    }
}

static void seeded(unsigned seed) {
    char name[32];
    snprintf(name, sizeof name, "seeded-%u", seed);
    srandom(seed);
    struct life l = {.there = on_device(64 * MIB, seed), .fd = begin(name), .zero = open("/dev/zero", O_RDONLY)};
    for (unsigned i = 0; i < 40; i++) {
        step(&l);
    }
    for (unsigned k = 0; k < LIVE; k++) {
        printf("seeded %u: %016lx\n", seed, l.buf[k] != NULL ? sum(l.buf[k], l.len[k]) : 0);
        free(l.buf[k]);
    }
    fflush(stdout);
    MUST(cudaFree(l.there));
    close(l.zero);
    close(l.fd);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {{"shrunk", shrunk}, {"grown", grown}, {"protected", protected}, {"once_more", once_more},
             {"pinned", pinned}, {"by_others", by_others}, {"poked", poked}, {"tracked", tracked}, {"direct", direct},
             {"spliced", spliced}, {"advised", advised}, {"holed", holed}};

int main(int argc, char **argv) {
    dir = argv[1];
    MUST(cudaHostAlloc((void **)&host, 128 * MIB, 0)); // what goes to the device goes fast
    for (int i = 2; i < argc; i++) {
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            if (strcmp(cases[k].name, argv[i]) == 0) {
                cases[k].run();
                fflush(stdout);
            }
        }
        if (argv[i][0] >= '0' && argv[i][0] <= '9') {
            seeded((unsigned)atoi(argv[i]));
        }
    }
    return 0;
}
