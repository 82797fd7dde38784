// SPDX-License-Identifier: MIT
//
// held: see held.h. A chunk goes to the engine when all its bytes are there, when its list of extents is full, or when
// too many are held. The engine writes chunks of the same place in the order of their numbers: bytes written again
// after their chunk was handed over simply go into another one.

#include "held.h"

#include <errno.h>
#include <string.h>

#include "client.h"
#include "copy.h"
#include "extents.h"
#include "workers.h"

#define WHOLE_MAX 8 // chunks copied at a time: enough to keep helpers awake, and the engine soon has the first

static void forget(struct file *f, uint32_t i) {
    f->n_held--;
    memmove(&f->held[i], &f->held[i + 1], (f->n_held - i) * sizeof f->held[0]);
}

static int send_over(const struct file *f, const struct held *h) {
    struct msg m = {.type = MSG_HAND_OVER, .file = f->id, .slot = f->slot};
    m.u.hand_over = (struct msg_hand_over){.chunk = h->chunk, .n = h->n, .index = h->index};
    memcpy(m.u.hand_over.extent, h->extent, h->n * sizeof h->extent[0]);
    return client_hand_over(&m);
}

// Hands the i-th over (they stand in the order in which they were taken).
static int hand_over(struct file *f, uint32_t i) {
    const struct held *h = &f->held[i];
    int r = 0;
    if (h->n == 0) {
        client_put_chunk(h->chunk);
    } else {
        r = send_over(f, h);
    }
    forget(f, i);
    return r;
}

int held_hand_over(struct file *f) {
    int err = 0;
    while (f->n_held > 0) {
        int r = hand_over(f, 0);
        err = err ? err : r;
    }
    return err;
}

// Takes a chunk for `index`. Its place in f->held, or an error.
static int take(struct file *f, uint64_t index) {
    if (f->n_held == FILE_HELD_MAX) {
        int r = hand_over(f, 0);
        if (r < 0) {
            return r;
        }
    }
    void *mem;
    int chunk = client_take_chunk(true, &mem);
    while (chunk == -EAGAIN && f->n_held > 0) {
        // None is free and none is on its way: perhaps because we hold partial ones.
        int r = hand_over(f, 0);
        if (r < 0) {
            return r;
        }
        chunk = client_take_chunk(true, &mem);
    }
    if (chunk < 0) {
        return chunk;
    }
    struct held *h = &f->held[f->n_held];
    *h = (struct held){.index = index, .chunk = (uint32_t)chunk, .mem = mem};
    return (int)f->n_held++;
}

static int find(const struct file *f, uint64_t index) {
    for (uint32_t i = f->n_held; i-- > 0;) {
        if (f->held[i].index == index) {
            return (int)i;
        }
    }
    return -1;
}

// ---- Several whole chunks, by several threads

struct whole {
    const char *src;
    uint32_t n;
    struct held to[WHOLE_MAX];
};

static void copy_block(void *arg, uint32_t i) {
    const struct whole *w = arg;
    size_t at = (size_t)i * WORKERS_BLOCK;
    copy_in((char *)w->to[at / CHUNK_SIZE].mem + at % CHUNK_SIZE, w->src + at, WORKERS_BLOCK);
}

// Takes chunks for up to `n` from `index` on: the first as ever, the others as far as they are in our hands already. A
// chunk that is held partly ends it.
static int take_whole(struct file *f, struct whole *w, uint64_t index, uint32_t n) {
    int i = take(f, index);
    if (i < 0) {
        return i;
    }
    w->to[w->n++] = f->held[i];
    forget(f, (uint32_t)i);
    while (w->n < n && w->n < WHOLE_MAX && find(f, index + w->n) < 0) {
        struct held *h = &w->to[w->n];
        int chunk = client_take_chunk(false, &h->mem);
        if (chunk < 0) {
            break;
        }
        h->chunk = (uint32_t)chunk;
        w->n++;
    }
    for (uint32_t k = 0; k < w->n; k++) {
        w->to[k].index = index + k;
        w->to[k].n = 1;
        w->to[k].extent[0] = (struct extent){0, CHUNK_SIZE};
    }
    return 0;
}

