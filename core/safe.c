// SPDX-License-Identifier: MIT
//
// safe: see safe.h. The logs of all stripes are the same, and written by one thread at a time.

#include "safe_inside.h"

#include "breakpoint.h"
#include "log.h"
#include "os.h"
#include "sums.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define LOG_MOST    (256 * MIB) // nothing is added beyond this but ends
#define LOG_TIDY    (16 * MIB)  // beyond this a log is begun again when nothing in it is needed
#define AGE_NS      100000000ll // a file that is published sooner after its close needs no record

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static struct file_slot *slot_file(const struct safe *s, unsigned slot) {
    return &s->p->st->files[slot];
}

// ---- The logs

static bool has_log(const struct state *st, unsigned i) {
    return st->fd_stripe_log[i] > 0 && !(st->log_out & 1u << i);
}

/** One log that cannot be written is left out. The last one: nothing more becomes safe, what is in it holds as long as
 *  nothing ends. */
static void leave_out(struct state *st, unsigned i, int error) {
    bool last = true;
    st->log_out |= 1u << i;
    for (unsigned k = 0; k < STRIPES_MAX; k++) {
        last &= !has_log(st, k);
    }
    if (last) {
        st->log_bad = 1;
    } else {
        stripelog_empty(st->fd_stripe_log[i]); // if that can be: it must not speak of what will have ended
    }
    log_format(st->note, sizeof st->note, "the log on stripe number %u cannot be written: %s; %s", i + 1,
               log_errno(-error), last ? "what is on stripes would be lost with keeper and engine" : "it is left out");
    log_error("%s", st->note);
}

/** Completes the record and appends it to every log. With the lock held. */
static int append(struct state *st, struct log_buf *b) {
    int r = st->log_bad ? -EIO : stripelog_finish(b, st->key, st->log_number + 1);
    for (unsigned i = 0; i < STRIPES_MAX && r == 0; i++) {
        int e = has_log(st, i) ? io_calls.pwrite_all(st->fd_stripe_log[i], b->mem, b->len, (off_t)st->log_end) : 0;
        if (e < 0) {
            leave_out(st, i, e);
        }
    }
    if (r == 0) {
        st->log_end += b->len;
        st->log_number++;
    }
    stripelog_free(b);
    return r < 0 ? r : st->log_bad ? -EIO : 0;
}

static int sync_logs(struct state *st) {
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        int e = has_log(st, i) ? io_calls.fsync(st->fd_stripe_log[i]) : 0;
        if (e < 0) {
            leave_out(st, i, e);
        }
    }
    return st->log_bad ? -EIO : 0;
}

/** Begins the logs anew: what was in them is needed no more. */
static int begin_logs(struct state *st) {
    struct log_buf b;
    struct log_start start = {.epoch = ++st->log_epoch};
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        int e = has_log(st, i) ? io_calls.ftruncate(st->fd_stripe_log[i], 0) : 0;
        if (e < 0) {
            leave_out(st, i, e);
        }
        start.stripes |= st->fd_stripe_log[i] > 0 ? 1u << i : 0; // one that is left out may still speak of the past
    }
    st->log_end = st->log_number = 0;
    stripelog_begin(&b, LOG_START);
    stripelog_add(&b, &start, sizeof start);
    return append(st, &b);
}

// ---- Making a record

/** What a record speaks of is durable: the stripes of its chunks, the names that it leans on. */
static int make_ready(const struct safe *s, const struct file_slot *f) {
    uint32_t used = 0;
    int r = 0;
    if (f->kind == SLOT_FILE ? s->becomes == SAFE_AS_IS : f->kind == SLOT_RENAME && !f->base_id) {
        return io_calls.sync_dir(f->fd_dir); // a name that no record has made
    }
    for (unsigned i = 0; i < s->n_parts; i++) {
        used |= 1u << s->parts[i].device;
    }
    for (unsigned i = 0; i < STRIPES_MAX && r == 0; i++) {
        r = used & 1u << i ? io_calls.fsync(s->p->st->fd_stripe[i]) : 0;
    }
    return r;
}

