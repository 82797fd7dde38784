// SPDX-License-Identifier: MIT
//
// Proves: writer, commit and publish bring a file whole under its name, in order, over an old one or a new name; and
//         whichever call of the disk fails, the name is old or whole, the failure is recorded, and nothing behind the
//         failed file replaces anything. What heals within FASTCKPT_RETRY arrives, except behind a failed fsync.
// How:    the modules run on a pair's memory in this process, without sockets; every call of io_calls is counted and
//         the n-th one fails (and some after it), for all n, until a run has no failure.
// Cannot see: messages, clients, restarts (tests/system/), and what a real disk does with a failed call.

#include "../../core/commit.h"
#include "../../core/lend.h"
#include "../../core/log.h"
#include "../../core/os.h"
#include "../../core/staging.h"
#include "../../core/writer.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE (9 * MIB + 1234) // three chunks, the last one with an unaligned tail

struct rig {
    struct pair p;
    struct io *io;
    struct writer w;
    struct commit c;
    char dir[64];
    int dirfd;
    unsigned done;
};

// ---- A disk whose n-th call fails, and some after it

static _Atomic int calls;      // so far
static int first, sick;        // the first that fails (0: none), and how many do
static _Atomic int final_hit;  // one of them was of a kind that nobody may try again

static bool hit(void) {
    int n = atomic_fetch_add(&calls, 1) + 1;
    return first > 0 && n >= first && n - first < sick;
}
static bool hit_final(void) {
    bool h = hit();
    atomic_fetch_or(&final_hit, h);
    return h;
}
static int f_pwrite_all(int fd, const void *buf, size_t len, off_t off) {
    return hit() ? -EIO : io_calls_kernel.pwrite_all(fd, buf, len, off);
}
static int f_fsync(int fd) {
    return hit_final() ? -EIO : io_calls_kernel.fsync(fd);
}
static int f_write_out(int fd) {
    return hit_final() ? -EIO : io_calls_kernel.write_out(fd);
}
static int f_fallocate(int fd, int mode, off_t off, off_t len) {
    return hit() ? -ENOSPC : io_calls_kernel.fallocate(fd, mode, off, len);
}
static int f_ftruncate(int fd, off_t len) {
    return hit_final() ? -EIO : io_calls_kernel.ftruncate(fd, len);
}
static int f_link_fd(int fd, int dirfd, const char *name) {
    return hit() ? -ENOSPC : io_calls_kernel.link_fd(fd, dirfd, name);
}
static int f_renameat(int olddir, const char *old, int newdir, const char *name, unsigned flags) {
    return hit() ? -EIO : io_calls_kernel.renameat(olddir, old, newdir, name, flags);
}
static int f_unlinkat(int dirfd, const char *name, int flags) {
    return hit() ? -EIO : io_calls_kernel.unlinkat(dirfd, name, flags);
}
static int f_sync_dir(int dirfd) {
    return hit_final() ? -EIO : io_calls_kernel.sync_dir(dirfd);
}

static void fail_nth(int n, int many) {
    io_calls = io_calls_kernel;
    io_calls.pwrite_all = f_pwrite_all;
    io_calls.fsync = f_fsync;
    io_calls.write_out = f_write_out;
    io_calls.fallocate = f_fallocate;
    io_calls.ftruncate = f_ftruncate;
    io_calls.link_fd = f_link_fd;
    io_calls.renameat = f_renameat;
    io_calls.unlinkat = f_unlinkat;
    io_calls.sync_dir = f_sync_dir;
    atomic_store(&calls, 0);
    atomic_store(&final_hit, 0);
    first = n;
    sick = many;
}

// ---- The rig

static void ignore_slot(void *arg, unsigned slot) {
    (void)arg;
    (void)slot;
}
static void ignore_error(void *arg, unsigned slot, int error, const char *what) {
    commit_fail(&((struct rig *)arg)->c, slot, error, what);
}
static void count_done(void *arg, unsigned slot) {
    struct rig *r = arg;
    r->done += r->p.st->files[slot].done || r->p.st->files[slot].error;
}

static void rig_open(struct rig *r) {
    struct config c = {.staging = 128 * MIB};
    memset(r, 0, sizeof *r);
    strcpy(r->dir, "/var/tmp/fastckpt-unit-XXXXXX");
    cr_assert(mkdtemp(r->dir));
    r->dirfd = open(r->dir, O_PATH | O_DIRECTORY);
    cr_assert_eq(state_create(&r->p, &c), 0);
    cr_assert_eq(state_map_staging(&r->p), 0);
    r->p.st->generation = 1;
    atomic_store(&r->p.numbers->next, 1000); // as if the entries below had been drawn
    char why[100];
    cr_assert_eq(io_open(&r->io, IO_THREADS, why, sizeof why), 0);
    r->w.arg = r->c.arg = r;
    r->w.on_change = ignore_slot;
    r->w.on_free = ignore_slot;
    r->w.on_error = ignore_error;
    r->c.on_done = count_done;
    writer_start(&r->w, &r->p, r->io);
    commit_start(&r->c, &r->p, r->io, &r->w);
    log_setup(LOG_ERROR, open("/dev/null", O_WRONLY), "unit");
}

