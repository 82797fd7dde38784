// SPDX-License-Identifier: MIT
//
// late: bytes that are on their way from a device to the arena behind the program's back: the queue of their pieces,
// the thread that brings them in and fills guarded memory for who touches it, and who has to wait until all has come
// (fork, exec, exit, a reset of the device: late_settle). Makes no call of CUDA's (cuda_ferry.c does, by struct
// late_link).
//
// What has come is told to the engine, which waits with files that have references to it; what will never come fails
// them, and is lost for who touches it.

#ifndef FASTCKPT_LATE_H
#define FASTCKPT_LATE_H

#include "../core/util.h"

struct file;
struct range;

#define LATE_MAX    32768u // pieces on their way
#define LATE_WINDOW 4u     // of these, begun

/** How pieces travel. All in one thread, which is in no hook; pieces in the order of their numbers. */
struct late_link {
    void (*start)(void);
    /** Begins piece `number`: `len` bytes to `to`. 0, or an error of the device's own, above 0. */
    int (*begin)(uint64_t number, char *to, uint64_t len);
    /** Returns when it has come; likewise. */
    int (*end)(uint64_t number);
};

/** Can memory be guarded, and is the thread there? Once made, they stay. False, and one line: not in this process.
 *  `plain`: the caller may do what allocates. */
bool late_ready(const struct late_link *link, bool plain);

/** The number that the next piece will have. Pieces come from one thread at a time. */
uint64_t late_next(void);
uint64_t late_on_its_way(void);
/** A piece: bytes `from` to `from` + `len` of a range, behind those of the piece before. `last`: then all has come. */
void late_add(struct range *r, uint64_t from, uint64_t len, bool last);
/** Waits until at most `most` pieces are on their way. */
void late_wait(uint64_t most);

/** Waits until these bytes of the arena have come. 0, or -EIO: they never will. */
int late_wait_for(uint64_t at, uint64_t len);
/** References were made to what has not come: says so to the engine again, in case it has come since. */
void late_tell(void);

/** Waits until all has come, and the engine knows. */
void late_settle(void);
/** Likewise, and nothing is late from here on: at the end of a process. */
void late_end(void);
/** In a fork child there is no such thing. */
void late_after_fork(void);

#endif
