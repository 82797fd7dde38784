// SPDX-License-Identifier: MIT
//
// doctor: what this machine, this user's surroundings and the given directories offer fastckpt, and what to do where it
// has to go a slower way. It looks and tries; it changes nothing but files of its own, which it removes at once.

#ifndef FASTCKPT_DOCTOR_H
#define FASTCKPT_DOCTOR_H

#include "config.h"

#include <stdbool.h>

struct doctor_request {
    bool json;
    const char *config_fault; // why the settings could not be read, or NULL
    char *const *dirs;        // to be looked at; none: those that FASTCKPT_PATHS names
    int n_dirs;
    char *const *command; // whose CUDA runtime to name, ending with NULL; or NULL
};

/** Prints one line a finding (JSON: one object). 0: fastckpt works here at its best, as far as could be seen; 1: not.
 */
int doctor(const struct config *c, const struct doctor_request *rq);

#endif
