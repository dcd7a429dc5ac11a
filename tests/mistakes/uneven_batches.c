/*
 * Rank 0 has one batch more than the other ranks, in a hand-written loop.
 *
 * ranks: 2 3
 * says: ls_comm_allreduce #4: rank [12] called ls_finalize
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    const int batches = ls_comm_rank(world) == 0 ? 4 : 3;
    for (int batch = 0; batch < batches; batch++) {
        float gradient = 1;
        if (ls_comm_allreduce(world, &gradient, &gradient, 1, LS_F32, LS_AVG, NULL) != LS_OK) {
            return failed();
        }
    }
    return ended(ls_finalize());
}
