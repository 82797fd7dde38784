// SPDX-License-Identifier: MIT
//
// client_chunks: staging memory in this process: the window it is mapped in, the chunks in hand, and the label of each
// chunk, by which its bytes are found again when keeper and engine are killed, too. Knows no file but by its id.
//
// Locks: `borrowing` is held while the engine is asked for chunks, so that one thread asks for all; `hands` only for
// the few instructions that change the stack of chunks in hand. Order: borrowing -> hands.

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "../core/labels.h"
#include "../core/os.h"
#include "../core/staging.h"
#include "client_inside.h"
#include "guard.h"
#include "own.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define HAND_MAX 32

static struct chunks {
    struct lock borrowing, hands;
    const struct tables *tables; // stays mapped after a loss
    int staging;                 // handle of the memfd, while there is a window
    char *window;                // NULL: no session
    struct label *labels;        // one a chunk
    uint64_t size;
    uint32_t count;              // chunks in the window
    uint32_t high;               // highest chunk ever mapped + 1
    _Atomic uint32_t n_hand;
    uint32_t hand[HAND_MAX];
    uint8_t mapped[CHUNKS_MAX / 8];
} chunks;

static void unmap_labels(void) {
    if (chunks.labels) {
        os_munmap(chunks.labels, align_up(chunks.count * sizeof(struct label), NUMBERS_PAGE));
    }
    chunks.labels = NULL;
}

// Not for a child: it would write its parent's.
static struct label *map_labels(int fd, unsigned client) {
    size_t bytes = align_up(chunks.count * sizeof(struct label), NUMBERS_PAGE);
    void *m = os_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)labels_offset(client));
    if (os_is_err(m)) {
        return NULL;
    }
    os_madvise(m, bytes, MADV_DONTFORK);
    return m;
}

int chunks_begin(const int fds[2], unsigned client, uint64_t max, const struct tables *tables) {
    uint64_t size = align_down(min_u64(max, (uint64_t)CHUNKS_MAX * CHUNK_SIZE), CHUNK_SIZE);
    int handle = own_add(fds[0]);
    chunks.count = (uint32_t)(size / CHUNK_SIZE);
    chunks.labels = handle >= 0 && size ? map_labels(fds[1], client) : NULL;
    os_close(fds[1]);
    if (handle < 0) {
        return handle;
    }
    chunks.window = chunks.labels ? staging_window(size) : NULL;
    if (!chunks.window) {
        own_drop(handle);
        unmap_labels();
        return size ? -ENOMEM : -EPROTO;
    }
    chunks.staging = handle;
    chunks.tables = tables;
    chunks.size = size;
    return 0;
}

static void forget(void) {
    chunks.window = NULL;
    chunks.n_hand = 0;
    memset(chunks.mapped, 0, sizeof chunks.mapped);
    chunks.high = 0;
}

void chunks_end(void) {
    if (chunks.window) {
        os_munmap(chunks.window, chunks.size);
        own_drop(chunks.staging);
        unmap_labels();
    }
    forget();
}

void chunks_after_fork(void) {
    // Not unmapped: what was mapped is not here (MADV_DONTFORK), and the holes may be somebody else's by now.
    chunks.borrowing = (struct lock){0};
    chunks.hands = (struct lock){0};
    chunks.labels = NULL;
    forget();
}

uint64_t client_staging_max(void) {
    return chunks.size;
}

void *client_chunk_mem(unsigned chunk) {
    return chunks.window + (uint64_t)chunk * CHUNK_SIZE;
}

// Maps a chunk on its first visit and makes it resident: what the copy would else pay in faults. Again at each visit,
// since the engine may have given its memory back in between; two page table entries where pages are huge.
static int prepare(uint32_t chunk) {
    if (!(chunks.mapped[chunk / 8] >> (chunk % 8) & 1)) {
        int fd = own_pin(chunks.staging);
        if (fd < 0) {
            return fd; // the program closed it: chunks mapped before still serve
        }
        int r = staging_map(chunks.window, fd, (uint64_t)chunk * CHUNK_SIZE, CHUNK_SIZE, 1);
        own_unpin(chunks.staging);
        if (r < 0) {
            return r;
        }
        chunks.mapped[chunk / 8] |= (uint8_t)(1 << (chunk % 8));
        chunks.high = chunk + 1 > chunks.high ? chunk + 1 : chunks.high;
    }
    os_madvise(client_chunk_mem(chunk), CHUNK_SIZE, MADV_POPULATE_WRITE); // a failure costs faults, no more
    return 0;
}

static int hand_pop(void) {
    sigset_t saved;
    lock_take(&chunks.hands, &saved);
    int r = chunks.n_hand > 0 ? (int)chunks.hand[--chunks.n_hand] : -EAGAIN;
    lock_drop(&chunks.hands, &saved);
    return r;
}

static void give_back(const uint32_t *list, uint32_t n) {
    struct msg m = {.type = MSG_RETURN};
    m.u.chunks.n = n;
    memcpy(m.u.chunks.chunk, list, n * sizeof *list);
    client_tell(&m);
}

