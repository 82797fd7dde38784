// SPDX-License-Identifier: MIT
//
// cuda_lane: one copy. An event on the caller's stream; a stream of our own waits for it and brings the bytes straight
// into the arena, whose pages then become the destination's (adopt.h); or else in slices into pinned slots, a few
// ahead, each of which is copied to the destination while the next ones travel. Which copies: cuda.c.

#include "cuda_inside.h"

#include "../core/log.h"
#include "../core/os.h"
#include "../core/staging.h"
#include "adopt.h"
#include "guard.h"
#include "target.h"
#include "workers.h"

#include <string.h>
#include <sys/mman.h>

#define SLICE       (4 * MIB)
#define SLICE_UNIT  (64 * KIB)
#define SLOTS       4
#define LANE_BYTES  (SLOTS * SLICE)
#define LANES_MAX   8

/**
 * What one copy at a time needs: a stream, slots, an event a slot. Another copy beside it has a lane of its own: on one
 * stream it would wait for what the first one waits for, and that may be waiting for the second. Made when needed, and
 * never given back: at the end of a process no CUDA call is made, the driver does it all.
 */
struct lane {
    _Atomic uint32_t busy;
    struct runtime *_Atomic rt; // whose it is, NULL: not made yet. Stored once, behind `device`
    int device;
    uint32_t resets; // of the device, when it was made
    bool made;
    void *stream, *begun;
    void *done[SLOTS];
    char *slots;
};

static struct lane lanes[LANES_MAX];
static _Atomic uint32_t resets[DEVICES_MAX];

// Resident before they are registered: then the driver only looks the pages up. A fork child has none of them, so that
// nothing moves the pages of the parent, which the device writes to.
static char *make_slots(void) {
    int huge;
    if (staging_room() < 2 * LANE_BYTES) {
        return NULL;
    }
    char *p = staging_window(LANE_BYTES);
    if (p == NULL) {
        return NULL;
    }
    void *q = os_mmap(p, LANE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (os_is_err(q) || os_madvise(p, LANE_BYTES, MADV_DONTFORK) < 0 || staging_populate(p, LANE_BYTES, &huge) < 0) {
        os_munmap(p, LANE_BYTES);
        return NULL;
    }
    os_madvise(p, LANE_BYTES, MADV_DONTDUMP);
    return p;
}

// On the current device. False: it is off now.
static bool make(struct lane *l, const struct runtime *rt) {
    if (l->slots == NULL && (l->slots = make_slots()) == NULL) {
        cuda_turn_off("no memory for slots", SUCCESS);
        return false;
    }
    const char *what = "cudaHostRegister";
    int r = rt->f.cudaHostRegister(l->slots, LANE_BYTES, REGISTER_PORTABLE);
    if (r == SUCCESS) {
        what = "cudaStreamCreateWithFlags";
        r = rt->f.cudaStreamCreateWithFlags(&l->stream, STREAM_NON_BLOCKING);
    }
    for (int i = 0; r == SUCCESS && i <= SLOTS; i++) {
        what = "cudaEventCreateWithFlags";
        r = rt->f.cudaEventCreateWithFlags(i < SLOTS ? &l->done[i] : &l->begun, EVENT_NO_TIMING);
    }
    if (r != SUCCESS) {
        cuda_turn_off(what, r);
        return false;
    }
    target_keep(rt->object);
    return true;
}

static bool take(struct lane *l, struct runtime *rt, int device) {
    if (atomic_exchange_explicit(&l->busy, 1, memory_order_acquire) != 0) {
        return false;
    }
    if (atomic_load(&l->rt) == NULL) {
        l->device = device;
        atomic_store(&l->rt, rt);
    }
    if (atomic_load(&l->rt) == rt && l->device == device) {
        uint32_t now = atomic_load(&resets[device]);
        l->made = l->made && l->resets == now; // what was there went with the reset, without a call of ours
        l->resets = now;
        return true;
    }
    atomic_store_explicit(&l->busy, 0, memory_order_release);
    return false;
}

static void leave(struct lane *l) {
    atomic_store_explicit(&l->busy, 0, memory_order_release);
}

// One that is there, else a new one. NULL: none is free; then two copies beside each other are as fast as ever.
static struct lane *take_lane(struct runtime *rt, int device) {
    for (int fresh = 0; fresh < 2; fresh++) {
        for (size_t i = 0; i < LANES_MAX; i++) {
            struct runtime *its = atomic_load(&lanes[i].rt);
            if ((fresh ? its == NULL : its == rt && lanes[i].device == device) && take(&lanes[i], rt, device)) {
                lanes[i].made = lanes[i].made || make(&lanes[i], rt);
                if (lanes[i].made) {
                    return &lanes[i];
                }
                leave(&lanes[i]);
                return NULL;
            }
        }
    }
    return NULL;
}

// ---- One copy

struct piece {
    char *dst;
    const char *src;
    size_t len;
};

static void copy_block(void *arg, uint32_t i) {
    const struct piece *p = arg;
    size_t at = (size_t)i * WORKERS_BLOCK;
    memcpy(p->dst + at, p->src + at, min_u64(p->len - at, WORKERS_BLOCK));
}

// By several threads, since most of it is the first touch of a fresh buffer.
static void copy_out(char *dst, const char *slot, size_t len) {
    struct piece p = {dst, slot, len};
    workers_run(copy_block, &p, (uint32_t)((len + WORKERS_BLOCK - 1) / WORKERS_BLOCK));
}

/** The slices of a copy. */
struct slices {
    const struct cuda_copy *c;
    size_t step;
    uint32_t n;
};

static size_t slice_len(const struct slices *s, uint32_t i) {
    return min_u64(s->c->len - i * s->step, s->step);
}

static int send_slice(const struct runtime *rt, const struct lane *l, const struct slices *s, uint32_t i) {
    char *slot = l->slots + i % SLOTS * SLICE;
    int r = rt->f.cudaMemcpyAsync(slot, s->c->src + i * s->step, slice_len(s, i), DEVICE_TO_HOST, l->stream);
    return r != SUCCESS ? r : rt->f.cudaEventRecord(l->done[i % SLOTS], l->stream);
}

// Until all that was sent has come to its end, the slots may still be written to.
static int give_up(const struct runtime *rt, const struct lane *l, int r) {
    int now = rt->f.cudaStreamSynchronize(l->stream);
    if (now != SUCCESS) {
        cuda_turn_off("cudaStreamSynchronize", now);
    }
    return r;
}

// A slice that has failed on its way is the device's word on the copy, or on what ran before it: the program would have
// had it too. What could not be sent is for the runtime's own function to say.
static int pump(const struct runtime *rt, const struct lane *l, const struct slices *s) {
    uint32_t sent = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        int r = SUCCESS;
        for (; r == SUCCESS && sent < s->n && sent < i + SLOTS; sent++) {
            r = send_slice(rt, l, s, sent);
        }
        if (r != SUCCESS) {
            give_up(rt, l, r);
            return cuda_refused(rt);
        }
#if FASTCKPT_BREAK != 10 // canary: a slot is copied before the slice is in it
        r = rt->f.cudaEventSynchronize(l->done[i % SLOTS]);
#endif
        if (r != SUCCESS) {
            return give_up(rt, l, r);
        }
        copy_out(s->c->dst + i * s->step, l->slots + i % SLOTS * SLICE, slice_len(s, i));
    }
    return SUCCESS;
}

