// SPDX-License-Identifier: MIT
//
// simdisk_cut: see simdisk.h: what a power cut leaves of the model. Operations on names form groups, one a device
// (SIM_JOURNAL) or one a directory (SIM_DIRS); of each group some beginning is there.

#include "simdisk_inside.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WAYS_MOST 24 // ways of cutting the groups looked at in one power cut

enum fate { GONE, THERE, SOME };

static unsigned group_of(unsigned dir) {
    if (sim.order == SIM_DIRS) {
        return dir;
    }
    unsigned g = 0;
    while (sim.dir[g].dev != sim.dir[dir].dev) {
        g++;
    }
    return g; // the first directory of the device stands for it
}

static void set_name(struct sim_names *names, unsigned dir, const char *name, unsigned inode, bool there) {
    for (unsigned i = 0; i < names->n; i++) {
        if (names->name[i].dir == dir && strcmp(names->name[i].name, name) == 0) {
            names->name[i].inode = inode;
            if (!there) {
                names->name[i] = names->name[--names->n];
            }
            return;
        }
    }
    if (there) {
        cr_assert_lt(names->n, SIM_NAMES);
        struct sim_name *n = &names->name[names->n++];
        n->dir = dir;
        n->inode = inode;
        strcpy(n->name, name);
    }
}

static bool is_move(const struct sim_op *op) {
    return op->kind == SIM_RENAME || op->kind == SIM_EXCHANGE;
}

static void apply(struct sim_names *names, const struct sim_op *op) {
    if (is_move(op)) {
        set_name(names, op->from, op->old, op->inode_from, op->kind == SIM_EXCHANGE);
    }
    set_name(names, op->dir, op->name, op->inode, op->kind != SIM_UNLINK);
}

void sim_names_durable(unsigned dir) {
    unsigned g = group_of(dir), last = 0, kept = 0;
    for (unsigned i = 0; i < sim.n_ops; i++) {
        bool touched = sim.op[i].dir == dir || (is_move(&sim.op[i]) && sim.op[i].from == dir);
        last = touched ? i + 1 : last;
    }
    for (unsigned i = 0; i < sim.n_ops; i++) {
        if (i < last && group_of(sim.op[i].dir) == g) {
            apply(&sim.durable, &sim.op[i]);
            sim_out_durable(sim.dir[dir].dev, sim.op[i].at);
        } else {
            sim.op[kept++] = sim.op[i];
        }
    }
    sim.n_ops = kept;
}

/** The last operation on names of each device that is there after a power cut. */
struct reached {
    uint64_t at[SIM_DIRS_MAX]; // by the first directory of the device
};

static uint64_t reached_on(const struct reached *r, uint64_t dev) {
    uint64_t at = 0;
    for (unsigned d = 0; d < sim.n_dirs; d++) {
        at = sim.dir[d].dev == dev ? max_u64(at, r->at[d]) : at;
    }
    return at;
}

/** Is the inode what it should be, if its unsynced changes met this fate? */
static bool is_whole(const struct sim_inode *x, enum fate fate, uint64_t reached) {
    uint64_t hash[SIM_BLOCKS], size = x->size_durable;
    for (unsigned b = 0; b < x->n_blocks; b++) {
        hash[b] = x->block[b].durable;
    }
    for (unsigned i = 0; i < x->n_changes; i++) {
        const struct sim_change *c = &x->change[i];
        bool there = c->out && !c->lost && c->out_at < reached;
        unsigned part = there ? THERE : fate == SOME ? sim_random(3) : (unsigned)fate; // 2: torn
        if (part == GONE) {
            continue;
        }
        if (c->is_size) {
            size = c->value;
        } else {
            hash[c->block] = part == SOME && hash[c->block] != c->value ? ~c->value : c->value;
        }
    }
    bool whole = size == x->size_want;
    for (unsigned b = 0; b < x->n_blocks; b++) {
        whole &= hash[b] == x->block[b].want;
    }
    return whole;
}

static void look(const struct sim_names *names, enum fate fate, const struct reached *r, struct sim_entry *out) {
    for (unsigned i = 0; i < names->n; i++) {
        const struct sim_inode *x = &sim.inode[names->name[i].inode];
        out[i] = (struct sim_entry){
            .dir = names->name[i].dir, .id = x->id, .whole = is_whole(x, fate, reached_on(r, x->dev))};
        strcpy(out[i].name, names->name[i].name);
    }
}

