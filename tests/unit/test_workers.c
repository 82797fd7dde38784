// SPDX-License-Identifier: MIT
//
// Proves: every block of a job is done once and is done when the job is over; helpers are there only where a process
//         has threads, block signals, answer setuid, leave when idle, and are forgotten by a fork child.
// How:    counters in memory and /proc/self/task. Cannot see: what a helper costs a machine that is busy, or saves.

#include "../../core/util.h"
#include "../../shim/workers.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void add_one(void *arg, uint32_t i) {
    atomic_fetch_add(&((_Atomic unsigned *)arg)[i], 1);
}

static void slow_one(void *arg, uint32_t i) {
    nanosleep(&(struct timespec){0, 3000000}, NULL);
    add_one(arg, i);
}

static _Atomic unsigned by_helpers;

static void whose_one(void *caller, uint32_t i) {
    (void)i;
    nanosleep(&(struct timespec){0, 3000000}, NULL);
    by_helpers += gettid() != *(pid_t *)caller;
}

static unsigned threads(void) {
    struct stat st;
    return stat("/proc/self/task", &st) == 0 ? (unsigned)st.st_nlink - 2 : 0;
}

static void *sleeps(void *unused) {
    (void)unused;
    pause();
    return NULL;
}

static void a_thread(void) {
    pthread_t t;
    cr_assert_eq(pthread_create(&t, NULL, sleeps, NULL), 0);
}

static void *jobs(void *unused) {
    (void)unused;
    for (unsigned k = 0; k < 3000; k++) {
        _Atomic unsigned done[64] = {0};
        uint32_t n = 1 + k % 64;
        workers_run(add_one, done, n);
        for (uint32_t i = 0; i < 64; i++) {
            cr_assert_eq(done[i], i < n, "block %u of %u", i, n);
        }
    }
    return NULL;
}

Test(workers, each_block_once) {
    pthread_t t[2];
    a_thread();
    unsigned before = threads();
    workers_begin(4);
    cr_assert(workers_there(true));
    cr_assert_eq(threads(), before + 3);
    for (int i = 0; i < 2; i++) { // one at a time has the helpers
        pthread_create(&t[i], NULL, jobs, NULL);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(t[i], NULL);
    }
}

Test(workers, are_a_help) {
    pid_t caller = gettid();
    a_thread();
    workers_begin(8);
    cr_assert(workers_there(true));
    workers_run(whose_one, &caller, 64);
    cr_assert(by_helpers > 32 && by_helpers < 64, "%u of 64 blocks by seven helpers", by_helpers);
}

Test(workers, none_where_there_should_be_none) {
    a_thread();
    unsigned before = threads();
    workers_begin(4);
    cr_assert(!workers_there(false), "a handler");
    workers_begin(1);
    cr_assert(!workers_there(true), "switched off");
    cr_assert_eq(threads(), before);
    jobs(NULL);
}

static void expect_masked(const char *tid) {
    char path[300], line[128], name[32] = "";
    unsigned long long blocked = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", tid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        sscanf(line, "Name: %31s", name);
        sscanf(line, "SigBlk: %llx", &blocked);
    }
    fclose(f);
    if (strcmp(name, "fastckpt-copy") == 0) {
        // all that can be blocked (SIGKILL and SIGSTOP cannot) but glibc's own two
        cr_assert_eq(blocked | 1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1), ~(3ull << 31), "%llx", blocked);
    }
}

Test(workers, signals_and_setuid) {
    _Atomic unsigned done[64] = {0};
    a_thread();
    workers_begin(3);
    cr_assert(workers_there(true));
    workers_run(slow_one, done, 64); // they are up
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] != '.') {
            expect_masked(e->d_name);
        }
    }
    closedir(d);
    alarm(10); // a helper that does not answer would hold it for ever
    cr_assert_eq(setgid(getgid()), 0);
    cr_assert_eq(setuid(getuid()), 0);
    alarm(0);
}

Test(workers, leave_when_idle) {
    a_thread();
    unsigned before = threads();
    workers_begin(3);
    cr_assert(workers_there(true));
    cr_assert_eq(threads(), before + 2);
    for (int i = 0; i < 50 && threads() > before; i++) {
        nanosleep(&(struct timespec){0, 100000000}, NULL);
    }
    cr_assert_eq(threads(), before);
    jobs(NULL);
    cr_assert(workers_there(true), "and come back");
    jobs(NULL);
}

Test(workers, forked) {
    a_thread();
    workers_begin(3);
    cr_assert(workers_there(true));
    for (int k = 0; k < 20; k++) {
        pid_t pid = fork();
        if (pid == 0) {
            if (k % 2) {
                workers_begin(3); // else: a fork that nobody told us of
            }
            alarm(20);
            jobs(NULL);
            // A process with one thread gets no other.
            _exit(k % 2 && (workers_there(true) || threads() != 1) ? 3 : 0);
        }
        int status;
        waitpid(pid, &status, 0);
        cr_assert_eq(status, 0, "%#x", status);
    }
}
