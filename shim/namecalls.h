// SPDX-License-Identifier: MIT
//
// namecalls: what a call by name has to do about names that are captured, followed or pending somewhere (design 5,
// Names): find them in the engine's table, borrow their inode, make them native, or wait. Hooks no symbol; knows no
// call but by what it does to a name: looks at it, opens it, changes it, lists its directory.
//
// Errors inside mean "go natively", but where going on would delete or replace what an earlier failure has kept.

#ifndef FASTCKPT_NAMECALLS_H
#define FASTCKPT_NAMECALLS_H

#include "client.h"
#include "file.h"
#include "policy.h"

#include <errno.h>

/** No name is captured, followed or pending anywhere, as far as this process is told. One load. */
static inline bool names_idle(void) {
    const struct tables *t = client_tables();
    return t == NULL || atomic_load_explicit(&t->names_count, memory_order_acquire) == 0;
}

/** A process that captures nothing has to find out whether there is an engine, whose names are its own as well: it
 *  looks at a call by name, when it has waited for a child, and otherwise not more often than every look_ticks (about
 *  20 ms of the processor's own clock, which costs no system call). */
#if defined(__x86_64__)
static inline uint64_t look_clock(void) {
    return __builtin_ia32_rdtsc();
}
static inline uint64_t look_ticks(void) {
    return 50000000; // 2 to 4 GHz; to ask (CPUID) is a trap in a virtual machine
}
#else
static inline uint64_t look_clock(void) {
    uint64_t t;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
    return t;
}
static inline uint64_t look_ticks(void) {
    uint64_t hz; // 25 MHz to 1 GHz
    __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hz));
    return hz / 50;
}
#endif
extern _Atomic uint64_t names_look_at; // look_clock of the next look
void names_look(void);
/** The next call by name looks, however short the time since the last one. */
static inline void names_look_soon(void) {
    atomic_store_explicit(&names_look_at, 0, memory_order_relaxed);
}
/** Fork handler of the child: it has to look for itself. */
void names_after_fork(void);

/** Should a hook leave the call alone? The first question of every hook by name. */
static inline bool names_native(void) {
    if (UNLIKELY(client_tables() == NULL) &&
        UNLIKELY((int64_t)(look_clock() - atomic_load_explicit(&names_look_at, memory_order_relaxed)) >= 0)) {
        names_look();
    }
    return LIKELY(names_idle()) || guard_depth != 0;
}

/** The inode behind a captured or pending name. */
struct lent {
    int fd;                // O_PATH, ours until names_return; -1: there is nothing
    uint64_t size;         // as known to the engine
    struct timespec mtime; // zero: the kernel's
    struct file *own;      // captured and open in this process
    bool pending;          // closed
    bool taken;            // a program has opened it to write since
    int error;             // with a descriptor of -1: why there is nothing
    char path[32];         // "/proc/self/fd/N": for calls that want a path
};

/** The table's word for the name, 0 if it is native (or nobody lives who could say). */
uint64_t names_word(const struct place *p);
/** The open file of this process behind a word, or NULL. */
struct file *names_own(uint64_t word);

/** Borrows the inode of a captured or pending name, for what `flags` says: LEND_* of protocol.h, 0 to look at it. 1:
 *  *ret is filled, 0: the name is native. A name that is going to be deleted: 1, with a descriptor of -1 and a path
 *  that leads nowhere. A link of /proc is a name as well. */
int names_lend(int dirfd, const char *path, bool follow, unsigned flags, struct lent *ret);
/** The same for a place whose word has been looked up. 0 or an error. */
int names_lend_place(const struct place *p, uint64_t word, unsigned flags, struct lent *ret);
void names_return(struct lent *l);
/** The file of this process that a link of /proc is about, or NULL; `follow`: also if `path` is a symlink to it. */
struct file *names_linked(int dirfd, const char *path, bool follow);
/** The table's word for an inode that is going to have its first name, or to lose it, whoever has it open; else 0. */
uint64_t names_word_of(const struct stat *st);
/** Has the engine give its name to the captured file that `fd` (O_PATH will do) is of, whoever has it open. Results of
 *  client_ask. */
int names_link_inode(int fd);
/** Corrects what fstat said of a lent inode. */
void names_fix_stat(const struct lent *l, struct stat *st);

