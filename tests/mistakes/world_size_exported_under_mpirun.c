/*
 * RANK and WORLD_SIZE were exported for a run of one process, but mpirun starts the program.
 *
 * ranks: 2 3
 * on: openmpi mpich
 * environment: RANK=0 WORLD_SIZE=1
 * says: ls_init: WORLD_SIZE is 1, but a launcher started several processes .*: unset RANK and WORLD_SIZE
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
