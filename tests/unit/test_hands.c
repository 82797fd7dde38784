// SPDX-License-Identifier: MIT
//
// Proves: the engine takes exactly what the client's labels say of its open file, in order, whatever they say of other
// files and chunks or make no sense; a chunk stays its client's until that gives it back; a label is whole at any
// instant. How: labels in a memfd as clients write them, a writer that writes nothing. Cannot see the bytes and the
// clock: tests/system/hands.py does.

#include "core/hands.h"
#include "core/labels.h"
#include "core/lend.h"
#include "core/os.h"
#include "core/staging.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define CLIENT 7u
#define SLOT   3u
#define ID     1000u
#define LENT   50u // number of the borrow message

static struct pair p;
static struct writer *w;
static struct lend lend;
static struct label *labels;
static unsigned freed;

static void on_free(void *arg, unsigned chunk) {
    (void)arg;
    freed = chunk + 1;
}

static void setup(void) {
    p.st = calloc(1, sizeof *p.st);
    p.t = calloc(1, sizeof *p.t);
    w = calloc(1, sizeof *w);
    p.st->fd_numbers = os_memfd("labels", 0);
    cr_assert_eq(ftruncate(p.st->fd_numbers, NUMBERS_BYTES), 0);
    p.numbers = os_mmap(NULL, NUMBERS_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, p.st->fd_numbers, 0);
    labels = os_mmap(NULL, LABELS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, p.st->fd_numbers,
                     (off_t)labels_offset(CLIENT));
    cr_assert(!os_is_err(p.numbers) && !os_is_err(labels));
    atomic_store(&p.numbers->next, 2000);
    p.st->staging_max = STAGING_STEP;
    p.st->steps[0] = 1;
    struct file_slot *f = &p.st->files[SLOT];
    f->state = FILE_OPEN;
    f->client = CLIENT;
    f->id = ID;
    writer_start(w, &p, NULL);
    w->on_free = on_free;
    lend_start(&lend, &p, NULL);
    lend_rebuild(&lend);
    freed = 0;
    for (unsigned c = 0; c < STAGING_STEP_CHUNKS; c++) {
        chunk_store(&p, c, CHUNK_LENT, CLIENT, LENT);
        label_begin(&labels[c], LENT);
    }
    lend.n_free = 0;
}

static void fill(unsigned chunk, uint64_t file, uint64_t index, uint32_t off, uint32_t len) {
    struct extent e = {off, len};
    label_write(&labels[chunk], file, index, &e, 1);
}

static enum chunk_state state(unsigned chunk) {
    return chunk_word_state(chunk_load(&p, chunk));
}

Test(hands, nothing, .init = setup) {
    cr_expect_eq(hands_take(&p, w, SLOT), 0);
    cr_expect_eq(hands_end(&p, SLOT), 0);
}

Test(hands, taken_and_given_back, .init = setup) {
    fill(2, ID, 5, 100, 50);
    fill(4, ID, 1, 0, 4096);
    cr_expect_eq(hands_end(&p, SLOT), 5 * CHUNK_SIZE + 150);
    cr_expect_eq(hands_take(&p, w, SLOT), 2);
    cr_expect_eq(hands_take(&p, w, SLOT), 0, "once");
    cr_expect_eq(hands_end(&p, SLOT), 0);
    cr_expect_eq(w->run[SLOT].taken, 2);
    cr_expect_not(writer_settled(w, SLOT, 1), "not in the file yet");
    const struct chunk_slot *cs = &p.st->chunks[2];
    cr_expect(cs->file == SLOT && cs->file_id == ID && cs->what.chunk == 2 && cs->what.index == 5 && cs->what.n == 1);
    cr_expect(cs->what.extent[0].off == 100 && cs->what.extent[0].len == 50);
    cr_expect_eq(state(2), CHUNK_HANDED);
    cr_expect(lend_give_back(&lend, 2, CLIENT), "handed over while it is on its way");
    cr_expect_not(lend_give_back(&lend, 4, CLIENT + 1));
    writer_discard(w, SLOT); // as good as written
    cr_expect_eq(state(2), CHUNK_FREE);
    cr_expect_eq(freed, 3);
    cr_expect_eq(state(4), CHUNK_TAKEN, "its client may be writing into it");
    cr_expect(writer_settled(w, SLOT, UINT64_MAX));
    cr_expect_eq(hands_take(&p, w, SLOT), 0);
    cr_expect(lend_give_back(&lend, 4, CLIENT));
    cr_expect_eq(state(4), CHUNK_FREE);
    cr_expect_not(lend_give_back(&lend, 4, CLIENT));
}