// ---- Straight into the arena

#define STEPS_MAX (CHUNKS_MAX / STAGING_STEP_CHUNKS)

static struct runtime *_Atomic arena_runtime; // the first one: a page is registered once in a process
static _Atomic uint32_t registered[STEPS_MAX]; // what resets_so_far said when this step was, + 1; 0: it is not
static _Atomic bool no_arena;

uint32_t cuda_lane_resets(int device) {
    return atomic_load(&resets[device]);
}

static uint32_t resets_so_far(void) {
    uint32_t n = 0;
    for (size_t i = 0; i < DEVICES_MAX; i++) {
        n += atomic_load_explicit(&resets[i], memory_order_relaxed);
    }
    return n;
}

// Step by step, since no copy may cross two registrations. It may outlive the reset of one of several devices.
static bool register_steps(const struct runtime *rt, const struct adopted *a) {
    uint32_t now = resets_so_far() + 1;
    for (uint64_t s = a->at / STAGING_STEP; s <= (a->at + a->len - 1) / STAGING_STEP; s++) {
        if (atomic_load(&registered[s]) == now) {
            continue;
        }
        int r = rt->f.cudaHostRegister(a->mem - a->at + s * STAGING_STEP, STAGING_STEP, REGISTER_PORTABLE);
        if (r != SUCCESS) {
            cuda_refused(rt);
        }
        if (r != SUCCESS && r != REGISTERED_ALREADY) {
            if (!atomic_exchange(&no_arena, true)) {
                log_info("copies from CUDA devices go through slots from here on: cudaHostRegister: error %d", r);
            }
            return false;
        }
        atomic_store(&registered[s], now);
    }
    return true;
}

