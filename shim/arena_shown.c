// SPDX-License-Identifier: MIT
//
// arena_shown: where the program sees pages of the arena as its own memory: what shows them, how they become its own
// when the arena needs them or a child is to have them, and what it discards. The kernel breaks a page away as for a
// write, which is safe beside the program's own stores; copying it and mapping the copy would lose some. Whatever is in
// flight by io_uring or aio may still read such pages afterwards: where a program has either, nothing is used again.

#include "arena_inside.h"

#include "../core/log.h"
#include "../core/os.h"
#include "guarded.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define FILL_UNIT (1 * MIB) // around a page of guarded memory that somebody waits for

bool shown_is_ours(const struct maps_area *a) {
    return a->ino == arena.ino && a->major == arena.dev_major && a->minor == arena.dev_minor;
}

static bool note(const struct maps_area *a) {
    if (arena.n_areas == AREAS_MAX) {
        arena.n_areas++; // more than we know
        return false;
    }
    arena.area[arena.n_areas++] = *a;
    return true;
}

// Two ranges that were guarded side by side may be one mapping.
static bool note_guarded(const struct maps_area *a) {
    bool room = true;
    for (uint32_t i = 0; i < arena.n_used && room; i++) {
        const struct range *r = arena.used[i];
        uint64_t at = (uintptr_t)r->addr;
        if (r->len > 0 && r->guarded && r->addr && at < a->to && a->from < at + r->body) {
            struct maps_area part = *a;
            part.from = max_u64(a->from, at);
            part.to = min_u64(a->to, at + r->body);
            part.off = r->at + r->skip + (part.from - at);
            room = !guarded_is((char *)(uintptr_t)part.from) || note(&part);
        }
    }
    return room;
}

static bool note_area(void *arg, const struct maps_area *a, const char *name) {
    (void)arg;
    if (shown_is_ours(a) && !(a->flags & MAPS_SHARED)) {
        return note(a);
    }
    if (a->ino == 0 && atomic_load(&arena.guards)) {
        return note_guarded(a);
    }
    if (strcmp(name, "anon_inode:[io_uring]") == 0 || strncmp(name, "/[aio]", 6) == 0) {
        arena_turn_off("this program has io_uring or aio", 0);
    }
    return true;
}

bool shown_look(void) {
    arena.n_areas = 0;
    int r = maps_each(note_area, NULL);
    r = r == 0 && arena.n_areas > AREAS_MAX ? -E2BIG : r;
    if (r < 0) {
        arena_turn_off("its mappings are not known", r);
    }
    return r == 0;
}

static bool shows(const struct maps_area *a, const struct range *r) {
    return a->off < r->at + r->len && r->at < a->off + (a->to - a->from);
}

