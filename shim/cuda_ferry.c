// SPDX-License-Identifier: MIT
//
// cuda_ferry: a copy that the program does not wait for (FASTCKPT_CUDA=defer). In its call: a snapshot from the
// program's memory to scratch memory of the same device, complete when the call returns. Behind its back, in late.c's
// thread: from there to the arena. Scratch is a ring: a copy that finds it full waits for the oldest piece in it. It is
// given back, for good, when the program's own allocation fails. One device a process has it, the first that asks.
//
// Which copies: cuda.c; how the memory that they went to is kept for the program: adopt.c.

#include "cuda_inside.h"

#include "../core/log.h"
#include "../core/os.h"
#include "../core/staging.h"
#include "adopt.h"
#include "guard.h"
#include "late.h"

#include <string.h>

#define PIECE (1 * MIB) // what else comes from the device waits for one

enum { SCRATCH_NONE, SCRATCH, SCRATCH_GONE };

static struct ferry {
    _Atomic uint32_t busy; // a snapshot is being made, or scratch given back
    struct runtime *_Atomic rt;
    int device;
    _Atomic uint32_t state; // SCRATCH_*
    char *scratch;
    uint64_t size;
    uint64_t put;            // bytes that were put into the ring, in all
    uint64_t from[LATE_MAX]; // likewise, when a piece was, by its number
    uint32_t resets;         // of the device, when scratch was made
    // the thread's own
    bool made;
    uint32_t made_at; // likewise
    void *stream, *done[LATE_WINDOW];
} ferry;

static char *place_of(uint64_t number) {
    return ferry.scratch + ferry.from[number % LATE_MAX] % ferry.size;
}

// ---- In the thread

static void start(void) {
    const struct functions *f = &atomic_load(&ferry.rt)->f;
    int mode = CAPTURE_RELAXED;
    f->cudaThreadExchangeStreamCaptureMode(&mode); // nobody's capture is spoiled
    f->cudaSetDevice(ferry.device);
}

static int make_stream(const struct functions *f) {
    uint32_t now = cuda_lane_resets(ferry.device);
    int r = SUCCESS;
    if (!ferry.made || ferry.made_at != now) {
        r = f->cudaStreamCreateWithFlags(&ferry.stream, STREAM_NON_BLOCKING);
        for (uint32_t i = 0; r == SUCCESS && i < LATE_WINDOW; i++) {
            r = f->cudaEventCreateWithFlags(&ferry.done[i], EVENT_NO_TIMING);
        }
        ferry.made = r == SUCCESS;
        ferry.made_at = now;
    }
    return r;
}

static int begin(uint64_t number, char *to, uint64_t len) {
    const struct functions *f = &atomic_load(&ferry.rt)->f;
    int r = make_stream(f);
    r = r != SUCCESS ? r : f->cudaMemcpyAsync(to, place_of(number), len, DEVICE_TO_HOST, ferry.stream);
    return r != SUCCESS ? r : f->cudaEventRecord(ferry.done[number % LATE_WINDOW], ferry.stream);
}

static int end(uint64_t number) {
    return atomic_load(&ferry.rt)->f.cudaEventSynchronize(ferry.done[number % LATE_WINDOW]);
}

static const struct late_link crossings = {start, begin, end};

// ---- Scratch

static bool make_scratch(const struct runtime *rt) {
    void *p = NULL;
    ferry.size = align_down(shim.config.cuda_scratch, PIECE);
    int r = ferry.size > 0 ? rt->f.cudaMalloc(&p, ferry.size) : OUT_OF_MEMORY;
    if (r != SUCCESS) {
        cuda_refused(rt);
        log_info("FASTCKPT_CUDA=defer: no scratch memory on the device (FASTCKPT_CUDA_SCRATCH), so copies from it are "
                 "waited for: error %d", r);
        return false;
    }
    ferry.scratch = p;
    return true;
}

// By who has `busy`. Made by the first one, and anew behind a reset, before which all pieces have come.
static bool scratch_there(struct runtime *rt, int device) {
    struct runtime *none = NULL;
    if (atomic_load(&ferry.state) == SCRATCH_GONE) {
        return false;
    }
    if (atomic_compare_exchange_strong(&ferry.rt, &none, rt)) {
        ferry.device = device;
    } else if (none != rt || ferry.device != device) {
        return false;
    }
    if (!late_ready(&crossings, guard_plain())) {
        return false;
    }
    uint32_t now = cuda_lane_resets(device);
    if (atomic_load(&ferry.state) == SCRATCH_NONE || ferry.resets != now) {
        ferry.resets = now;
        atomic_store(&ferry.state, make_scratch(rt) ? SCRATCH : SCRATCH_GONE);
    }
    return atomic_load(&ferry.state) == SCRATCH;
}

