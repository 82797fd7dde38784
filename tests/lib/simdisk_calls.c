// SPDX-License-Identifier: MIT
//
// simdisk_calls: see simdisk.h: the calls of io.h, made on real files and entered into the model.

#include "core/os.h"
#include "simdisk_inside.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool dir_failing(int dirfd) {
    return sim_failing(sim.dir[sim_dir(dirfd)].dev);
}

static int failed(void) {
    sim_step();
    return -EIO;
}

static int d_pwrite_all(int fd, const void *buf, size_t len, off_t off) {
    struct sim_inode *x = &sim.inode[sim_inode_of(fd)];
    bool fails = sim_failing(x->dev);
    len = fails ? len / 2 : len; // some of it has arrived
    if (len) {
        sim_note_undo(x, off, len);
        cr_assert_eq(pwrite(x->fd, buf, len, off), (ssize_t)len);
        sim_note_blocks(x, off, len);
    }
    sim_step();
    return fails ? -EIO : 0;
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
        sim_make_durable(x, 0);
    }
    int ret = x->errors != x->told[fd % SIM_FDS] ? -EIO : 0;
    x->told[fd % SIM_FDS] = x->errors;
    sim_step();
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
    sim_ghosts_of(i);
    if (sim_failing(sim.inode[i].dev)) {
        return failed();
    }
    int ret = sim.inode[i].plain ? os_ftruncate(fd, off + len) : os_fallocate(fd, mode, off, len); // not in memory
    sim_note_size(&sim.inode[i]);
    sim_step();
    return ret;
}

static int d_ftruncate(int fd, off_t len) {
    struct sim_inode *x = &sim.inode[sim_inode_of(fd)];
    if (sim_failing(x->dev)) {
        return failed();
    }
    int ret = os_ftruncate(fd, len);
    sim_note_size(x);
    sim_step();
    return ret;
}

static int d_futimens(int fd, const struct timespec ts[2]) {
    struct sim_inode *x = &sim.inode[sim_inode_of(fd)];
    if (sim_failing(x->dev)) {
        return failed();
    }
    x->mtime = ts[1];
    sim_step();
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
        sim_note_name(sim_name_op(SIM_LINK, dirfd, name, sim_inode_of(fd)));
    }
    sim_step();
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
        sim_note_name(sim_name_op(SIM_LINK, newdir, name, inode_at(newdir, name)));
    }
    sim_step();
    return ret;
}

static int d_renameat(int olddir, const char *old, int newdir, const char *name, unsigned flags) {
    if (dir_failing(newdir)) {
        return failed();
    }
    int ret = flags && sim.no_flags ? -EINVAL : os_renameat2(olddir, old, newdir, name, flags);
    if (ret == 0) {
        bool both = flags & RENAME_EXCHANGE;
        struct sim_op op = sim_name_op(both ? SIM_EXCHANGE : SIM_RENAME, newdir, name, inode_at(newdir, name));
        op.from = sim_dir(olddir);
        op.inode_from = both ? inode_at(olddir, old) : 0;
        strcpy(op.old, old);
        sim_note_name(op);
    }
    sim_step();
    return ret;
}

static int d_unlinkat(int dirfd, const char *name, int flags) {
    if (dir_failing(dirfd)) {
        return failed();
    }
    int ret = os_unlinkat(dirfd, name, flags);
    if (ret == 0) {
        sim_note_name(sim_name_op(SIM_UNLINK, dirfd, name, 0));
    }
    sim_step();
    return ret;
}

static int d_sync_dir(int dirfd) {
    if (dir_failing(dirfd)) {
        return failed();
    }
    sim_names_durable(sim_dir(dirfd));
    sim_step();
    return 0;
}

/** Names of this model that the engine does not make are in order by themselves. */
static int d_sync_names(int dirfd) {
    (void)dirfd;
    sim_step();
    return 0;
}

/** Times that a sudden death does not change: what is linked again has the same ones. */
static int d_stat_name(int dirfd, const char *name, struct stat *s) {
    int r = os_fstatat(dirfd, name, s, AT_SYMLINK_NOFOLLOW);
    s->st_ctim = (struct timespec){.tv_sec = 1};
    for (unsigned i = 0; r == 0 && i < sim.n_inodes; i++) {
        const struct sim_inode *x = &sim.inode[i];
        s->st_mtim = x->ino == s->st_ino && x->dev == s->st_dev ? x->mtime : s->st_mtim;
    }
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
