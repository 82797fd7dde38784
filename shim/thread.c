// SPDX-License-Identifier: MIT
//
// thread: see thread.h.

#include "thread.h"

#include "../core/os.h"
#include "../core/util.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>

#define STACK_LARGE (8 * MIB)

bool thread_make(void *(*run)(void *), size_t stack) {
    pthread_t thread;
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0) {
        return false;
    }
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, stack);
    int err = pthread_create(&thread, &attr, run, NULL);
    if (err == EINVAL) { // the program's thread-local variables need more
        pthread_attr_setstacksize(&attr, STACK_LARGE);
        err = pthread_create(&thread, &attr, run, NULL);
    }
    pthread_attr_destroy(&attr);
    return err == 0;
}

// Everything but glibc's own two signals (the kernel's bits 32 and 33): setuid in another thread waits for our answer.
void thread_begin(const char *name) {
    uint64_t mask = ~(3ull << 31);
    OS_CALL(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, sizeof mask, 0, 0);
    OS_CALL(SYS_prctl, PR_SET_NAME, name, 0, 0, 0, 0);
}
