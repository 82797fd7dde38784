// SPDX-License-Identifier: MIT
//
// commit: see commit.h. Runs in the event loop; publish.c does the blocking work.

#include "commit.h"

#include "breakpoint.h"
#include "broken.h"
#include "log.h"
#include "os.h"
#include "publish.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

static struct file_slot *slot_file(const struct commit *c, unsigned slot) {
    return &c->p->st->files[slot];
}

void commit_start(struct commit *c, struct pair *p, struct io *io, struct writer *w) {
    c->p = p;
    c->io = io;
    c->w = w;
}

static void insert_by_number(struct commit *c, unsigned slot) {
    unsigned at = c->n_queue++;
    uint64_t number = slot_file(c, slot)->publish;
    while (at > 0 && slot_file(c, c->queue[at - 1])->publish > number) {
        c->queue[at] = c->queue[at - 1];
        at--;
    }
    c->queue[at] = slot;
}

static void remove_from(uint32_t *list, unsigned *n, unsigned slot) {
    for (unsigned i = 0; i < *n; i++) {
        if (list[i] == slot) {
            memmove(list + i, list + i + 1, (*n - i - 1) * sizeof *list);
            (*n)--;
            return;
        }
    }
}

void commit_publish(struct commit *c, unsigned slot, uint64_t number) {
    struct file_slot *f = slot_file(c, slot);
    if (c->run[slot].queued) {
        if (f->publish <= number) {
            commit_sync(c, slot, number); // an fsync that publishes was first: its place holds, the end is the same
            return;
        }
        remove_from(c->queue, &c->n_queue, slot);
    }
    f->publish = number;
    f->sync_wanted = max_u64(f->sync_wanted, number);
    c->run[slot].queued = true;
    insert_by_number(c, slot);
}

void commit_sync(struct commit *c, unsigned slot, uint64_t number) {
    struct file_slot *f = slot_file(c, slot);
    f->sync_wanted = max_u64(f->sync_wanted, number);
    for (unsigned i = 0; i < c->n_syncs; i++) {
        if (c->syncs[i] == slot) {
            return;
        }
    }
    c->syncs[c->n_syncs++] = slot;
}

bool commit_prepared(struct commit *c, unsigned slot) {
    const struct file_slot *f = slot_file(c, slot);
    bool touched = f->size_end > 0 || f->reserve_tried > 0 || f->close_flags & CLOSE_TIMES; // else it is only synced
    if (touched && f->synced < f->sync_wanted) {
        commit_sync(c, slot, f->sync_wanted);
    }
    return !touched || (f->synced >= f->sync_wanted && !c->run[slot].syncing);
}

void commit_forget(struct commit *c, unsigned slot) {
    remove_from(c->queue, &c->n_queue, slot);
    remove_from(c->syncs, &c->n_syncs, slot);
    c->run[slot].queued = false;
}

unsigned commit_before(const struct commit *c, uint64_t number, bool (*match)(const struct file_slot *, const void *),
                       const void *arg) {
    unsigned n = 0;
    for (unsigned i = 0; i < c->n_queue; i++) {
        const struct file_slot *f = slot_file(c, c->queue[i]);
        n += f->publish < number && (!match || match(f, arg));
    }
    return n;
}

/** What is under the name now. The publish or the program has just looked it up: the kernel has it in memory. */
static const char *what_is_left(const struct file_slot *f) {
    struct stat s;
    switch (f->kind) {
    case SLOT_FILE:
        return f->flags & OPEN_FOLLOWED || f->linked ? "it may not be durable"
               : os_fstatat(f->fd_dir, f->name, &s, AT_SYMLINK_NOFOLLOW) == 0
                   ? "the new content is lost, an older file stays"
                   : "the new content is lost, there is no file of that name";
    case SLOT_RENAME:
        return "it keeps its old name";
    default:
        return "it is not deleted";
    }
}

