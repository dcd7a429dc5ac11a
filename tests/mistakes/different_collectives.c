/*
 * Rank 1 calls a different collective.
 *
 * ranks: 2 3
 * says: ls_comm_(allreduce|broadcast) #1: .*: (rank 0|ranks 0, 2) called allreduce .*; rank 1 called broadcast
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    float number = 1;
    const ls_status status = ls_comm_rank(world) == 1
                                 ? ls_comm_broadcast(world, &number, 1, LS_F32, 0, NULL)
                                 : ls_comm_allreduce(world, &number, &number, 1, LS_F32, LS_SUM, NULL);
    if (status != LS_OK) {
        return failed();
    }
    return ended(ls_finalize());
}
