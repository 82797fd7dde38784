// SPDX-License-Identifier: MIT
//
// Proves: bytes referred to in an arena come to their file whatever their places, in order, once, through a death of
// the engine at each stage; none of the engine's chunks is lost; bad references and arenas are refused. How: the real
// purse, writer and workers, a memfd as arena, a file in /tmp. Cannot see the messages' way: tests/system/adopt.py.

#include "core/os.h"
#include "core/refer.h"
#include "core/staging.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define STEPS  4u
#define CHUNKS (STEPS * STAGING_STEP_CHUNKS)
#define CLIENT 3

static struct pair pair_;
static struct io *io;
static struct lend lend;
static struct drain drain;
static struct refer refer;
static struct writer *writer;
static int fd_file, failed;
static uint64_t number, turn;
static char *arena;

static void on_change(void *arg) {
    (void)arg;
}
static void on_written(void *arg, unsigned slot) {
    (void)arg, (void)slot;
}
static void on_free(void *arg, unsigned chunk) {
    (void)arg;
    drain_freed(&drain, chunk);
    lend_give(&lend, chunk);
}
static void on_error(void *arg, unsigned slot, int error, const char *what) {
    (void)arg, (void)what;
    failed = pair_.st->files[slot].error = error;
}

static void engine_start(void) {
    char why[100];
    memset(&lend, 0, sizeof lend);
    memset(&drain, 0, sizeof drain);
    memset(&refer, 0, sizeof refer);
    memset(writer, 0, sizeof *writer);
    cr_assert_eq(io_open(&io, 2, why, sizeof why), 0);
    lend.on_change = on_change;
    writer->on_change = on_written;
    writer->on_free = on_free;
    writer->on_error = on_error;
    lend_start(&lend, &pair_, io);
    writer_start(writer, &pair_, io);
    drain_start(&drain, &pair_, io, &lend, writer);
    refer_start(&refer, &pair_, io, &drain);
    lend_rebuild(&lend);
    refer_rebuild(&refer);
    drain_rebuild(&drain);
    writer_rebuild(writer);
}

/** What it had begun comes to its end, unseen; the next one has nothing but the state. */
static void engine_dies(void) {
    io_close(io);
    engine_start();
}

