// SPDX-License-Identifier: MIT
//
// Proves: whatever comes and goes, in whatever slots, the names table says of a name what its latest change says, and
// of one that was taken back before it was published that it is pending; a new engine's table says the same. How:
// slots made by hand; then random ones, after each step of which the table is compared with one that is built anew.
// Cannot see: whether slots are filled rightly, and clients that look meanwhile.

#include "core/names.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIR_INO 2
#define SLOTS   24
#define NAMES   3
#define INODES  5
#define STEPS   20000

static struct pair new_pair(void) {
    return (struct pair){.st = calloc(1, sizeof(struct state)), .t = calloc(1, sizeof(struct tables))};
}

static struct file_slot *fill(struct pair *p, unsigned slot, uint64_t id, const char *name, uint64_t ino) {
    struct file_slot *f = &p->st->files[slot];
    memset(f, 0, sizeof *f);
    f->id = id;
    f->dev = f->dir_dev = f->to_dev = f->over_dev = 1;
    f->dir_ino = f->to_ino = DIR_INO;
    f->ino = ino;
    f->state = FILE_CLOSED;
    snprintf(f->name, sizeof f->name, "%s", name);
    return f;
}

static void end(struct pair *p, unsigned slot) {
    names_remove(p, slot);
    p->st->files[slot].state = FILE_FREE;
}

static void expect(const struct pair *p, const char *name, int slot, enum name_state want) {
    enum name_state state;
    const struct file_slot *f = names_latest(p, 1, DIR_INO, name, &state);
    cr_assert_eq(f ? (int)(f - p->st->files) : -1, slot, "%s: slot %d, not %d", name,
                 f ? (int)(f - p->st->files) : -1, slot);
    cr_assert_eq(state, want, "%s: state %d, not %d", name, (int)state, (int)want);
}

// A pending file is taken back (by a slot with a lower index, which is chance), and a save over it is dropped.
Test(names, taken_back) {
    struct pair p = new_pair();
    fill(&p, 7, 1, "a", 11);
    names_put(&p, 7);
    expect(&p, "a", 7, NAME_PENDING);
    struct file_slot *back = fill(&p, 3, 2, "a", 11);
    back->flags = OPEN_FOLLOWED;
    names_put(&p, 3);
    expect(&p, "a", 7, NAME_PENDING);
    names_rebuild(&p);
    expect(&p, "a", 7, NAME_PENDING);
    struct file_slot *save = fill(&p, 1, 3, "a", 12);
    save->state = FILE_OPEN;
    names_put(&p, 1);
    expect(&p, "a", 1, NAME_OPEN);
    save->dropped = 1;
    end(&p, 1);
    expect(&p, "a", 7, NAME_PENDING);
    p.st->files[7].done = 1;
    end(&p, 7);
    expect(&p, "a", 3, NAME_FOLLOWED);
    end(&p, 3);
    expect(&p, "a", -1, NAME_NONE);
    cr_expect_eq(p.t->names_count, 0);
}

static unsigned below(unsigned n) {
    static uint64_t x = 88172645463325252;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return (unsigned)(x >> 33) % n;
}

static const char *const names[NAMES] = {"a", "b", "c"};

static void random_step(struct pair *p, uint64_t id) {
    unsigned slot = below(SLOTS);
    struct file_slot *f = &p->st->files[slot];
    if (f->state == FILE_FREE) {
        unsigned from = below(NAMES);
        f = fill(p, slot, id, names[from], 11 + below(INODES));
        f->kind = below(3) ? SLOT_FILE : below(2) ? SLOT_UNLINK : SLOT_RENAME;
        f->state = f->kind == SLOT_FILE && below(2) ? FILE_OPEN : FILE_CLOSED;
        f->flags = f->kind == SLOT_FILE && !below(3) ? OPEN_FOLLOWED : 0;
        f->over_ino = f->kind == SLOT_RENAME && below(2) ? 11 + below(INODES) : 0;
        snprintf(f->to, sizeof f->to, "%s", names[(from + 1 + below(NAMES - 1)) % NAMES]);
        names_put(p, slot);
    } else if (f->state == FILE_OPEN && below(2)) {
        f->state = FILE_CLOSED;
        names_put(p, slot);
    } else {
        f->dropped = f->state == FILE_OPEN;
        f->done = f->state == FILE_CLOSED;
        end(p, slot);
    }
}

// Each word without its place: the same in both, or there is none in either.
static void compare(const struct pair *a, const struct pair *b) {
    uint64_t hashes[NAMES + INODES];
    for (unsigned i = 0; i < NAMES; i++) {
        hashes[i] = name_hash(1, DIR_INO, names[i], 1);
    }
    for (unsigned i = 0; i < INODES; i++) {
        hashes[NAMES + i] = name_hash(1, 11 + i, "", 0);
    }
    for (unsigned i = 0; i < NAMES + INODES; i++) {
        cr_assert_eq(names_find(a->t, hashes[i]), names_find(b->t, hashes[i]), "name or inode %u", i);
    }
    cr_assert_eq(a->t->names_count, b->t->names_count);
}

Test(names, built_anew) {
    struct pair p = new_pair(), again = new_pair();
    for (uint64_t i = 1; i <= STEPS; i++) {
        random_step(&p, i);
        if (i % 8 == 0) {
            memcpy(again.st->files, p.st->files, SLOTS * sizeof p.st->files[0]);
            memset(again.t->names, 0, sizeof again.t->names);
            names_rebuild(&again);
            compare(&p, &again);
        }
    }
}