static void rig_close(struct rig *r) {
    io_close(r->io);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", r->dir);
    cr_assert_eq(system(command), 0);
}

static unsigned char byte_at(unsigned seed, uint64_t off) {
    return (unsigned char)(seed * 31 + off * 7 + (off >> 12));
}

/** Opens a shadow in slot `slot`, hands its bytes over and closes it as entry `number`. */
static void save(struct rig *r, unsigned slot, const char *name, uint64_t number) {
    struct file_slot *f = &r->p.st->files[slot];
    struct stat s;
    char path[64];
    memset(f, 0, sizeof *f);
    f->fd_prog = openat(r->dirfd, ".", O_TMPFILE | O_WRONLY, 0644);
    cr_assert_geq(f->fd_prog, 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", f->fd_prog);
    f->fd_own = open(path, O_RDWR | O_DIRECT);
    f->direct = f->fd_own >= 0;
    f->fd_own = f->direct ? f->fd_own : open(path, O_RDWR);
    f->fd_dir = dup(r->dirfd);
    fstat(f->fd_prog, &s);
    f->dev = s.st_dev;
    f->ino = s.st_ino;
    fstat(r->dirfd, &s);
    f->dir_dev = s.st_dev;
    f->dir_ino = s.st_ino;
    f->id = number;
    f->close_flags = 0;
    f->closed.tv_sec = INT32_MAX; // behind whatever stands under the name
    f->mtime.tv_nsec = f->atime.tv_nsec = UTIME_OMIT;
    snprintf(f->name, sizeof f->name, "%s", name);
    f->state = FILE_OPEN;
    for (uint64_t index = 0; index * CHUNK_SIZE < SIZE; index++) {
        unsigned chunk = slot * 4 + (unsigned)index;
        unsigned char *mem = (unsigned char *)r->p.window + chunk * CHUNK_SIZE;
        uint32_t len = (uint32_t)min_u64(CHUNK_SIZE, SIZE - index * CHUNK_SIZE);
        for (uint32_t i = 0; i < len; i++) {
            mem[i] = byte_at(slot, index * CHUNK_SIZE + i);
        }
        struct chunk_slot *cs = &r->p.st->chunks[chunk];
        cs->file = slot;
        cs->file_id = f->id;
        cs->what = (struct msg_hand_over){.chunk = chunk, .n = 1, .index = index, .extent = {{0, len}}};
        chunk_store(&r->p, chunk, CHUNK_HANDED, 0, number * 10 + index);
        writer_add(&r->w, chunk);
    }
    f->publish = f->sync_wanted = number * 10 + 9;
    f->state = FILE_CLOSED;
    commit_publish(&r->c, slot, number * 10 + 9);
}

static void run(struct rig *r) {
    for (int i = 0; i < 60000 && (r->c.n_queue || io_pending(r->io)); i++) {
        writer_pump(&r->w);
        commit_pump(&r->c);
        struct pollfd p = {.fd = io_event_fd(r->io), .events = POLLIN};
        poll(&p, 1, 1);
        io_reap(r->io);
    }
    cr_assert_eq(r->c.n_queue, 0, "the queue does not empty");
}

enum content { ABSENT, OLD, WHOLE, TORN };

static enum content look(struct rig *r, const char *name, unsigned seed) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", r->dir, name);
    FILE *f = fopen(path, "rb");
    if (!f) {
        return ABSENT;
    }
    unsigned char *buf = malloc(SIZE + 1);
    size_t n = fread(buf, 1, SIZE + 1, f);
    fclose(f);
    enum content c = n == 3 && memcmp(buf, "old", 3) == 0 ? OLD : n == SIZE ? WHOLE : TORN;
    for (size_t i = 0; c == WHOLE && i < SIZE; i++) {
        c = buf[i] == byte_at(seed, i) ? WHOLE : TORN;
    }
    free(buf);
    return c;
}

static void put_old(struct rig *r, const char *name) {
    int fd = openat(r->dirfd, name, O_WRONLY | O_CREAT, 0644);
    cr_assert_eq(write(fd, "old", 3), 3);
    close(fd);
}

static struct rig rig; // large: not on the stack

