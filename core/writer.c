// SPDX-License-Identifier: MIT
//
// writer: see writer.h. The gate: fallocate waits in the kernel for direct writes in flight on the inode, and direct
// writes wait for it. So nothing of a file is started while a gate job is in hand, and one is only started when
// nothing flies: the wait is ours and short, in no worker and in no client.

#include "writer.h"

#include "breakpoint.h"
#include "layout.h"
#include "os.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>

enum gate_kind { GATE_FENCE, GATE_RESERVE, GATE_GROW };

/** One piece on its way: a request for the direct queue or a job for a worker. */
struct part {
    struct io_req req;
    struct io_job job;
    struct writer *w;
    unsigned chunk;
};

static struct file_slot *slot_file(struct writer *w, unsigned slot) {
    return &w->p->st->files[slot];
}

static void activate(struct writer *w, unsigned slot) {
    struct file_run *r = &w->run[slot];
    if (!r->active) {
        r->active = true;
        r->next_active = w->first_active;
        w->first_active = slot + 1;
    }
}

void writer_start(struct writer *w, struct pair *p, struct io *io) {
    w->p = p;
    w->io = io;
}

void writer_extend(struct writer *w, unsigned slot, const struct msg_hand_over *what) {
    struct file_slot *f = slot_file(w, slot);
    struct file_run *r = &w->run[slot];
    const struct extent *last = &what->extent[what->n - 1];
    uint64_t end = what->index * CHUNK_SIZE + last->off + last->len;
    r->end = writer_settled(w, slot, UINT64_MAX) ? end : max_u64(r->end, end);
    f->size_end = max_u64(f->size_end, end);
}

static uint64_t word_number(const struct writer *w, unsigned chunk) {
    return chunk_word_number(chunk_load(w->p, chunk));
}

/** In the order of the numbers: the head's is the lowest. As a rule it comes last. */
static void insert(struct writer *w, struct file_run *r, unsigned chunk) {
    uint64_t number = word_number(w, chunk);
    uint32_t *at = r->tail && word_number(w, r->tail - 1) < number ? &w->chunk[r->tail - 1].next : &r->head;
    while (*at && word_number(w, *at - 1) < number) {
        at = &w->chunk[*at - 1].next;
    }
    w->chunk[chunk] = (struct chunk_run){.next = *at};
    *at = chunk + 1;
    r->tail = w->chunk[chunk].next ? r->tail : chunk + 1;
}

void writer_add(struct writer *w, unsigned chunk) {
    struct chunk_slot *cs = &w->p->st->chunks[chunk];
    struct file_run *r = &w->run[cs->file];
    writer_extend(w, cs->file, &cs->what);
    insert(w, r, chunk);
    r->taken += cs->taken != TAKEN_NOT;
    activate(w, cs->file);
}

void writer_reserve(struct writer *w, unsigned slot, uint64_t end) {
    struct file_run *r = &w->run[slot];
    r->want_reserved = max_u64(r->want_reserved, end);
    r->reserve_error = 0;
    activate(w, slot);
}

int writer_reserved(const struct writer *w, unsigned slot, uint64_t end) {
    const struct file_slot *f = &w->p->st->files[slot];
    if (f->error) {
        return f->error;
    }
    return f->reserved >= end ? 1 : w->run[slot].reserve_error;
}

bool writer_settled(const struct writer *w, unsigned slot, uint64_t number) {
    const struct file_run *r = &w->run[slot];
    for (uint32_t i = 0; i < r->flying; i++) {
        if (r->fly_number[i] < number) {
            return false;
        }
    }
    return !r->fence && r->taken == 0 && (!r->head || word_number(w, r->head - 1) >= number) &&
           !writer_awaits(w, slot, number);
}

uint64_t writer_bytes(const struct writer *w, unsigned slot) {
    const struct file_run *r = &w->run[slot];
    uint64_t n = r->flying * CHUNK_SIZE;
    for (uint32_t c = r->head; c; c = w->chunk[c - 1].next) {
        const struct msg_hand_over *what = &w->p->st->chunks[c - 1].what;
        for (uint32_t i = 0; i < what->n; i++) {
            n += what->extent[i].len;
        }
    }
    return n;
}

static unsigned pop(struct writer *w, struct file_run *r) {
    unsigned chunk = r->head - 1;
    r->head = w->chunk[chunk].next;
    if (!r->head) {
        r->tail = 0;
    }
    return chunk;
}