static void make_run(struct io_job *job) {
    struct safe *s = job->arg;
    struct state *st = s->p->st;
    const struct file_slot *f = slot_file(s, s->slot);
    struct log_buf b = {0};
    job->result = make_ready(s, f);
    if (job->result < 0 || s->becomes == SAFE_AS_IS || s->becomes == SAFE_NO) {
        return;
    }
    job->result = f->kind == SLOT_FILE ? safe_record_file(s, f, &b) : safe_record_change(f, &b);
    if (job->result < 0) {
        stripelog_free(&b);
        return;
    }
    pthread_mutex_lock(&log_lock);
    int r = append(st, &b);
    BREAK_POINT("safe-appended");
    r = r < 0 ? r : sync_logs(st);
    BREAK_POINT("safe-synced");
    pthread_mutex_unlock(&log_lock);
    job->result = r;
}

static void make_done(struct io_job *job) {
    struct safe *s = job->arg;
    struct file_slot *f = slot_file(s, s->slot);
    s->busy = false;
    free(s->parts);
    s->parts = NULL;
    if (job->result < 0) {
        log_debug("%s: not safe on the stripes: %s", f->name, log_errno(-job->result));
        drain_unsafe(s->drain, s->slot); // what is behind it waits until it is done
    }
    if (s->becomes != SAFE_NO) {
        f->safe = s->becomes; // or perhaps: a record has to be ended in any case
    }
    BREAK_POINT("safe-marked");
    if (job->result == 0 && s->number) {
        f->safe_to = s->number;
    } else if (job->result == 0) {
        state_safe_now(s->p->st, f);
    }
    s->on_change(s->arg);
}

// ---- Which one is next

/** The file's chunks on the stripes, in the order of hand-over. False: not all are there yet. */
static bool collect(struct safe *s, unsigned slot) {
    const struct drain *d = s->drain;
    const struct stripe_item *items = s->p->st->items;
    uint32_t tail = d->file[slot].tail;
    if (tail && items[tail - 1].state == ITEM_HELD) {
        return false; // the newest is the last to reach its stripe, as a rule: it saves the walk
    }
    uint32_t high = s->p->st->items_high, n = 0, *found = calloc(high + 1, sizeof *found);
    bool all = found && slot_file(s, slot)->refs == 0;
    for (uint32_t i = 0; all && i < high; i++) {
        enum item_state state = items[i].state;
        if (state == ITEM_FREE || state == ITEM_LITTER || items[i].file != slot || d->run[i].dead) {
            continue;
        }
        all = state != ITEM_HELD && items[i].device >= 0;
        found[n++] = i;
    }
    s->parts = all ? calloc(n + 1, sizeof *s->parts) : NULL;
    state_sort_items(s->p->st, found, n);
    for (uint32_t k = 0; s->parts && k < n; k++) {
        const struct stripe_item *it = &items[found[k]];
        struct log_part *p = &s->parts[k];
        *p = (struct log_part){(uint32_t)it->device, it->place, it->crc, it->what.n, it->what.index, {{0}}};
        memcpy(p->extent, it->what.extent, sizeof p->extent);
    }
    s->n_parts = n;
    free(found);
    return s->parts;
}

/** Does the record, or the name, of what is closed say all of it? */
bool safe_is(const struct file_slot *f) {
    return (f->safe == SAFE_YES || f->safe == SAFE_AS_IS) && !f->unsafe && !f->error && !f->dropped;
}

/** What a slot will be when it is safe; NO: it cannot be, or not yet. */
static enum safe_state can_become(const struct safe *s, unsigned slot) {
    const struct file_slot *f = slot_file(s, slot);
    const struct commit_run *r = &s->c->run[slot];
    bool synced = f->synced >= f->publish && !r->syncing;
    bool recorded = f->safe != SAFE_NO && f->safe != SAFE_OPEN;
    if (f->state != FILE_CLOSED || recorded || f->unsafe || f->error || f->dropped || r->publishing) {
        return SAFE_NO;
    }
    if (f->kind == SLOT_FILE && (f->flags & OPEN_FOLLOWED || f->linked)) {
        return synced ? SAFE_AS_IS : SAFE_NO;
    }
    if (f->tried) { // by an engine that died, or in vain: a record cannot say what a crash would leave under the name
        return SAFE_NO;
    }
    if (f->kind != SLOT_FILE) { // what is renamed may be no captured file: it is synced first
        return synced || f->kind != SLOT_RENAME || f->base_id ? SAFE_YES : SAFE_NO;
    }
    // Captured, and nothing of it is beyond what its chunks and its inode say. That it is being synced is no matter:
    // the target may be slow.
    return f->taken || f->unnamed ? SAFE_NO : SAFE_YES;
}

