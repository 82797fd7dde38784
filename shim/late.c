// SPDX-License-Identifier: MIT
//
// late: see late.h. One thread ("courier") takes no signal and no lock but the arena's and the clients', and never
// waits for the program: whoever touches guarded memory waits for it, with whatever locks he holds. Between two pieces
// it looks for faults; when there is nothing on its way it sleeps until there is a fault or a piece.

#include "late.h"

#include "../core/log.h"
#include "../core/os.h"
#include "arena.h"
#include "client.h"
#include "guard.h"
#include "guarded.h"
#include "maps.h"
#include "own.h"
#include "thread.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#define STACK_SIZE (1 * MIB) // CUDA runs on it
#define WAITING    64        // faults that are kept; who is beyond asks again

struct piece {
    struct range *range;
    uint64_t from, len;
    bool last;
    int error;
};

static struct late {
    _Atomic uint32_t made; // MADE_*
    _Atomic bool over;     // nothing is late any more
    const struct late_link *link;
    int bell;                        // handle of an eventfd: there is a piece
    _Atomic bool asleep;
    _Atomic int courier;             // its thread id
    _Atomic uint64_t added, arrived; // pieces
    uint64_t begun, brought;         // the courier's own
    _Atomic uint32_t pulse;          // changes with `arrived`
    _Atomic int error;
    struct piece piece[LATE_MAX];
    uint32_t n_waiting;
    char *waiting[WAITING]; // pages
} late;

enum { MADE_NOT, MADE_BEING, MADE, MADE_REFUSED };

static struct piece *piece_at(uint64_t number) {
    return &late.piece[number % LATE_MAX];
}

// ---- Faults

static void wait_for(char *page) {
    if (late.n_waiting < WAITING) {
        late.waiting[late.n_waiting++] = page;
    } else {
        guarded_wake(page, MAPS_PAGE); // touches it again
    }
}

// A turn's worth: of those who ask again, there is always another one.
static void serve_faults(void) {
    char *page;
    for (uint32_t i = 0; i < WAITING && (page = guarded_next()); i++) {
        if (arena_serve(page) == -EAGAIN) {
            wait_for(page);
        }
    }
}

static void serve_waiting(void) {
    uint32_t n = late.n_waiting;
    late.n_waiting = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (arena_serve(late.waiting[i]) == -EAGAIN) {
            late.waiting[late.n_waiting++] = late.waiting[i];
        }
    }
}

// ---- Pieces

static void say_lost(int error) {
    int none = 0;
    if (atomic_compare_exchange_strong(&late.error, &none, error)) {
        log_error("a copy from a device has failed after its call had returned (error %d): files that were to have its "
                  "bytes fail, and who touches its memory gets SIGBUS", error);
    }
}

static void arrived(struct piece *p) {
    struct range *r = p->range;
    if (p->error != 0 && !r->lost) {
        say_lost(p->error);
        arena_lose(r);
        client_refs_lost(r->at, r->len);
    } else if (!r->lost) { // behind a gap nothing counts
        arena_came(r, p->last ? UINT64_MAX : p->from + p->len);
    }
    if (p->last) {
        arena_drop(r);
    }
}

// One piece has come, or has failed. What can be on its way with it is. Who is told of it may be gone, and then this
// thread is here again, for the next ones, before it goes on.
static void carry(void) {
    uint64_t next = late.brought++;
    for (; late.begun < atomic_load(&late.added) && late.begun < next + LATE_WINDOW; late.begun++) {
        struct piece *p = piece_at(late.begun);
        p->error = late.link->begin(late.begun, arena_mem(p->range) + p->from, p->len);
    }
    struct piece *p = piece_at(next);
    if (p->error == 0) {
#if FASTCKPT_BREAK != 23 // canary: a piece is taken for there before it is
        p->error = late.link->end(next);
#endif
    }
    arrived(p);
    client_refs_arrived(arena_has);
    atomic_store(&late.arrived, late.brought);
    atomic_fetch_add(&late.pulse, 1);
    os_futex_wake(&late.pulse, 1 << 20);
    serve_waiting();
}

static bool any(void) {
    return atomic_load(&late.arrived) != atomic_load(&late.added);
}

// ---- The thread

