// SPDX-License-Identifier: MIT
//
// guard: what every hook asks first: are we ready, are we in the process whose tables these are, is the thread already
// inside. Also the shim's configuration and the small lock. Nothing here knows a file.
//
// Levels: a hook that runs before our constructor, after a bad configuration or in a vfork child passes through.

#ifndef FASTCKPT_GUARD_H
#define FASTCKPT_GUARD_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../core/config.h"

/** Written once by the constructor (and pid by the fork handler in the child), read by all: no lock needed. */
struct shim {
    _Atomic bool ready;      // constructor done, FASTCKPT_PATHS not empty, not disabled
    int pid;                 // the process whose tables these are: a vfork child sees its parent's
    bool forked;             // this process is a fork child of a shimmed process
    _Atomic uint32_t spawned; // processes started so far (fork, vfork, spawn, exec): files note the value at open
    struct config config;
};
extern struct shim shim; // defined in guard.c

/** Absolute path of the engine binary (FASTCKPT_ENGINE, or `fastckpt` beside the library): filled by the constructor;
 *  defined in shim.c. */
extern char shim_engine_path[4096];

/** True in a vfork child, which runs in its parent's memory: change no table then. One system call (50 ns). */
bool guard_foreign(void);

/** Can a program's pointer be read? Where the kernel answers EFAULT, the shim must not crash. One system call. */
bool guard_readable(const void *p);

/** Per-thread: non-zero while this thread is inside a hook's slow path. Our own calls then pass through. */
extern __thread int guard_depth __attribute__((tls_model("initial-exec")));

/** A futex lock for state that signal handlers may want as well: all signals are blocked while it is held. Never held
 *  around a call that can block on a disk or on the engine, but per-file locks are (their holders are the file's own
 *  writers). Locks are dropped in the reverse order: the first one that a thread takes has the signals. */
struct lock {
    _Atomic uint32_t word; // 0 free, 1 held, 2 held and waited for
};
void lock_take(struct lock *l, sigset_t *saved);
/** Takes it if it is free; false (and signals as they were) if not. */
bool lock_try(struct lock *l, sigset_t *saved);
void lock_drop(struct lock *l, const sigset_t *saved);

/** Did the program's thread block no signal when it called us? Then it is in no handler, and may do what allocates. */
bool guard_plain(void);

/** For waits that may be long while a lock is held: lets a signal through that would end the process (SIGTERM, SIGINT
 *  ... with no handler). Those with a handler wait until the lock is dropped, as behind a write to a slow disk. */
void guard_let_die(void);

#endif