static bool is_young(struct safe *s, const struct file_slot *f) {
    const struct timespec *since = f->kind == SLOT_FILE ? &f->closed : &f->opened;
    if (f->safe_to || f->publish < s->want) {
        return false;
    }
    int64_t age = os_now_ns(CLOCK_REALTIME) - (since->tv_sec * 1000000000 + since->tv_nsec);
    if (age < 0 || age >= AGE_NS) { // a clock that was set back proves nothing
        return false;
    }
    s->wake_ns = os_now_ns(CLOCK_MONOTONIC) + AGE_NS - age;
    return true;
}

/** Its chunks, if it has any, are on the stripes. */
static bool has_parts(struct safe *s, unsigned slot) {
    s->n_parts = 0;
    bool chunks = s->becomes == SAFE_YES && slot_file(s, slot)->kind == SLOT_FILE;
    return !chunks || collect(s, slot);
}

static bool is_usable(const struct safe *s) {
    return s->on && !s->p->st->log_bad && !s->p->st->plain && s->p->st->log_end <= LOG_MOST;
}

static void begin(struct safe *s, unsigned slot, uint64_t number) {
    struct file_slot *f = slot_file(s, slot);
    s->slot = slot;
    s->number = number;
    s->busy = true;
    if (s->becomes != SAFE_NO) {
        f->safe = SAFE_MAKING;
    }
    BREAK_POINT("safe-making");
    s->job = (struct io_job){.run = make_run, .done = make_done, .arg = s, .device = f->dev, .number = f->id};
    io_job(s->io, &s->job);
}

/** Begins an fsync of an open file: one behind whose number nothing is that is not safe. */
static bool begin_sync(struct safe *s, uint64_t before) {
    for (unsigned i = 0; i < s->n_syncs;) {
        const struct safe_sync *x = &s->syncs[i];
        const struct file_slot *f = slot_file(s, x->slot);
        bool over = f->state != FILE_OPEN || f->id != x->id || f->safe_to >= x->number || f->unsafe;
        if (over) {
            s->syncs[i] = s->syncs[--s->n_syncs];
            continue;
        }
        s->becomes = x->name ? SAFE_OPEN : SAFE_NO;
        if (x->number < before && f->safe != SAFE_MAKING && collect(s, x->slot)) {
            begin(s, x->slot, x->number);
            return true;
        }
        i++;
    }
    return false;
}

void safe_pump(struct safe *s) {
    s->wake_ns = 0;
    if (!is_usable(s) || s->busy) {
        return;
    }
    for (unsigned i = 0; i < s->c->n_queue; i++) {
        unsigned slot = s->c->queue[i];
        struct file_slot *f = slot_file(s, slot);
        if (safe_is(f)) {
            continue;
        }
        if (begin_sync(s, f->publish)) {
            return;
        }
        s->becomes = can_become(s, slot);
        if (s->becomes != SAFE_NO && !is_young(s, f) && has_parts(s, slot)) {
            begin(s, slot, 0);
        }
        return;
    }
    begin_sync(s, UINT64_MAX);
}

// ---- Who waits

void safe_hurry(struct safe *s, uint64_t number) {
    s->want = max_u64(s->want, number);
}

int safe_sync(struct safe *s, unsigned slot, uint64_t number, bool name) {
    const struct file_slot *f = slot_file(s, slot);
    if (f->state == FILE_OPEN && f->safe_to >= number) {
        return 0;
    }
    if (!is_usable(s) || f->state != FILE_OPEN || f->unsafe || f->error || f->dropped || f->unnamed || f->publish ||
        f->flags & OPEN_FOLLOWED || f->linked) {
        return -EOPNOTSUPP;
    }
    safe_hurry(s, number);
    for (unsigned i = 0; i < s->n_syncs; i++) {
        if (s->syncs[i].slot == slot && s->syncs[i].id == f->id && s->syncs[i].number >= number) {
            return -EAGAIN;
        }
    }
    if (s->n_syncs == FILES_MAX) {
        return -EOPNOTSUPP;
    }
    s->syncs[s->n_syncs++] = (struct safe_sync){slot, name, f->id, number};
    return -EAGAIN;
}

