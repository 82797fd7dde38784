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

static void forget(struct file *f, uint32_t i) {
    f->n_held--;
    memmove(&f->held[i], &f->held[i + 1], (f->n_held - i) * sizeof f->held[0]);
}

// Hands the i-th over (they stand in the order in which they were taken).
static int hand_over(struct file *f, uint32_t i) {
    const struct held *h = &f->held[i];
    if (h->n == 0) {
        client_put_chunk(h->chunk);
        forget(f, i);
        return 0;
    }
    struct msg m = {.type = MSG_HAND_OVER, .file = f->id, .slot = f->slot};
    m.u.hand_over = (struct msg_hand_over){.chunk = h->chunk, .n = h->n, .index = h->index};
    memcpy(m.u.hand_over.extent, h->extent, h->n * sizeof h->extent[0]);
    int r = client_hand_over(&m);
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

int held_put(struct file *f, uint64_t off, const void *src, uint32_t len) {
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
    f->staged_end = max_u64(f->staged_end, off + len);
    // A file's first chunk has no bytes below NATIVE_HEAD.
    if (extents_full(h->extent, h->n, index == 0 ? NATIVE_HEAD : 0, CHUNK_SIZE)) {
        return hand_over(f, (uint32_t)i);
    }
    return 0;
}