static void remember_failure(struct state *st, const struct file_slot *f, int error, const char *what) {
    struct failure *x = &st->failures[st->n_failures % FAILURES_MAX];
    char dir[128], retried[40] = "";
    log_directory(f->fd_dir, dir, sizeof dir);
    if (f->retry_ns) {
        log_format(retried, sizeof retried, ", retried for %u s", retry_seconds(f));
    }
    x->client = f->client;
    x->fetched[0] = x->fetched[1] = 0;
    log_format(x->text, sizeof x->text, "%s%s: %s while %s%s%s%s%s; %s", dir, f->name, log_errno(-error), what, retried,
               f->where[0] ? " (opened by " : "", f->where, f->where[0] ? ")" : "", what_is_left(f));
    st->n_failures++;
    st->failures_total++;
    log_error("%s", x->text);
}

void commit_fail(struct commit *c, unsigned slot, int error, const char *what) {
    struct file_slot *f = slot_file(c, slot);
    struct state *st = c->p->st;
    if (f->error || f->dropped) {
        return;
    }
    f->error = error;
    atomic_store_explicit(&c->p->t->files[slot].error, error, memory_order_release);
    if (f->publish) {
        state_fail(st, f->publish, atomic_load(&c->p->numbers->next));
    }
    remember_failure(st, f, error, what);
    if (f->client < CLIENTS_MAX) {
        st->clients[f->client].failures++;
        if (f->state == FILE_CLOSED) {
            atomic_fetch_add(&c->p->t->clients[f->client].failures, 1);
        }
    }
}

void commit_fail_disk(struct commit *c, unsigned slot, int error, const char *what) {
    struct file_slot *f = slot_file(c, slot);
    char dir[128];
    if (!f->error && !f->dropped) {
        log_directory(f->fd_dir, dir, sizeof dir);
        broken_note(c->p, f, error, dir);
    }
    commit_fail(c, slot, error, what);
}

// ---- Syncing

static void sync_run(struct io_job *job) {
    struct sync_batch *b = job->arg;
    for (unsigned i = 0; i < b->n && b->n > 1; i++) {
        publish_start_writeback(slot_file(b->c, b->slots[i]));
    }
    for (unsigned i = 0; i < b->n; i++) {
        io_serve(slot_file(b->c, b->slots[i])->id);
        b->result[i] = (b->write_out ? publish_write_out : publish_sync)(b->c->p->st, slot_file(b->c, b->slots[i]));
    }
}

static void sync_done(struct io_job *job) {
    struct sync_batch *b = job->arg;
    struct commit *c = b->c;
    BREAK_POINT("sync-done");
    b->used = false;
    for (unsigned i = 0; i < b->n; i++) {
        unsigned slot = b->slots[i];
        c->run[slot].syncing = false;
        if (b->result[i] < 0) {
            commit_fail_disk(c, slot, b->result[i], "making it durable");
        } else if (b->write_out) {
            c->run[slot].written = c->run[slot].sync_to;
        } else {
            slot_file(c, slot)->synced = c->run[slot].sync_to;
            BREAK_POINT("sync-marked");
        }
        c->on_done(c->arg, slot);
    }
}

/** Is all done that has to be done before its name? */
static bool is_ready(const struct commit *c, unsigned slot) {
    const struct file_slot *f = slot_file(c, slot);
    return max_u64(f->synced, c->run[slot].written) >= f->publish;
}

static bool sync_ready(const struct commit *c, unsigned slot) {
    const struct file_slot *f = slot_file(c, slot);
    if (c->run[slot].syncing || f->error || f->dropped || f->sync_wanted <= f->synced) {
        return false;
    }
#if FASTCKPT_BREAK == 3 // canary: torn names, published before the bytes are there
    return true;
#else
    return writer_settled(c->w, slot, f->sync_wanted);
#endif
}

/** Shall more than these `n` files come together before a job is made of them? Not when somebody waits. */
static bool gather(struct commit *c, int64_t *since, unsigned n) {
    int64_t now = os_now_ns(CLOCK_MONOTONIC);
    *since = n == 0 || n >= GATHER || c->hurry ? 0 : *since ? *since : now;
    if (*since == 0 || now - *since >= GATHER_NS) {
        *since = 0;
        return false;
    }
    int64_t due = *since + GATHER_NS;
    c->wake_ns = c->wake_ns > 0 && c->wake_ns < due ? c->wake_ns : due;
    return true;
}

