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
#include "late.h"
#include "maps.h"

#include <errno.h>
#include <string.h>

#define TOUCHED_MAX (2 * MIB)    // at the beginning: a huge page, where the allocator has written its header
#define REFER_MIN   (256 * KIB)  // less is copied: a message and a look at the pages cost as much
#define SEE_STEP    (8 * MIB)    // looked at while the next ones come
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

// Behind it there is nothing in its last page, which is part of what malloc has mapped for it.
static bool last_page_is_free(const struct adopted *a, const struct maps_area *area, uintptr_t page) {
    bool rest;
    return page < (uintptr_t)a->dst + a->len && page + MAPS_PAGE <= area->to &&
           maps_touched((char *)page, 1, &rest) == 0 && !rest;
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
    a->rest = last_page_is_free(a, &area, to) ? to + MAPS_PAGE - ((uintptr_t)a->dst + a->len) : 0;
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

void adopt_end(const struct adopted *a, bool filled) {
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

// ---- What comes later

void adopt_expect(const struct adopted *a) {
    memset(a->mem + a->len, 0, a->rest);
    arena_expect(a->range);
}

void adopt_comes(const struct adopted *a, size_t from, size_t len) {
    late_add(a->range, a->at - a->range->at + from, len, from + len == a->len);
}

void adopt_unexpect(const struct adopted *a) {
    a->range->lost = false;
    arena_came(a->range, UINT64_MAX);
    arena_drop(a->range);
}

int adopt_later(const struct adopted *a) {
    uint64_t in_range = a->at - a->range->at;
    bool whole = a->rest > 0 || a->skip + a->body == a->len;
    memcpy(a->dst, a->mem, a->skip);
    int r = whole ? arena_guard(a->range, a->dst + a->skip, in_range + a->skip, a->len + a->rest - a->skip) : -EAGAIN;
    if (r < 0) {
        r = late_wait_for(a->at, a->len);
        adopt_end(a, r == 0);
        return r;
    }
    arena_drop(a->range);
    return 0;
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

// It has failed on its way, or somebody else is told so by now: of this file nothing is published.
static int say_lost(const struct file *f) {
    client_file_lost(f->id, f->slot);
    return -EIO;
}

static ssize_t refer(struct file *f, uint64_t off, struct range *r, const char *src, uint64_t len) {
    uint64_t done = 0;
    while (done < len) {
        uint64_t turn, at = arena_at(r, src + done);
        bool late = !arena_has(at, min_u64(len - done, CHUNK_SIZE));
        ssize_t n = held_refer(f, off + done, at, len - done, late, &turn);
        if (n < 0) {
            return done > 0 && n == -EAGAIN ? (ssize_t)done : n;
        }
        arena_referred(r, f->epoch, turn);
        if (arena_is_lost(at, (uint64_t)n)) { // by now: whoever fails files for it may not have seen this reference
            return say_lost(f);
        }
        if (late) {
            late_tell(); // it may have come since it was looked at
        }
        done += (uint64_t)n;
    }
    return (ssize_t)done;
}

// What is copied out of guarded memory has to have come.
static ssize_t put_copy(struct file *f, uint64_t off, struct range *r, const char *src, size_t len) {
    if (r && r->guarded && src + len > r->addr && src < r->addr + r->body) {
        const char *from = src > r->addr ? src : r->addr;
        uint64_t n = min_u64((uint64_t)(src + len - from), (uint64_t)(r->addr + r->body - from));
        if (late_wait_for(arena_at(r, from), n) < 0 && arena_still(r, from, n) > 0) {
            return say_lost(f);
        }
    }
    return held_put(f, off, src, len);
}

ssize_t adopt_put(struct file *f, uint64_t off, const char *src, size_t len) {
    bool look = arena_in_use() && (len >= REFER_MIN || arena_promised(src) || arena_promised(src + len - 1));
    struct range *r = look ? arena_hold(src, len) : NULL;
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
    done = done == -EAGAIN ? put_copy(f, off, r, src, min_u64(len, copied)) : done;
    arena_drop(r);
    return done;
}

// ---- Looking at

const char *adopt_see(const char *p, size_t len, size_t *n, struct range **user) {
    struct range *r = arena_promised(p) || arena_promised(p + len - 1) ? arena_hold(p, len) : NULL;
    bool own = true;
    *user = r;
    *n = r && p < r->addr ? (size_t)(r->addr - p) : len;
    if (!r || p < r->addr) {
        return p;
    }
    uint64_t still = arena_still(r, p, min_u64(len, r->body - (uint64_t)(p - r->addr)));
    *n = still > 0 ? alike(p, min_u64(still, SEE_STEP), &own) : min_u64(len, COPY_STEP);
    bool here = still > 0 && !own && late_wait_for(arena_at(r, p), *n) == 0;
    return here ? arena_mem(r) + (arena_at(r, p) - r->at) : p;
}

void adopt_seen(struct range *user) {
    if (user) {
        arena_drop(user);
    }
}
