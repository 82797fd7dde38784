// SPDX-License-Identifier: MIT
//
// creds: who the calling thread is when the kernel judges its calls by name: what it has to be asked for, since the
// engine, which carries them out later, is somebody else. Knows no names and no files.

#ifndef FASTCKPT_CREDS_H
#define FASTCKPT_CREDS_H

#include <stdbool.h>
#include <sys/types.h>

/** Does the calling thread own what `owner` has? Then a directory's sticky bit keeps it neither from deleting or
 *  replacing it, nor from an O_CREAT that finds it. The uid that counts is the thread's own (setfsuid); the directory's
 *  owner and privileges count for nothing: false means that the kernel is to say. It costs 20 µs. */
bool creds_own(uid_t owner);

/** The effective uid: one system call. */
uid_t creds_euid(void);

#endif
