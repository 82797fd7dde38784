// SPDX-License-Identifier: MIT
//
// simdisk: see simdisk.h. The operations and their model; what is left after a power cut is in simdisk_cut.c.

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

static void note_size(struct sim_inode *x) {
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

/** After a write: the blocks it touched, as they are now. */
static void note_blocks(struct sim_inode *x, off_t off, size_t len) {
    if (x->plain) {
        return;
    }
    for (unsigned b = (unsigned)(off / SIM_BLOCK); b <= (off + (off_t)len - 1) / SIM_BLOCK; b++) {
        char buf[SIM_BLOCK] = {0};
        cr_assert_geq(pread(x->fd, buf, sizeof buf, (off_t)b * SIM_BLOCK), 0);
        unsigned slot = block_slot(x, b);
        x->block[slot].now = sim_hash(buf);
        note(x, (struct sim_change){.block = slot, .value = x->block[slot].now});
    }
    note_size(x);
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

static void note_name(struct sim_op op) {
    cr_assert_lt(sim.n_ops, SIM_OPS);
    op.at = ++sim.ops;
    sim.op[sim.n_ops++] = op;
}

static struct sim_op name_op(enum sim_kind kind, int dirfd, const char *name, unsigned inode) {
    struct sim_op op = {.kind = kind, .dir = sim_dir(dirfd), .inode = inode};
    cr_assert_lt(strlen(name), SIM_NAME);
    strcpy(op.name, name);
    return op;
}

// ---- Steps, failures, deaths

static void ghost_run(unsigned i) {
    struct sim_ghost g = sim.ghost[i];
    sim.ghost[i] = sim.ghost[--sim.n_ghosts];
    sim_note_undo(&sim.inode[g.inode], g.off, g.len);
    cr_assert_eq(pwrite(sim.inode[g.inode].fd, g.buf, g.len, g.off), (ssize_t)g.len);
    note_blocks(&sim.inode[g.inode], g.off, g.len);
}

/** Waits for the direct writes of a dead engine on this inode, as the inode's lock does. */
static void ghosts_of(unsigned inode) {
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

static void step(void) {
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

static bool dir_failing(int dirfd) {
    return sim_failing(sim.dir[sim_dir(dirfd)].dev);
}

static int failed(void) {
    step();
    return -EIO;
}

// ---- The calls

static int d_pwrite_all(int fd, const void *buf, size_t len, off_t off) {
    struct sim_inode *x = &sim.inode[sim_inode_of(fd)];
    bool fails = sim_failing(x->dev);
    len = fails ? len / 2 : len; // some of it has arrived
    if (len) {
        sim_note_undo(x, off, len);
        cr_assert_eq(pwrite(x->fd, buf, len, off), (ssize_t)len);
        note_blocks(x, off, len);
    }
    step();
    return fails ? -EIO : 0;
}

/** All changes of it, or those that were written out before the operation on names number `at`. */
static void make_durable(struct sim_inode *x, uint64_t at) {
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
            make_durable(&sim.inode[i], at);
        }
    }
}

/** An fsync that fails has given the bytes up: no later one brings them to the disk. The error is told once to each
 *  description. */
static int sync_inode(int fd, bool durable) {
    struct sim_inode *x = &sim.inode[sim_inode_of(fd)];
    bool fails = sim_failing(x->dev);
    for (unsigned i = 0; i < x->n_changes; i++) {
        struct sim_change *c = &x->change[i];
        c->lost |= fails;
        if (!durable && !c->out && sim.order == SIM_JOURNAL) {
            c->out = true;
            c->out_at = sim.ops;
        }
    }
    for (unsigned i = 0; i < x->n_undo && !durable && sim.order == SIM_JOURNAL; i++) {
        x->undo[i].out_at = x->undo[i].out ? x->undo[i].out_at : sim.ops;
        x->undo[i].out = true;
    }
    x->errors += fails;
    if (durable && !fails) {
        make_durable(x, 0);
    }
    int ret = x->errors != x->told[fd % SIM_FDS] ? -EIO : 0;
    x->told[fd % SIM_FDS] = x->errors;
    step();
    return ret;
}

static int d_fsync(int fd) {
    return sync_inode(fd, true);
}

static int d_write_out(int fd) {
    return sync_inode(fd, false);
}

static int d_fallocate(int fd, int mode, off_t off, off_t len) {
    unsigned i = sim_inode_of(fd);
    ghosts_of(i);
    if (sim_failing(sim.inode[i].dev)) {
        return failed();
    }
    int ret = sim.inode[i].plain ? os_ftruncate(fd, off + len) : os_fallocate(fd, mode, off, len); // not in memory
    note_size(&sim.inode[i]);
    step();
    return ret;
}

static int d_ftruncate(int fd, off_t len) {
    struct sim_inode *x = &sim.inode[sim_inode_of(fd)];
    if (sim_failing(x->dev)) {
        return failed();
    }
    int ret = os_ftruncate(fd, len);
    note_size(x);
    step();
    return ret;
}

static int d_futimens(int fd, const struct timespec ts[2]) {
    (void)ts;
    if (sim_failing(sim.inode[sim_inode_of(fd)].dev)) {
        return failed();
    }
    step();
    return 0;
}

static int d_link_fd(int fd, int dirfd, const char *name) {
    if (dir_failing(dirfd)) {
        return failed();
    }
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int ret = os_linkat(AT_FDCWD, path, dirfd, name, AT_SYMLINK_FOLLOW);
    if (ret == 0) {
        note_name(name_op(SIM_LINK, dirfd, name, sim_inode_of(fd)));
    }
    step();
    return ret;
}

static unsigned inode_at(int dirfd, const char *name) {
    int fd = openat(dirfd, name, O_RDWR);
    cr_assert_geq(fd, 0, "%s: %s", name, strerror(errno));
    unsigned i = sim_inode_of(fd);
    close(fd);
    return i;
}

static int d_linkat(int olddir, const char *old, int newdir, const char *name) {
    if (dir_failing(newdir)) {
        return failed();
    }
    int ret = os_linkat(olddir, old, newdir, name, 0);
    if (ret == 0) {
        note_name(name_op(SIM_LINK, newdir, name, inode_at(newdir, name)));
    }
    step();
    return ret;
}

static int d_renameat(int olddir, const char *old, int newdir, const char *name) {
    if (dir_failing(newdir)) {
        return failed();
    }
    int ret = os_renameat2(olddir, old, newdir, name, 0);
    if (ret == 0) {
        struct sim_op op = name_op(SIM_RENAME, newdir, name, inode_at(newdir, name));
        op.from = sim_dir(olddir);
        strcpy(op.old, old);
        note_name(op);
    }
    step();
    return ret;
}

static int d_unlinkat(int dirfd, const char *name, int flags) {
    if (dir_failing(dirfd)) {
        return failed();
    }
    int ret = os_unlinkat(dirfd, name, flags);
    if (ret == 0) {
        note_name(name_op(SIM_UNLINK, dirfd, name, 0));
    }
    step();
    return ret;
}

static int d_sync_dir(int dirfd) {
    if (dir_failing(dirfd)) {
        return failed();
    }
    sim_names_durable(sim_dir(dirfd));
    step();
    return 0;
}

/** Names of this model that the engine does not make are in order by themselves. */
static int d_sync_names(int dirfd) {
    (void)dirfd;
    step();
    return 0;
}

/** Times that a sudden death does not change: what is linked again has the same ones. */
static int d_stat_name(int dirfd, const char *name, struct stat *s) {
    int r = os_fstatat(dirfd, name, s, AT_SYMLINK_NOFOLLOW);
    s->st_ctim = (struct timespec){.tv_sec = 1};
    return r;
}

static int d_close(int fd) {
    return os_close(fd);
}

#define SIM_CALLS                                                                                                      \
    {                                                                                                                  \
        .pwrite_all = d_pwrite_all, .fsync = d_fsync, .write_out = d_write_out, .fallocate = d_fallocate,              \
        .ftruncate = d_ftruncate, .futimens = d_futimens, .link_fd = d_link_fd, .linkat = d_linkat,                    \
        .renameat = d_renameat, .unlinkat = d_unlinkat, .sync_dir = d_sync_dir, .sync_names = d_sync_names,            \
        .close = d_close, .stat_name = d_stat_name,                                                                    \
    }
struct io_calls io_calls = SIM_CALLS;

bool io_known_fs(int fd) {
    (void)fd;
    return true;
}

bool io_keeps_order(int fd, uint64_t dev) {
    (void)fd, (void)dev;
    return sim.order == SIM_JOURNAL;
}

void sim_program_write(int fd, const void *buf, size_t len, off_t off) {
    struct sim_inode *x = &sim.inode[sim_inode_of(fd)];
    sim_note_undo(x, off, (size_t)len);
    cr_assert_eq(pwrite(fd, buf, len, off), (ssize_t)len);
    note_blocks(x, off, len);
}

void sim_program_created(int fd, int dirfd, const char *name) {
    note_name(name_op(SIM_LINK, dirfd, name, sim_inode_of(fd)));
}

void sim_all_durable(void) {
    for (unsigned i = 0; i < sim.n_inodes; i++) {
        make_durable(&sim.inode[i], 0);
    }
    for (unsigned d = 0; d < sim.n_dirs; d++) {
        sim_names_durable(d);
    }
}
