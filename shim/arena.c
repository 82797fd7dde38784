// SPDX-License-Identifier: MIT
//
// arena: see arena.h. The memory, and its ranges. What shows it to the program: arena_shown.c.

#include "arena_inside.h"

#include "../core/log.h"
#include "../core/os.h"
#include "../core/staging.h"
#include "client.h"
#include "guarded.h"
#include "own.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define ASK_MS 2000 // as for an open

struct arena arena;

bool arena_in_use(void) {
    return atomic_load_explicit(&arena.in_use, memory_order_relaxed);
}

void arena_turn_off(const char *what, int err) {
    if (!atomic_exchange(&arena.off, true)) {
        log_info("copies from CUDA devices go through slots from here on: %s%s%s", what, err ? ": " : "",
                 err ? log_errno(-err) : "");
    }
}

char *arena_mem(const struct range *r) {
    return arena.window + r->at;
}

// ---- Ranges

static bool is_over(const struct range *r) {
    return r->users == 0 && (!r->referred || client_ref_over(r->epoch, r->turn));
}

static void forget_free(void) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < arena.n_used; i++) {
        if (arena.used[i]->len > 0) {
            arena.used[n++] = arena.used[i];
        }
    }
    arena.n_used = n;
}

// Under the lock: the first place that is large enough.
static struct range *place(uint64_t len) {
    uint64_t at = 0;
    uint32_t i = 0;
    forget_free();
    for (; i < arena.n_used && arena.used[i]->at - at < len; i++) {
        at = arena.used[i]->at + arena.used[i]->len;
    }
    if (arena.n_used == RANGES_MAX || at + len > atomic_load(&arena.have)) {
        return NULL;
    }
    struct range *r = arena.range;
    while (r->len > 0) {
        r++;
    }
    *r = (struct range){.at = at, .len = len, .users = 1, .age = ++arena.age, .there = UINT64_MAX};
    memmove(&arena.used[i + 1], &arena.used[i], (arena.n_used - i) * sizeof *arena.used);
    arena.used[i] = r;
    arena.n_used++;
    return r;
}

// Under the lock: those that are over and not shown any more.
static void free_unmapped(void) {
    for (uint32_t i = 0; i < arena.n_used; i++) {
        struct range *r = arena.used[i];
        if (r->len > 0 && is_over(r) && !shown_is(r)) {
            r->len = 0;
        }
    }
}

// What was not written while others that came later were will not be, as a rule. Else it is still to be: whoever
// copies all of a model before he saves it gains nothing if its first copies make room for its last ones.
static bool is_saved(const struct range *r) {
    return r->referred || r->age < arena.saved;
}

// Under the lock: the oldest one that is over, whoever sees it. Not where a direct write of another thread may be on
// its way from it. False: there is none.
static bool free_oldest(void) {
    struct range *oldest = NULL;
    for (uint32_t i = 0; i < arena.n_used; i++) {
        struct range *r = arena.used[i];
        if (r->len > 0 && is_over(r) && is_saved(r) && (!oldest || r->age < oldest->age)) {
            oldest = r;
        }
    }
    if (oldest && (oldest->guarded || !maps_any_direct()) && shown_break(oldest)) {
        oldest->len = 0;
        return true;
    }
    return false;
}

// ---- The memory

// Under `growing`. Once.
static int make(void) {
    uint64_t size = align_down(client_staging_max() / 2, STAGING_STEP);
    if (size == 0) {
        return -ENOSPC;
    }
    int fd = staging_create(size);
    struct stat st;
    if (fd < 0 || os_fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 || os_fstat(fd, &st) < 0) {
        return fd < 0 ? fd : -EBADF;
    }
    char *window = staging_window(size);
    int r = window ? staging_map(window, fd, 0, size, 1) : -ENOMEM;
    r = r < 0 ? r : os_madvise(window, MAPS_PAGE, MADV_POPULATE_WRITE); // breaking away needs it: Linux 5.14
    int own = r < 0 ? -1 : own_add(fd);
    if (r < 0) {
        os_close(fd);
    }
    if (r < 0 || own < 0) {
        return r < 0 ? r : own;
    }
    arena.own = own;
    arena.size = size;
    arena.dev_major = major(st.st_dev);
    arena.dev_minor = minor(st.st_dev);
    arena.ino = st.st_ino;
    arena.window = window;
    return 0;
}