bool shown_is(const struct range *r) {
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

static struct range *guarded_at(const char *p) {
    for (uint32_t i = 0; i < arena.n_used; i++) {
        struct range *r = arena.used[i];
        if (r->len > 0 && r->guarded && r->addr && p >= r->addr && p < r->addr + r->body) {
            return r;
        }
    }
    return NULL;
}

// How much of it has come, in whole pages. Of what is lost, the rest stays so.
static uint64_t come(const struct range *r, const struct maps_area *a) {
    uint64_t there = atomic_load(&r->there), before = a->off - r->at;
    return there <= before ? 0 : min_u64(a->to - a->from, align_down(there - before, MAPS_PAGE));
}

static int fill_area(const struct maps_area *a) {
    char *from = (char *)(uintptr_t)a->from;
    const struct range *range = guarded_at(from);
    uint64_t len = range ? come(range, a) : a->to - a->from;
    int r = len > 0 ? guarded_fill(from, arena.window + a->off, len) : 0;
    if (r == 0) {
        guarded_drop(from, a->to - a->from);
    }
    return r < 0 ? r : os_madvise(from, a->to - a->from, MADV_DOFORK);
}

// All pages of it become the program's own, and its children's.
static int break_area(const struct maps_area *a) {
    char *from = (char *)(uintptr_t)a->from;
    uint64_t len = a->to - a->from;
    if (a->ino == 0) {
        return fill_area(a);
    }
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

bool shown_break(const struct range *r) {
    for (uint32_t i = 0; i < arena.n_areas; i++) {
        if (shows(&arena.area[i], r) && break_area(&arena.area[i]) < 0) {
            return false;
        }
    }
    return true;
}

// In a fork handler of somebody else's, the lock is this thread's already.
bool shown_forking(void) {
    int who = atomic_load(&arena.forking);
    return UNLIKELY(who != 0) && who == os_gettid();
}

// ---- Guarded memory

bool arena_promised(const char *p) {
    sigset_t saved;
    if (!atomic_load_explicit(&arena.guards, memory_order_relaxed)) {
        return false;
    }
    bool taken = arena_lock(&saved);
    const struct range *r = guarded_at(p);
    bool promised = r && guarded_is((char *)align_down((uintptr_t)p, MAPS_PAGE));
    arena_unlock(taken, &saved);
    return promised;
}

// The page, and what lies around it and has come. -EAGAIN: it has not.
static int fill_around(const struct range *r, char *page) {
    uint64_t there = atomic_load(&r->there), before = r->skip + (uint64_t)(page - r->addr);
    uint64_t from = max_u64(align_down(before, FILL_UNIT), r->skip);
    uint64_t to = min_u64(align_down(before, FILL_UNIT) + FILL_UNIT, r->skip + r->body);
    to = min_u64(to, align_down(there, MAPS_PAGE));
    if (to < before + MAPS_PAGE) {
        return -EAGAIN;
    }
    char *at = r->addr + (from - r->skip);
    int err = guarded_fill(at, arena.window + r->at + from, to - from);
    return err == -ENOENT ? guarded_fill(page, arena.window + r->at + before, MAPS_PAGE) : err;
}

int arena_serve(char *page) {
    sigset_t saved;
    lock_take(&arena.lock, &saved);
    const struct range *r = guarded_at(page);
    int err = r ? fill_around(r, page) : -ENOENT;
    if (err == -EAGAIN && r->lost) {
        guarded_lose(page, MAPS_PAGE);
        err = 0;
    }
    if (err < 0 && err != -EAGAIN) { // it is something else by now
        guarded_wake(page, MAPS_PAGE);
    }
    lock_drop(&arena.lock, &saved);
    return err == -EAGAIN ? err : 0;
}

void arena_lose(struct range *r) {
    sigset_t saved;
    lock_take(&arena.lock, &saved);
    r->lost = true;
    for (uint32_t i = r->guarded && shown_look() ? arena.n_areas : 0; i-- > 0;) {
        const struct maps_area *a = &arena.area[i];
        if (a->ino == 0 && shows(a, r)) {
            guarded_lose((char *)(uintptr_t)a->from + come(r, a), a->to - a->from - come(r, a));
        }
    }
    lock_drop(&arena.lock, &saved);
}

// ---- What the program and its children do with it

static void discard(uintptr_t from, uintptr_t to) {
    for (uint32_t i = shown_look() ? arena.n_areas : 0; i-- > 0;) {
        const struct maps_area *a = &arena.area[i];
        uintptr_t lo = max_u64(from, a->from), hi = min_u64(to, a->to);
        // Advice that changes nothing and is refused where the program's will be: memory that it has locked.
        if (lo < hi && os_madvise((void *)lo, hi - lo, MADV_COLD) != -EINVAL) {
            os_mmap((void *)lo, hi - lo, prot_of(a), MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            if (a->ino == 0) {
                guarded_wake((char *)lo, hi - lo);
            }
        }
    }
}

void arena_before_discard(char *addr, uint64_t len) {
    sigset_t saved;
    uintptr_t from = (uintptr_t)addr, to = from + align_up(len, MAPS_PAGE);
    if (from % MAPS_PAGE != 0 || from >= arena.highest || to <= arena.lowest) { // the kernel's to refuse; not ours
        return;
    }
    bool taken = arena_lock(&saved);
    discard(from, to);
    arena_unlock(taken, &saved);
}

void arena_before_move(char *addr, uint64_t len) {
    sigset_t saved;
    bool taken = arena_lock(&saved);
    for (uint32_t i = atomic_load(&arena.guards) && shown_look() ? arena.n_areas : 0; i-- > 0;) {
        const struct maps_area *a = &arena.area[i];
        if (a->ino == 0 && a->from < (uintptr_t)addr + len && (uintptr_t)addr < a->to) {
            break_area(a);
        }
    }
    arena_unlock(taken, &saved);
}

// What it was mapped to, where the kernel does not say what is: a process that may not read its own /proc.
static void remember(void) {
    arena.n_areas = 0;
    for (uint32_t i = 0; i < arena.n_used; i++) {
        const struct range *r = arena.used[i];
        if (r->len > 0 && r->addr) {
            uint64_t from = (uintptr_t)r->addr;
            arena.area[arena.n_areas++] = (struct maps_area){.from = from,
                                                             .to = from + r->body,
                                                             .off = r->at + r->skip,
                                                             .ino = r->guarded ? 0 : arena.ino,
                                                             .flags = MAPS_READ | MAPS_WRITE};
        }
    }
}

static void break_all(void) {
    if (!shown_look()) {
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

static bool all_have_come(void) {
    bool all = true;
    for (uint32_t i = 0; i < arena.n_used; i++) {
        const struct range *r = arena.used[i];
        all = all && (r->len == 0 || !r->guarded || r->lost || atomic_load(&r->there) == UINT64_MAX);
    }
    return all;
}

bool arena_before_fork(void) {
    lock_take(&arena.lock, &arena.signals);
    if (!all_have_come()) {
        lock_drop(&arena.lock, &arena.signals);
        return false;
    }
    atomic_store(&arena.forking, os_gettid());
    bool mapped = arena_in_use();
#if FASTCKPT_BREAK == 21 // canary: a child has no such memory
    mapped = false;
#endif
    if (mapped) {
        break_all();
    }
    return true;
}

// A child has no arena, but what was broken away before the fork is still a mapping of it: what it discards must be
// zeros.
void arena_after_fork(bool child) {
    if (child) {
        arena.growing = (struct lock){0};
        atomic_store(&arena.off, true);
        arena.n_used = 0;
    }
    atomic_store(&arena.forking, 0);
    lock_drop(&arena.lock, &arena.signals);
}
