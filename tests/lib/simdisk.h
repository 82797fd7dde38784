// SPDX-License-Identifier: MIT
//
// simdisk: a disk for tests, in the place of core/io.c (nothing of io, io_uring and io_threads is linked beside it).
// One thread: io_reap carries out one of the waiting writes and jobs, whichever sim_choose names. Every call is made on
// real files, which are what a running system sees, and entered into a model of what would be left after a power cut:
// bytes, sizes and names that are not synced are there, are not, or are torn. No policy and no oracle: tests have
// those.
//
// What is modelled of names:
//   SIM_JOURNAL  the names of one device change in their order (ext4, xfs); io_keeps_order says true
//   SIM_DIRS     each directory keeps its own order, there is none between directories; io_keeps_order says false

#ifndef FASTCKPT_SIMDISK_H
#define FASTCKPT_SIMDISK_H

#include "core/io.h"

#include <setjmp.h>

#define SIM_NAME     64
#define SIM_INODES   96
#define SIM_DIRS_MAX 8
#define SIM_NAMES    128
#define SIM_BLOCK    4096

enum sim_order { SIM_JOURNAL, SIM_DIRS };

/** A directory as it may be found after a power cut. */
struct sim_entry {
    unsigned dir; // as numbered by sim_dir
    char name[SIM_NAME];
    unsigned id; // what sim_expect said of its inode; 0: nothing
    bool whole;  // the bytes and the size that sim_expect said
};

/** Empties the disk. `seed` decides everything that is left to chance. */
void sim_reset(enum sim_order order, uint64_t seed);
/** A directory of the disk. Returns its number. */
unsigned sim_dir(int dirfd);
uint64_t sim_device(unsigned dir);
/** Makes the n-th choice: 0 to n - 1. By chance, or, after sim_enumerate, so that sim_next goes through all ways. */
unsigned sim_choose(unsigned n);
unsigned sim_random(unsigned n); // by chance always
void sim_enumerate(bool first);
bool sim_next(void); // false: every way was gone

/** The file open as `fd` shall in the end hold `id`'s bytes: the `n` blocks of SIM_BLOCK bytes numbered in `blocks`
 *  have the hashes that `hash` says, all others are holes, and the file ends at `size`. */
void sim_expect(int fd, unsigned id, uint64_t size, const unsigned *blocks, unsigned n,
                uint64_t (*hash)(unsigned id, unsigned block));
/** What is there now was there long before: it is durable. */
void sim_all_durable(void);
unsigned sim_id(int fd); // what sim_expect said
unsigned sim_known_id(int fd); // the same, and 0 of an inode that nobody has told of
int sim_open(unsigned id); // a descriptor of the inode of which sim_expect said `id`
uint64_t sim_hash(const void *block);
/** What the program does itself, natively. */
void sim_program_write(int fd, const void *buf, size_t len, off_t off);
void sim_program_created(int fd, int dirfd, const char *name);

/** Called after each operation: a power cut may be there. */
extern void (*sim_on_step)(void);
extern unsigned sim_steps; // operations so far
/** From operation `from` on, to `to`, everything on the device fails with -EIO. */
void sim_fail_device(uint64_t dev, unsigned from, unsigned to);
bool sim_failing(uint64_t dev);
/** At operation `at` (0: never) the engine dies: sim_death is jumped to. Its direct writes may come later. */
void sim_die_at(unsigned at);
extern jmp_buf sim_death;
/** Lets what a dead engine left in flight happen. */
void sim_settle_ghosts(void);

/** Calls `check` for what may be left after a power cut now: for all orders of names where these are few, else for some
 *  by chance; each with the unsynced bytes gone, there, and in part there. */
void sim_power_cut(void (*check)(const struct sim_entry *entries, unsigned n));
/** From here on a power cut can be made real (sim_cut_now): every inode keeps a name in one of the `n` directories. */
void sim_keep_alive(const int *dirs, unsigned n);
/** A file of a stripe: only what an undone write does is modelled. */
void sim_plain(int fd);
/** What is in this directory is durable, and from now on part of the model. */
void sim_know_dir(int dirfd);
/** Does the model itself hold this descriptor? */
bool sim_is_own(int fd);
/** The power cut: files and directories become what is left by one of the ways, which chance names, and durable. */
void sim_cut_now(const int *dirfds); // of the directories, by number
/** A file system that renames and can do no more than that: no RENAME_EXCHANGE, no RENAME_NOREPLACE. */
void sim_rename_only(bool on);
/** What the running system sees. */
unsigned sim_now(struct sim_entry entries[SIM_NAMES]);

#endif