static void free_chunk(struct writer *w, unsigned chunk) {
    const struct chunk_slot *cs = &w->p->st->chunks[chunk];
    w->run[cs->file].taken -= cs->taken != TAKEN_NOT;
    if (cs->taken == TAKEN_HELD) { // only its bytes were taken: the client may be writing into it
        uint64_t word = chunk_load(w->p, chunk);
        chunk_store(w->p, chunk, CHUNK_TAKEN, chunk_word_client(word), chunk_word_number(word));
        return;
    }
    chunk_store(w->p, chunk, CHUNK_FREE, 0, 0);
    w->on_free(w->arg, chunk);
}

/** A chunk that could not be written goes back to its place in the order. */
static void put_back(struct writer *w, struct file_run *r, unsigned chunk) {
    uint64_t word = chunk_load(w->p, chunk);
    insert(w, r, chunk);
    chunk_store(w->p, chunk, CHUNK_HANDED, chunk_word_client(word), chunk_word_number(word));
}

void writer_discard(struct writer *w, unsigned slot) {
    struct file_run *r = &w->run[slot];
    writer_discard_sources(w, slot);
    while (r->head) {
        free_chunk(w, pop(w, r));
    }
}

// ---- The gate

/** What may be reserved beyond `need`: a small part of what is free, since every open file does it, and what one has
 *  reserved and does not need is missing to the others. */
static uint64_t not_too_far(const struct file_slot *f, uint64_t need, uint64_t to) {
    struct statfs s;
    if (OS_CALL(SYS_fstatfs, f->fd_prog, &s, 0, 0, 0, 0) < 0) {
        return to;
    }
    return min_u64(to, need + (uint64_t)s.f_bavail * (uint64_t)s.f_bsize / RESERVE_PART);
}

static void gate_run(struct io_job *job) {
    struct writer *w = job->arg;
    struct file_run *r = (struct file_run *)((char *)job - offsetof(struct file_run, job));
    struct file_slot *f = slot_file(w, (unsigned)(r - w->run));
    switch (r->gate_kind) {
    case GATE_FENCE:
        // Behind the end, with the size kept: takes the inode's lock and waits for direct writes; out of space is fine.
        job->result = io_calls.fallocate(f->fd_prog, FALLOC_FL_KEEP_SIZE, (off_t)f->size_end, 4096);
        break;
    case GATE_RESERVE:
        r->gate_to = not_too_far(f, r->gate_need, r->gate_to);
        job->result =
            io_calls.fallocate(f->fd_prog, FALLOC_FL_KEEP_SIZE, (off_t)f->reserved, (off_t)(r->gate_to - f->reserved));
        break;
    default:
        // By its last byte: the space is reserved, and what was left out stays a hole. (XFS wants free blocks for all
        // of a range, even where they are there already.)
        job->result = io_calls.fallocate(f->fd_prog, 0, (off_t)r->gate_to - 1, 1);
        break;
    }
}

static void set_reserved(struct writer *w, unsigned slot, uint64_t to) {
    slot_file(w, slot)->reserved = to;
    atomic_store_explicit(&w->p->t->files[slot].reserved, to, memory_order_release);
}

static bool no_fallocate(int result) {
    return result == -EOPNOTSUPP || result == -ENOSYS || result == -EINVAL || result == -ENODEV;
}

/** Out of space: once more with the exact need, then the client is told. Not a failure of the file: the write goes by
 *  the kernel, which knows the native answer. */
static void reserve_done(struct writer *w, unsigned slot, struct file_run *r, int result) {
    if (result >= 0) {
        set_reserved(w, slot, r->gate_to);
        r->ahead = min_u64(r->ahead * 2, RESERVE_MOST);
    } else if (no_fallocate(result)) {
        set_reserved(w, slot, INT64_MAX); // this file system cannot: the device's own errors come late (P6)
    } else if (r->gate_to > r->want_reserved) {
        r->ahead = 0;
    } else {
        r->want_reserved = 0;
        r->reserve_error = result;
    }
}

void writer_buffered(struct file_slot *f) {
    if (f->direct) {
        os_fcntl(f->fd_own, F_SETFL, 0); // takes O_DIRECT from it
        f->direct = 0;
    }
}

static void gate_done(struct io_job *job) {
    struct writer *w = job->arg;
    struct file_run *r = (struct file_run *)((char *)job - offsetof(struct file_run, job));
    unsigned slot = (unsigned)(r - w->run);
    struct file_slot *f = slot_file(w, slot);
    r->gate = false;
    if (r->gate_kind == GATE_FENCE) {
        r->fence = false;
    } else if (r->gate_kind == GATE_RESERVE) {
        reserve_done(w, slot, r, job->result);
    } else if (job->result >= 0) {
        f->size_made = r->gate_to;
        retry_done(f, &r->retry);
    } else if (no_fallocate(job->result) || job->result == -ENOSPC || job->result == -EDQUOT) {
        // No growth without extending writes. Out of space: XFS keeps a few blocks back from such a step, and not from
        // writes into what is reserved.
        writer_buffered(f);
    } else if (!retry_later(w->p->st, f, &r->retry, job->result)) {
        w->on_error(w->arg, slot, job->result, "growing the file");
    }
    activate(w, slot);
    w->on_change(w->arg, slot);
}

