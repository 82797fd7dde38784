// SPDX-License-Identifier: MIT
//
// target: where a call of one of our exported symbols that is not libc's would have gone without us. Such a function
// may be in several objects of a process, each with callers of its own (two CUDA runtimes, several copies of miniz), so
// there is no one next definition as for libc's names. Knows nothing of what the functions do.

#ifndef FASTCKPT_TARGET_H
#define FASTCKPT_TARGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/** A function, and what its hook keeps with it. */
struct target {
    void *function; // NULL: there is none
    uintptr_t more;
};

/** What to keep with a function that has just been found. */
typedef uintptr_t target_more(void *function);

/** One of our symbols. */
struct target_symbol {
    const char *name;
    const char *library; // begins the file names that may have it where nothing else leads there; or NULL
    target_more *more;   // or NULL
};

/** For target_of: a place that is not known yet. Takes the loader's lock (which its holder may take again, in a signal
 *  handler), but in a forked child the function that others have been given, as long as there is one. Leaves errno
 *  alone. */
struct target target_look_up(const struct target_symbol *s, uintptr_t caller);

/** Is there an object whose file name begins so? Takes the loader's lock. */
bool target_loaded(const char *library);

/** The object that `function` is in stays loaded from here on. */
void target_keep(const void *function);

// ---- What was found for each place that calls

#define TARGET_PLACES 512 // a power of two

/** Read without a lock: `version` is odd while it is written, and another one when it was written in between. */
struct target_place {
    _Atomic uint32_t version;
    _Atomic uintptr_t caller;
    _Atomic uint64_t code;
    const struct target_symbol *_Atomic symbol;
    void *_Atomic function;
    _Atomic uintptr_t more;
};
extern struct target_place target_places[TARGET_PLACES];

static inline struct target_place *target_place(uintptr_t caller) {
    return &target_places[(caller ^ caller >> 12) % TARGET_PLACES];
}

/** The bytes around the call, within one word and so one page. Another object may be at that address by now: then they
 *  are others, or it is the same file at the same place. */
static inline uint64_t target_code(uintptr_t caller) {
    return *(const uint64_t *)((caller - 1) & ~(uintptr_t)7);
}

/** Where the call that returns to `caller` would have gone. A few nanoseconds, once the place is known. */
static inline struct target target_of(const struct target_symbol *s, uintptr_t caller) {
    struct target_place *p = target_place(caller);
    uint32_t version = atomic_load_explicit(&p->version, memory_order_acquire);
    struct target t = {atomic_load_explicit(&p->function, memory_order_relaxed),
                       atomic_load_explicit(&p->more, memory_order_relaxed)};
    bool known = (version & 1) == 0 && atomic_load_explicit(&p->caller, memory_order_relaxed) == caller &&
                 atomic_load_explicit(&p->symbol, memory_order_relaxed) == s &&
                 atomic_load_explicit(&p->code, memory_order_relaxed) == target_code(caller);
    atomic_thread_fence(memory_order_acquire);
    known = known && atomic_load_explicit(&p->version, memory_order_relaxed) == version;
    return __builtin_expect(known, 1) ? t : target_look_up(s, caller);
}

#endif
