// SPDX-License-Identifier: MIT
//
// shared: is this a job of several nodes, and is a file system one that other nodes see? A reader on another node knows
// nothing of an engine here: there, close waits for the publish unless FASTCKPT_ASYNC_SHARED=1, and fsync is never
// deferred.

#ifndef FASTCKPT_SHARED_H
#define FASTCKPT_SHARED_H

#include <stdbool.h>

/** Looks at the launcher's variables (torchrun, Slurm, Open MPI) once, at start. */
void shared_init(char *const envp[]);
/** True when a file in this directory has to be published before its close returns, unless the user says otherwise. */
bool shared_must_wait(int dirfd);
/** The part of shared_init that decides: for tests. */
bool shared_several_nodes(char *const envp[]);

#endif
