// SPDX-License-Identifier: MIT
//
// state: making, mapping and tidying the memory of state.h. No policy.

#include "state.h"

#include "breakpoint.h"
#include "labels.h"
#include "log.h"
#include "os.h"
#include "staging.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/** A memfd of `len` bytes, sealed against resizing; not close-on-exec: `serve --resume` inherits it. */
static int make_memory(const char *name, uint64_t len) {
    int fd = os_memfd(name, MFD_ALLOW_SEALING);
    if (fd < 0) {
        return fd;
    }
    int r = os_ftruncate(fd, (off_t)len);
    if (r == 0) {
        r = os_fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
    }
    if (r < 0) {
        os_close(fd);
        return r;
    }
    return fd;
}

static void *map_memory(int fd, uint64_t len) {
    void *m = os_mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return os_is_err(m) ? NULL : m;
}

static int map_all(struct pair *p) {
    p->t = map_memory(p->st->fd_tables, sizeof *p->t);
    p->numbers = map_memory(p->st->fd_numbers, NUMBERS_PAGE);
    return p->t && p->numbers ? 0 : -ENOMEM;
}

int state_create(struct pair *p, const struct config *c) {
    memset(p, 0, sizeof *p);
    int fd = make_memory("fastckpt-state", align_up(sizeof(struct state), 4096));
    if (fd < 0) {
        return fd;
    }
    p->st = map_memory(fd, sizeof(struct state));
    if (!p->st) {
        os_close(fd);
        return -ENOMEM;
    }
    struct state *st = p->st;
    st->magic = STATE_MAGIC;
    st->config = *c;
    st->fd_state = fd;
    st->staging_max = staging_budget(c->staging);
    st->fd_staging = staging_create(st->staging_max);
    st->fd_numbers = make_memory("fastckpt-numbers", NUMBERS_BYTES);
    st->fd_tables = make_memory("fastckpt-tables", align_up(sizeof(struct tables), 4096));
    if (st->fd_staging < 0 || st->fd_numbers < 0 || st->fd_tables < 0) {
        return -ENOMEM;
    }
    char path[64];
    log_format(path, sizeof path, "/proc/self/fd/%d", st->fd_tables);
    st->fd_tables_ro = os_openat(AT_FDCWD, path, O_RDONLY, 0);
    if (st->fd_tables_ro < 0) {
        return st->fd_tables_ro;
    }
    int r = map_all(p);
    if (r == 0) {
        p->t->magic = TABLES_MAGIC;
    }
    return r;
}

int state_attach(struct pair *p, int fd_state) {
    memset(p, 0, sizeof *p);
    struct stat s;
    int r = os_fstat(fd_state, &s);
    if (r < 0 || (uint64_t)s.st_size < sizeof(struct state)) {
        return r < 0 ? r : -EINVAL;
    }
    p->st = map_memory(fd_state, sizeof(struct state));
    if (!p->st || p->st->magic != STATE_MAGIC) {
        return -EINVAL;
    }
    return map_all(p);
}

int state_map_staging(struct pair *p) {
    p->window = staging_window(p->st->staging_max);
    if (!p->window) {
        return -ENOMEM;
    }
    return staging_map(p->window, p->st->fd_staging, 0, p->st->staging_max, 0);
}

void state_close_fd(int32_t *recorded) {
    int fd = *recorded;
    if (fd > 0) {
        *(volatile int32_t *)recorded = 0;
        atomic_signal_fence(memory_order_seq_cst);
        BREAK_POINT("fd-struck");
        os_close(fd);
    }
}

static void mark(unsigned char *seen, size_t cap, int fd) {
    if (fd > 0 && (size_t)fd < cap) {
        seen[fd] = 1;
    }
}

static void mark_recorded(const struct state *st, unsigned char *seen, size_t cap) {
    const int32_t base[] = {st->fd_state,     st->fd_staging, st->fd_numbers, st->fd_tables,
                            st->fd_tables_ro, st->fd_listen,  st->fd_lock,    st->fd_log,
                            st->fd_dir,       st->fd_binary,  st->fd_keeper};
    for (size_t i = 0; i < ARRAY_LEN(base); i++) {
        mark(seen, cap, base[i]);
    }
    for (size_t i = 0; i < STRIPES_MAX; i++) {
        mark(seen, cap, st->fd_stripe[i]);
        mark(seen, cap, st->fd_stripe_log[i]);
        mark(seen, cap, st->fd_stripe_dir[i]);
    }
    for (size_t i = 0; i < CLIENTS_MAX; i++) {
        mark(seen, cap, st->clients[i].used ? st->clients[i].pidfd : 0);
        mark(seen, cap, st->arenas[i].fd);
    }
    for (size_t i = 0; i < CONNS_MAX; i++) {
        mark(seen, cap, st->conns[i].fd);
    }
    for (size_t i = 0; i < ENTRIES_MAX; i++) {
        for (int k = 0; st->entries[i].state != ENTRY_FREE && k < MSG_FDS_MAX; k++) {
            mark(seen, cap, st->entries[i].fds[k]);
        }
    }
    for (size_t i = 0; i < FILES_MAX; i++) {
        const struct file_slot *f = &st->files[i];
        if (f->state != FILE_FREE) {
            mark(seen, cap, f->fd_prog);
            mark(seen, cap, f->fd_own);
            mark(seen, cap, f->fd_dir);
            mark(seen, cap, f->fd_to);
        }
    }
}

void state_safe_now(struct state *st, struct file_slot *f) {
    if (f->client < CLIENTS_MAX && !f->was_safe) {
        f->was_safe = 1;
        st->clients[f->client].last_safe_ns = st->clients[f->root].last_safe_ns = os_now_ns(CLOCK_MONOTONIC);
    }
}

bool state_blame(struct state *st, uint64_t number) {
    const uint32_t cap = ARRAY_LEN(st->blamed);
    for (uint32_t i = 0; i < st->n_blamed && i < cap; i++) {
        if (st->blamed[i] == number) {
            if (st->n_skip < ARRAY_LEN(st->skip)) {
                st->skip[st->n_skip++] = number;
            }
            return true;
        }
    }
    st->blamed[st->n_blamed++ % cap] = number;
    return false;
}

void state_count(struct state *st, uint64_t dev, uint64_t bytes) {
    st->written_bytes += bytes;
    for (unsigned i = 0; i < TARGETS_MAX; i++) {
        if (st->targets[i].dev == dev || st->targets[i].dev == 0) {
            st->targets[i].dev = dev;
            st->targets[i].written += bytes;
            return;
        }
    }
}

void state_close_litter(const struct pair *p) {
    size_t cap = 1u << 20;
    unsigned char *seen = calloc(1, cap);
    DIR *d = opendir("/proc/self/fd");
    if (!seen || !d) {
        free(seen);
        if (d) {
            closedir(d);
        }
        return;
    }
    mark_recorded(p->st, seen, cap);
    mark(seen, cap, dirfd(d));
    struct dirent *e;
    while ((e = readdir(d))) {
        int fd = atoi(e->d_name);
        if (fd > 2 && (size_t)fd < cap && !seen[fd]) {
            os_close(fd);
        }
    }
    closedir(d);
    free(seen);
}

static int by_number(const void *a, const void *b, void *items) {
    const struct stripe_item *it = items;
    uint64_t x = it[*(const uint32_t *)a].number, y = it[*(const uint32_t *)b].number;
    return x < y ? -1 : x > y;
}

void state_sort_items(const struct state *st, uint32_t *items, uint32_t n) {
    if (n > 0) {
        qsort_r(items, n, sizeof *items, by_number, (void *)st->items);
    }
}