static void cut_at(const unsigned keep[SIM_DIRS_MAX], void (*check)(const struct sim_entry *, unsigned)) {
    struct sim_names names = sim.durable;
    struct reached reached = {0};
    unsigned seen[SIM_DIRS_MAX] = {0};
    for (unsigned i = 0; i < sim.n_ops; i++) {
        unsigned g = group_of(sim.op[i].dir);
        if (seen[g]++ < keep[g]) {
            apply(&names, &sim.op[i]);
            reached.at[g] = sim.op[i].at;
        }
    }
    static struct sim_entry entries[SIM_NAMES];
    for (enum fate fate = GONE; fate <= SOME; fate++) {
        look(&names, fate, &reached, entries);
        check(entries, names.n);
    }
}

void sim_power_cut(void (*check)(const struct sim_entry *entries, unsigned n)) {
    unsigned n[SIM_DIRS_MAX] = {0}, keep[SIM_DIRS_MAX] = {0}, ways = 1;
    for (unsigned i = 0; i < sim.n_ops; i++) {
        n[group_of(sim.op[i].dir)]++;
    }
    for (unsigned g = 0; g < sim.n_dirs; g++) {
        ways *= n[g] + 1;
    }
    for (unsigned w = 0; w < ways && w < WAYS_MOST; w++) {
        for (unsigned g = 0, rest = w; g < sim.n_dirs; rest /= n[g] + 1, g++) {
            keep[g] = ways <= WAYS_MOST ? rest % (n[g] + 1) : sim_random(n[g] + 1);
        }
        cut_at(keep, check);
    }
}

// ---- A cut that is made

void sim_forget_undo(struct sim_inode *x, uint64_t at) {
    unsigned kept = 0;
    for (unsigned i = 0; i < x->n_undo; i++) {
        const struct sim_undo u = x->undo[i];
        if (at > 0 && !(u.out && u.out_at < at)) {
            x->undo[kept++] = u;
        } else {
            free(u.old);
        }
    }
    x->n_undo = kept;
}

unsigned sim_known_id(int fd) {
    struct stat s;
    cr_assert_eq(fstat(fd, &s), 0);
    for (unsigned i = 0; i < sim.n_inodes; i++) {
        if (sim.inode[i].ino == s.st_ino && sim.inode[i].dev == s.st_dev) {
            return sim.inode[i].id;
        }
    }
    return 0;
}

void sim_note_undo(struct sim_inode *x, off_t off, size_t len) {
    struct stat s;
    if (!sim.real_cut) {
        return;
    }
    cr_assert_lt(x->n_undo, SIM_UNDO);
    struct sim_undo *u = &x->undo[x->n_undo++];
    cr_assert_eq(fstat(x->fd, &s), 0);
    *u = (struct sim_undo){.off = off, .len = len, .size = s.st_size, .old = malloc(len + 1)};
    ssize_t n = pread(x->fd, u->old, len, off);
    u->had = n > 0 ? (size_t)n : 0;
}

void sim_keep_alive(const int *dirs, unsigned n) {
    sim.real_cut = true;
    sim.n_alive = n;
    memcpy(sim.alive, dirs, n * sizeof *dirs);
    for (unsigned i = 0; i < sim.n_inodes; i++) {
        sim_name_alive(i);
    }
}

