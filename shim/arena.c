// SPDX-License-Identifier: MIT
//
// arena: see arena.h. Where a page of it is still mapped when it is needed, the kernel breaks it away (as for a write),
// which is safe beside the program's own stores; copying it and mapping the copy would lose some. Whatever is in
// flight by io_uring or aio may still read such pages afterwards: where a program has either, nothing is used again.
//
// One lock for all. Not held while the engine is asked, a step is made, or somebody uses a range.

#include "arena.h"

#include "../core/log.h"
#include "../core/os.h"
#include "../core/staging.h"
#include "client.h"
#include "guard.h"
#include "maps.h"
#include "own.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define RANGES_MAX 128
#define AREAS_MAX  512
#define ASK_MS     2000 // as for an open

static struct arena {
    struct lock lock, growing;
    sigset_t signals;    // of who forks: he has the lock meanwhile,
    _Atomic int forking; // and is this thread
    _Atomic bool in_use, off;
    int own; // handle of the memfd, from `window` on
    char *window;
    uint64_t size;         // most of it
    _Atomic uint64_t have; // and what is resident
    uint32_t dev_major, dev_minor;
    uint64_t ino;
    _Atomic uint32_t epoch; // of the session that has its descriptor, + 1: all above is there
    uint64_t age;
    struct range range[RANGES_MAX];
    uint32_t n_areas;
    struct maps_area area[AREAS_MAX]; // its mappings, but our own: filled by look()
} arena;

bool arena_in_use(void) {
    return atomic_load_explicit(&arena.in_use, memory_order_relaxed);
}

static void turn_off(const char *what, int err) {
    if (!atomic_exchange(&arena.off, true)) {
        log_info("copies from CUDA devices go through slots from here on: %s%s%s", what, err ? ": " : "",
                 err ? log_errno(-err) : "");
    }
}

char *arena_mem(const struct range *r) {
    return arena.window + r->at;
}

// ---- Its mappings

static bool is_ours(const struct maps_area *a) {
    return a->ino == arena.ino && a->major == arena.dev_major && a->minor == arena.dev_minor;
}

static bool note_area(void *arg, const struct maps_area *a, const char *name) {
    (void)arg;
    if (is_ours(a) && !(a->flags & MAPS_SHARED)) {
        if (arena.n_areas == AREAS_MAX) {
            turn_off("there are too many mappings of it", 0);
            return false;
        }
        arena.area[arena.n_areas++] = *a;
    } else if (strcmp(name, "anon_inode:[io_uring]") == 0 || strncmp(name, "/[aio]", 6) == 0) {
        turn_off("this program has io_uring or aio", 0);
    }
    return true;
}

// Under the lock. False: not known.
static bool look(void) {
    arena.n_areas = 0;
    int r = maps_each(note_area, NULL);
    if (r < 0) {
        turn_off("their mappings are not known", r);
    }
    return r == 0;
}

static bool shows(const struct maps_area *a, const struct range *r) {
    return a->off < r->at + r->len && r->at < a->off + (a->to - a->from);
}

static bool is_mapped(const struct range *r) {
    for (uint32_t i = 0; i < arena.n_areas; i++) {
        if (shows(&arena.area[i], r)) {
            return true;
        }
    }
    return false;
}

static int prot_of(const struct maps_area *a) {
    return (a->flags & MAPS_READ ? PROT_READ : 0) | (a->flags & MAPS_WRITE ? PROT_WRITE : 0) |
           (a->flags & MAPS_EXEC ? PROT_EXEC : 0);
}