static void sleep_for_more(void) {
    struct pollfd p[2] = {{.fd = guarded_fd(), .events = POLLIN}, {.fd = own_pin(late.bell), .events = POLLIN}};
    bool both = p[0].fd >= 0 && p[1].fd >= 0;
    if (p[1].fd >= 0) {
        own_unpin(late.bell); // while it is polled, its number may change
    }
    atomic_store(&late.asleep, true);
    if (!any()) {
        os_poll(p, 2, both ? -1 : 10);
    }
    atomic_store(&late.asleep, false);
    int bell = own_pin(late.bell);
    if (bell >= 0) {
        uint64_t rung;
        os_read(bell, &rung, sizeof rung);
        own_unpin(late.bell);
    }
}

static void *courier(void *unused) {
    (void)unused;
    thread_begin("fastckpt-late");
    guard_depth++; // what CUDA calls here is its own business
    atomic_store(&late.courier, os_gettid());
    late.link->start();
    for (;;) {
        serve_faults();
        if (any()) {
            carry();
        } else {
            sleep_for_more();
        }
    }
    return NULL;
}

static int make_bell(void) {
    int fd = (int)OS_CALL(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK, 0, 0, 0, 0);
    return fd < 0 ? fd : own_add(fd);
}

static bool make(const struct late_link *link) {
    int r = guarded_begin();
    if (r < 0) {
        log_info("FASTCKPT_CUDA=defer: no userfaultfd that serves the kernel, too, so copies from CUDA devices are "
                 "waited for: %s", log_errno(-r));
        return false;
    }
    late.link = link;
    late.bell = make_bell();
    bool ends = late.bell >= 0 && atexit(late_end) == 0; // which comes before CUDA's own end
    if (!ends || !thread_make(courier, STACK_SIZE)) {
        log_info("FASTCKPT_CUDA=defer: no thread for it, so copies from CUDA devices are waited for");
        return false;
    }
    return true;
}

bool late_ready(const struct late_link *link, bool plain) {
    uint32_t seen = MADE_NOT;
    if (plain && atomic_load(&late.made) == MADE_NOT &&
        atomic_compare_exchange_strong(&late.made, &seen, MADE_BEING)) {
        atomic_store(&late.made, make(link) ? MADE : MADE_REFUSED);
    }
    return atomic_load(&late.made) == MADE && !atomic_load(&late.over);
}

// ---- Its clients

uint64_t late_next(void) {
    return atomic_load(&late.added);
}

uint64_t late_on_its_way(void) {
    return atomic_load(&late.added) - atomic_load(&late.arrived);
}

void late_add(struct range *r, uint64_t from, uint64_t len, bool last) {
    *piece_at(late_next()) = (struct piece){r, from, len, last, 0};
    atomic_fetch_add(&late.added, 1);
    if (atomic_load(&late.asleep)) {
        int bell = own_pin(late.bell);
        uint64_t one = 1;
        if (bell >= 0) {
            os_write(bell, &one, sizeof one);
            own_unpin(late.bell);
        }
    }
}

// Until `number` pieces have arrived. The courier itself, who may come here by a loss of the engine, goes on.
static void wait_until(uint64_t number) {
    while (atomic_load(&late.arrived) < number) {
        uint32_t pulse = atomic_load(&late.pulse);
        if (atomic_load(&late.courier) == os_gettid()) {
            carry();
        } else if (atomic_load(&late.arrived) < number) {
            os_futex_wait(&late.pulse, pulse, -1);
        }
    }
}

void late_wait(uint64_t most) {
    uint64_t added = late_next();
    wait_until(added > most ? added - most : 0);
}

int late_wait_for(uint64_t at, uint64_t len) {
    while (any() && !arena_has(at, len)) {
        wait_until(atomic_load(&late.arrived) + 1);
    }
    return arena_is_lost(at, len) ? -EIO : 0;
}

void late_tell(void) {
    client_refs_arrived(arena_has);
}

void late_settle(void) {
#if FASTCKPT_BREAK == 24 // canary: nobody waits
    return;
#endif
    wait_until(late_next());
}

void late_end(void) {
    if (!guard_foreign() && !shim.forked) {
        atomic_store(&late.over, true);
        late_settle();
    }
}

void late_after_fork(void) {
    atomic_store(&late.made, MADE_REFUSED);
    atomic_store(&late.added, 0);
    atomic_store(&late.arrived, 0);
}
