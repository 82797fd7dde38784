// SPDX-License-Identifier: MIT
//
// hands: two processes at one file. `hands own DIR SHM ROUNDS` makes a file a round and writes records into it, one
// call each, again and again at the same places; how many of these calls have returned stands in SHM. `hands look DIR
// SHM ROUNDS SEED [STOP]` opens each file at some instant by its name, and says what natively cannot be: a record that
// is older than the last one written there before the open, or one of its own that an older one has come over.
// With STOP it stops the owner (SIGSTOP) for as long as it looks.

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD       (1u << 20)
#define RECORD_MAX (1400u << 10)
#define MARK       0x80000000u
#define LOOKS      6u

struct shared {
    _Atomic uint32_t owner, opened, returned, looked; // pid; round + 1 (0: closed), calls of it, round + 1
    _Atomic uint32_t looking, waits;                  // the owner makes no further call; it has come to that
    _Atomic uint32_t come; // round + 1: only now the owner makes the last call, whatever the scheduler does
};

static unsigned record, places, calls;
static char buf[RECORD_MAX];
static struct shared *shm;

static void die(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(2);
}

static const char *name(const char *dir, unsigned round) {
    bool large = round % 2; // two long calls that stay in one chunk; else many, which go over two chunks and a part
    record = large ? RECORD_MAX : 48u << 10;
    places = large ? 2 : 130;
    calls = large ? 80 : 1200;
    static char path[4096];
    snprintf(path, sizeof path, "%s/f%u.pt", dir, round);
    return path;
}

/** Records go round the places, so that some of them lie in a chunk that is full and some in one that is not. */
static off_t place(unsigned call) {
    return HEAD + (off_t)((call * 7) % places) * record;
}

static void fill(uint32_t value) {
    for (unsigned i = 0; i < record / 4; i++) {
        ((uint32_t *)buf)[i] = value;
    }
}

static void own(const char *dir, unsigned rounds) {
    atomic_store(&shm->owner, (uint32_t)getpid());
    for (unsigned r = 0; r < rounds; r++) {
        int fd = open(name(dir, r), O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (fd < 0 || write(fd, buf, HEAD) != HEAD) {
            die("open");
        }
        atomic_store(&shm->returned, 0);
        atomic_store(&shm->opened, r + 1);
        for (unsigned c = 1; c <= calls; c++) {
            fill(c);
            while (c == calls && atomic_load(&shm->come) <= r) {
                sched_yield();
            }
            if (pwrite(fd, buf, record, place(c)) != record) {
                die("pwrite");
            }
            atomic_store(&shm->returned, c);
            while (atomic_load(&shm->looking) && c < calls) {
                atomic_store(&shm->waits, 1);
            }
            atomic_store(&shm->waits, 0);
            sched_yield();
        }
        while (atomic_load(&shm->looked) <= r) {
            sched_yield();
        }
        if (close(fd) < 0) {
            die("close");
        }
        atomic_store(&shm->opened, 0);
    }
}

/** The last call up to `returned` that wrote this place; 0: none. */
static uint32_t last_at(off_t at, uint32_t returned) {
    while (returned > 0 && place(returned) != at) {
        returned--;
    }
    return returned;
}

static uint32_t lowest(int fd, off_t at) {
    static uint32_t got[RECORD_MAX / 4];
    ssize_t n = pread(fd, got, record, at);
    uint32_t low = n == record ? UINT32_MAX : 0;
    for (ssize_t i = 0; i < n / 4; i++) {
        low = got[i] < low ? got[i] : low;
    }
    return low;
}

/** Counts the places with less than what stood there when so many calls had returned. */
static unsigned missing(int fd, unsigned round, uint32_t returned) {
    unsigned wrong = 0;
    for (unsigned p = 0; p < places; p++) {
        off_t at = HEAD + (off_t)p * record;
        uint32_t due = last_at(at, returned), is = due ? lowest(fd, at) : 0;
        if (is < due && wrong++ < 2) {
            printf("round %u: at %u there is %u, and %u was written when %u calls had returned\n", round, p, is, due,
                   returned);
        }
    }
    return wrong;
}

static unsigned look(const char *dir, unsigned round) {
    unsigned wrong = 0;
    struct {
        off_t at;
        uint32_t over;
    } mine[LOOKS];
    uint32_t from = atomic_load(&shm->returned);
    atomic_store(&shm->looking, 1);
    atomic_store(&shm->come, round + 1);
    int fd = open(name(dir, round), O_RDWR);
    if (fd < 0) {
        die("open to look");
    }
    wrong += missing(fd, round, from);
    kill((pid_t)atomic_load(&shm->owner), SIGCONT);
    while (!atomic_load(&shm->waits) && atomic_load(&shm->returned) < calls) {
        sched_yield();
    }
    wrong += missing(fd, round, atomic_load(&shm->returned)); // the call that was in hand at the open, too
    for (unsigned i = 0; i < LOOKS; i++) {
        mine[i].at = HEAD + (off_t)(rand() % (int)places) * record;
        mine[i].over = last_at(mine[i].at, atomic_load(&shm->returned));
        fill(MARK);
        if (pwrite(fd, buf, record, mine[i].at) != record) {
            die("pwrite to look");
        }
    }
    atomic_store(&shm->looking, 0);
    while (atomic_load(&shm->returned) < calls) {
        sched_yield();
    }
    atomic_store(&shm->looked, round + 1);
    while (atomic_load(&shm->opened) == round + 1) {
        sched_yield();
    }
    for (unsigned i = 0; i < LOOKS; i++) {
        uint32_t is = lowest(fd, mine[i].at);
        if (is != MARK && is <= mine[i].over && wrong++ < 3) {
            printf("round %u: mine came after %u, and there is %u\n", round, mine[i].over, is);
        }
    }
    wrong += missing(fd, round, calls); // a mark is newer than all
    close(fd);
    printf("looked at %u of %u\n", from, calls);
    return wrong;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        return 2;
    }
    int fd = open(argv[3], O_RDWR);
    shm = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *shm, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shm == MAP_FAILED) {
        die("shared memory");
    }
    unsigned rounds = (unsigned)atoi(argv[4]), wrong = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(argv[1], "own") == 0) {
        own(argv[2], rounds);
        return 0;
    }
    srand((unsigned)atoi(argv[5]));
    for (unsigned r = 0; r < rounds; r++) {
        while (atomic_load(&shm->opened) != r + 1) {
            sched_yield();
        }
        name(argv[2], r);
        unsigned at = (unsigned)rand() % calls;
        while (atomic_load(&shm->returned) < at) {
            sched_yield();
        }
        if (argc > 6) {
            kill((pid_t)atomic_load(&shm->owner), SIGSTOP);
        }
        wrong += look(argv[2], r);
    }
    return wrong ? 1 : 0;
}
