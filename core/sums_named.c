// SPDX-License-Identifier: MIT
//
// sums_named: which chunks the files that have just got their names consisted of: the engine's side of sums.h. Their
// items stay until the slot goes, and those of other files are not looked at beyond whose they are.

#include "log.h"
#include "os.h"
#include "state.h"
#include "sums.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define SYNC_EVERY_NS 1000000000ll

/** The items that may be of these slots. How many. */
static uint32_t find_items(const struct state *st, const uint32_t *slots, unsigned n, uint32_t **ret) {
    unsigned char *mine = calloc(FILES_MAX, 1);
    uint32_t found = 0, high = st->items_high;
    *ret = calloc(high + 1, sizeof **ret);
    for (unsigned i = 0; mine && i < n; i++) {
        mine[slots[i]] = 1;
    }
    for (uint32_t i = 0; mine && *ret && i < high; i++) {
        const struct stripe_item *it = &st->items[i];
        if (atomic_load_explicit(&it->state, memory_order_acquire) == ITEM_KEPT && it->summed && mine[it->file]) {
            (*ret)[found++] = i;
        }
    }
    free(mine);
    return found;
}

static struct log_part *parts_of(const struct state *st, const struct file_slot *f, const uint32_t *items, uint32_t n,
                                 uint32_t *n_parts) {
    struct log_part *parts = calloc(n + 1, sizeof *parts);
    *n_parts = 0;
    for (uint32_t i = 0; parts && i < n; i++) { // sorted by number
        const struct stripe_item *it = &st->items[items[i]];
        if (it->file == (uint32_t)(f - st->files) && it->file_id == f->id) {
            struct log_part *p = &parts[(*n_parts)++];
            *p = (struct log_part){.crc = it->crc, .n = it->what.n, .index = it->what.index};
            memcpy(p->extent, it->what.extent, sizeof p->extent);
        }
    }
    return parts;
}

static void named_file(struct state *st, struct file_slot *f, const uint32_t *items, uint32_t n_items) {
    char path[32];
    struct stat s;
    uint32_t n;
    struct log_part *parts = parts_of(st, f, items, n_items, &n);
    bool native = f->flags & OPEN_FOLLOWED; // from the start, or since its program has synced it
    log_format(path, sizeof path, "/proc/self/fd/%d", f->fd_own);
    int fd = parts && (n > 0 || !native) ? os_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0) : -1;
    if (fd >= 0 && os_fstat(fd, &s) == 0 && !same_time(&s.st_ctim, &f->summed)) {
        bool loose = native || f->loose || f->taken || f->close_flags & CLOSE_SPAWNED;
        sums_write(st->fd_stripe_dir, fd, parts, n, loose ? SUM_LOOSE : 0);
        f->summed = s.st_ctim;
    }
    if (fd >= 0) {
        os_close(fd);
    }
    free(parts);
}

static void named_rename(struct state *st, const struct file_slot *f) {
    struct stat s;
    const struct timespec *was = &f->summed;
    struct log_identity from = {.dev = f->dev, .ino = f->ino, .ctime = *was};
    if (was->tv_sec && os_fstat(f->fd_own, &s) == 0 && !same_time(&s.st_ctim, was)) {
        sums_write_moved(st->fd_stripe_dir, &from, &s.st_ctim);
    }
}

static void sync_run(struct io_job *job) {
    struct sums_syncing *s = job->arg;
    sums_sync(s->st->fd_stripe_dir);
}

static void sync_done(struct io_job *job) {
    struct sums_syncing *s = job->arg;
    s->busy = false;
}

void sums_pump(struct sums_syncing *s, struct state *st, struct io *io) {
    int64_t now = st->sums_dirty && !s->busy ? os_now_ns(CLOCK_MONOTONIC) : 0;
    if (now - s->last_ns < SYNC_EVERY_NS) {
        return;
    }
    *s = (struct sums_syncing){.st = st, .busy = true, .last_ns = now};
    atomic_store(&st->sums_dirty, 0);
    s->job = (struct io_job){.run = sync_run, .done = sync_done, .arg = s};
    io_job(io, &s->job);
}

void sums_named(struct state *st, const uint32_t *slots, unsigned n, const int *result) {
    uint32_t *items, n_items = find_items(st, slots, n, &items);
    state_sort_items(st, items, n_items);
    for (unsigned i = 0; i < n && items; i++) {
        struct file_slot *f = &st->files[slots[i]];
        if (result[i] == 0 && f->kind == SLOT_FILE && !f->error && !f->dropped) {
            named_file(st, f, items, n_items);
        } else if (result[i] == 0 && f->kind == SLOT_RENAME) {
            named_rename(st, f);
        }
    }
    atomic_store(&st->sums_dirty, 1);
    free(items);
}