void client_put_chunk(unsigned chunk) {
    sigset_t saved;
    lock_take(&chunks.hands, &saved);
    bool room = chunks.n_hand < HAND_MAX;
    if (room) {
        chunks.hand[chunks.n_hand++] = chunk;
    }
    lock_drop(&chunks.hands, &saved);
    if (!room) {
        uint32_t one = chunk;
        give_back(&one, 1);
    }
}

// Under `borrowing`. Asks for chunks; those beyond the first go into the hand. The first, or an error.
static int borrow(void) {
    struct msg q = {.type = MSG_BORROW};
    q.u.chunks.n = BORROW_MAX;
    int r = client_ask(&q, NULL, 0, NULL, NULL, -1);
    if (r < 0) {
        return r;
    }
    int first = -EAGAIN;
    uint32_t n = q.u.chunks.n <= BORROW_MAX ? q.u.chunks.n : BORROW_MAX;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t c = q.u.chunks.chunk[i];
        if (c >= chunks.count) {
            continue;
        }
        r = prepare(c);
        if (r < 0) {
            give_back(&c, 1);
            first = first == -EAGAIN ? r : first;
            continue;
        }
        label_begin(&chunks.labels[c], q.number & CHUNK_NUMBER_MASK);
        if (first < 0) {
            first = (int)c;
        } else {
            client_put_chunk(c);
        }
    }
    return first;
}

int client_take_chunk(bool may_wait, void **mem) {
    int c = hand_pop();
    if (c < 0 && may_wait) {
        sigset_t saved;
        lock_take(&chunks.borrowing, &saved);
        c = hand_pop(); // the thread before us may have brought enough
        if (c < 0) {
            c = borrow();
        }
        lock_drop(&chunks.borrowing, &saved);
    }
    if (c >= 0) {
        *mem = client_chunk_mem((unsigned)c);
    }
    return c;
}

void client_return_chunks(void) {
    uint32_t list[HAND_MAX];
    sigset_t saved;
    if (chunks.n_hand == 0) {
        return; // whoever puts one there after this look has a file open, whose close looks again
    }
    lock_take(&chunks.hands, &saved);
    uint32_t n = chunks.n_hand;
    memcpy(list, chunks.hand, n * sizeof *list);
    chunks.n_hand = 0;
    lock_drop(&chunks.hands, &saved);
    for (uint32_t i = 0; i < n; i += BORROW_MAX) {
        give_back(&list[i], n - i < BORROW_MAX ? n - i : BORROW_MAX);
    }
}

void client_label(unsigned chunk, uint64_t file, uint64_t index, const struct extent *e, uint32_t n) {
    label_write(&chunks.labels[chunk], file, index, e, n);
}

int client_hand_over(struct msg *m) {
    const struct msg_hand_over *h = &m->u.hand_over;
    client_label(h->chunk, m->file, h->index, h->extent, h->n);
    m->number = client_number();
    atomic_store_explicit(&chunks.labels[h->chunk].number, m->number, memory_order_relaxed);
    return client_tell(m);
}

static uint64_t handed(unsigned chunk) {
    return atomic_load_explicit(&chunks.labels[chunk].number, memory_order_relaxed);
}

static bool unwritten(unsigned chunk) {
    const struct label *l = &chunks.labels[chunk];
    uint64_t w = atomic_load_explicit(&chunks.tables->chunks[chunk], memory_order_acquire);
    if (chunk_word_client(w) != client_slot()) {
        return false;
    }
    switch (chunk_word_state(w)) {
    case CHUNK_LENT: // still as we got it: the engine has not read the hand-over. Lent anew has another number
        return chunk_word_number(w) == atomic_load_explicit(&l->borrowed, memory_order_relaxed);
    case CHUNK_HANDED:
    case CHUNK_FLYING:
        return chunk_word_number(w) == (handed(chunk) & CHUNK_NUMBER_MASK);
    default: // TAKEN: we were writing when it was taken
        return chunk_word_state(w) == CHUNK_TAKEN;
    }
}

bool client_next_unwritten(uint64_t file, uint64_t after, struct msg *m, void **mem) {
    uint32_t best = chunks.high;
    for (uint32_t i = 0; i < chunks.high; i++) {
        uint64_t number = handed(i);
        if (chunks.labels[i].file == file && number > after && (best == chunks.high || number < handed(best)) &&
            unwritten(i)) {
            best = i;
        }
    }
    bool arena = refs_next_unwritten(file, after, m, mem);
    if (best == chunks.high || (arena && m->number < handed(best)) ||
        !label_read(&chunks.labels[best], &file, &m->u.hand_over)) {
        return arena;
    }
    m->number = handed(best);
    m->u.hand_over.chunk = best;
    *mem = client_chunk_mem(best);
    return true;
}

bool client_only_striped(uint64_t file, uint32_t slot) {
    const struct file_public *p = chunks.tables ? &chunks.tables->files[slot % FILES_MAX] : NULL;
    return p && atomic_load(&p->id) == file && atomic_load(&p->striped) > 0;
}

bool client_was_pending(uint64_t file, uint32_t slot) {
    return chunks.tables && atomic_load(&chunks.tables->files[slot % FILES_MAX].id) == file;
}