bool cuda_ferry_give_back(const struct runtime *rt) {
    if (atomic_load(&ferry.state) != SCRATCH || atomic_load(&ferry.rt) != rt || shim.forked || guard_foreign()) {
        return false;
    }
    while (atomic_exchange_explicit(&ferry.busy, 1, memory_order_acquire) != 0) {
        os_sleep_ms(1); // its snapshot comes to an end without us
    }
    bool given = atomic_load(&ferry.state) == SCRATCH;
    if (given) {
        late_settle();
        atomic_store(&ferry.state, SCRATCH_GONE);
        int mode = CAPTURE_RELAXED;
        rt->f.cudaThreadExchangeStreamCaptureMode(&mode);
        if (rt->f.cudaFree(ferry.scratch) != SUCCESS) {
            cuda_refused(rt);
        }
        rt->f.cudaThreadExchangeStreamCaptureMode(&mode);
        log_info("the device's memory is short: scratch memory is given back, and copies are waited for from here on");
    }
    atomic_store_explicit(&ferry.busy, 0, memory_order_release);
    return given;
}

void cuda_ferry_settle(void) {
    if (atomic_load(&ferry.state) == SCRATCH) {
        late_settle();
    }
}

// ---- One copy

struct crossing {
    const struct runtime *rt;
    const struct cuda_copy *c;
    const struct adopted *a;
    void *stream, *event; // of the caller's lane
    size_t done;          // bytes whose snapshot has been taken
};

// No piece crosses two registrations of the arena.
static size_t piece_len(const struct crossing *x, size_t at) {
    return min_u64(min_u64(PIECE, x->c->len - at), STAGING_STEP - (x->a->at + at) % STAGING_STEP);
}

// Nor the end of the ring. 0: there is no room for it.
static size_t place(const struct crossing *x, size_t at, uint64_t number) {
    uint64_t oldest = late_next() - late_on_its_way();
    uint64_t used = number == oldest ? 0 : ferry.put - ferry.from[oldest % LATE_MAX];
    size_t n = min_u64(piece_len(x, at), ferry.size - ferry.put % ferry.size);
    if (used + n > ferry.size || number >= oldest + LATE_MAX) {
        return 0;
    }
    ferry.from[number % LATE_MAX] = ferry.put;
    ferry.put += n;
    return n;
}

// The program has its first bytes at once: they are in pages that it has touched.
static int fetch_head(const struct crossing *x) {
    int r = SUCCESS;
    for (size_t at = 0, n; r == SUCCESS && at < x->a->skip; at += n) {
        n = min_u64(x->a->skip - at, piece_len(x, at));
        r = x->rt->f.cudaMemcpyAsync(x->a->mem + at, x->c->src + at, n, DEVICE_TO_HOST, x->stream);
    }
    return r;
}

// As much as there is room for. False: something could not be begun. Else *ret is what the device says.
static bool snapshot(struct crossing *x, int *ret) {
    const struct functions *f = &x->rt->f;
    uint64_t number = late_next();
    size_t to = max_u64(x->done, x->a->skip), from = to, n;
    int r = x->done == 0 ? fetch_head(x) : SUCCESS;
    for (; r == SUCCESS && to < x->c->len && (n = place(x, to, number)) > 0; to += n) {
        r = f->cudaMemcpyAsync(place_of(number++), x->c->src + to, n, DEVICE_TO_DEVICE, x->stream);
    }
    r = r != SUCCESS ? r : f->cudaEventRecord(x->event, x->stream);
    if (r != SUCCESS) {
        f->cudaStreamSynchronize(x->stream); // until then these places may still be written to
        return false;
    }
#if FASTCKPT_BREAK != 25 // canary: the call returns before the snapshot is complete
    *ret = f->cudaEventSynchronize(x->event);
#endif
    for (number = late_next(); *ret == SUCCESS && from < to; number++, from += n) {
        n = min_u64(piece_len(x, from), ferry.size - ferry.from[number % LATE_MAX] % ferry.size);
        adopt_comes(x->a, from, n);
    }
    x->done = to;
    return true;
}

static bool cross(struct crossing *x, int *ret) {
    *ret = x->rt->f.cudaEventSynchronize(x->event); // what the caller's stream does before it: no slot waits for that
    bool can = true;
    while (can && *ret == SUCCESS && x->done < x->c->len) {
        can = snapshot(x, ret);
        if (can && x->done < x->c->len && late_on_its_way() > 0) {
            late_wait(late_on_its_way() - 1); // for room
        }
    }
    return can;
}

bool cuda_ferry_copy(struct runtime *rt, int device, const struct ferry_way *way, const struct cuda_copy *c,
                     const struct adopted *a, int *ret) {
    if (atomic_exchange_explicit(&ferry.busy, 1, memory_order_acquire) != 0) {
        return false;
    }
    bool can = scratch_there(rt, device);
    if (can && rt->f.cudaEventRecord(way->event, way->stream) != SUCCESS) {
        cuda_refused(rt);
        can = false;
    }
    if (can) {
        struct crossing x = {rt, c, a, way->stream, way->event, 0};
        adopt_expect(a);
        can = cross(&x, ret);
        if (!can || *ret != SUCCESS) {
            late_wait(0); // what has been begun still goes to the arena
            adopt_unexpect(a);
        }
        if (!can) {
            cuda_refused(rt);
        }
    }
    atomic_store_explicit(&ferry.busy, 0, memory_order_release);
    return can;
}