static void gate_start(struct writer *w, unsigned slot, int kind, uint64_t to) {
    struct file_run *r = &w->run[slot];
    r->gate = true;
    retry_begin(slot_file(w, slot), &r->retry);
    r->gate_kind = kind;
    r->gate_to = to;
    if (kind == GATE_RESERVE) {
        r->gate_need = r->want_reserved;
        slot_file(w, slot)->reserve_tried = max_u64(slot_file(w, slot)->reserve_tried, to);
    }
    r->job = (struct io_job){.run = gate_run,
                             .done = gate_done,
                             .arg = w,
                             .device = slot_file(w, slot)->dev,
                             .number = slot_file(w, slot)->id};
    io_job(w->io, &r->job);
    BREAK_POINT("gate-started");
}

/** Where the file has to end so that what is handed over can be written, a batch at a time. */
static uint64_t growth(struct writer *w, struct file_run *r, const struct file_slot *f) {
    uint64_t to = 0, limit = f->size_made + GROW_BATCH;
    for (uint32_t c = r->head; c; c = w->chunk[c - 1].next) {
        const struct msg_hand_over *what = &w->p->st->chunks[c - 1].what;
        uint64_t end = what->index * CHUNK_SIZE + what->extent[what->n - 1].off + what->extent[what->n - 1].len;
        if (end > to && (end <= limit || c == r->head)) {
            to = end;
        }
    }
    return to;
}

/** Starts the gate job that the file needs now, if any. True when the file has to wait for it. */
static bool gate_needed(struct writer *w, unsigned slot) {
    struct file_run *r = &w->run[slot];
    struct file_slot *f = slot_file(w, slot);
    int kind = -1;
    uint64_t to = 0;
    if (r->fence) {
        kind = GATE_FENCE;
    } else if (r->want_reserved > f->reserved) {
        kind = GATE_RESERVE;
        to = r->want_reserved + r->ahead;
    } else if (f->direct && r->head && (to = growth(w, r, f)) > f->size_made) {
        kind = GATE_GROW;
    }
    if (kind < 0) {
        return false;
    }
    if (!r->flying) {
        gate_start(w, slot, kind, to);
    }
    return true;
}

// ---- Chunks on their way

static void chunk_done(struct writer *w, unsigned chunk) {
    struct chunk_slot *cs = &w->p->st->chunks[chunk];
    struct file_run *r = &w->run[cs->file];
    unsigned slot = cs->file;
    uint64_t number = word_number(w, chunk);
    for (uint32_t i = 0; i < r->flying; i++) {
        if (r->fly_number[i] == number) {
            r->flying--;
            r->fly_number[i] = r->fly_number[r->flying];
            r->fly_index[i] = r->fly_index[r->flying];
            break;
        }
    }
    free(w->chunk[chunk].memory);
    w->chunk[chunk].memory = NULL;
    BREAK_POINT("chunk-written");
    int error = w->chunk[chunk].error;
    activate(w, slot);
    if (error && retry_later(w->p->st, slot_file(w, slot), &r->retry, error)) {
        put_back(w, r, chunk);
    } else {
        free_chunk(w, chunk);
        BREAK_POINT("chunk-free");
        if (error) {
            w->on_error(w->arg, slot, error, "writing");
        } else {
            retry_done(slot_file(w, slot), &r->retry);
        }
    }
    w->on_change(w->arg, slot);
}

static void part_done(struct part *part, int result, size_t len) {
    struct writer *w = part->w;
    struct chunk_run *cr = &w->chunk[part->chunk];
    if (result < 0 && !cr->error) {
        cr->error = result;
    } else {
        state_count(w->p->st, w->p->st->files[w->p->st->chunks[part->chunk].file].dev, len);
    }
    if (--cr->parts == 0) {
        chunk_done(w, part->chunk);
    }
}

static void req_done(struct io_req *req) {
    part_done(req->arg, req->result, req->len);
}

static void job_done(struct io_job *job) {
    struct part *part = job->arg;
    part_done(part, job->result, part->req.len);
}

static void job_run(struct io_job *job) {
    struct io_req *req = &((struct part *)job->arg)->req;
    job->result = io_calls.pwrite_all(req->fd, req->buf, req->len, req->off);
}

