// SPDX-License-Identifier: MIT
//
// hands: see hands.h. Labels are copied before they are checked, and what is checked is the copy.

#include "hands.h"

#include "breakpoint.h"
#include "labels.h"
#include "os.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

struct hand {
    uint64_t number; // of its hand-over, which is still on its way; UINT64_MAX: it is in hand
    struct msg_hand_over what;
};

/** Does chunk `c` hold bytes of the file? Then *h is what. */
static bool is_of(const struct pair *p, const struct label *labels, const struct file_slot *f, unsigned c,
                  struct hand *h) {
    uint64_t word = chunk_load(p, c), file = 0;
    if (chunk_word_state(word) != CHUNK_LENT || chunk_word_client(word) != f->client) {
        return false;
    }
    const struct label *l = &labels[c];
    // One that does not stand still is changed for that alone; and a client may say of itself what it likes.
    bool said = atomic_load_explicit(&l->borrowed, memory_order_acquire) == chunk_word_number(word) &&
                label_read(l, &file, &h->what) && file == f->id;
    h->what.chunk = c;
    h->number = atomic_load_explicit(&l->number, memory_order_relaxed);
    bool drawn = h->number != 0 && h->number <= atomic_load(&p->numbers->next);
    h->number = drawn ? h->number & CHUNK_NUMBER_MASK : UINT64_MAX;
    return said && msg_hand_over_valid(&h->what);
}

/** Calls `found` for each chunk with bytes of the file. 0 or an error. */
static int each(const struct pair *p, unsigned slot, void (*found)(void *arg, const struct hand *h), void *arg) {
    const struct file_slot *f = &p->st->files[slot];
    unsigned n = (unsigned)(p->st->staging_max / CHUNK_SIZE);
    size_t bytes = align_up(n * sizeof(struct label), NUMBERS_PAGE);
    if (f->client >= CLIENTS_MAX) {
        return 0;
    }
    struct label *labels =
        os_mmap(NULL, bytes, PROT_READ, MAP_SHARED, p->st->fd_numbers, (off_t)labels_offset(f->client));
    if (os_is_err(labels)) {
        return (int)(intptr_t)labels;
    }
    struct hand h;
    for (unsigned c = 0; c < n; c++) {
        if (is_of(p, labels, f, c, &h)) {
            found(arg, &h);
        }
    }
    os_munmap(labels, bytes);
    return 0;
}

struct list {
    unsigned n;
    int error;
    struct hand *of;
};

static void append(void *arg, const struct hand *h) {
    struct list *l = arg;
    struct hand *more = realloc(l->of, (l->n + 1) * sizeof *more);
    if (!more) {
        l->error = -ENOMEM;
        return;
    }
    l->of = more;
    l->of[l->n++] = *h;
}

/** As they were or are going to be handed over: of one place, the one in hand is the newest. */
static int by_number(const void *a, const void *b) {
    uint64_t x = ((const struct hand *)a)->number, y = ((const struct hand *)b)->number;
    return x < y ? -1 : x > y;
}

static void take(struct pair *p, struct writer *w, unsigned slot, const struct hand *h) {
    const struct file_slot *f = &p->st->files[slot];
    struct chunk_slot *cs = &p->st->chunks[h->what.chunk];
    cs->file = slot;
    cs->file_id = f->id;
    cs->what = h->what;
    cs->taken = TAKEN_HELD;
    BREAK_POINT("hands-recorded");
    uint64_t number = h->number == UINT64_MAX ? number_draw(p->numbers) : h->number;
    chunk_store(p, h->what.chunk, CHUNK_HANDED, f->client, number);
    BREAK_POINT("hands-taken");
    writer_add(w, h->what.chunk);
}

int hands_take(struct pair *p, struct writer *w, unsigned slot) {
    struct list l = {0};
#if FASTCKPT_BREAK == 16 // canary: what is in a client's hands is not seen
    return 0;
#endif
    // A client's call that began before it could see `looked` has its label written; one that sees it writes again.
    atomic_thread_fence(memory_order_seq_cst);
    int r = each(p, slot, append, &l);
    r = r < 0 ? r : l.error;
    if (l.n > 0) {
        qsort(l.of, l.n, sizeof *l.of, by_number);
    }
    for (unsigned i = 0; i < l.n; i++) {
        take(p, w, slot, &l.of[i]);
    }
    free(l.of);
    return l.n > 0 ? (int)l.n : r;
}

static void furthest(void *arg, const struct hand *h) {
    uint64_t *end = arg;
    const struct extent *last = &h->what.extent[h->what.n - 1];
    *end = max_u64(*end, h->what.index * CHUNK_SIZE + last->off + last->len);
}

uint64_t hands_end(const struct pair *p, unsigned slot) {
    uint64_t end = 0;
    each(p, slot, furthest, &end);
    return end;
}