// The engine counts it in its budget, and has its descriptor from the first time on.
static int allowed(uint64_t want, uint64_t *bytes) {
    unsigned steps = (unsigned)(align_up(want, STAGING_STEP) / STAGING_STEP);
    uint32_t epoch = client_epoch();
    bool known = atomic_load(&arena.epoch) == epoch + 1;
    int fd = own_pin(arena.own);
    if (fd < 0) {
        return fd; // the program has closed it
    }
    int r = client_arena(known ? -1 : fd, arena.window, &steps, ASK_MS);
    own_unpin(arena.own);
    if (r == 0) {
        atomic_store(&arena.epoch, epoch + 1);
    }
    *bytes = steps * STAGING_STEP;
    return r;
}

// The session may be a new one, whose engine knows nothing of it.
static bool is_known(void) {
    return atomic_load(&arena.epoch) == client_epoch() + 1;
}

// By one thread at a time; the others do without. False: it cannot, now.
static bool grow(uint64_t len) {
    sigset_t saved;
    if (!lock_try(&arena.growing, &saved)) {
        return false;
    }
    uint64_t to = 0;
    int huge, r = arena.window ? 0 : make();
    if (r == 0 && is_known() && atomic_load(&arena.have) == arena.size) {
        r = -EAGAIN;
    }
    if (r == 0) {
        r = allowed(min_u64(atomic_load(&arena.have) + len, arena.size), &to);
    }
    for (uint64_t have; r == 0 && (have = atomic_load(&arena.have)) < to;) {
        r = staging_populate(arena.window + have, STAGING_STEP, &huge);
        atomic_store(&arena.have, have + (r == 0 ? STAGING_STEP : 0));
    }
    if (r == -ENOSPC) {
        arena_turn_off("half of FASTCKPT_STAGING is less than 64 MiB", 0);
    } else if (r < 0 && r != -EAGAIN && r != -ETIMEDOUT && r != -EPIPE) {
        arena_turn_off("no memory for them to go to directly", r);
    }
    lock_drop(&arena.growing, &saved);
    return r == 0;
}

static struct range *find_free(uint64_t len, bool force) {
    sigset_t saved;
    struct range *r = NULL;
    lock_take(&arena.lock, &saved);
    if (is_known() && !(r = place(len)) && shown_look()) {
        free_unmapped();
        r = place(len);
        while (force && !r && !atomic_load(&arena.off) && free_oldest()) {
            r = place(len);
        }
    }
    lock_drop(&arena.lock, &saved);
    return r;
}

struct range *arena_take(uint64_t len) {
    if (atomic_load(&arena.off) || !client_alive() || shown_forking()) {
        return NULL;
    }
    struct range *r = find_free(len, false);
    if (!r && grow(len)) {
        r = find_free(len, false);
    }
    r = r ? r : find_free(len, true);
    if (r && atomic_load(&arena.off)) {
        arena_drop(r);
        r = NULL;
    }
    return r;
}

void arena_use(struct range *r) {
    sigset_t saved;
    lock_take(&arena.lock, &saved);
    r->users++;
    lock_drop(&arena.lock, &saved);
}

void arena_drop(struct range *r) {
    sigset_t saved;
    lock_take(&arena.lock, &saved);
    r->users--;
    if (r->users == 0 && !r->shown) {
        r->len = 0;
    }
    lock_drop(&arena.lock, &saved);
}

// What was there before is no more, but for its beginning: realloc gives back the end of a piece of memory.
static void cover(const char *addr, uint64_t body) {
    for (uint32_t i = 0; i < arena.n_used; i++) {
        struct range *x = arena.used[i];
        if (x->addr < addr + body && addr < x->addr + x->body) {
            x->body = x->addr < addr ? (uint64_t)(addr - x->addr) : 0;
            x->addr = x->body > 0 ? x->addr : NULL;
        }
    }
}

static void show(struct range *r, char *addr, uint64_t skip, uint64_t body) {
    cover(addr, body);
    r->shown = true;
    r->addr = addr;
    r->skip = skip;
    r->body = body;
    arena.lowest = arena.in_use ? min_u64(arena.lowest, (uintptr_t)addr) : (uintptr_t)addr;
    arena.highest = max_u64(arena.highest, (uintptr_t)addr + body);
    atomic_store(&arena.in_use, true);
}

