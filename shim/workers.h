// SPDX-License-Identifier: MIT
//
// workers: helper threads for work on memory that a program waits for: copies into staging, checksums. Knows nothing
// of files. A process that has no thread of its own gets none; the others get them with their first large piece of
// work, and they leave again after a second without any.
//
// A job is a number of small blocks behind one counter. Whoever is awake takes the next; the caller takes them like
// everybody else, and waits only for blocks that a helper has begun. So a helper that gets no CPU costs nothing, and
// neither does one that is gone. One job at a time: a second caller works alone.

#ifndef FASTCKPT_WORKERS_H
#define FASTCKPT_WORKERS_H

#include <stdbool.h>
#include <stdint.h>

#define WORKERS_BLOCK (1024u * 1024u)    // a good size of a block: a tenth of a millisecond or so
#define WORKERS_MIN   (8u * 1024 * 1024) // bytes from which on it is worth to wake somebody

/** `threads`: how many work on one job, the caller included; 0: as many as the caller may use CPUs, 4 at most. Before
 *  anything else, and again in a fork child, which has none of its parent's. */
void workers_begin(int threads);

/** Does nothing in this process help with large work? Makes the helpers if there are to be some. `plain`: the thread
 *  blocks no signal, so it is in no handler, and may do what allocates. Two system calls when it makes none, one load
 *  when they are there. */
bool workers_there(bool plain);

/** Are there threads in this process but the caller? One system call. */
bool workers_has_threads(void);

typedef void workers_block(void *arg, uint32_t i);

/** block(arg, i) for each i below n, in any order, in this thread and in helpers; returns when all are done. `block`
 *  touches memory and nothing else: no lock, no hook, no thread-local variable. */
void workers_run(workers_block *block, void *arg, uint32_t n);

#endif
