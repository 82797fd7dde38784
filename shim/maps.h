// SPDX-License-Identifier: MIT
//
// maps: what is mapped in this process, and which pages are there, as the kernel says it. Asks at each call: others
// change it. No malloc, no lock.

#ifndef FASTCKPT_MAPS_H
#define FASTCKPT_MAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAPS_READ = 1, MAPS_WRITE = 2, MAPS_EXEC = 4, MAPS_SHARED = 8 };

struct maps_area {
    uint64_t from, to; // addresses
    uint64_t off;      // in the file
    uint64_t ino;      // 0: anonymous memory
    uint32_t major, minor;
    unsigned flags; // MAPS_*
};

/** The mapping that `addr` is in. 0, -ENOENT, or why it is not known. 5 to 40 us, before Linux 6.11 a millisecond. */
int maps_find(const void *addr, struct maps_area *ret);

/** Calls `each` for all mappings, with what stands behind the inode ("" if nothing), until it returns false. 0, or why
 *  they are not known. A millisecond. */
int maps_each(bool (*each)(void *arg, const struct maps_area *a, const char *name), void *arg);

/** Has this process a descriptor with O_DIRECT, or a socket with SO_ZEROCOPY? Then what it sends there may be read
 *  straight from its memory, and later. */
bool maps_any_direct(void);

/** What a page is. ABSENT: never touched. SHARED: the file's own, as it is mapped. OWN: memory of this process alone,
 *  perhaps swapped out. */
enum maps_page { PAGE_ABSENT, PAGE_SHARED, PAGE_OWN };

#define MAPS_PAGE 4096u

/** How many of the `n` pages from `addr` (whole pages of MAPS_PAGE) on are like the first: all OWN, or none. Puts into
 *  *own which. Or an error. */
int64_t maps_run(const void *addr, uint64_t n, bool *own);
/** How many of the first `n` pages lie before the first one that is ABSENT; *rest: is one behind that one there? Or an
 *  error. */
int64_t maps_touched(const void *addr, uint64_t n, bool *rest);

#endif
