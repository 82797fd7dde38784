// SPDX-License-Identifier: MIT
//
// benchdir: how fast directories are written, each and all together, by the engine's own way to the disk (io.h). The
// files are unnamed, or removed at once; nothing else on the machine is changed.

#ifndef FASTCKPT_BENCHDIR_H
#define FASTCKPT_BENCHDIR_H

#include "config.h"

#include <stdbool.h>

struct bench_request {
    bool json;
    uint64_t size; // bytes to write at most in each measurement, which ends after a second
    char *const *dirs;
    int n_dirs;
};

/** Prints a table and the settings to use. 0; 1 when a directory could not be measured; 130 after Ctrl-C. */
int bench_directories(const struct config *c, const struct bench_request *rq);

#endif
