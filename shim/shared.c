// SPDX-License-Identifier: MIT
//
// shared: see shared.h.

#include "shared.h"

#include "../core/fs.h"

#include <string.h>

static bool several_nodes; // written once by the constructor

static long number_of(char *const envp[], const char *name) {
    size_t len = strlen(name);
    for (; envp && *envp; envp++) {
        if (strncmp(*envp, name, len) == 0 && (*envp)[len] == '=') {
            long n = 0;
            for (const char *p = *envp + len + 1; *p >= '0' && *p <= '9' && n < 1000000000; p++) {
                n = n * 10 + (*p - '0');
            }
            return n;
        }
    }
    return 0;
}

bool shared_several_nodes(char *const envp[]) {
    long local = number_of(envp, "LOCAL_WORLD_SIZE"), mpi_local = number_of(envp, "OMPI_COMM_WORLD_LOCAL_SIZE");
    return (local > 0 && number_of(envp, "WORLD_SIZE") > local) || number_of(envp, "SLURM_JOB_NUM_NODES") > 1 ||
           (mpi_local > 0 && number_of(envp, "OMPI_COMM_WORLD_SIZE") > mpi_local);
}

void shared_init(char *const envp[]) {
    several_nodes = shared_several_nodes(envp);
}

bool shared_must_wait(int dirfd) {
    const struct fs_type *t = several_nodes ? fs_of(dirfd) : NULL;
    return t && (t->traits & FS_NETWORK);
}