void sim_name_alive(unsigned inode) {
    struct stat s;
    char path[64], name[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", sim.inode[inode].fd);
    snprintf(name, sizeof name, "%u", inode);
    for (unsigned i = 0; i < sim.n_alive; i++) {
        if (fstat(sim.alive[i], &s) == 0 && s.st_dev == sim.inode[inode].dev) {
            cr_assert_eq(linkat(AT_FDCWD, path, sim.alive[i], name, AT_SYMLINK_FOLLOW), 0, "%s", strerror(errno));
            return;
        }
    }
}

void sim_plain(int fd) {
    sim.inode[sim_inode_of(fd)].plain = true;
}

/** Of the writes that are not synced some are there, some are not, some are torn. */
static void undo_some(struct sim_inode *x, uint64_t reached) {
    enum fate fate = (enum fate)sim_random(3);
    uint64_t size = x->size_durable;
    for (unsigned i = 0; i < x->n_changes; i++) {
        const struct sim_change *ch = &x->change[i];
        size = ch->is_size && ch->out && !ch->lost && ch->out_at < reached ? ch->value : size;
    }
    for (unsigned i = x->n_undo; i-- > 0;) {
        const struct sim_undo *u = &x->undo[i];
        unsigned part = u->out && u->out_at < reached ? THERE : fate == SOME ? sim_random(3) : (unsigned)fate;
        size_t keep = part == THERE ? u->len : part == GONE ? 0 : align_down(u->len / 2, 512);
        char *zeros = calloc(1, u->len + 1);
        if (keep < u->len) {
            memcpy(zeros, u->old, u->had);
            cr_assert_geq(pwrite(x->fd, zeros + keep, u->len - keep, u->off + (off_t)keep), 0);
        }
        free(zeros);
    }
    if (fate == GONE && !x->plain) {
        cr_assert_eq(ftruncate(x->fd, (off_t)size), 0);
    }
}

static void is_durable_now(struct sim_inode *x) {
    struct stat s;
    cr_assert_eq(fstat(x->fd, &s), 0);
    sim_forget_undo(x, 0);
    x->n_changes = x->errors = 0;
    memset(x->told, 0, sizeof x->told);
    x->size_durable = x->size_now = (uint64_t)s.st_size;
}

void sim_know_dir(int dirfd) {
    unsigned dir = sim_dir(dirfd);
    DIR *d = fdopendir(openat(dirfd, ".", O_RDONLY | O_DIRECTORY));
    cr_assert(d);
    for (struct dirent *e; (e = readdir(d));) {
        int fd = e->d_type == DT_REG ? openat(dirfd, e->d_name, O_RDWR) : -1;
        if (fd >= 0) {
            cr_assert_lt(strlen(e->d_name), SIM_NAME);
            set_name(&sim.durable, dir, e->d_name, sim_inode_of(fd), true);
            close(fd);
        }
    }
    closedir(d);
}

bool sim_is_own(int fd) {
    for (unsigned i = 0; i < sim.n_inodes; i++) {
        if (sim.inode[i].fd == fd) {
            return true;
        }
    }
    return false;
}

void sim_rename_only(bool on) {
    sim.no_flags = on;
}

static void make_names(const struct sim_names *names, const int *dirfds) {
    for (unsigned i = 0; i < names->n; i++) {
        const struct sim_name *n = &names->name[i];
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", sim.inode[n->inode].fd);
        unlinkat(dirfds[n->dir], n->name, 0);
        cr_assert_eq(linkat(AT_FDCWD, path, dirfds[n->dir], n->name, AT_SYMLINK_FOLLOW), 0, "%s: %s", n->name,
                     strerror(errno));
    }
}

void sim_cut_now(const int *dirfds) {
    struct sim_names names = sim.durable, before = sim.durable;
    unsigned n[SIM_DIRS_MAX] = {0}, keep[SIM_DIRS_MAX], seen[SIM_DIRS_MAX] = {0};
    struct reached reached = {0};
    for (unsigned i = 0; i < sim.n_ops; i++) {
        n[group_of(sim.op[i].dir)]++;
    }
    for (unsigned g = 0; g < sim.n_dirs; g++) {
        keep[g] = sim_random(n[g] + 1);
    }
    for (unsigned i = 0; i < sim.n_ops; i++) {
        unsigned g = group_of(sim.op[i].dir);
        apply(&before, &sim.op[i]);
        if (seen[g]++ < keep[g]) {
            apply(&names, &sim.op[i]);
            reached.at[g] = sim.op[i].at;
        }
    }
    for (unsigned i = 0; i < before.n; i++) {
        unlinkat(dirfds[before.name[i].dir], before.name[i].name, 0);
    }
    for (unsigned i = 0; i < sim.n_inodes; i++) {
        undo_some(&sim.inode[i], reached_on(&reached, sim.inode[i].dev));
    }
    make_names(&names, dirfds);
    sim.durable = names;
    sim.n_ops = sim.n_ghosts = 0;
    for (unsigned i = 0; i < sim.n_inodes; i++) {
        is_durable_now(&sim.inode[i]);
    }
}

unsigned sim_now(struct sim_entry entries[SIM_NAMES]) {
    struct sim_names names = sim.durable;
    for (unsigned i = 0; i < sim.n_ops; i++) {
        apply(&names, &sim.op[i]);
    }
    look(&names, THERE, &(struct reached){0}, entries);
    return names.n;
}
