// SPDX-License-Identifier: MIT
//
// simdisk_inside: the model that simdisk.c fills and simdisk_cut.c looks at. Data only.

#ifndef FASTCKPT_SIMDISK_INSIDE_H
#define FASTCKPT_SIMDISK_INSIDE_H

#include "core/util.h"
#include "simdisk.h"

#define SIM_BLOCKS  16
#define SIM_CHANGES 128
#define SIM_OPS     256
#define SIM_FDS     1024
#define SIM_UNDO    256

struct sim_block {
    unsigned number;
    uint64_t durable, now, want; // hashes
};

/** One change of an inode that is not synced: of a block, or of the size. */
struct sim_change {
    bool is_size, lost; // lost: no sync will ever bring it to the disk
    bool out;           // written out: it is there if a change of a name is that came after `out_at`
    uint64_t out_at;
    unsigned block;
    uint64_t value; // hash or size
};

/** What a write that is not synced has covered. */
struct sim_undo {
    off_t off, size;
    size_t len, had;
    bool out; // as of a change
    uint64_t out_at;
    char *old;
};

struct sim_inode {
    int fd;
    uint64_t dev, ino;
    bool plain;  // a stripe's: no blocks, no names, only what a cut undoes
    unsigned id; // of sim_expect
    unsigned n_undo;
    struct sim_undo undo[SIM_UNDO];
    struct timespec mtime; // as set; no cut takes it
    uint64_t size_durable, size_now, size_want;
    unsigned n_blocks, n_changes;
    struct sim_block block[SIM_BLOCKS];
    struct sim_change change[SIM_CHANGES];
    unsigned errors; // write errors so far, told once to each descriptor
    unsigned told[SIM_FDS];
};

enum sim_kind { SIM_LINK, SIM_UNLINK, SIM_RENAME, SIM_EXCHANGE };

struct sim_op {
    enum sim_kind kind;
    uint64_t at;        // its place in the order of all
    unsigned dir, from; // RENAME, EXCHANGE: from `old` in `from`
    unsigned inode, inode_from; // EXCHANGE: what `old` is then
    char name[SIM_NAME], old[SIM_NAME];
};

struct sim_name {
    unsigned dir, inode;
    char name[SIM_NAME];
};

struct sim_names {
    unsigned n;
    struct sim_name name[SIM_NAMES];
};

struct sim_dir_id {
    uint64_t dev, ino;
};

struct sim_work { // one of the two
    struct io_req *req;
    struct io_job *job;
};

struct sim_ghost {
    unsigned inode;
    const void *buf;
    size_t len;
    off_t off;
};

struct io {
    unsigned n;
    struct sim_work work[512];
};

struct sim {
    enum sim_order order;
    uint64_t seed;
    unsigned n_inodes, n_dirs, n_ops, n_ghosts;
    uint64_t ops; // on names, ever
    struct sim_inode inode[SIM_INODES];
    struct sim_dir_id dir[SIM_DIRS_MAX];
    struct sim_names durable;
    struct sim_op op[SIM_OPS]; // not synced, in their order
    struct sim_ghost ghost[64];
    struct sim_work in_hand;
    unsigned die_at, fail_from, fail_to;
    uint64_t fail_dev;
    bool real_cut, no_flags;
    unsigned n_alive;
    int alive[SIM_DIRS_MAX];
};
extern struct sim sim;

/** The model's number of the inode open as `fd`. */
unsigned sim_inode_of(int fd);
/** One operation is done: another inode's late write, a power cut or a death may come. */
void sim_step(void);
/** After a write: the blocks it touched, as they are now; its size. */
void sim_note_blocks(struct sim_inode *x, off_t off, size_t len);
void sim_note_size(struct sim_inode *x);
/** An operation on names, and entering it. */
struct sim_op sim_name_op(enum sim_kind kind, int dirfd, const char *name, unsigned inode);
void sim_note_name(struct sim_op op);
/** Waits for the direct writes of a dead engine on this inode, as the inode's lock does. */
void sim_ghosts_of(unsigned inode);
/** All changes of it, or those that were written out before the operation on names number `at`. */
void sim_make_durable(struct sim_inode *x, uint64_t at);
/** What was written out on this device before the operation on names number `at` is durable. */
void sim_out_durable(uint64_t dev, uint64_t at);
/** Before a write: what it covers. */
void sim_note_undo(struct sim_inode *x, off_t off, size_t len);
/** Nothing of that comes back any more: of all, or of what was written out before operation number `at` on names. */
void sim_forget_undo(struct sim_inode *x, uint64_t at);
/** Gives an inode a name that keeps it alive (sim_keep_alive). */
void sim_name_alive(unsigned inode);
/** A sync of directory `dir`: what of the operations on names is durable now leaves the list. */
void sim_names_durable(unsigned dir);

#endif