/** Makes the name native: releases our own open file, waits for a pending or absent one. 0; 1: open in another process,
 *  it can only be lent; or -EIO when what it waited for has failed. */
int names_clear(uint64_t word);

/** What the table says of the name. OPEN, PENDING: its directory does not show it yet (or shows the older file of it);
 *  ABSENT, NO_DIR: its directory still shows it. */
enum name_state names_state(int dirfd, const char *path, bool follow);
enum { PLACE_GONE = 1, PLACE_NOT_DIR };
/** The place of a path and its word; a symlink that is going to be deleted or replaced is not followed. 0;
 *  PLACE_GONE: it leads through what is going to be deleted; PLACE_NOT_DIR: through a captured or pending file; or an
 *  error: the call is native. Of too few descriptors (starved.h), too: what the path is about is published by then. */
int names_find_place(struct place *p, int dirfd, const char *path, bool follow, uint64_t *word);
/** Does the word say that the name is going to be deleted? */
static inline bool names_gone(uint64_t word) {
    return word != 0 && (name_word_state(word) == NAME_ABSENT || name_word_state(word) == NAME_NO_DIR);
}
/** Has the working directory no path, because it is going to be deleted? */
bool names_cwd_gone(void);
/** The error of a call that needs the name to be there, or 0. */
static inline int names_missing(enum name_state s) {
    return s == NAME_ABSENT || s == NAME_NO_DIR ? -ENOENT : s == NAME_NOT_DIR ? -ENOTDIR : 0;
}
/** The error of a call that makes a name, if its directory is going to be deleted or is no directory; or 0. */
int names_way(int dirfd, const char *path);
/** The same where names_state has said NOT_DIR: if that is the last component ("file/"), -EEXIST. */
int names_way_new(int dirfd, const char *path);
/** For calls that have to find the name itself: names_clear of a path. 0 (go on natively), -ENOENT (its
 *  directory is going to be deleted), or -EIO. */
int names_publish(int dirfd, const char *path, bool follow);

/** Before an open that is not captured: 0: native; 1: open ret->path instead, with names_open_flags; or an error to be
 *  returned by the open. */
int names_before_open(int dirfd, const char *path, int flags, struct lent *ret);
/** May the inode be opened in place of its name? False of an O_CREAT that finds somebody else's file in a sticky
 *  directory, which the kernel may refuse (protected_regular): it has to be asked by the name. */
bool names_may_create(const struct place *p, int flags, const struct lent *l);
/** The flags with which the inode is opened in place of its name. */
int names_open_flags(int flags);

/** Waits until what was closed before is durable. 0, -EINTR, or -EIO when some of it failed. */
int names_wait(enum wait_scope scope);
/** The same for WAIT_DIR and WAIT_DIR_SAFE: of this directory. */
int names_wait_dir(enum wait_scope scope, const struct stat *dir);
/** What is captured in this directory, open or closed, and whoever's, gets its name. */
void names_publish_dir(const struct stat *dir);

/** A directory is about to be renamed, deleted or closed to us: what this process has open in it gets its name. False:
 *  it is none. */
bool names_before_directory(int dirfd, const char *path);

/** Before a program is started: what it is, if it was just saved, is published first (a file that somebody may still
 *  write cannot be executed). `path` NULL: libc looks for it elsewhere. */
void names_before_exec(int dirfd, const char *path);

/** Before the mode of what may be a directory changes: what is captured in it gets its name while it still may. */
void names_before_mode(int dirfd, const char *path);

/** The error that opening the name as a directory meets, whatever the kernel thinks; 0: the kernel knows. */
static inline int names_no_directory(int dirfd, const char *path) {
    enum name_state s = names_state(dirfd, path, true);
    return s == NAME_OPEN || s == NAME_PENDING ? -ENOTDIR : names_missing(s);
}

/** Before a directory is listed by a call that reads by itself: waits for its pending names. */
void names_before_list(int dirfd, const char *path);
/** lstat of a directory is how tar, rsync and find begin a walk: its times must not change under them, so it waits for
 *  the pending names. (stat is what savers do with the directory that they write into next: it does not wait.) */
void names_before_walk(int dirfd, const char *path);

#endif