static int an_arena(uint64_t size, int seals) {
    int fd = memfd_create("arena", MFD_ALLOW_SEALING);
    cr_assert(fd > 0 && ftruncate(fd, (off_t)size) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static void setup(void) {
    char path[] = "/tmp/refer-XXXXXX";
    pair_.st = calloc(1, sizeof *pair_.st);
    pair_.t = calloc(1, sizeof *pair_.t);
    writer = calloc(1, sizeof *writer);
    cr_assert(pair_.st && pair_.t && writer);
    pair_.st->staging_max = STEPS * STAGING_STEP;
    memset(pair_.st->steps, 1, STEPS - 2);
    pair_.window = staging_window(STEPS * STAGING_STEP);
    cr_assert_eq(mprotect(pair_.window, STEPS * STAGING_STEP, PROT_READ | PROT_WRITE), 0);
    fd_file = mkstemp(path);
    unlink(path);
    struct file_slot *f = &pair_.st->files[7];
    f->client = CLIENT;
    f->id = 77;
    f->fd_prog = f->fd_own = fd_file;
    f->state = FILE_OPEN;
    engine_start();
}

/** Of 64 MiB, or less. */
static int32_t take_arena(uint64_t size) {
    int32_t fd = an_arena(size, F_SEAL_GROW | F_SEAL_SHRINK);
    arena = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert(arena != MAP_FAILED);
    unsigned steps = 1;
    int32_t given = fd;
    cr_assert_eq(refer_arena(&refer, CLIENT, &given, &steps), 0);
    cr_assert_eq(steps, 1);
    cr_assert_eq(given, 0, "it is the engine's now");
    return fd;
}

static struct msg message(uint64_t at, uint64_t off, uint32_t len) {
    struct msg m = {.type = MSG_REFER, .number = ++number, .slot = 7, .file = 77};
    struct extent e = {(uint32_t)(off % CHUNK_SIZE), len};
    m.u.refer = (struct msg_refer){.turn = turn++, .at = at, .index = off / CHUNK_SIZE, .extent = e};
    return m;
}

static int add(const struct msg *m) {
    return refer_add(&refer, CLIENT, m, &pair_.st->files[7]);
}

static void turns(unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        refer_pump(&refer);
        writer_pump(writer);
        usleep(1000);
        io_reap(io);
    }
}

static void all_written(void) {
    for (unsigned i = 0; i < 5000 && !writer_settled(writer, 7, number + 1); i++) {
        turns(1);
    }
    cr_assert(writer_settled(writer, 7, number + 1));
    turns(1);
}

static uint64_t over(void) {
    return pair_.t->clients[CLIENT].refs_done;
}

static bool file_has(uint64_t off, const char *want, size_t len) {
    char *buf = malloc(len);
    bool same = pread(fd_file, buf, len, (off_t)off) == (ssize_t)len && memcmp(buf, want, len) == 0;
    free(buf);
    return same;
}

static void fill(uint64_t at, size_t len, unsigned seed) {
    for (size_t i = 0; i < len; i++) {
        arena[at + i] = (char)(seed * 31 + i * 7 + (i >> 12));
    }
}

Test(refer, bytes, .init = setup, .timeout = 30) {
    static const struct {
        uint64_t at, off;
        uint32_t len;
    } of[] = {{0, 0, CHUNK_SIZE}, {4096 + 64, 3 * CHUNK_SIZE + 1, 100001}, {8 * MIB + 1, CHUNK_SIZE, CHUNK_SIZE - 5}};
    take_arena(STAGING_STEP);
    fill(0, 16 * MIB, 1);
    for (unsigned i = 0; i < ARRAY_LEN(of); i++) {
        struct msg m = message(of[i].at, of[i].off, of[i].len);
        cr_assert_eq(add(&m), 0);
    }
    cr_expect_eq(over(), 0);
    cr_expect_eq(refer_bytes(&refer, 7), CHUNK_SIZE + 100001 + CHUNK_SIZE - 5);
    cr_expect_not(writer_settled(writer, 7, number + 1));
    cr_expect_not(writer_settled(writer, 7, number));
    cr_expect(writer_settled(writer, 7, 1), "nothing before the first");
    all_written();
    for (unsigned i = 0; i < ARRAY_LEN(of); i++) {
        cr_expect(file_has(of[i].off, arena + of[i].at, of[i].len), "reference %u", i);
    }
    cr_expect_eq(over(), ARRAY_LEN(of));
    cr_expect_eq(lend.n_free, 2 * STAGING_STEP_CHUNKS);
    cr_expect_eq(refer_bytes(&refer, 7), 0);
}

// A chunk that was handed over behind a reference, and reaches the writer before it.
Test(refer, overtaken, .init = setup, .timeout = 30) {
    take_arena(STAGING_STEP);
    fill(0, MIB, 1);
    struct msg m = message(0, CHUNK_SIZE, MIB);
    cr_assert_eq(add(&m), 0);
    uint64_t between = ++number;
    int chunk = lend_steal(&lend);
    struct chunk_slot *cs = &pair_.st->chunks[chunk];
    cs->file = 7;
    cs->file_id = 77;
    cs->what = (struct msg_hand_over){.chunk = (uint32_t)chunk, .n = 1, .index = 2, .extent[0] = {0, 4096}};
    chunk_store(&pair_, (unsigned)chunk, CHUNK_HANDED, CLIENT, ++number);
    writer_add(writer, (unsigned)chunk);
    for (unsigned i = 0; i < 5000 && refer_bytes(&refer, 7) > 0; i++) { // the writer does nothing
        refer_pump(&refer);
        usleep(1000);
        io_reap(io);
    }
    cr_expect_eq(refer_bytes(&refer, 7), 0);
    cr_expect_not(writer_settled(writer, 7, between), "what came before this is not written");
    all_written();
    cr_expect(file_has(CHUNK_SIZE, arena, MIB));
}

Test(refer, in_order, .init = setup, .timeout = 30) {
    take_arena(STAGING_STEP);
    for (unsigned i = 0; i < 40; i++) { // the same place of the file, again and again
        fill(i * MIB, MIB, i);
        struct msg m = message(i * MIB, CHUNK_SIZE, MIB);
        cr_assert_eq(add(&m), 0);
    }
    all_written();
    cr_expect(file_has(CHUNK_SIZE, arena + 39 * MIB, MIB), "the last one");
    cr_expect_eq(over(), 40);
}

// The chunks that references need: no arena before they are there, and no client gets them.
Test(refer, kept, .init = setup, .timeout = 30) {
    uint32_t out[BORROW_MAX];
    unsigned n = 0, steps = 1;
    while (lend.n_free > 2) {
        n += lend_take(&lend, 0, ++number, BORROW_MAX, out);
    }
    int32_t fd = an_arena(STAGING_STEP, F_SEAL_GROW | F_SEAL_SHRINK);
    cr_expect_eq(refer_arena(&refer, CLIENT, &fd, &steps), -EBUSY, "it can still grow");
    cr_expect_eq(lend_take(&lend, 1, ++number, BORROW_MAX, out), 0);
    lend_unask(&lend, 1);
    lend.no_room = true;
    cr_expect_eq(refer_arena(&refer, CLIENT, &fd, &steps), -EAGAIN, "and now it cannot");
    lend_take_back(&lend, 0);
    cr_expect_eq(refer_arena(&refer, CLIENT, &fd, &steps), 0);
    for (n = 0; lend_take(&lend, 0, ++number, BORROW_MAX, out) > 0; n++) {
    }
    cr_expect_eq(lend.n_free, REFER_KEPT);
    arena = mmap(NULL, STAGING_STEP, PROT_READ | PROT_WRITE, MAP_SHARED, pair_.st->arenas[CLIENT].fd, 0);
    for (unsigned i = 0; i < 12; i++) {
        struct msg m = message(i * MIB, i * CHUNK_SIZE, MIB);
        cr_assert_eq(add(&m), 0);
    }
    all_written();
    cr_expect_eq(over(), 12, "with nothing but what is kept");
    cr_expect_eq(lend.n_free, REFER_KEPT);
}

// A client that waits for a chunk comes first, but for those that are kept for references.
Test(refer, others_first, .init = setup, .timeout = 30) {
    uint32_t out[BORROW_MAX];
    take_arena(STAGING_STEP);
    lend.askers[lend.n_askers++] = 1;
    for (unsigned i = 0; i < 3; i++) {
        struct msg m = message(i * MIB, i * CHUNK_SIZE, MIB);
        cr_assert_eq(add(&m), 0);
    }
    refer_pump(&refer);
    cr_expect_not(refer_busy(&refer, 7));
    while (lend_take(&lend, 1, ++number, BORROW_MAX, out) > 0) {
    }
    cr_expect_eq(lend.n_free, REFER_KEPT);
    refer_pump(&refer);
    cr_expect(refer_busy(&refer, 7));
    all_written();
    cr_expect_eq(over(), 3);
}

Test(refer, deaths, .init = setup, .timeout = 60) {
    take_arena(STAGING_STEP);
    fill(0, STAGING_STEP, 5);
    for (unsigned k = 0; k < 6; k++) { // more and more has been done when the engine dies
        for (unsigned i = 0; i < 9; i++) {
            struct msg m = message(i * MIB + k, (9 * k + i) * CHUNK_SIZE + 3, MIB);
            cr_assert_eq(add(&m), 0);
        }
        turns(k);
        if (k == 5) {
            refer_pump(&refer); // passed on, and the writer has not begun
        }
        engine_dies();
        engine_dies();
        all_written();
        for (unsigned i = 0; i < 9; i++) {
            cr_expect(file_has((9 * k + i) * CHUNK_SIZE + 3, arena + i * MIB + k, MIB), "death %u, reference %u", k, i);
        }
        cr_expect_eq(over(), 9 * k + 9);
        cr_expect_eq(lend.n_free, 2 * STAGING_STEP_CHUNKS, "death %u: %u chunks", k, lend.n_free);
        cr_expect_eq(lend.arenas, 1);
    }
}

// A message that was carried out before a restart comes again.
Test(refer, again, .init = setup, .timeout = 30) {
    take_arena(STAGING_STEP);
    struct msg m = message(0, CHUNK_SIZE, 100);
    cr_expect_eq(add(&m), 0);
    cr_expect_eq(add(&m), 0);
    cr_expect_eq(pair_.st->files[7].refs, 1);
    engine_dies();
    cr_expect_eq(add(&m), 0);
    all_written();
    engine_dies();
    cr_expect_eq(add(&m), 0);
    cr_expect_eq(pair_.st->files[7].refs, 0);
    cr_expect_eq(over(), 1);
}

Test(refer, unwanted, .init = setup, .timeout = 30) {
    take_arena(STAGING_STEP);
    for (unsigned k = 0; k < 4; k++) {
        for (unsigned i = 0; i < 20; i++) {
            struct msg m = message(i * MIB, i * CHUNK_SIZE, MIB);
            cr_assert_eq(add(&m), 0);
        }
        turns(k);
        writer_discard(writer, 7);
        cr_expect_eq(pair_.st->files[7].refs, 0);
        while (refer_busy(&refer, 7) || writer->run[7].flying) {
            turns(1);
        }
        turns(2);
        cr_expect_eq(over(), 20 * k + 20);
        cr_expect_eq(lend.n_free, 2 * STAGING_STEP_CHUNKS);
    }
    struct msg m = message(0, 0, 1);
    cr_expect_eq(refer_add(&refer, CLIENT, &m, NULL), 0, "of a file that is gone");
    turns(1);
    cr_expect_eq(over(), 81);
}

// One that was sent later comes earlier: nothing is over before the first is.
Test(refer, gap, .init = setup, .timeout = 30) {
    take_arena(STAGING_STEP);
    fill(0, 4 * MIB, 2);
    struct msg first = message(0, CHUNK_SIZE, MIB), second = message(MIB, 2 * CHUNK_SIZE, MIB);
    cr_expect_eq(add(&second), 0);
    all_written();
    cr_expect(file_has(2 * CHUNK_SIZE, arena + MIB, MIB));
    cr_expect_eq(over(), 0);
    engine_dies();
    cr_expect_eq(add(&first), 0);
    all_written();
    cr_expect(file_has(CHUNK_SIZE, arena, MIB));
    cr_expect_eq(over(), 2);
    message(0, 0, 1); // lost with its client
    struct msg last = message(2 * MIB, 3 * CHUNK_SIZE, MIB);
    cr_expect_eq(add(&last), 0);
    all_written();
    cr_expect_eq(over(), 2);
    cr_expect_not(refer_end(&refer, CLIENT));
    pair_.st->clients[CLIENT].dead = 1;
    turns(1);
    cr_expect(refer_end(&refer, CLIENT));
    cr_expect_eq(pair_.st->arenas[CLIENT].fd, 0);
    cr_expect_eq(lend.arenas, 0);
    cr_expect_eq(lend.kept_refs, 0);
}

// Referred to before they are in the arena.
Test(refer, late, .init = setup, .timeout = 30) {
    take_arena(STAGING_STEP);
    for (unsigned i = 0; i < 6; i++) {
        struct msg m = message(i * MIB, (i + 1) * CHUNK_SIZE, MIB);
        m.u.refer.late = i != 1;
        cr_assert_eq(add(&m), 0);
    }
    turns(20);
    cr_expect_eq(over(), 0);
    fill(0, 2 * MIB, 3);
    refer_arrived(&refer, CLIENT, 2);
    refer_arrived(&refer, CLIENT, 1); // older news
    engine_dies();
    for (unsigned i = 0; i < 2000 && over() < 2; i++) {
        turns(1);
    }
    turns(20);
    cr_expect_eq(over(), 2);
    cr_expect(file_has(CHUNK_SIZE, arena, MIB) && file_has(2 * CHUNK_SIZE, arena + MIB, MIB));
    cr_expect_not(writer_settled(writer, 7, number + 1));
    fill(2 * MIB, 3 * MIB, 4);
    refer_arrived(&refer, CLIENT, 5);
    for (unsigned i = 0; i < 2000 && over() < 5; i++) {
        turns(1);
    }
    cr_expect(file_has(5 * CHUNK_SIZE, arena + 4 * MIB, MIB));
    cr_expect_eq(failed, 0);
    pair_.st->clients[CLIENT].dead = 1;
    turns(20);
    cr_expect_eq(over(), 6);
    cr_expect_eq(failed, -EIO, "the last one never came");
    cr_expect_not(file_has(6 * CHUNK_SIZE, arena + 5 * MIB, MIB));
    cr_expect(refer_end(&refer, CLIENT));
    cr_expect_eq(pair_.st->arenas[CLIENT].arrived, 0);
}

Test(refer, refused, .init = setup, .timeout = 30) {
    unsigned steps = 1;
    int32_t none = 0, open_ended = an_arena(MIB, F_SEAL_GROW), other = an_arena(MIB, F_SEAL_GROW | F_SEAL_SHRINK);
    struct msg m = message(0, 0, 1);
    cr_expect_eq(add(&m), -EPROTO, "no arena");
    cr_expect_eq(refer_arena(&refer, CLIENT, &none, &steps), -EBADF);
    cr_expect_eq(refer_arena(&refer, CLIENT, &open_ended, &steps), -EINVAL);
    int32_t fd = take_arena(STAGING_STEP), same = dup(fd);
    cr_expect_eq(refer_arena(&refer, CLIENT, &other, &steps), -EEXIST);
    cr_expect_eq(refer_arena(&refer, CLIENT, &same, &steps), 0);
    cr_expect_gt(same, 0, "one is enough");
    m = message(STAGING_STEP - 10, 0, 11);
    cr_expect_eq(add(&m), -EPROTO, "beyond its end");
    m = message(0, 0, 1);
    m.u.refer.turn = REFS_MAX;
    cr_expect_eq(add(&m), -EPROTO, "more than there is room for");
    m.u.refer.turn = REFS_MAX - 1;
    cr_expect_eq(add(&m), 0);
    m.number++;
    cr_expect_eq(add(&m), -EPROTO, "another in its place");
}

// Each of several clients has a share, whoever asks first.
Test(refer, shares, .init = setup, .timeout = 30) {
    pair_.st->clients[CLIENT].used = pair_.st->clients[CLIENT + 1].used = pair_.st->clients[0].used = 1;
    pair_.st->clients[0].tool = 1;
    for (unsigned i = 0; i < 2; i++) {
        int32_t fd = an_arena(64 * STAGING_STEP, F_SEAL_GROW | F_SEAL_SHRINK), none = 0;
        unsigned steps = 64;
        cr_expect_eq(refer_arena(&refer, CLIENT + i, &fd, &steps), 0);
        cr_expect_eq(steps, 1);
        cr_expect_eq(refer_arena(&refer, CLIENT + i, &none, &steps), 0);
        cr_expect_eq(steps, 1, "it keeps what it has");
    }
    cr_expect_eq(lend.arenas, 2);
}

Test(refer, budget, .init = setup, .timeout = 30) {
    int32_t fd = an_arena(64 * STAGING_STEP, F_SEAL_GROW | F_SEAL_SHRINK);
    unsigned steps = 64;
    cr_expect_eq(refer_arena(&refer, CLIENT, &fd, &steps), 0);
    cr_expect_eq(steps, STEPS / 2, "half of it");
    cr_expect_eq(lend.arenas, STEPS / 2);
    cr_expect(lend_short(&lend, CHUNKS), "staging cannot grow");
    int32_t second = an_arena(64 * STAGING_STEP, F_SEAL_GROW | F_SEAL_SHRINK);
    steps = 64;
    cr_expect_eq(refer_arena(&refer, CLIENT + 1, &second, &steps), 0);
    cr_expect_eq(steps, 0);
}
