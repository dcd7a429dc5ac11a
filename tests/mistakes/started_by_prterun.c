/*
 * Started by a PMIx launcher without MPI, simulated by the variables that it sets.
 *
 * ranks: 1
 * environment: PMIX_RANK=1 PMIX_NAMESPACE=prterun-host-4711@1
 * says: ls_init: a PMIx launcher started this process .*: start the program with mpirun, srun or `lockstep run`
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    printf("rank %d of %d\n", ls_comm_rank(world), ls_comm_size(world));
    return ended(ls_finalize());
}