int arena_map(struct range *r, char *addr, uint64_t skip, uint64_t body) {
    sigset_t saved;
    int fd = own_pin(arena.own);
    if (fd < 0) {
        return fd;
    }
    lock_take(&arena.lock, &saved); // fork's handler sees it with DONTFORK, or not at all
    const int prot = PROT_READ | PROT_WRITE;
    void *p = os_mmap(addr, body, prot, MAP_PRIVATE | MAP_FIXED, fd, (off_t)(r->at + skip));
    if (os_is_err(p)) { // before Linux 6.12, what was there may be gone all the same
        os_mmap(addr, body, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    } else {
        os_madvise(addr, body, MADV_DONTFORK);
        show(r, addr, skip, body);
    }
    lock_drop(&arena.lock, &saved);
    own_unpin(arena.own);
    return os_is_err(p) ? (int)(intptr_t)p : 0;
}

int arena_guard(struct range *r, char *addr, uint64_t skip, uint64_t body) {
    sigset_t saved;
    lock_take(&arena.lock, &saved);
    int err = r->lost ? -EIO : guarded_add(addr, body);
    if (err >= 0) {
        os_madvise(addr, body, MADV_DONTFORK);
        show(r, addr, skip, body);
        r->guarded = true;
        atomic_store(&arena.guards, true);
    }
    lock_drop(&arena.lock, &saved);
    return err < 0 ? err : 0;
}

// ---- What is referred to

struct range *arena_hold(const char *p, uint64_t len) {
    sigset_t saved;
    struct range *first = NULL;
    if (shown_forking()) {
        return NULL;
    }
    lock_take(&arena.lock, &saved);
    for (uint32_t i = 0; i < arena.n_used; i++) {
        struct range *r = arena.used[i];
        if (r->len > 0 && r->addr && r->addr < p + len && p < r->addr + r->body &&
            (!first || r->addr < first->addr || (r->addr == first->addr && r->age > first->age))) {
            first = r;
        }
    }
    if (first) {
        first->users++;
    }
    lock_drop(&arena.lock, &saved);
    return first;
}

uint64_t arena_at(const struct range *r, const char *p) {
    return r->at + r->skip + (uint64_t)(p - r->addr);
}

uint64_t arena_still(const struct range *r, const char *p, uint64_t len) {
    struct maps_area a;
#if FASTCKPT_BREAK == 19 // canary: what is mapped there is not looked at
    return len;
#endif
    if (r->guarded) {
        bool there = is_known() && maps_find(p, &a) == 0 && guarded_is((char *)align_down((uintptr_t)p, MAPS_PAGE));
        return there ? min_u64(len, a.to - (uintptr_t)p) : 0;
    }
    if (!is_known() || maps_find(p, &a) < 0 || !shown_is_ours(&a) || a.flags & MAPS_SHARED ||
        a.off + ((uintptr_t)p - a.from) != arena_at(r, p)) {
        return 0;
    }
    return min_u64(len, a.to - (uintptr_t)p);
}

void arena_referred(struct range *r, uint32_t epoch, uint64_t turn) {
    sigset_t saved;
    lock_take(&arena.lock, &saved);
    bool later = !r->referred || r->epoch != epoch || turn > r->turn;
    r->turn = later ? turn : r->turn;
    r->epoch = epoch;
    r->referred = true;
    arena.saved = max_u64(arena.saved, r->age);
    lock_drop(&arena.lock, &saved);
}

// ---- What comes later

void arena_expect(struct range *r) {
    atomic_store(&r->there, 0);
    arena_use(r);
}

void arena_came(struct range *r, uint64_t bytes) {
    atomic_store(&r->there, bytes);
}

// The range that these bytes are in, which somebody uses or refers to.
static const struct range *range_of(uint64_t at) {
    for (uint32_t i = 0; i < arena.n_used; i++) {
        const struct range *r = arena.used[i];
        if (r->len > 0 && at >= r->at && at < r->at + r->len) {
            return r;
        }
    }
    return NULL;
}

bool arena_has(uint64_t at, uint64_t len) {
    sigset_t saved;
    bool taken = arena_lock(&saved);
    const struct range *r = range_of(at);
    bool has = !r || r->lost || at + len - r->at <= atomic_load(&r->there);
    arena_unlock(taken, &saved);
    return has;
}

bool arena_is_lost(uint64_t at, uint64_t len) {
    sigset_t saved;
    bool taken = arena_lock(&saved);
    const struct range *r = range_of(at);
    bool is_lost = r && r->lost && at + len - r->at > atomic_load(&r->there);
    arena_unlock(taken, &saved);
    return is_lost;
}
