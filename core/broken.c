// SPDX-License-Identifier: MIT
//
// broken: see broken.h. Written by the engine's loop; worker threads read.

#include "broken.h"

#include "log.h"
#include "os.h"

#include <errno.h>
#include <string.h>
#include <sys/sysmacros.h>

/** A full disk or a quota is no broken device: there a program has to delete. */
static bool is_broken_by(int error) {
    return error == -EIO || error == -EROFS;
}

static uint64_t hash_of(const struct file_slot *f) {
    return name_hash(f->dir_dev, f->dir_ino, f->name, strlen(f->name));
}

/** In memory: no disk is waited for. */
static uint64_t size_of(const struct file_slot *f) {
    struct stat s;
    bool known = f->kind == SLOT_FILE && os_fstat(f->fd_own, &s) == 0;
    return known ? max_u64(f->size_end, (uint64_t)s.st_size) : 0;
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

/** What is saved again is rarely as large to the byte. */
static uint64_t least(const struct broken *b) {
    return b->size / 2;
}

void broken_note(struct pair *p, const struct file_slot *f, int error, const char *where) {
    struct broken *b = is_broken_by(error) ? slot_for(p->st, f->dev) : NULL;
    if (!b) {
        return;
    }
    bool first = !state_broken(p->st), again = b->dev == f->dev;
    b->n_names = again ? b->n_names : 0;
    b->names[b->n_names++ % BROKEN_NAMES] = hash_of(f);
    b->size = max_u64(again ? b->size : 0, size_of(f));
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
    log_error("%s (device %u:%u): %s: until a file of %lu bytes or more, closed from now on, has been saved there, "
              "nothing is deleted or replaced",
              b->where, major(f->dev), minor(f->dev), log_errno(-error), (unsigned long)least(b));
}

/** Is it a file on that device, closed after the failure? A small one says nothing about large ones: behind a shard
 *  that failed, `latest` may get through. A followed one says something about its like. */
static bool is_proof(const struct broken *b, const struct file_slot *f) {
    return b->dev == f->dev && f->kind == SLOT_FILE && f->publish > b->since && !f->error && !f->dropped &&
           size_of(f) >= least(b) && (b->followed || !(f->flags & OPEN_FOLLOWED));
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

/** Is it what has failed, come again? Then its old version is not part of what has to stay whole beside it. */
static bool is_next_try(const struct broken *b, const struct file_slot *f) {
    uint64_t hash = hash_of(f);
    bool failed = false;
    for (unsigned i = 0; i < b->n_names && i < BROKEN_NAMES; i++) {
        failed |= b->names[i] == hash;
    }
    return failed && is_proof(b, f);
}

bool broken_forbids(const struct state *st, const struct file_slot *f) {
    for (unsigned i = 0; i < BROKEN_MAX; i++) {
        const struct broken *b = &st->broken[i];
        if (b->dev && !(f->kind == SLOT_FILE && (b->proved || is_next_try(b, f)))) {
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
        log_format(s->broken_text, sizeof s->broken_text,
                   "%s (device %u:%u): %s, for %lu s: nothing is deleted or replaced until a file of %lu bytes or "
                   "more, closed since then, has been saved there",
                   worst->where, major(dev), minor(dev), log_errno(-worst->error),
                   (unsigned long)((os_now_ns(CLOCK_MONOTONIC) - worst->since_ns) / 1000000000),
                   (unsigned long)least(worst));
    }
}