static struct sync_batch *free_batch(struct commit *c, bool small, bool write_out) {
    struct sync_batch *free = NULL;
    unsigned smalls = 0;
    for (unsigned i = 0; i < SYNC_JOBS; i++) {
        struct sync_batch *b = &c->sync_batches[i];
        free = b->used ? free : b;
        smalls += b->used && b->small;
    }
    if (free && !(small && smalls >= SYNC_SMALL)) {
        free->n = 0;
        free->small = small;
        free->write_out = write_out;
        return free;
    }
    return NULL;
}

static void sync_submit(struct commit *c, struct sync_batch *b) {
    const struct file_slot *first = slot_file(c, b->slots[0]);
    b->c = c;
    b->used = true;
    b->job = (struct io_job){.run = sync_run, .done = sync_done, .arg = b, .device = first->dev, .number = first->id};
    io_job(c->io, &b->job);
}

/** Files of the queue that can be written out together. */
static unsigned count_small(const struct commit *c) {
    unsigned n = 0;
    for (unsigned i = 0; i < c->n_queue && !c->p->st->plain; i++) {
        unsigned slot = c->queue[i];
        n += sync_ready(c, slot) && !is_ready(c, slot) && publish_with_name(slot_file(c, slot));
    }
    return n;
}

/** Puts ready files of `list` into batches: a large file alone, small ones of one device together. What the names of
 *  these files will make durable (`names`) is written out only. */
static void sync_start(struct commit *c, const uint32_t *list, unsigned n, bool names) {
    struct sync_batch *open = NULL;
    bool wait = names && gather(c, &c->writing_since, c->hurry ? 0 : count_small(c));
    for (unsigned i = 0; i < n; i++) {
        const struct file_slot *f = slot_file(c, list[i]);
        bool write_out = names && publish_with_name(f), small = f->size_end == 0 && !c->p->st->plain;
        if (!sync_ready(c, list[i]) || (names && is_ready(c, list[i])) || (write_out && wait)) {
            continue;
        }
        if (open && (!small || open->n == SYNC_BATCH || open->write_out != write_out ||
                     slot_file(c, open->slots[0])->dev != f->dev)) {
            sync_submit(c, open);
            open = NULL;
        }
        if (!open) {
            open = free_batch(c, small, write_out);
            if (!open) {
                continue;
            }
        }
        open->slots[open->n++] = list[i];
        c->run[list[i]].syncing = true;
        c->run[list[i]].sync_to = f->sync_wanted;
        if (!small) {
            sync_submit(c, open);
            open = NULL;
        }
    }
    if (open) {
        sync_submit(c, open);
    }
}

// ---- Publishing

static void publish_run(struct io_job *job) {
    struct commit *c = job->arg;
    c->n_named = publish_names(c->p->st, c->batch, c->n_batch, c->batch_result);
    if (c->on_named) {
        c->on_named(c->p->st, c->batch, c->n_named, c->batch_result);
    }
}

static const char *naming(const struct file_slot *f) {
    return f->kind == SLOT_FILE ? "giving it its name" : f->kind == SLOT_RENAME ? "renaming it" : "deleting it";
}

static void publish_done(struct io_job *job) {
    struct commit *c = job->arg;
    BREAK_POINT("publish-done");
    c->publishing = false;
    for (unsigned i = 0; i < c->n_batch; i++) {
        unsigned slot = c->batch[i];
        struct file_slot *f = slot_file(c, slot);
        struct retry *r = &c->run[slot].retry;
        c->run[slot].publishing = false;
        if (i > c->n_named || (i == c->n_named && retry_later(c->p->st, f, r, c->batch_result[i]))) {
            continue; // stays in its place
        }
        c->run[slot].queued = false;
        remove_from(c->queue, &c->n_queue, slot);
        broken_turn(c->p, f, c->batch_result[i]);
        if (c->batch_result[i] < 0) {
            bool behind = c->batch_result[i] == -ECANCELED;
            publish_give_up(f);
            commit_fail_disk(c, slot, c->batch_result[i], behind ? "an earlier file had failed" : naming(f));
        } else {
            retry_done(f, r);
            c->p->st->published += f->kind == SLOT_FILE;
            f->synced = max_u64(f->synced, c->run[slot].written);
            *(volatile uint32_t *)&f->done = 1; // before publish: a closed file must never be neither queued nor done
            BREAK_POINT("publish-marked");
            f->publish = 0;
            BREAK_POINT("publish-out");
        }
        c->on_done(c->arg, slot);
    }
}