// All pages of it become the program's own, and its children's.
static int break_area(const struct maps_area *a) {
    char *from = (char *)(uintptr_t)a->from;
    uint64_t len = a->to - a->from;
    const int all = PROT_READ | PROT_WRITE;
    bool locked = (prot_of(a) & all) != all; // the program has made it read-only
    int r = locked ? (int)OS_CALL(SYS_mprotect, from, len, all, 0, 0, 0) : 0;
    while (r >= 0 && (r = os_madvise(from, len, MADV_POPULATE_WRITE)) < 0 && (r == -EINTR || r == -EAGAIN)) {
        r = 0;
    }
    if (locked) {
        OS_CALL(SYS_mprotect, from, len, prot_of(a), 0, 0, 0);
    }
    return r < 0 ? r : os_madvise(from, len, MADV_DOFORK);
}

static bool break_range(const struct range *r) {
    for (uint32_t i = 0; i < arena.n_areas; i++) {
        if (shows(&arena.area[i], r) && break_area(&arena.area[i]) < 0) {
            return false;
        }
    }
    return true;
}

// ---- Ranges

static bool is_over(const struct range *r) {
    return r->users == 0 && (!r->referred || client_ref_over(r->epoch, r->turn));
}

static bool overlaps_any(uint64_t at, uint64_t len) {
    for (uint32_t i = 0; i < RANGES_MAX; i++) {
        const struct range *r = &arena.range[i];
        if (r->len > 0 && at < r->at + r->len && r->at < at + len) {
            return true;
        }
    }
    return false;
}

// Under the lock: the first place that is large enough.
static struct range *place(uint64_t len) {
    struct range *fresh = NULL;
    for (uint32_t i = 0; i < RANGES_MAX && !fresh; i++) {
        fresh = arena.range[i].len == 0 ? &arena.range[i] : NULL;
    }
    uint64_t best = UINT64_MAX;
    for (uint32_t i = 0; fresh && i <= RANGES_MAX; i++) { // behind each, and at the beginning
        uint64_t at = i < RANGES_MAX ? arena.range[i].at + arena.range[i].len : 0;
        if (at < best && at + len <= atomic_load(&arena.have) && !overlaps_any(at, len)) {
            best = at;
        }
    }
    if (best == UINT64_MAX) {
        return NULL;
    }
    *fresh = (struct range){.at = best, .len = len, .users = 1, .age = ++arena.age};
    return fresh;
}

// Under the lock: those that are over and not shown any more.
static void free_unmapped(void) {
    for (uint32_t i = 0; i < RANGES_MAX; i++) {
        struct range *r = &arena.range[i];
        if (r->len > 0 && is_over(r) && !is_mapped(r)) {
            r->len = 0;
        }
    }
}

// Under the lock: the oldest one that is over, whoever sees it. Not where a direct write of another thread may be on
// its way from it. False: there is none.
static bool free_oldest(void) {
    struct range *oldest = NULL;
    for (uint32_t i = 0; i < RANGES_MAX; i++) {
        struct range *r = &arena.range[i];
        if (r->len > 0 && is_over(r) && (!oldest || r->age < oldest->age)) {
            oldest = r;
        }
    }
    if (oldest && !maps_any_direct() && break_range(oldest)) {
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
        turn_off("half of FASTCKPT_STAGING is less than 64 MiB", 0);
    } else if (r < 0 && r != -EAGAIN && r != -ETIMEDOUT && r != -EPIPE) {
        turn_off("no memory for them to go to directly", r);
    }
    lock_drop(&arena.growing, &saved);
    return r == 0;
}

