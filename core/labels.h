// SPDX-License-Identifier: MIT
//
// labels: what a client says of each chunk that it has: which bytes of which file are in it. It writes them by plain
// stores as it fills a chunk, and the engine reads them when another process wants to see the file (hands.h), without
// asking: the client may be stopped, or in the middle of a write. Layout, and writing and reading one. No system calls.
//
// They lie behind the page of the numbers: of each client so many as there can be chunks. It maps its own, the engine
// maps those that it wants to see, and believes none before it has checked what it says.

#ifndef FASTCKPT_LABELS_H
#define FASTCKPT_LABELS_H

#include "protocol.h"

#include <stdalign.h>
#include <string.h>

#define LABEL_TRIES 10000 // readings of one that changes all the time: only one that is made to do so

/** One chunk's. Of the two lists one counts and the other is written next, so that there is a whole one at any instant,
 *  also when the writer is stopped for ever. */
struct label {
    alignas(64) _Atomic uint64_t borrowed; // low 48 bits of the number of the message by which the client got it
    _Atomic uint64_t number;               // of the message that handed it over; 0: it is in hand
    uint64_t file;                         // its id. This and the next change only while no bytes are listed
    uint64_t index;                        // which chunk of the file
    _Atomic uint32_t turn;                 // how often a list was written; its lowest bit says which one counts
    struct {
        uint32_t n;
        struct extent extent[EXTENTS_MAX];
    } list[2];
};

#define NUMBERS_PAGE 4096u // before the labels: struct numbers
#define LABELS_BYTES (CHUNKS_MAX * sizeof(struct label)) // of one client
#define NUMBERS_BYTES (NUMBERS_PAGE + CLIENTS_MAX * LABELS_BYTES)

_Static_assert(LABELS_BYTES % NUMBERS_PAGE == 0, "a client's labels begin on a page");

/** Where the client's labels are, from the beginning of the memory object. */
static inline uint64_t labels_offset(unsigned client) {
    return NUMBERS_PAGE + (client % CLIENTS_MAX) * LABELS_BYTES;
}

/** The bytes of `file` that are in the chunk: all of `n` extents of the chunk that covers `index`. */
static inline void label_write(struct label *l, uint64_t file, uint64_t index, const struct extent *e, uint32_t n) {
    uint32_t turn = atomic_load_explicit(&l->turn, memory_order_relaxed), next = ~turn & 1;
    atomic_thread_fence(memory_order_release); // who sees what follows sees that the list before it counts
    l->file = file;
    l->index = index;
    l->list[next].n = n;
    if (n > 0) {
        memcpy(l->list[next].extent, e, n * sizeof *e);
    }
    atomic_store_explicit(&l->turn, turn + 1, memory_order_release);
}

/** The chunk was got by the borrow message with this number (its low 48 bits): nothing is in it. */
static inline void label_begin(struct label *l, uint64_t borrowed) {
    label_write(l, 0, 0, NULL, 0);
    atomic_store_explicit(&l->number, 0, memory_order_relaxed);
    atomic_store_explicit(&l->borrowed, borrowed, memory_order_release);
}

/** Copies what the label says: file and all of *h but the chunk. False if it would not stand still. Nothing of it is
 *  checked. */
static inline bool label_read(const struct label *l, uint64_t *file, struct msg_hand_over *h) {
    for (int i = 0; i < LABEL_TRIES; i++) {
        uint32_t turn = atomic_load_explicit(&l->turn, memory_order_acquire);
        h->n = l->list[turn & 1].n;
        memcpy(h->extent, l->list[turn & 1].extent, sizeof h->extent);
        h->index = l->index;
        *file = l->file;
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&l->turn, memory_order_relaxed) == turn) {
            return true;
        }
    }
    return false;
}

#endif