/** Would a file without a record take the name of one whose record has not ended? A recovery would not know it. */
static bool hides_recorded(const struct commit *c, const struct file_slot *f) {
    for (unsigned i = 0; i < c->n_batch && (f->safe == SAFE_NO || f->unsafe); i++) {
        const struct file_slot *b = slot_file(c, c->batch[i]);
        if (b->safe != SAFE_NO && b->dir_ino == f->dir_ino && b->dir_dev == f->dir_dev && !strcmp(b->name, f->name)) {
            return true;
        }
    }
    return false;
}

static void publish_start(struct commit *c) {
    if (c->publishing || c->held || c->n_queue == 0) {
        return;
    }
    // With a device that is broken, what one may do depends on how the one before it went.
    unsigned most = c->p->st->plain || state_broken(c->p->st) ? 1 : PUBLISH_BATCH;
    bool any_safe = false, any_recorded = false;
    c->n_batch = 0;
    for (unsigned i = 0; i < c->n_queue && c->n_batch < most; i++) {
        unsigned slot = c->queue[i];
        struct file_slot *f = slot_file(c, slot);
        bool recorded = f->safe != SAFE_MAKING && !(f->kind != SLOT_FILE && any_safe);
        if (!is_ready(c, slot) || !recorded || c->run[slot].syncing || (any_recorded && hides_recorded(c, f)) ||
            retry_early(&c->run[slot].retry, &c->wake_ns)) {
            break;
        }
        // Its end is recorded before its name can go: else a recovery would make it again.
        any_safe |= f->kind == SLOT_FILE && (f->safe == SAFE_YES || f->safe == SAFE_OPEN);
        any_recorded |= f->safe != SAFE_NO;
        c->batch[c->n_batch++] = slot;
    }
    if (gather(c, &c->naming_since, most > 1 ? c->n_batch : 0) || c->n_batch == 0) {
        return;
    }
    for (unsigned i = 0; i < c->n_batch; i++) {
        retry_begin(slot_file(c, c->batch[i]), &c->run[c->batch[i]].retry);
        c->run[c->batch[i]].publishing = true;
    }
    struct file_slot *first = slot_file(c, c->batch[0]);
    c->publishing = true;
    c->publish_job =
        (struct io_job){.run = publish_run, .done = publish_done, .arg = c, .device = first->dev, .number = first->id};
    io_job(c->io, &c->publish_job);
}

/** Failed and dropped files leave the queue; on_done lets their slot go. */
static void sort_out(struct commit *c) {
    for (unsigned i = 0; i < c->n_queue;) {
        unsigned slot = c->queue[i];
        struct file_slot *f = slot_file(c, slot);
        struct commit_run *r = &c->run[slot];
        bool busy = r->syncing || r->publishing || (f->temporary && c->publishing);
        if ((f->error || f->dropped) && !busy) {
            publish_give_up(f);
            commit_forget(c, slot);
            c->on_done(c->arg, slot);
        } else {
            i++;
        }
    }
}

void commit_pump(struct commit *c) {
    c->wake_ns = 0;
    sort_out(c);
    sync_start(c, c->syncs, c->n_syncs, false); // somebody waits in an fsync: first
    sync_start(c, c->queue, c->n_queue, true);
    for (unsigned i = 0; i < c->n_syncs;) {
        struct file_slot *f = slot_file(c, c->syncs[i]);
        if (f->state == FILE_FREE || f->error || f->synced >= f->sync_wanted) {
            c->syncs[i] = c->syncs[--c->n_syncs];
        } else {
            i++;
        }
    }
    publish_start(c);
}

void commit_rebuild(struct commit *c) {
    for (unsigned slot = 0; slot < FILES_MAX; slot++) {
        struct file_slot *f = slot_file(c, slot);
        if (f->state == FILE_FREE || f->error || f->dropped) {
            continue;
        }
        if (f->publish && !f->done) {
            f->synced = 0; // whatever was in hand is done again
            commit_publish(c, slot, f->publish);
        } else if (f->sync_wanted > f->synced) {
            commit_sync(c, slot, f->sync_wanted);
        }
    }
}
