// SPDX-License-Identifier: MIT
//
// workers: see workers.h. To make a helper allocates (thread.h), which is why it is done by threads that are in no
// signal handler, and why a helper, once made, only computes and sleeps.

#include "workers.h"

#include "../core/os.h"
#include "../core/util.h"
#include "thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>

#define AUTO_MAX   4
#define IDLE_NS    1000000000ll // then a helper leaves: a main thread that has ended is not kept from being the last
#define STACK_SIZE (256u * 1024u)
#define SPINS      2000 // about the time of a block; a sleep costs more

static struct {
    _Atomic uint32_t busy;    // somebody's job is on, or helpers are being made
    _Atomic uint32_t helpers; // threads that there are
    _Atomic uint32_t call;    // the number of the last job: what helpers sleep on
    _Atomic uint64_t ticket;  // that number << 32 | blocks that nobody has begun
    _Atomic uint32_t undone;  // blocks that are not finished
    workers_block *block;     // of the job: these stand still while a block of it is undone
    void *arg;
    uint32_t n;
    int threads; // as configured
    int pid;
    bool refused; // the system has no thread for us
} workers;

void workers_begin(int threads) {
    memset(&workers, 0, sizeof workers);
    workers.threads = threads;
    workers.pid = os_getpid();
}

// ---- One job

// Takes a block of job `call`. What is read behind the exchange belongs to that job: it cannot end before this block.
static bool claim(uint32_t call, uint32_t *i) {
    uint64_t t = atomic_load_explicit(&workers.ticket, memory_order_acquire);
    do {
        if ((uint32_t)(t >> 32) != call || (uint32_t)t == 0) {
            return false;
        }
    } while (
        !atomic_compare_exchange_weak_explicit(&workers.ticket, &t, t - 1, memory_order_acquire, memory_order_acquire));
    *i = workers.n - (uint32_t)t;
    return true;
}

// True if this thread has finished the last block of all.
static bool take_part(uint32_t call) {
    bool last = false;
    for (uint32_t i; claim(call, &i);) {
        workers.block(workers.arg, i);
        last = atomic_fetch_sub_explicit(&workers.undone, 1, memory_order_acq_rel) == 1;
    }
    return last;
}

static void wait_for_begun(void) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&workers.undone, memory_order_acquire) == 0) {
            return;
        }
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    for (uint32_t left; (left = atomic_load_explicit(&workers.undone, memory_order_acquire)) > 0;) {
        os_futex_wait(&workers.undone, left, -1);
    }
}

static bool enter(void) {
    return atomic_exchange_explicit(&workers.busy, 1, memory_order_acquire) == 0;
}

static void leave(void) {
    atomic_store_explicit(&workers.busy, 0, memory_order_release);
}

void workers_run(workers_block *block, void *arg, uint32_t n) {
    uint32_t helpers = atomic_load_explicit(&workers.helpers, memory_order_relaxed);
    if (n < 2 || helpers == 0 || !enter()) {
        for (uint32_t i = 0; i < n; i++) {
            block(arg, i);
        }
        return;
    }
    uint32_t call = atomic_load_explicit(&workers.call, memory_order_relaxed) + 1;
    workers.block = block;
    workers.arg = arg;
    workers.n = n;
    atomic_store_explicit(&workers.undone, n, memory_order_relaxed);
    atomic_store_explicit(&workers.ticket, (uint64_t)call << 32 | n, memory_order_release);
    atomic_store_explicit(&workers.call, call, memory_order_release); // behind the ticket: who sees it finds blocks
    os_futex_wake(&workers.call, (int)min_u64(helpers, n - 1));
    if (!take_part(call)) {
        wait_for_begun();
    }
    leave();
}

// ---- Helpers

static void *helper(void *unused) {
    (void)unused;
    thread_begin("fastckpt-copy");
    for (;;) {
        uint32_t call = atomic_load_explicit(&workers.call, memory_order_acquire);
        if (take_part(call)) {
            os_futex_wake(&workers.undone, 1);
        }
        if (os_futex_wait(&workers.call, call, IDLE_NS) == -ETIMEDOUT) {
            break;
        }
    }
    atomic_fetch_sub(&workers.helpers, 1);
    return NULL;
}

static bool make_helper(void) {
    atomic_fetch_add(&workers.helpers, 1);
    bool made = thread_make(helper, STACK_SIZE);
    if (!made) {
        atomic_fetch_sub(&workers.helpers, 1);
    }
    return made;
}

// The CPUs that the calling thread, and so a helper that it makes, may use.
static int cpus(void) {
    uint64_t mask[128];
    long bytes = OS_CALL(SYS_sched_getaffinity, 0, sizeof mask, mask, 0, 0, 0);
    int n = 0;
    for (long i = 0; i < bytes / (long)sizeof mask[0]; i++) {
        n += __builtin_popcountll(mask[i]);
    }
    return n;
}

// A directory has a link for each directory in it, and two of its own.
bool workers_has_threads(void) {
    struct stat st;
    return os_fstatat(AT_FDCWD, "/proc/self/task", &st, 0) == 0 && st.st_nlink > 3;
}

bool workers_there(bool plain) {
    if (atomic_load_explicit(&workers.helpers, memory_order_relaxed) > 0) {
        return true;
    }
    if (workers.threads == 1 || workers.refused || !plain || workers.pid != os_getpid() || !workers_has_threads()) {
        return false;
    }
    int wanted = workers.threads > 0 ? workers.threads : (int)min_u64((uint64_t)cpus(), AUTO_MAX);
    if (wanted < 2 || !enter()) {
        return false;
    }
    while ((int)atomic_load(&workers.helpers) < wanted - 1 && !workers.refused) {
        workers.refused = !make_helper();
    }
    leave();
    return atomic_load(&workers.helpers) > 0;
}
