// SPDX-License-Identifier: MIT
//
// adopt: see adopt.h. Memory that is adopted has never been touched, so nobody has it pinned, registered or mapped
// elsewhere; and it is glibc's, mapped for one piece of memory alone, which is unmapped when that is freed. Other
// allocators keep and purge theirs, and expect zeros then.

#include "adopt.h"

#include "../core/os.h"
#include "arena.h"
#include "client.h"
#include "fdtable.h"
#include "file_inside.h"
#include "held.h"
#include "maps.h"

#include <errno.h>
#include <string.h>

#define TOUCHED_MAX (2 * MIB)    // at the beginning: a huge page, where the allocator has written its header
#define REFER_MIN   (256 * KIB)  // less is copied: a message and a look at the pages cost as much
#define COPY_STEP   (1 * MIB)    // between two looks at what is mapped, where it is not ours any more
#define SIZES       64

static _Atomic uint64_t sizes[SIZES]; // of large writes to captured files
static _Atomic uint32_t sizes_next;

// ---- Which copies

void adopt_written(size_t len) {
    if (len < ADOPT_MIN) {
        return;
    }
    for (uint32_t i = 0; i < SIZES; i++) {
        if (atomic_load_explicit(&sizes[i], memory_order_relaxed) == len) {
            return;
        }
    }
    atomic_store(&sizes[atomic_fetch_add(&sizes_next, 1) % SIZES], len);
}

static bool is_for_a_file(size_t len) {
    for (uint32_t i = 0; i < SIZES; i++) {
        if (atomic_load_explicit(&sizes[i], memory_order_relaxed) == len) {
            return true;
        }
    }
    uint32_t i = 0;
    for (struct file *f; (f = file_each(&i));) {
        if (!file_is_native(f) && !f->inherited) {
            return true;
        }
    }
    return false;
}

// Is `dst` what malloc has returned, in a mapping made for it? Its header is before it: the size, with a bit that says
// so, and how far behind the beginning of the mapping it is. What free looks at, too.
static bool is_mapped_chunk(const char *dst, size_t len, const struct maps_area *a) {
    uint64_t head[2];
    if (a->from > (uintptr_t)dst - sizeof head || (uintptr_t)dst % 16 != 0) {
        return false;
    }
    memcpy(head, dst - sizeof head, sizeof head);
    uint64_t begin = (uintptr_t)dst - sizeof head - head[0], total = head[0] + (head[1] & ~7ull);
    return (head[1] & 7) == 2 && begin % MAPS_PAGE == 0 && total % MAPS_PAGE == 0 && begin >= a->from &&
           begin + total <= a->to && (uintptr_t)dst + len <= begin + total;
}

// The whole pages of the destination that nobody has touched.
static bool find_body(struct adopted *a) {
    const unsigned wanted = MAPS_READ | MAPS_WRITE;
    struct maps_area area;
    if (maps_find(a->dst, &area) < 0 || area.ino != 0 || area.flags != wanted || area.to < (uintptr_t)a->dst + a->len ||
        !is_mapped_chunk(a->dst, a->len, &area)) {
        return false;
    }
    uintptr_t from = align_up((uintptr_t)a->dst, MAPS_PAGE), to = align_down((uintptr_t)a->dst + a->len, MAPS_PAGE);
    bool rest;
    int64_t touched = maps_touched((char *)from, (to - from) / MAPS_PAGE, &rest);
    if (touched < 0 || rest || (uint64_t)touched * MAPS_PAGE > TOUCHED_MAX) {
        return false;
    }
    from += (uint64_t)touched * MAPS_PAGE;
    a->skip = from - (uintptr_t)a->dst;
    a->body = to - from;
    return true;
}

bool adopt_begin(struct adopted *a, char *dst, size_t len) {
    *a = (struct adopted){.dst = dst, .len = len};
    if (len < ADOPT_MIN || !client_alive() || !is_for_a_file(len) || !find_body(a)) {
        return false;
    }
    uint64_t in_page = (uintptr_t)dst % MAPS_PAGE;
    a->range = arena_take(align_up(in_page + len, MAPS_PAGE));
    if (!a->range) {
        return false;
    }
    a->mem = arena_mem(a->range) + in_page;
    a->at = a->range->at + in_page;
    return true;
}

void adopt_end(struct adopted *a, bool filled) {
    size_t behind = a->skip + a->body;
    if (filled) {
        memcpy(a->dst, a->mem, a->skip);
        memcpy(a->dst + behind, a->mem + behind, a->len - behind);
        if (arena_map(a->range, a->dst + a->skip, (uint64_t)(a->at - a->range->at) + a->skip, a->body) < 0) {
            memcpy(a->dst + a->skip, a->mem + a->skip, a->body);
        }
    }
    arena_drop(a->range);
}

// ---- Handing over

// How many of the bytes at `p`, from the first on, are in the same case: as they came, or (*own) in pages that the
// program has changed, or of which it is not known.
static uint64_t alike(const char *p, uint64_t len, bool *own) {
    const char *page = (const char *)align_down((uintptr_t)p, MAPS_PAGE);
    uint64_t before = (uint64_t)(p - page);
    int64_t n = maps_run(page, align_up(before + len, MAPS_PAGE) / MAPS_PAGE, own);
#if FASTCKPT_BREAK == 20 // canary: changed pages are not looked for
    *own = false;
    return len;
#endif
    *own = *own || n <= 0;
    return n <= 0 ? len : min_u64((uint64_t)n * MAPS_PAGE - before, len);
}

static ssize_t refer(struct file *f, uint64_t off, struct range *r, const char *src, uint64_t len) {
    uint64_t done = 0;
    while (done < len) {
        uint64_t turn;
        ssize_t n = held_refer(f, off + done, arena_at(r, src + done), len - done, &turn);
        if (n < 0) {
            return done > 0 && n == -EAGAIN ? (ssize_t)done : n;
        }
        arena_referred(r, f->epoch, turn);
        done += (uint64_t)n;
    }
    return (ssize_t)done;
}

ssize_t adopt_put(struct file *f, uint64_t off, const char *src, size_t len) {
    struct range *r = arena_in_use() && len >= REFER_MIN ? arena_hold(src, len) : NULL;
    if (!r) {
        return held_put(f, off, src, len);
    }
    ssize_t done = -EAGAIN;
    uint64_t n = src < r->addr ? (uint64_t)(r->addr - src) : 0, copied = n;
    if (n == 0) {
        bool own = true;
        n = arena_still(r, src, min_u64(len, r->body - (uint64_t)(src - r->addr)));
        copied = COPY_STEP;
        if (n >= REFER_MIN) {
            n = alike(src, n, &own);
            copied = max_u64(n, REFER_MIN);
        }
        done = n >= REFER_MIN && !own ? refer(f, off, r, src, n) : done;
    }
    arena_drop(r);
    return done == -EAGAIN ? held_put(f, off, src, min_u64(len, copied)) : done;
}