static int fill(const struct runtime *rt, const struct lane *l, const struct cuda_copy *c, const struct adopted *a) {
    int r = SUCCESS;
    for (size_t done = 0, n; r == SUCCESS && done < c->len; done += n) {
        n = min_u64(c->len - done, STAGING_STEP - (a->at + done) % STAGING_STEP);
        r = rt->f.cudaMemcpyAsync(a->mem + done, c->src + done, n, DEVICE_TO_HOST, l->stream);
    }
    r = r != SUCCESS ? r : rt->f.cudaEventRecord(l->done[0], l->stream);
    if (r != SUCCESS) {
        give_up(rt, l, r);
        return cuda_refused(rt);
    }
    r = rt->f.cudaEventSynchronize(l->done[0]);
    return r != SUCCESS ? give_up(rt, l, r) : r;
}

// Likewise, but the bytes come later. False: not this one.
static bool defer(struct runtime *rt, const struct lane *l, const struct cuda_copy *c, const struct adopted *a,
                  int *ret) {
    const struct ferry_way way = {l->stream, l->done[0]};
    if (!cuda_ferry_copy(rt, l->device, &way, c, a, ret)) {
        return false;
    }
    if (*ret != SUCCESS) {
        adopt_end(a, false);
        return true;
    }
    if (adopt_later(a) < 0) { // some have failed already: the runtime copies it all, with the error that it finds
        *ret = -1;
        return true;
    }
    atomic_fetch_add(&cuda_report.deferred, c->len);
    atomic_fetch_add(&cuda_report.adopted, c->len);
    return true;
}

// False: not this one, and nothing was done. Else *ret is what cuda_copy returns.
static bool adopt(struct runtime *rt, const struct lane *l, const struct cuda_copy *c, int *ret) {
    struct runtime *none = NULL;
    struct adopted a;
    if ((shim.config.cuda != CUDA_AUTO && shim.config.cuda != CUDA_DEFER) || c->len < ADOPT_MIN ||
        atomic_load(&no_arena) || (!atomic_compare_exchange_strong(&arena_runtime, &none, rt) && none != rt) ||
        !adopt_begin(&a, c->dst, c->len)) {
        return false;
    }
    bool can = register_steps(rt, &a);
    if (can && shim.config.cuda == CUDA_DEFER && defer(rt, l, c, &a, ret)) {
        return true;
    }
    *ret = can ? fill(rt, l, c, &a) : SUCCESS;
    adopt_end(&a, can && *ret == SUCCESS);
    if (can && *ret == SUCCESS) {
        atomic_fetch_add(&cuda_report.adopted, c->len);
    }
    return can;
}

// ---- Which of the two

static int bounce(const struct runtime *rt, const struct lane *l, const struct cuda_copy *c) {
    // Small copies in several slices too: the first is on its way out while the last comes in.
    size_t step = min_u64(SLICE, align_up((c->len + SLOTS - 1) / SLOTS, SLICE_UNIT));
    struct slices s = {c, step, (uint32_t)((c->len + step - 1) / step)};
    if (c->len >= WORKERS_MIN) {
        workers_there(guard_plain());
    }
    int r = pump(rt, l, &s);
    if (r == SUCCESS) {
        atomic_fetch_add(&cuda_report.bounced, c->len);
    }
    return r;
}

int cuda_lane_copy(struct runtime *rt, int device, const struct cuda_copy *c) {
    struct lane *l = take_lane(rt, device);
    if (l == NULL) {
        return cuda_refused(rt);
    }
    int r = rt->f.cudaEventRecord(l->begun, c->stream);
    r = r != SUCCESS ? r : rt->f.cudaStreamWaitEvent(l->stream, l->begun, 0);
    if (r != SUCCESS) {
        if (r == RESOURCE_HANDLE) { // another context than the device's own: not ours to find out which
            cuda_turn_off("a stream of another context", r);
        }
        leave(l);
        return cuda_refused(rt);
    }
    if (!adopt(rt, l, c, &r)) {
        r = bounce(rt, l, c);
    }
    leave(l);
    return r;
}

bool cuda_lane_any(void) {
    for (size_t i = 0; i < LANES_MAX; i++) {
        if (atomic_load(&lanes[i].rt) != NULL) {
            return true;
        }
    }
    return false;
}

void cuda_lane_reset(int device) {
#if FASTCKPT_BREAK == 13 // canary: a reset is not noticed
    device = -1;
#endif
    if (device >= 0 && device < DEVICES_MAX) {
        atomic_fetch_add(&resets[device], 1);
    }
}