// ---- The end

static bool has_record(const struct file_slot *f) {
    return f->state != FILE_FREE && f->safe != SAFE_NO && f->safe != SAFE_AS_IS;
}

/** In a worker: records the end of every slot whose `result` (NULL: each) is 0, and makes that durable. */
static void end_all(struct state *st, const uint32_t *slots, unsigned n, const int *result) {
    bool any = false;
    int r = 0;
    pthread_mutex_lock(&log_lock);
    for (unsigned i = 0; i < n; i++) {
        struct file_slot *f = &st->files[slots[i]];
        if (has_record(f) && (!result || result[i] == 0) && r == 0) {
            struct log_buf b;
            struct log_end end = {f->id};
            stripelog_begin(&b, LOG_END);
            stripelog_add(&b, &end, sizeof end);
            r = append(st, &b);
            any = true;
        }
    }
    BREAK_POINT("end-appended");
    r = r == 0 && any ? sync_logs(st) : r;
    BREAK_POINT("end-synced");
    st->log_bad |= any && r < 0; // what is emptied is not continued
    for (unsigned i = 0; i < STRIPES_MAX && any && r < 0; i++) {
        if (st->fd_stripe_log[i] > 0) {
            stripelog_empty(st->fd_stripe_log[i]);
        }
    }
    bool needed = false;
    for (unsigned i = 0; i < n && any; i++) {
        struct file_slot *f = &st->files[slots[i]];
        if (has_record(f) && (!result || result[i] == 0)) {
            f->safe = SAFE_NO;
            f->unsafe = 1;
        }
    }
    for (unsigned i = 0; i < FILES_MAX && any; i++) {
        needed |= has_record(&st->files[i]);
    }
    if (any && !needed && r == 0 && st->log_end > LOG_TIDY) {
        begin_logs(st);
    }
    pthread_mutex_unlock(&log_lock);
}

static void on_named(struct state *st, const uint32_t *slots, unsigned n, const int *result) {
    end_all(st, slots, n, result);
    sums_named(st, slots, n, result);
}

struct ending {
    struct io_job job;
    struct safe *s;
    uint32_t slot;
};

static void end_run(struct io_job *job) {
    struct ending *x = job->arg;
    end_all(x->s->p->st, &x->slot, 1, NULL);
}

static void end_done(struct io_job *job) {
    struct ending *x = job->arg;
    x->s->ending[x->slot] = false;
    x->s->on_change(x->s->arg);
    free(x);
}

bool safe_ended(struct safe *s, unsigned slot) {
    struct file_slot *f = slot_file(s, slot);
    if (!has_record(f) && !s->ending[slot]) {
        drain_release(s->drain, slot);
        return true;
    }
    struct ending *x = f->safe != SAFE_MAKING && !s->ending[slot] ? calloc(1, sizeof *x) : NULL;
    if (x) {
        s->ending[slot] = true;
        x->s = s;
        x->slot = slot;
        x->job = (struct io_job){.run = end_run, .done = end_done, .arg = x, .device = f->dev, .number = f->id};
        io_job(s->io, &x->job);
    }
    return false;
}

void safe_start(struct safe *s, struct pair *p, struct io *io, struct drain *d, struct commit *c) {
    s->p = p;
    s->io = io;
    s->drain = d;
    s->c = c;
    s->on = d->run;
    if (!s->on) {
        return;
    }
    pthread_mutex_init(&log_lock, NULL); // in a test an engine may have died with it
    c->on_named = on_named;
    if (p->st->generation == 1) {
        begin_logs(p->st);
    }
    for (unsigned i = 0; i < FILES_MAX; i++) {
        struct file_slot *f = &p->st->files[i];
        if (f->state != FILE_FREE && f->safe == SAFE_MAKING) { // perhaps there is a record: it has to be ended
            f->safe = SAFE_YES;
            f->unsafe = 1;
        }
    }
}
