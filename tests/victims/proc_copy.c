// SPDX-License-Identifier: MIT
//
// proc_copy: what can happen to a process while several of its threads copy a large write. `proc_copy MODE` does one
// thing of that kind in the current directory and prints what it saw; a test compares that and the files with a native
// run. A file that is being written when the process ends is called volatile.pt: how long it is, is chance.

#include "proc_rig.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>

#define LARGE (24 * MIB + 4096)

static char *source; // LARGE bytes
static atomic_int stop, written;
static const char *self;

static void nap(long us) {
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

static void save_large(const char *path) {
    int fd = create(path);
    for (size_t done = 0; done < LARGE;) {
        ssize_t n = write(fd, source + done, LARGE - done);
        if (n <= 0) {
            say("write %s: %s\n", path, strerrorname_np(errno));
            break;
        }
        done += (size_t)n;
    }
    struct stat st;
    if (fstat(fd, &st) < 0 || st.st_size != LARGE || close(fd) < 0) {
        say("save %s: %s\n", path, strerrorname_np(errno));
    }
}

// Saves one file after another under one name.
static void *saves(void *path) {
    while (!stop) {
        save_large(path);
        written++;
    }
    return NULL;
}

// Writes the same bytes to the same place of one file, without end.
static void *rewrites(void *path) {
    int fd = create(path);
    while (!stop) {
        if (pwrite(fd, source, LARGE, 0) < 0) {
            say("pwrite: %s\n", strerrorname_np(errno));
        }
        written++;
    }
    close(fd);
    return NULL;
}

// One file that grows without end.
static void *grows(void *path) {
    int fd = create(path);
    while (write(fd, source, LARGE) > 0) {
        written++;
    }
    return NULL;
}

static pthread_t begin(void *(*what)(void *), const char *path) {
    pthread_t t;
    written = 0;
    pthread_create(&t, NULL, what, (void *)(uintptr_t)path);
    while (written == 0) {
        nap(1000);
    }
    return t;
}

static void end(pthread_t t) {
    stop = 1;
    pthread_join(t, NULL);
    stop = 0;
}

static void large(void) {
    pthread_t t = begin(saves, "a.bin");
    for (int i = 0; i < 8; i++) {
        save_large("b.bin");
    }
    end(t);
    int fd = create("v.bin"); // pieces that end anywhere, a vector, a hole in front
    struct iovec v[3] = {{source, 9 * MIB + 1}, {source + 3, 5}, {source + MIB, 13 * MIB}};
    say("writev %ld\n", (long)writev(fd, v, 3));
    say("pwritev %ld\n", (long)pwritev(fd, v, 3, (off_t)(40 * MIB)));
    say("pwrite %ld\n", (long)pwrite(fd, source, 20 * MIB, (off_t)(12 * MIB)));
    finish(fd);
}

// A child of a process that is copying: it saves by its only thread, makes threads and saves, or goes.
static void forks(void) {
    pthread_t t = begin(saves, "a.bin");
    for (int i = 0; i < 12; i++) {
        nap(i * 700);
        pid_t pid = i % 4 == 3 ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
        if (pid == 0) {
            alarm(30);
            stop = 0;
            if (i % 4 == 1) {
                end(begin(saves, "c1.bin"));
            } else if (i % 4 != 2) {
                save_large(i % 4 == 3 ? "raw.bin" : "c0.bin");
            }
            _exit(0);
        }
        reap("fork", pid);
    }
    end(t);
}

static atomic_int alarms;

static void on_alarm(int sig) {
    (void)sig;
    int kept = errno;
    if (alarms++ % 64 == 0 && alarms < 1024) {
        save_large("h.bin");
    }
    errno = kept;
}

// Signals all the time, whose handler now and then makes a large save, too.
static void signals(void) {
    struct sigaction sa = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &sa, NULL);
    pthread_t t = begin(saves, "a.bin");
    struct itimerval every = {{0, 300}, {0, 300}}, none = {0};
    setitimer(ITIMER_REAL, &every, NULL);
    for (int i = 0; i < 15 || alarms < 300; i++) {
        save_large("b.bin");
    }
    setitimer(ITIMER_REAL, &none, NULL);
    end(t);
}

// A thread that is cancelled in its write; the next one goes on with the file's name.
static void cancels(void) {
    for (int i = 0; i < 10; i++) {
        pthread_t t = begin(rewrites, "m.bin");
        nap(i * 900);
        pthread_cancel(t);
        void *r;
        pthread_join(t, &r);
        say("cancelled %d\n", r == PTHREAD_CANCELED);
    }
    save_large("after.bin");
}

// The ids of all threads are changed, again and again: each has to answer.
static void ids(void) {
    pthread_t t = begin(saves, "a.bin");
    for (int i = 0; i < 200; i++) {
        say(setgid(getgid()) < 0 || setuid(getuid()) < 0 ? "setuid\n" : "");
        nap(100);
    }
    end(t);
}

// The same by a child with our memory.
static void vforks(void) {
    pthread_t t = begin(saves, "a.bin");
    int fd = create("v.bin");
    for (int i = 0; i < 20; i++) {
        pid_t pid = vfork();
        if (pid == 0) {
            if (i % 2) {
                _exit(write(fd, source, 9 * MIB) == 9 * MIB ? 0 : 3);
            }
            execl("/bin/true", "true", NULL);
            _exit(3);
        }
        reap("vfork", pid);
    }
    end(t);
    finish(fd);
}

static void by_exit(void) {
    begin(grows, "volatile.pt");
    exit(5);
}

static void by__exit(void) {
    begin(grows, "volatile.pt");
    _exit(6);
}

// The same over bytes that are on their way.
static void exit_over(void) {
    begin(rewrites, "volatile.pt");
    exit(5);
}

static void _exit_over(void) {
    begin(rewrites, "volatile.pt");
    _exit(6);
}

static void by_exec(void) {
    begin(grows, "volatile.pt");
    execl(self, "proc_copy", "after", NULL);
}

static void after(void) {
    save_large("after.bin");
}

static void *last(void *unused) {
    (void)unused;
    nap(300000);
    save_large("m.bin");
    return NULL;
}

// The main thread ends; the process does when the last thread of the program has.
static void by_threads(void) {
    pthread_t t;
    pthread_create(&t, NULL, last, NULL);
    save_large("l.bin");
    pthread_exit(NULL);
}

// A source that is unmapped the moment after it was written, and one that never was there.
static void *volatile wild = (void *)64;

static void unmaps(void) {
    pthread_t t = begin(saves, "a.bin");
    int fd = create("m.bin");
    for (int i = 0; i < 10; i++) {
        char *p = mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memcpy(p, source, 16 * MIB);
        p[i] = 'x';
        say("write %ld\n", (long)write(fd, p, 16 * MIB));
        munmap(p, 16 * MIB);
    }
    say("wild %ld %s\n", (long)write(fd, wild, 16 * MIB), strerrorname_np(errno));
    finish(fd);
    end(t);
}

static const struct {
    const char *name;
    void (*run)(void);
} modes[] = {
    {"large", large},  {"fork", forks},   {"signals", signals}, {"cancel", cancels},
    {"ids", ids},      {"vfork", vforks}, {"exit", by_exit},    {"_exit", by__exit},
    {"exec", by_exec}, {"after", after},  {"last", by_threads}, {"unmap", unmaps},
    {"exit-over", exit_over}, {"_exit-over", _exit_over},
};

int main(int argc, char **argv) {
    self = argv[0];
    source = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(source, LARGE, 0, 7);
    for (size_t i = 0; argc > 1 && i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            modes[i].run();
            return 0;
        }
    }
    return 99;
}
