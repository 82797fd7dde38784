// SPDX-License-Identifier: MIT
//
// crash_oracle: are the names in some directories a state of the programs' history, in the order of numbers, each file
// whole? And the directories of the tests that ask that. Static functions only.

#ifndef FASTCKPT_CRASH_ORACLE_H
#define FASTCKPT_CRASH_ORACLE_H

#include "crash_programs.h"

#include <sched.h>
#include <sys/mount.h>

static const struct sim_entry *find(const struct sim_entry *entries, unsigned n, unsigned dir, const char *name) {
    for (unsigned i = 0; i < n; i++) {
        if (entries[i].dir == dir && strcmp(entries[i].name, name) == 0) {
            return &entries[i];
        }
    }
    return NULL;
}

static bool is_hidden(const struct sim_entry *x) {
    return strncmp(x->name, ".fastckpt-", 10) == 0;
}

/** Of a followed file that its program has not closed yet, the history knows nothing. */
static bool has_event(const struct sim_entry *x) {
    for (unsigned i = 0; i < world.n_events; i++) {
        if (world.event[i].id == x->id) {
            return true;
        }
    }
    return false;
}

struct names {
    unsigned n;
    struct sim_entry entry[STEPS_MAX]; // id 0: the history has had the name
};

static void put(struct names *names, unsigned dir, const char *name, unsigned id) {
    unsigned i = 0;
    while (i < names->n && (names->entry[i].dir != dir || strcmp(names->entry[i].name, name) != 0)) {
        i++;
    }
    names->n = i == names->n ? i + 1 : names->n;
    names->entry[i] = (struct sim_entry){.dir = dir, .id = id};
    strcpy(names->entry[i].name, name);
}

/** Was this inode, under this name, made natively, and does the history up to here not have it yet? It may be early. */
static bool is_early(const struct sim_entry *x, unsigned upto) {
    for (unsigned i = upto; i < world.n_events; i++) {
        if (world.event[i].followed && world.event[i].id == x->id && world.event[i].dir == x->dir) {
            return strcmp(world.event[i].name, x->name) == 0;
        }
    }
    return is_hidden(x);
}

/** Are the names those after the first `upto` events? */
static bool is_prefix(const struct sim_entry *entries, unsigned n, unsigned upto) {
    struct names names = {0};
    for (unsigned i = 0; i < upto; i++) {
        const struct event *e = &world.event[i];
        if (e->from[0] && !e->failed) {
            put(&names, e->from_dir, e->from, 0);
        }
        if (!e->failed) {
            put(&names, e->dir, e->name, e->id);
        }
    }
    for (unsigned i = 0; i < names.n; i++) {
        const struct sim_entry *want = &names.entry[i], *x = find(entries, n, want->dir, want->name);
        if (want->id ? !x || x->id != want->id || !x->whole : x && !is_early(x, upto)) {
            return false;
        }
    }
    for (unsigned i = 0; i < n; i++) { // and nothing that the history does not have, or does not have yet
        const struct sim_entry *x = &entries[i];
        if (!find(names.entry, names.n, x->dir, x->name) && !is_early(x, upto) && has_event(x)) {
            return false;
        }
    }
    return true;
}

static void show(const struct sim_entry *entries, unsigned n, char *buf, size_t cap) {
    size_t at = 0;
    for (unsigned i = 0; i < n && at < cap; i++) {
        at += (size_t)snprintf(buf + at, cap - at, " %u/%s=%u%s", entries[i].dir, entries[i].name, entries[i].id,
                               entries[i].whole ? "" : "(torn)");
    }
    for (unsigned i = 0; i < world.n_events && at < cap; i++) {
        const struct event *e = &world.event[i];
        at += (size_t)snprintf(buf + at, cap - at, "%s %u/%s=%u%s%s", i ? "," : "; history:", e->dir, e->name, e->id,
                               e->followed ? "(followed)" : "", e->failed ? "(failed)" : "");
    }
}

// ---- Histories

static void add_step(enum act act, unsigned client, unsigned dir, const char *name) {
    cr_assert_lt(world.n_steps, STEPS_MAX);
    struct step *s = &world.step[world.n_steps++];
    *s = (struct step){.act = act, .client = client, .dir = dir};
    snprintf(s->name, sizeof s->name, "%s", name);
}

/** Old files, whole and durable long since. */
static void put_old(unsigned dir, const char *name) {
    struct step s = {.act = FOLLOW, .dir = dir};
    strcpy(s.name, name);
    struct client cl = {0};
    open_file(&cl, &s);
    struct file_slot *f = file_at(cl.slot);
    close(f->fd_prog), close(f->fd_own), close(f->fd_dir);
    f->state = FILE_FREE;
    add_event(&s, cl.id, cl.slot);
    world.event[world.n_events - 1].followed = false;
    world.event[world.n_events - 1].old = true;
    world.durable = world.n_events;
    sim_all_durable();
}

static char place[2][64]; // on two devices, in memory: on a disk that is busy these tests take minutes

/** In a namespace of our own: what others unmount does not stay in use by us. */
static void forget_loops(void) {
    char line[4096], at[2048];
    FILE *f = fopen("/proc/self/mounts", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "/dev/loop%*s %2047s", at) == 1) {
            umount2(at, MNT_DETACH);
        }
    }
    f ? fclose(f) : 0;
}

/** A memory file system that nobody else sees, and that goes with this process. False: not allowed here. */
static bool mount_memory(const char *at) {
    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
        return false;
    }
    forget_loops();
    return mount("none", at, "tmpfs", 0, NULL) == 0;
}

static void make_places(void) {
    static const char *const bases[] = {"/dev/shm", "/run", "/tmp", "/var/tmp"};
    struct stat s, first = {0};
    for (unsigned i = 0, n = 0; n < 2; i++) {
        cr_assert_lt(i, ARRAY_LEN(bases), "no two file systems here");
        snprintf(place[n], sizeof place[n], "%s/fastckpt-crash-XXXXXX", bases[i]);
        if (stat(bases[i], &s) == 0 && (n == 0 || s.st_dev != first.st_dev) && mkdtemp(place[n])) {
            first = n++ == 0 ? s : first;
        }
    }
    mount_memory(place[1]);
}

#endif