Test(hands, order, .init = setup) {
    fill(1, ID, 9, 0, 10); // in hand: the newest of this place
    fill(3, ID, 9, 0, 20);
    fill(5, ID, 9, 0, 30);
    atomic_store(&labels[3].number, 1900); // handed over, and not read yet
    atomic_store(&labels[5].number, 1800);
    cr_expect_eq(hands_take(&p, w, SLOT), 3);
    const unsigned want[] = {5, 3, 1};
    uint32_t c = w->run[SLOT].head;
    uint64_t number = 0;
    for (unsigned i = 0; i < 3; i++, c = w->chunk[c - 1].next) {
        cr_assert_eq(c, want[i] + 1);
        uint64_t n = chunk_word_number(chunk_load(&p, c - 1));
        cr_expect_gt(n, number, "as after a restart");
        number = n;
    }
    cr_expect_eq(chunk_word_number(chunk_load(&p, 5)), 1800, "its client finds it by that");
}

Test(hands, none_of_it, .init = setup) {
    fill(0, ID + 1, 1, 0, 10); // another file
    fill(1, ID, 1, 0, 10);
    label_begin(&labels[1], LENT + 1); // said of another loan
    fill(1, ID, 1, 0, 10);
    fill(2, ID, 1, 0, 10);
    chunk_store(&p, 2, CHUNK_LENT, CLIENT + 1, LENT); // another's chunk
    fill(3, ID, 1, 0, 10);
    chunk_store(&p, 3, CHUNK_FLYING, CLIENT, LENT);
    fill(4, ID, 1, CHUNK_SIZE - 5, 6);
    fill(5, ID, INT64_MAX, 0, 10);
    fill(6, ID, 1, 0, 0);
    fill(7, ID, 1, 0, 10);
    labels[7].list[0].n = labels[7].list[1].n = EXTENTS_MAX + 1;
    fill(8, ID, 1, 0, 10);
    labels[8].list[0].n = labels[8].list[1].n = 2;
    labels[8].list[0].extent[1] = labels[8].list[1].extent[1] = (struct extent){5, 10};
    cr_expect_eq(hands_take(&p, w, SLOT), 0);
    fill(9, ID, 1, 0, 10);
    atomic_store(&labels[9].number, 999999); // never drawn
    cr_expect_eq(hands_take(&p, w, SLOT), 1);
    cr_expect_eq(chunk_word_number(chunk_load(&p, 9)), 2001);
}

Test(hands, client_dies, .init = setup) {
    fill(0, ID, 1, 0, 10);
    fill(1, ID, 2, 0, 10);
    cr_expect_eq(hands_take(&p, w, SLOT), 2);
    lend_take_back(&lend, CLIENT);
    cr_expect_eq(lend.n_free, STAGING_STEP_CHUNKS - 2, "but those on their way");
    writer_discard(w, SLOT);
    cr_expect(state(0) == CHUNK_FREE && state(1) == CHUNK_FREE);
}

Test(hands, next_engine, .init = setup) {
    fill(0, ID, 1, 0, 10);
    fill(1, ID, 2, 0, 10);
    cr_expect_eq(hands_take(&p, w, SLOT), 2);
    chunk_store(&p, 0, CHUNK_FLYING, CLIENT, chunk_word_number(chunk_load(&p, 0)));
    struct writer *next = calloc(1, sizeof *next);
    writer_start(next, &p, NULL);
    next->on_free = on_free;
    writer_rebuild(next);
    cr_expect_eq(next->run[SLOT].taken, 2);
    cr_expect(next->run[SLOT].fence);
    writer_discard(next, SLOT);
    cr_expect(state(0) == CHUNK_TAKEN && state(1) == CHUNK_TAKEN);
    cr_expect_eq(hands_take(&p, next, SLOT), 0);
    struct lend again = {0};
    lend_start(&again, &p, NULL);
    lend_rebuild(&again);
    cr_expect_eq(again.n_free, 0);
    lend_take_back(&again, CLIENT);
    cr_expect_eq(again.n_free, STAGING_STEP_CHUNKS);
}

static _Atomic bool stop;

static void *write_on(void *arg) {
    struct extent e[EXTENTS_MAX];
    for (uint32_t k = 1; !atomic_load(&stop); k++) {
        for (uint32_t i = 0; i < EXTENTS_MAX; i++) {
            e[i] = (struct extent){i * 1000, k % 999 + 1};
        }
        label_write(arg, ID, 1, e, EXTENTS_MAX);
        for (volatile int i = 0; i < 200; i++) { // a copy takes longer
        }
    }
    return NULL;
}

Test(hands, whole_at_any_instant, .init = setup) {
    pthread_t t;
    fill(0, ID, 1, 0, 1);
    cr_assert_eq(pthread_create(&t, NULL, write_on, &labels[0]), 0);
    unsigned torn = 0;
    for (unsigned i = 0; i < 200000; i++) {
        struct msg_hand_over h;
        uint64_t file;
        cr_assert(label_read(&labels[0], &file, &h));
        for (uint32_t k = 1; k < h.n; k++) {
            torn += h.extent[k].len != h.extent[0].len;
        }
    }
    atomic_store(&stop, true);
    pthread_join(t, NULL);
    cr_expect_eq(torn, 0);
}
