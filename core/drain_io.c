// SPDX-License-Identifier: MIT
//
// drain_io: what happens to one item on a stripe: written there with a checksum, read back and compared. Which item,
// and when, is drain.c's.

#include "drain_inside.h"

#include "breakpoint.h"
#include "log.h"
#include "os.h"
#include "stripelog.h"

#include <errno.h>

static uint32_t checksum(const struct stripe_item *it, const char *chunk) {
    return stripelog_crc(chunk, it->what.extent, it->what.n);
}

/** What of a chunk lies on the stripe: whole blocks around its extents. */
static void span(const struct stripe_item *it, uint64_t *from, uint64_t *to) {
    const struct extent *last = &it->what.extent[it->what.n - 1];
    *from = align_down(it->what.extent[0].off, DIRECT_ALIGN);
    *to = align_up(last->off + last->len, DIRECT_ALIGN);
}

static uint32_t index_of(const struct item_run *r) {
    return (uint32_t)(r - r->d->run);
}

// ---- To the stripe

static void part_done(struct item_run *r) {
    struct drain *d = r->d;
    uint32_t i = index_of(r);
    struct stripe_item *it = drain_item(d, i);
    if (--r->parts > 0) {
        return;
    }
    int device = it->device;
    if (device >= 0) {
        stripes_done(&d->stripes, device, r->error);
        BREAK_POINT("stripe-written");
    }
    if (r->dead) {
        drain_drop_item(d, i);
        return;
    }
    it->crc = r->crc;
    it->summed = 1;
    if (device < 0) { // the checksum was all
    } else if (r->error) { // it is still in staging
        *(volatile int32_t *)&it->device = -1;
        stripes_give(&d->stripes, device, it->place);
        r->direct = true;
        d->file[it->file].full = true;
        drain_unsafe(d, it->file);
    } else {
        d->p->st->striped_bytes[device] += drain_length(it);
        atomic_store_explicit(&it->state, ITEM_STRIPED, memory_order_release);
        BREAK_POINT("item-striped");
    }
    d->w->on_change(d->w->arg, it->file);
}

static void write_done(struct io_req *req) {
    struct item_run *r = req->arg;
    r->error = req->result;
    part_done(r);
}

static void crc_run(struct io_job *job) {
    struct item_run *r = job->arg;
    const struct stripe_item *it = drain_item(r->d, index_of(r));
    r->crc = checksum(it, r->d->p->window + (it->chunk - 1) * CHUNK_SIZE);
}

static void crc_done(struct io_job *job) {
    part_done(job->arg);
}

static void start_crc(struct drain *d, uint32_t i, uint64_t dev) {
    struct item_run *r = &d->run[i];
    r->parts++;
    r->job = (struct io_job){.run = crc_run, .done = crc_done, .arg = r, .device = dev};
    r->job.number = drain_item(d, i)->file_id;
    io_job(d->io, &r->job);
}

bool drain_place(struct drain *d, uint32_t i) {
    struct stripe_item *it = drain_item(d, i);
    struct item_run *r = &d->run[i];
    if (r->dead) {
        r->fresh = false;
        drain_drop_item(d, i);
        return true;
    }
    uint32_t place = 0;
    bool none = d->p->st->plain || drain_crowded(d);
    int device = none ? -ENOSPC : stripes_take(&d->stripes, it->file_id + it->what.index, &place);
    if (device == -EAGAIN) {
        return false;
    }
    r->fresh = false;
    if (device < 0) {
        r->direct = true;
        d->file[it->file].full = true;
        drain_unsafe(d, it->file);
        if (!d->p->st->plain) {
            start_crc(d, i, 0); // with no disk's workers: they may wait for a slow one
        }
        return true;
    }
    it->place = place;
    *(volatile int32_t *)&it->device = device;
    BREAK_POINT("item-placed");
    uint64_t from, to;
    span(it, &from, &to);
    struct stripe *x = &d->stripes.stripe[device];
    r->parts = 1;
    r->req = (struct io_req){.fd = x->fd,
                             .buf = d->p->window + (it->chunk - 1) * CHUNK_SIZE + from,
                             .len = to - from,
                             .off = (off_t)(place * CHUNK_SIZE + from),
                             .device = x->dev,
                             .number = it->file_id,
                             .done = write_done,
                             .arg = r};
    start_crc(d, i, x->dev);
    io_write(d->io, &r->req);
    return true;
}

// ---- And back

static void read_run(struct io_job *job) {
    struct item_run *r = job->arg;
    const struct stripe_item *it = drain_item(r->d, index_of(r));
    char *to = r->d->p->window + (r->chunk - 1) * CHUNK_SIZE;
    uint64_t from, end;
    span(it, &from, &end);
    size_t got;
    job->result = os_pread_all(r->d->p->st->fd_stripe[it->device], to + from, end - from,
                               (off_t)(it->place * CHUNK_SIZE + from), &got);
    if (job->result == 0 && got < end - from) {
        job->result = -EIO; // it is too short
    }
    if (job->result == 0 && checksum(it, to) != it->crc) {
        job->result = -EBADMSG;
    }
}

static void read_done(struct io_job *job) {
    struct item_run *r = job->arg;
    struct drain *d = r->d;
    uint32_t i = index_of(r);
    struct stripe_item *it = drain_item(d, i);
    unsigned chunk = r->chunk - 1;
    r->reading = false;
    d->reads--;
    BREAK_POINT("item-read");
    if (r->dead || job->result < 0) {
        drain_free_chunk(d, chunk);
    } else {
        *(volatile uint32_t *)&it->chunk = chunk + 1;
        BREAK_POINT("item-back");
        d->item_of[chunk] = i + 1;
    }
    if (r->dead) {
        drain_drop_item(d, i);
    } else if (job->result < 0) {
        bool sum = job->result == -EBADMSG;
        log_error("%s: chunk %lu on stripe number %d: %s", d->p->st->files[it->file].name,
                  (unsigned long)it->what.index, it->device + 1, sum ? "wrong checksum" : log_errno(-job->result));
        d->w->on_error(d->w->arg, it->file, -EIO,
                       sum ? "reading it back from a stripe (wrong checksum)" : "reading it back from a stripe");
        drain_discard(d, it->file);
    }
    d->w->on_change(d->w->arg, it->file);
}

bool drain_read(struct drain *d, uint32_t i) {
    struct stripe_item *it = drain_item(d, i);
    struct item_run *r = &d->run[i];
    int chunk = lend_steal(d->lend);
    if (chunk < 0) {
        return false;
    }
    struct chunk_slot *cs = &d->p->st->chunks[chunk];
    cs->file = it->file;
    cs->file_id = it->file_id;
    cs->last_client = 0;
    cs->what = it->what;
    cs->what.chunk = (uint32_t)chunk;
    chunk_store(d->p, (unsigned)chunk, CHUNK_HANDED, it->client, it->number);
    BREAK_POINT("item-reading");
    r->reading = true;
    r->chunk = (uint32_t)chunk + 1;
    d->reads++;
    r->job = (struct io_job){.run = read_run,
                             .done = read_done,
                             .arg = r,
                             .device = d->stripes.stripe[it->device].dev,
                             .number = it->file_id};
    io_job(d->io, &r->job);
    return true;
}
