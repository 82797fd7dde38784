// SPDX-License-Identifier: MIT
//
// broken: see broken.h. Written by the engine's loop; worker threads read.

#include "broken.h"

#include "log.h"
#include "os.h"

#include <errno.h>
#include <sys/sysmacros.h>

/** A full disk or a quota is no broken device: there a program has to delete. */
static bool is_broken_by(int error) {
    return error == -EIO || error == -EROFS;
}

static struct broken *slot_for(struct state *st, uint64_t dev) {
    struct broken *free = NULL;
    for (unsigned i = 0; i < BROKEN_MAX; i++) {
        struct broken *b = &st->broken[i];
        if (b->dev == dev) {
            return b;
        }
        free = free || b->dev ? free : b;
    }
    return free; // NULL: so many others forbid the same
}

void broken_note(struct pair *p, const struct file_slot *f, int error, const char *where) {
    struct broken *b = is_broken_by(error) ? slot_for(p->st, f->dev) : NULL;
    if (!b) {
        return;
    }
    bool first = !state_broken(p->st), again = b->dev == f->dev;
    b->since = atomic_load(&p->numbers->next);
    b->proved = 0;
    b->error = error;
    b->followed = (f->flags & OPEN_FOLLOWED) != 0;
    if (again) {
        return;
    }
    b->since_ns = os_now_ns(CLOCK_MONOTONIC);
    log_format(b->where, sizeof b->where, "%s", where);
    atomic_store(&b->dev, f->dev);
    if (first) {
        atomic_fetch_add(&p->t->names_count, 1);
    }
    log_error("%s (device %u:%u): %s: until a file closed from now on has been saved there, nothing is deleted or "
              "replaced",
              b->where, major(f->dev), minor(f->dev), log_errno(-error));
}

/** Is it a file on that device, closed after the failure? A followed one says something about its like. */
static bool is_proof(const struct broken *b, const struct file_slot *f) {
    return b->dev == f->dev && f->kind == SLOT_FILE && f->publish > b->since && !f->error && !f->dropped &&
           (b->followed || !(f->flags & OPEN_FOLLOWED));
}

void broken_turn(struct pair *p, const struct file_slot *f, int result) {
    for (unsigned i = 0; i < BROKEN_MAX; i++) {
        struct broken *b = &p->st->broken[i];
        if (!b->dev || !is_proof(b, f)) {
            continue;
        }
        if (result == -ECANCELED) {
            b->proved = 1;
        } else if (result == 0) {
            log_error("%s (device %u:%u): %s has been saved there: names are deleted and replaced again", b->where,
                      major(f->dev), minor(f->dev), f->name);
            atomic_store(&b->dev, 0);
            if (!state_broken(p->st)) {
                atomic_fetch_sub(&p->t->names_count, 1);
            }
        }
    }
}

bool broken_hopes(const struct file_slot *f, const void *st) {
    for (unsigned i = 0; i < BROKEN_MAX; i++) {
        const struct broken *b = &((const struct state *)st)->broken[i];
        if (b->dev && is_proof(b, f)) {
            return true;
        }
    }
    return false;
}

bool broken_forbids(const struct state *st, const struct file_slot *f) {
    for (unsigned i = 0; i < BROKEN_MAX; i++) {
        const struct broken *b = &st->broken[i];
        if (b->dev && !(f->kind == SLOT_FILE && b->proved)) {
            return true;
        }
    }
    return false;
}

void broken_tell(const struct state *st, struct status *s) {
    const struct broken *worst = NULL;
    for (unsigned i = 0; i < BROKEN_MAX; i++) {
        const struct broken *b = &st->broken[i];
        s->broken += b->dev != 0;
        worst = b->dev && (!worst || b->since_ns < worst->since_ns) ? b : worst;
    }
    if (worst) {
        uint64_t dev = worst->dev;
        log_format(s->broken_text, sizeof s->broken_text, "%s (device %u:%u): %s, for %lu s", worst->where, major(dev),
                   minor(dev), log_errno(-worst->error),
                   (unsigned long)((os_now_ns(CLOCK_MONOTONIC) - worst->since_ns) / 1000000000));
    }
}
