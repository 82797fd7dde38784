// SPDX-License-Identifier: MIT
//
// own: the shim's own descriptors in the job: high, close-on-exec, and never trusted. A program may close them, or have
// a number re-used behind our back, so each use asks for the number anew and compares the inode. Knows not what they
// are.

#ifndef FASTCKPT_OWN_H
#define FASTCKPT_OWN_H

#include <stdbool.h>
#include <sys/types.h>

#define OWN_MAX 160 // 64 connections, staging, directories

/** Moves `fd` high and registers it. Its handle (>= 0), or an error with `fd` closed. */
int own_add(int fd);
/** The same for one that is high already and known to be this inode; on an error it is not closed. */
int own_adopt(int high, dev_t dev, ino_t ino);
/** The number behind `handle`, pinned: it is not moved until own_unpin. -EBADF when the program has closed it. */
int own_pin(int handle);
void own_unpin(int handle);
/** Closes it (if it is still ours) and frees the handle. Not while pinned by another. */
void own_drop(int handle);
/** Is this number one of ours? By what is recorded, which costs one load. */
bool own_is(int fd);
/** The same by the inode: false if the program has closed it unseen and uses the number for its own. */
bool own_still(int fd);
/** Frees the number `fd`: ours moves to another one. 0, -EBADF (not ours), -EBUSY. */
int own_move(int fd);
/** Where ours begin: min(RLIMIT_NOFILE, FDTABLE_MAX) - 80, or half of a small limit. */
int own_floor(void);
/** Moves a descriptor to where ours are, without registering it: for those handed to callers. As os_move_high. */
int own_high(int fd);
/** The same; where there is no room for a second one, it stays where it is. */
int own_high_if(int fd);
/** In a fork child: closes all. */
void own_after_fork(void);

#endif