Test(commit, whole_in_order_new_and_over) {
    rig_open(&rig);
    fail_nth(0, 0);
    put_old(&rig, "b");
    save(&rig, 0, "a", 1);
    save(&rig, 1, "b", 2);
    save(&rig, 2, "b", 3); // twice: the last one stays
    run(&rig);
    cr_assert_eq(look(&rig, "a", 0), WHOLE);
    cr_assert_eq(look(&rig, "b", 2), WHOLE);
    cr_assert_eq(rig.p.st->published, 3);
    cr_assert_eq(rig.p.st->failures_total, 0);
    rig_close(&rig);
}

Test(commit, any_failing_call_leaves_old_or_whole, .timeout = 120) {
    bool clean = false;
    unsigned failed_runs = 0;
    for (int n = 1; n < 200 && !clean; n++) {
        rig_open(&rig);
        put_old(&rig, "b");
        fail_nth(n, 1);
        save(&rig, 0, "a", 1);
        save(&rig, 1, "b", 2);
        run(&rig);
        clean = atomic_load(&calls) < n;
        enum content a = look(&rig, "a", 0), b = look(&rig, "b", 1);
        bool a_failed = rig.p.st->files[0].error, b_failed = rig.p.st->files[1].error;
        failed_runs += a_failed || b_failed;
        cr_assert(a == WHOLE || (a == ABSENT && a_failed), "call %d: a is %d, failed %d", n, a, a_failed);
        cr_assert(b == WHOLE || (b == OLD && b_failed), "call %d: b is %d, failed %d", n, b, b_failed);
        cr_assert(!(a_failed && a == ABSENT) || b == OLD, "call %d: b was replaced behind a failure", n);
        cr_assert_eq(rig.p.st->failures_total, (unsigned)(a_failed + b_failed));
        rig_close(&rig);
    }
    cr_assert(clean, "more calls than expected");
    cr_assert_gt(failed_runs, 5, "only %u runs had a failure", failed_runs);
}

Test(commit, what_heals_arrives, .timeout = 120) {
    bool clean = false;
    unsigned healed = 0;
    for (int n = 1; n < 200 && !clean; n++) {
        rig_open(&rig);
        rig.p.st->config.retry = 60;
        put_old(&rig, "b");
        fail_nth(n, 1 + n % 2);
        save(&rig, 0, "a", 1);
        save(&rig, 1, "b", 2);
        save(&rig, 2, "c", 3);
        run(&rig);
        clean = atomic_load(&calls) < n;
        enum content a = look(&rig, "a", 0), b = look(&rig, "b", 1), c = look(&rig, "c", 2);
        if (!atomic_load(&final_hit)) {
            healed += !clean;
            cr_assert(a == WHOLE && b == WHOLE && c == WHOLE, "call %d: %d %d %d", n, a, b, c);
            cr_assert_eq(rig.p.st->failures_total, 0, "call %d", n);
        } else {
            cr_assert_gt(rig.p.st->failures_total, 0, "call %d: an fsync failed, and nobody is told", n);
            cr_assert(b == WHOLE || b == OLD, "call %d: b is %d", n, b);
        }
        for (unsigned slot = 0; slot < 3; slot++) {
            cr_assert(rig.p.st->files[slot].error || rig.p.st->files[slot].retry_ns == 0, "call %d", n);
        }
        rig_close(&rig);
    }
    cr_assert(clean, "more calls than expected");
    cr_assert_gt(healed, 8, "only %u runs had a failure that healed", healed);
}

Test(commit, what_does_not_heal_fails_in_time, .timeout = 60) {
    // Writes, or names: nothing arrives, the old file stays, and each failure says how long it was tried.
    for (int in_publish = 0; in_publish < 2; in_publish++) {
        rig_open(&rig);
        rig.p.st->config.retry = 1;
        put_old(&rig, "b");
        fail_nth(0, 0);
        io_calls = io_calls_kernel;
        if (in_publish) {
            io_calls.link_fd = f_link_fd;
        } else {
            io_calls.pwrite_all = f_pwrite_all;
        }
        save(&rig, 0, "a", 1);
        first = 1;
        sick = 1 << 30;
        int64_t begun = os_now_ns(CLOCK_MONOTONIC);
        save(&rig, 1, "b", 2);
        run(&rig);
        int64_t took = os_now_ns(CLOCK_MONOTONIC) - begun;
        cr_assert(took > 900000000 && took < 4000000000, "%d: %ld ms, %s", in_publish, (long)(took / 1000000),
                  rig.p.st->failures[0].text);
        cr_assert_eq(look(&rig, "a", 0), ABSENT);
        cr_assert_eq(look(&rig, "b", 1), OLD);
        cr_assert(rig.p.st->files[0].error && rig.p.st->files[1].error);
        cr_assert(strstr(rig.p.st->failures[0].text, "retried for 1 s"), "%s", rig.p.st->failures[0].text);
        rig_close(&rig);
    }
}
