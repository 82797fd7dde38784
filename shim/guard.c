// SPDX-License-Identifier: MIT
//
// guard: see guard.h. The lock's slow path and the test for a vfork child; nothing that knows a file or the engine.

#include "guard.h"

#include <errno.h>
#include <string.h>

#include "../core/os.h"
#include "../core/util.h"

struct shim shim;
__thread int guard_depth __attribute__((tls_model("initial-exec")));

bool guard_foreign(void) {
    return os_getpid() != shim.pid;
}

// The kernel fetches the new mask, the 8 bytes around p, before it refuses the command: EFAULT or EINVAL, and nothing
// is changed. A tenth of what process_vm_readv costs.
bool guard_readable(const void *p) {
    uintptr_t word = (uintptr_t)p & ~(uintptr_t)7;
    return p != NULL && OS_CALL(SYS_rt_sigprocmask, -1, word, NULL, sizeof(uint64_t), 0, 0) != -EFAULT;
}

// The kernel's signal set is 8 bytes; glibc's type is larger. Raw, because glibc's call leaves its two internal signals
// (cancellation, setuid) open, and a handler of those may longjmp out of us with the lock held.
static void block_all(sigset_t *saved) {
    uint64_t all = ~0ull;
    OS_CALL(SYS_rt_sigprocmask, SIG_SETMASK, &all, saved, sizeof all, 0, 0);
}

static void unblock(const sigset_t *saved) {
    OS_CALL(SYS_rt_sigprocmask, SIG_SETMASK, saved, NULL, sizeof(uint64_t), 0, 0);
}

// The program's own mask, below the first of the locks that this thread holds.
static __thread uint64_t outer_mask __attribute__((tls_model("initial-exec")));
static __thread int nested __attribute__((tls_model("initial-exec")));

// Inside another lock they are blocked already. A handler that comes before block_all finds and leaves a 0.
static void enter(sigset_t *saved) {
    if (nested == 0) {
        block_all(saved);
        memcpy(&outer_mask, saved, sizeof outer_mask);
    }
    nested++;
}

static void leave(const sigset_t *saved) {
    if (--nested == 0) {
        unblock(saved);
    }
}

bool guard_plain(void) {
    uint64_t mask = outer_mask;
    if (nested == 0) {
        OS_CALL(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, sizeof mask, 0, 0);
    }
    return mask == 0;
}

void guard_let_die(void) {
    static const int ends[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGALRM, SIGUSR1, SIGUSR2, SIGXCPU};
    uint64_t pending = 0;
    if (nested == 0 || OS_CALL(SYS_rt_sigpending, &pending, sizeof pending, 0, 0, 0, 0) < 0) {
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        uint64_t bit = 1ull << (ends[i] - 1);
        uint64_t action[8] = {1}; // the kernel's structure begins with the handler
        if ((pending & bit) && !(outer_mask & bit) &&
            OS_CALL(SYS_rt_sigaction, ends[i], NULL, action, sizeof bit, 0, 0) == 0 && action[0] == 0) {
            OS_CALL(SYS_rt_sigprocmask, SIG_UNBLOCK, &bit, NULL, sizeof bit, 0, 0); // does not return
        }
    }
}

void lock_take(struct lock *l, sigset_t *saved) {
    enter(saved);
    uint32_t seen = 0;
    if (LIKELY(atomic_compare_exchange_strong_explicit(&l->word, &seen, 1, memory_order_acquire,
                                                       memory_order_relaxed))) {
        return;
    }
    // Whoever waits leaves a 2, so that the holder knows that it has to wake somebody.
    while (atomic_exchange_explicit(&l->word, 2, memory_order_acquire) != 0) {
        os_futex_wait(&l->word, 2, -1);
    }
}

bool lock_try(struct lock *l, sigset_t *saved) {
    enter(saved);
    uint32_t seen = 0;
    if (atomic_compare_exchange_strong_explicit(&l->word, &seen, 1, memory_order_acquire, memory_order_relaxed)) {
        return true;
    }
    leave(saved);
    return false;
}

void lock_drop(struct lock *l, const sigset_t *saved) {
    if (atomic_exchange_explicit(&l->word, 0, memory_order_release) == 2) {
        os_futex_wake(&l->word, 1);
    }
    leave(saved);
}
