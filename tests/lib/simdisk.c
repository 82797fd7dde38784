// SPDX-License-Identifier: MIT
//
// simdisk: see simdisk.h. The model, deaths and failures; the calls are simdisk_calls.c's, what is left after a power
// cut simdisk_cut.c's.

#include "core/os.h"
#include "simdisk_inside.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct sim sim;
void (*sim_on_step)(void);
unsigned sim_steps;
jmp_buf sim_death;

// ---- Chance and choice

static struct {
    bool on;
    unsigned n, at;
    struct {
        unsigned value, of;
    } trail[4096];
} ways;

unsigned sim_random(unsigned n) {
    sim.seed ^= sim.seed << 13, sim.seed ^= sim.seed >> 7, sim.seed ^= sim.seed << 17; // xorshift64
    return n > 1 ? (unsigned)((sim.seed >> 20) % n) : 0;
}

unsigned sim_choose(unsigned n) {
    if (!ways.on) {
        return sim_random(n);
    }
    if (n <= 1 || ways.at == ARRAY_LEN(ways.trail)) {
        return 0;
    }
    if (ways.at == ways.n) {
        ways.trail[ways.n].value = 0;
        ways.trail[ways.n++].of = n;
    }
    return ways.trail[ways.at++].value;
}

void sim_enumerate(bool first) {
    ways.on = true;
    ways.at = 0;
    ways.n = first ? 0 : ways.n;
}

bool sim_next(void) {
    while (ways.n && ways.trail[ways.n - 1].value + 1 == ways.trail[ways.n - 1].of) {
        ways.n--;
    }
    if (ways.n) {
        ways.trail[ways.n - 1].value++;
    }
    ways.on = ways.n > 0;
    return ways.on;
}

// ---- The model

void sim_reset(enum sim_order order, uint64_t seed) {
    for (unsigned i = 0; i < sim.n_inodes; i++) {
        close(sim.inode[i].fd);
        sim_forget_undo(&sim.inode[i], 0);
    }
    memset(&sim, 0, sizeof sim);
    sim.order = order;
    sim.seed = seed * 0x9e3779b97f4a7c15ull + 0x1234567;
    sim_steps = 0;
    ways.on = false;
}

unsigned sim_inode_of(int fd) {
    struct stat s;
    cr_assert_eq(fstat(fd, &s), 0, "descriptor %d: %s", fd, strerror(errno));
    for (unsigned i = 0; i < sim.n_inodes; i++) {
        if (sim.inode[i].ino == s.st_ino && sim.inode[i].dev == s.st_dev) {
            return i;
        }
    }
    cr_assert_lt(sim.n_inodes, SIM_INODES);
    struct sim_inode *x = &sim.inode[sim.n_inodes];
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    // Kept open: no other file gets its number.
    *x = (struct sim_inode){.fd = open(path, O_RDWR), .ino = s.st_ino, .dev = s.st_dev};
    cr_assert_geq(x->fd, 0, "%s: %s", path, strerror(errno));
    sim_name_alive(sim.n_inodes);
    return sim.n_inodes++;
}

unsigned sim_dir(int dirfd) {
    struct stat s;
    cr_assert_eq(fstat(dirfd, &s), 0);
    for (unsigned i = 0; i < sim.n_dirs; i++) {
        if (sim.dir[i].ino == s.st_ino && sim.dir[i].dev == s.st_dev) {
            return i;
        }
    }
    cr_assert_lt(sim.n_dirs, SIM_DIRS_MAX);
    sim.dir[sim.n_dirs] = (struct sim_dir_id){s.st_dev, s.st_ino};
    return sim.n_dirs++;
}

uint64_t sim_device(unsigned dir) {
    return sim.dir[dir].dev;
}

uint64_t sim_hash(const void *block) {
    return fnv1a(FNV1A_INIT, block, SIM_BLOCK);
}

static unsigned block_slot(struct sim_inode *x, unsigned number) {
    static const char zero[SIM_BLOCK];
    for (unsigned i = 0; i < x->n_blocks; i++) {
        if (x->block[i].number == number) {
            return i;
        }
    }
    cr_assert_lt(x->n_blocks, SIM_BLOCKS);
    uint64_t hole = sim_hash(zero);
    x->block[x->n_blocks] = (struct sim_block){.number = number, .durable = hole, .now = hole, .want = hole};
    return x->n_blocks++;
}

static void note(struct sim_inode *x, struct sim_change change) {
    cr_assert_lt(x->n_changes, SIM_CHANGES);
    x->change[x->n_changes++] = change;
}

void sim_note_size(struct sim_inode *x) {
    struct stat s;
    if (x->plain) {
        return;
    }
    cr_assert_eq(fstat(x->fd, &s), 0);
    if ((uint64_t)s.st_size != x->size_now) {
        x->size_now = (uint64_t)s.st_size;
        note(x, (struct sim_change){.is_size = true, .value = x->size_now});
    }
}