static struct range *find_free(uint64_t len, bool force) {
    sigset_t saved;
    struct range *r = NULL;
    lock_take(&arena.lock, &saved);
    if (is_known() && !(r = place(len)) && look()) {
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
    if (atomic_load(&arena.off) || !client_alive()) {
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

void arena_drop(struct range *r) {
    sigset_t saved;
    lock_take(&arena.lock, &saved);
    r->users--;
    if (r->users == 0 && !r->shown) {
        r->len = 0;
    }
    lock_drop(&arena.lock, &saved);
}

int arena_map(struct range *r, char *addr, uint64_t skip, uint64_t body) {
    sigset_t saved;
    int fd = own_pin(arena.own);
    if (fd < 0) {
        return fd;
    }
    lock_take(&arena.lock, &saved); // fork's handler sees it with DONTFORK, or not at all
    void *p = os_mmap(addr, body, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, (off_t)(r->at + skip));
    if (!os_is_err(p)) {
        os_madvise(addr, body, MADV_DONTFORK);
        for (uint32_t i = 0; i < RANGES_MAX; i++) { // what was there before is no more
            struct range *x = &arena.range[i];
            x->addr = x->addr < addr + body && addr < x->addr + x->body ? NULL : x->addr;
        }
        r->shown = true;
        r->addr = addr;
        r->skip = skip;
        r->body = body;
        atomic_store(&arena.in_use, true);
    }
    lock_drop(&arena.lock, &saved);
    own_unpin(arena.own);
    return os_is_err(p) ? (int)(intptr_t)p : 0;
}

// ---- What is referred to

struct range *arena_hold(const char *p, uint64_t len) {
    sigset_t saved;
    struct range *first = NULL;
    lock_take(&arena.lock, &saved);
    for (uint32_t i = 0; i < RANGES_MAX; i++) {
        struct range *r = &arena.range[i];
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
    if (!is_known() || maps_find(p, &a) < 0 || !is_ours(&a) || a.flags & MAPS_SHARED ||
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
    lock_drop(&arena.lock, &saved);
}

// ---- What the program and its children do with it

static void discard(uintptr_t from, uintptr_t to) {
    for (uint32_t i = look() ? arena.n_areas : 0; i-- > 0;) {
        const struct maps_area *a = &arena.area[i];
        uintptr_t lo = max_u64(from, a->from), hi = min_u64(to, a->to);
        if (lo < hi) {
            os_mmap((void *)lo, hi - lo, prot_of(a), MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        }
    }
}

void arena_before_discard(char *addr, uint64_t len) {
    sigset_t saved;
    uintptr_t from = (uintptr_t)addr, to = from + align_up(len, MAPS_PAGE);
    if (atomic_load(&arena.forking) == os_gettid()) { // from another's fork handler
        discard(from, to);
        return;
    }
    lock_take(&arena.lock, &saved);
    discard(from, to);
    lock_drop(&arena.lock, &saved);
}

// What it was mapped to, where the kernel does not say what is: a process that may not read its own /proc.
static void remember(void) {
    arena.n_areas = 0;
    for (uint32_t i = 0; i < RANGES_MAX; i++) {
        const struct range *r = &arena.range[i];
        if (r->len > 0 && r->addr) {
            uint64_t from = (uintptr_t)r->addr;
            arena.area[arena.n_areas++] =
                (struct maps_area){.from = from, .to = from + r->body, .flags = MAPS_READ | MAPS_WRITE};
        }
    }
}

static void break_all(void) {
    if (!look()) {
        remember();
    }
    for (uint32_t i = arena.n_areas; i-- > 0;) {
        int r = break_area(&arena.area[i]);
        if (r < 0) {
            log_error("a forked child will not have %lu bytes of this process's memory: %s",
                      (unsigned long)(arena.area[i].to - arena.area[i].from), log_errno(-r));
        }
    }
}

void arena_before_fork(void) {
    lock_take(&arena.lock, &arena.signals);
    atomic_store(&arena.forking, os_gettid());
    bool mapped = arena_in_use();
#if FASTCKPT_BREAK == 21 // canary: a child has no such memory
    mapped = false;
#endif
    if (mapped) {
        break_all();
    }
}

// A child has no arena, but what was broken away before the fork is still a mapping of it: what it discards must be
// zeros.
void arena_after_fork(bool child) {
    if (child) {
        arena.growing = (struct lock){0};
        atomic_store(&arena.off, true);
        memset(arena.range, 0, sizeof arena.range);
    }
    atomic_store(&arena.forking, 0);
    lock_drop(&arena.lock, &arena.signals);
}