static void chunk_start(struct writer *w, unsigned slot, unsigned chunk) {
    struct chunk_slot *cs = &w->p->st->chunks[chunk];
    struct file_run *r = &w->run[slot];
    struct file_slot *f = slot_file(w, slot);
    struct piece pieces[PIECES_MAX];
    unsigned n = layout_pieces(f, &cs->what, pieces);
    uint64_t number = word_number(w, chunk);
    retry_begin(f, &r->retry);
    r->fly_index[r->flying] = cs->what.index;
    r->fly_number[r->flying++] = number;
    chunk_store(w->p, chunk, CHUNK_FLYING, chunk_word_client(chunk_load(w->p, chunk)), number);
    BREAK_POINT("chunk-flying");
    w->chunk[chunk] = (struct chunk_run){.parts = n, .memory = calloc(n, sizeof(struct part))};
    if (!w->chunk[chunk].memory) {
        w->chunk[chunk].error = -ENOMEM;
        chunk_done(w, chunk);
        return;
    }
    struct part *part = w->chunk[chunk].memory;
    for (unsigned i = 0; i < n; i++, part++) {
        const struct piece *pc = &pieces[i];
        part->w = w;
        part->chunk = chunk;
        part->req = (struct io_req){.fd = pc->fd,
                                    .buf = w->p->window + chunk * CHUNK_SIZE + pc->mem_off,
                                    .len = pc->len,
                                    .off = (off_t)pc->file_off,
                                    .device = pc->device,
                                    .number = f->id,
                                    .done = req_done,
                                    .arg = part};
        if (pc->direct) {
            io_write(w->io, &part->req);
        } else {
            part->job =
                (struct io_job){.run = job_run, .done = job_done, .arg = part, .device = pc->device, .number = f->id};
            io_job(w->io, &part->job);
        }
    }
}

static bool overlaps_flying(const struct file_run *r, uint64_t index) {
    for (uint32_t i = 0; i < r->flying; i++) {
        if (r->fly_index[i] == index) {
            return true;
        }
    }
    return false;
}

/** Strictly in the order of hand-over: a chunk that overlaps one in flight holds back those behind it, which is rare
 *  (a rewrite of bytes just written) and keeps the rule simple. */
static void pump_file(struct writer *w, unsigned slot) {
    struct file_run *r = &w->run[slot];
    struct file_slot *f = slot_file(w, slot);
    if (r->gate) {
        return;
    }
    if (f->error || f->dropped) {
        r->fence = false; // whatever a dead engine still writes goes into an inode that nobody will see
        writer_discard(w, slot);
        w->on_change(w->arg, slot);
        return;
    }
    if (retry_early(&r->retry, &w->wake_ns)) {
        activate(w, slot);
        return;
    }
    r->ahead = r->ahead || r->want_reserved > f->reserved ? r->ahead : RESERVE_AHEAD;
    unsigned limit = w->p->st->plain || f->retry_ns ? 1 : FLY_MAX;
    while (!gate_needed(w, slot) && r->head && r->flying < limit) {
        if (overlaps_flying(r, w->p->st->chunks[r->head - 1].what.index)) {
            return;
        }
        chunk_start(w, slot, pop(w, r));
    }
}

void writer_pump(struct writer *w) {
    uint32_t list = w->first_active;
    w->first_active = 0;
    w->wake_ns = 0;
    while (list) {
        unsigned slot = list - 1;
        list = w->run[slot].next_active;
        w->run[slot].active = false;
        if (slot_file(w, slot)->state != FILE_FREE) {
            pump_file(w, slot);
        }
    }
}

// ---- After a restart

struct found {
    uint64_t number;
    unsigned chunk;
};

static int by_number(const void *a, const void *b) {
    uint64_t x = ((const struct found *)a)->number, y = ((const struct found *)b)->number;
    return x < y ? -1 : x > y;
}

void writer_rebuild(struct writer *w) {
    struct found *found = calloc(CHUNKS_MAX, sizeof *found);
    size_t n = 0;
    if (!found) {
        abort(); // else these files would get their names without these bytes: the keeper makes another engine
    }
    for (unsigned c = 0; c < CHUNKS_MAX; c++) {
        uint64_t word = chunk_load(w->p, c);
        enum chunk_state s = chunk_word_state(word);
        if ((s != CHUNK_HANDED && s != CHUNK_FLYING) || writer_elsewhere(w, c)) {
            continue;
        }
#if FASTCKPT_BREAK != 2          // canary: a restart without fence
        if (s == CHUNK_FLYING) { // the word stays: should this engine die before the fence, the next one needs it too
            w->run[w->p->st->chunks[c].file].fence = true;
        }
#endif
        found[n++] = (struct found){chunk_word_number(word), c};
    }
    qsort(found, n, sizeof *found, by_number);
    for (size_t i = 0; i < n; i++) {
        writer_add(w, found[i].chunk);
    }
    free(found);
}