static ssize_t put_whole(struct file *f, uint64_t off, const void *src, uint32_t n) {
    struct whole w = {.src = src};
    int r = take_whole(f, &w, off / CHUNK_SIZE, n);
    if (r < 0) {
        return r;
    }
    workers_run(copy_block, &w, w.n * (CHUNK_SIZE / WORKERS_BLOCK));
    f->staged_end = max_u64(f->staged_end, off + (uint64_t)w.n * CHUNK_SIZE);
    for (uint32_t i = 0; i < w.n; i++) {
        if (r == 0) {
            r = send_over(f, &w.to[i]);
        } else {
            client_put_chunk(w.to[i].chunk);
        }
    }
    return r < 0 ? r : (ssize_t)(w.n * CHUNK_SIZE);
}

// ---- One chunk

static ssize_t put_part(struct file *f, uint64_t off, const void *src, uint32_t len) {
    uint64_t index = off / CHUNK_SIZE;
    uint32_t in = (uint32_t)(off % CHUNK_SIZE);
    int i = find(f, index);
    if (i >= 0 && extents_add(f->held[i].extent, &f->held[i].n, EXTENTS_MAX, in, len) < 0) {
        int r = hand_over(f, (uint32_t)i);
        if (r < 0) {
            return r;
        }
        i = -1;
    }
    if (i < 0) {
        i = take(f, index);
        if (i < 0) {
            return i;
        }
        extents_add(f->held[i].extent, &f->held[i].n, EXTENTS_MAX, in, len);
    }
    struct held *h = &f->held[i];
    copy_in((char *)h->mem + in, src, len);
    client_label(h->chunk, f->id, index, h->extent, h->n); // behind the copy: whoever reads it believes it
    f->staged_end = max_u64(f->staged_end, off + len);
    // A file's first chunk has no bytes below NATIVE_HEAD.
    if (extents_full(h->extent, h->n, index == 0 ? NATIVE_HEAD : 0, CHUNK_SIZE)) {
        int r = hand_over(f, (uint32_t)i);
        return r < 0 ? r : (ssize_t)len;
    }
    return (ssize_t)len;
}

// What is held of these bytes already comes before them.
static int hand_over_before(struct file *f, uint64_t index, struct extent e) {
    int i = find(f, index);
    for (uint32_t k = 0; i >= 0 && k < f->held[i].n; k++) {
        const struct extent *x = &f->held[i].extent[k];
        if (x->off < e.off + e.len && e.off < x->off + x->len) {
            return hand_over(f, (uint32_t)i);
        }
    }
    return 0;
}

ssize_t held_refer(struct file *f, uint64_t off, uint64_t at, size_t len, bool late, uint64_t *turn) {
    struct msg m = {.type = MSG_REFER, .file = f->id, .slot = f->slot};
    uint32_t in = (uint32_t)(off % CHUNK_SIZE), n = (uint32_t)min_u64(len, CHUNK_SIZE - in);
    m.u.refer = (struct msg_refer){.at = at, .index = off / CHUNK_SIZE, .extent = {in, n}, .late = late};
    int r = hand_over_before(f, m.u.refer.index, m.u.refer.extent);
    r = r < 0 ? r : client_refer(&m, turn);
    if (r < 0) {
        return r;
    }
    f->staged_end = max_u64(f->staged_end, off + n);
    f->referred_end = max_u64(f->referred_end, off + n);
    atomic_fetch_add(&file_report.bytes_referred, n);
    return n;
}

ssize_t held_put(struct file *f, uint64_t off, const void *src, size_t len) {
    uint64_t in = off % CHUNK_SIZE;
    if (in == 0 && len >= WORKERS_MIN && find(f, off / CHUNK_SIZE) < 0 && workers_there(guard_plain())) {
        return put_whole(f, off, src, (uint32_t)(len / CHUNK_SIZE));
    }
    return put_part(f, off, src, (uint32_t)min_u64(len, CHUNK_SIZE - in));
}
