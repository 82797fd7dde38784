// SPDX-License-Identifier: MIT
//
// staging: the memory that chunks live in: one sealed memfd, its growth in steps of 64 MiB as far as cgroups and the
// machine have room, huge pages, and giving memory back. The engine owns it; clients map what they borrow with
// staging_map_chunk. Which chunk is whose is in tables.h's words, changed by the engine alone.

#ifndef FASTCKPT_STAGING_H
#define FASTCKPT_STAGING_H

#include "tables.h"

#define STAGING_STEP        (64 * MIB)
#define STAGING_STEP_CHUNKS ((unsigned)(STAGING_STEP / CHUNK_SIZE))
#define HUGE_PAGE           (2 * MIB)

/** Makes the memfd of `max` bytes (a multiple of STAGING_STEP), sealed against resizing, without memory behind it.
 *  Not close-on-exec: it lives in the pair's common descriptor table. */
int staging_create(uint64_t max);

/** Reserves `max` bytes of address space aligned to HUGE_PAGE, without memory. NULL if there is none. */
void *staging_window(uint64_t max);

/** Maps the bytes [off, off + len) of the memfd at window + off, shared, read-write, DONTDUMP, and DONTFORK if
 * `client`. 0 or an error. */
int staging_map(void *window, int fd, uint64_t off, uint64_t len, int client);

/** Makes a mapped range resident: each 2 MiB is touched once and collapsed (MADV_COLLAPSE, Linux >= 6.1), else
 *  populated with small pages. Blocks for 6 to 100 ms a step: worker threads only. 0 or an error (-ENOMEM ...).
 *  `*huge` says whether huge pages came. */
int staging_populate(void *addr, uint64_t len, int *huge);

/** Gives a step's memory back to the system and drops it from this process's page table. */
int staging_release(void *window, int fd, uint64_t off, uint64_t len);

/**
 * Bytes that may still be taken: min over MemAvailable and every ancestor cgroup (v2 and v1) of
 * min(max, high) - current + inactive_file (page cache counts as room). Reads files: about 50 us.
 * staging_room_at is the same for a given root of /proc and /sys/fs/cgroup, for tests.
 */
uint64_t staging_room(void);
uint64_t staging_room_at(const char *proc, const char *cgroup_root);

/** The default budget: a quarter of staging_room(), at least 64 MiB, a multiple of STAGING_STEP, at most CHUNKS_MAX
 *  chunks. `want` (bytes, 0: none) replaces the quarter. */
uint64_t staging_budget(uint64_t want);

#endif
