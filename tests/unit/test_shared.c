// SPDX-License-Identifier: MIT
//
// Proves: a job of several nodes is recognised by the variables of torchrun, Slurm and Open MPI, and by nothing else.
// How:    tables of environments.
// Cannot see: a real shared file system (there is none here).

#include "../../shim/shared.h"

#include <criterion/criterion.h>

static bool several(const char *a, const char *b) {
    char *const envp[] = {(char *)"HOME=/root", (char *)a, (char *)b, NULL};
    return shared_several_nodes(envp);
}

Test(shared, one_node) {
    cr_assert(!several("WORLD_SIZE=8", "LOCAL_WORLD_SIZE=8"));
    cr_assert(!several("WORLD_SIZE=8", "RANK=1")); // how many are on this node is not known
    cr_assert(!several("SLURM_JOB_NUM_NODES=1", "A=B"));
    cr_assert(!several("OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=4"));
    cr_assert(!several("SLURM_JOB_NUM_NODES=", "LOCAL_WORLD_SIZE=x"));
    cr_assert(!several("MY_SLURM_JOB_NUM_NODES=4", "XWORLD_SIZE=3"));
}

Test(shared, several_nodes) {
    cr_assert(several("WORLD_SIZE=16", "LOCAL_WORLD_SIZE=8"));
    cr_assert(several("SLURM_JOB_NUM_NODES=2", "A=B"));
    cr_assert(several("OMPI_COMM_WORLD_LOCAL_SIZE=4", "OMPI_COMM_WORLD_SIZE=8"));
}
