// SPDX-License-Identifier: MIT
//
// rotate: what the savers (rotate.c) and the checker (rotate_check.c) agree on: the parts of a save of each framework,
// where they lie, and files that say of themselves which part of which save they are.

#ifndef ROTATE_H
#define ROTATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROTATE_MAGIC 0x657461746f72ull
#define PARTS_MAX    24

enum kind { HF, DCP, ORBAX, LIGHTNING, DEEPSPEED, KINDS };

struct head {
    uint64_t magic, save, part, size, sum; // sum over all bytes behind the head
};

struct part {
    char path[160]; // relative to the checkpoint directory
    int rank;       // who writes it
    bool captured;  // else native and followed: it may be seen before its turn, and torn until then
    bool big;
};

struct options {
    enum kind kind;
    int ranks, saves, keep, pause_ms, first;
    size_t size;
    const char *dir;
};

/** The parts of save `k`, each rank's in the order in which it writes them; the last one is the marker, if there is one
 *  beside the directory's or file's own name. Returns how many. */
int parts_of(const struct options *o, int k, struct part parts[PARTS_MAX]);
/** Where save k of this kind lies: a directory, or for LIGHTNING a file. */
void place_of(const struct options *o, int k, char *buf, size_t cap);
uint64_t sum_of(const uint64_t *words, size_t n);
int check(const struct options *o, int at_least, int exactly, bool late_deletions);

#endif
