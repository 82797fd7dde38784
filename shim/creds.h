// SPDX-License-Identifier: MIT
//
// creds: who the calling thread is when the kernel judges its calls by name: what it has to be asked for, since the
// engine, which carries them out later, is somebody else. Knows no names and no files.

#ifndef FASTCKPT_CREDS_H
#define FASTCKPT_CREDS_H

#include <stdbool.h>
#include <sys/types.h>

/** Is what `owner` has in the directory `dir` (O_PATH will do) the calling thread's, or has the directory no sticky
 *  bit? Then the bit keeps the thread neither from deleting or replacing it, nor from an O_CREAT that finds it. The uid
 *  that counts is the thread's own (setfsuid); the directory's owner and privileges count for nothing: false means that
 *  the kernel is to say. It costs 20 µs where the bit is set, else one system call. */
bool creds_sticky_owner(int dir, uid_t owner);

/** The effective uid: one system call. */
uid_t creds_euid(void);

#endif