void sim_note_blocks(struct sim_inode *x, off_t off, size_t len) {
    if (x->plain) {
        return;
    }
    unsigned first = (unsigned)(off / SIM_BLOCK); // of what nobody expects anything, only the size
    for (unsigned b = first; x->id && b <= (off + (off_t)len - 1) / SIM_BLOCK; b++) {
        char buf[SIM_BLOCK] = {0};
        cr_assert_geq(pread(x->fd, buf, sizeof buf, (off_t)b * SIM_BLOCK), 0);
        unsigned slot = block_slot(x, b);
        x->block[slot].now = sim_hash(buf);
        note(x, (struct sim_change){.block = slot, .value = x->block[slot].now});
    }
    sim_note_size(x);
}

void sim_expect(int fd, unsigned id, uint64_t size, const unsigned *blocks, unsigned n,
                uint64_t (*hash)(unsigned id, unsigned block)) {
    struct sim_inode *x = &sim.inode[sim_inode_of(fd)];
    x->id = id;
    x->size_want = size;
    for (unsigned i = 0; i < n; i++) {
        unsigned slot = block_slot(x, blocks[i]);
        x->block[slot].want = hash(id, blocks[i]);
    }
}

unsigned sim_id(int fd) {
    return sim.inode[sim_inode_of(fd)].id;
}

int sim_open(unsigned id) {
    for (unsigned i = 0; i < sim.n_inodes; i++) {
        if (sim.inode[i].id == id) {
            return dup(sim.inode[i].fd);
        }
    }
    return 0;
}

void sim_note_name(struct sim_op op) {
    cr_assert_lt(sim.n_ops, SIM_OPS);
    op.at = ++sim.ops;
    sim.op[sim.n_ops++] = op;
}

struct sim_op sim_name_op(enum sim_kind kind, int dirfd, const char *name, unsigned inode) {
    struct sim_op op = {.kind = kind, .dir = sim_dir(dirfd), .inode = inode};
    cr_assert_lt(strlen(name), SIM_NAME);
    strcpy(op.name, name);
    return op;
}

void sim_make_durable(struct sim_inode *x, uint64_t at) {
    unsigned kept = 0;
    sim_forget_undo(x, at);
    for (unsigned i = 0; i < x->n_changes; i++) {
        struct sim_change c = x->change[i];
        if (c.lost || (at > 0 && !(c.out && c.out_at < at))) {
            x->change[kept++] = c;
        } else if (c.is_size) {
            x->size_durable = c.value;
        } else {
            x->block[c.block].durable = c.value;
        }
    }
    x->n_changes = kept;
}

void sim_out_durable(uint64_t dev, uint64_t at) {
    for (unsigned i = 0; i < sim.n_inodes; i++) {
        if (sim.inode[i].dev == dev) {
            sim_make_durable(&sim.inode[i], at);
        }
    }
}

// ---- Steps, failures, deaths

static void ghost_run(unsigned i) {
    struct sim_ghost g = sim.ghost[i];
    sim.ghost[i] = sim.ghost[--sim.n_ghosts];
    sim_note_undo(&sim.inode[g.inode], g.off, g.len);
    cr_assert_eq(pwrite(sim.inode[g.inode].fd, g.buf, g.len, g.off), (ssize_t)g.len);
    sim_note_blocks(&sim.inode[g.inode], g.off, g.len);
}

void sim_ghosts_of(unsigned inode) {
    for (unsigned i = 0; i < sim.n_ghosts;) {
        if (sim.ghost[i].inode == inode) {
            ghost_run(i);
        } else {
            i++;
        }
    }
}

void sim_settle_ghosts(void) {
    while (sim.n_ghosts) {
        ghost_run(sim_random(sim.n_ghosts));
    }
}

void sim_step(void) {
    sim_steps++;
    if (sim.n_ghosts && sim_random(6) == 0) {
        ghost_run(sim_random(sim.n_ghosts));
    }
    if (sim_on_step) {
        sim_on_step();
    }
    if (sim.die_at && sim_steps >= sim.die_at) {
        sim.die_at = 0;
        longjmp(sim_death, 1);
    }
}

void sim_die_at(unsigned at) {
    sim.die_at = at;
}

void sim_fail_device(uint64_t dev, unsigned from, unsigned to) {
    sim.fail_dev = dev;
    sim.fail_from = from;
    sim.fail_to = to;
}

bool sim_failing(uint64_t dev) {
    return sim.fail_to && dev == sim.fail_dev && sim_steps >= sim.fail_from && sim_steps < sim.fail_to;
}

// ---- What the program does

void sim_program_write(int fd, const void *buf, size_t len, off_t off) {
    struct sim_inode *x = &sim.inode[sim_inode_of(fd)];
    sim_note_undo(x, off, (size_t)len);
    cr_assert_eq(pwrite(fd, buf, len, off), (ssize_t)len);
    sim_note_blocks(x, off, len);
}

void sim_program_created(int fd, int dirfd, const char *name) {
    sim_note_name(sim_name_op(SIM_LINK, dirfd, name, sim_inode_of(fd)));
}

void sim_all_durable(void) {
    for (unsigned i = 0; i < sim.n_inodes; i++) {
        sim_make_durable(&sim.inode[i], 0);
    }
    for (unsigned d = 0; d < sim.n_dirs; d++) {
        sim_names_durable(d);
    }
}
