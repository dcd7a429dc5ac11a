/*
 * Only rank 0 calls a collective; the other ranks have already finished.
 *
 * ranks: 2 3
 * says: ls_comm_allreduce #1: rank [12] called ls_finalize
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    float loss = 1;
    if (ls_comm_rank(world) == 0) {
        if (ls_comm_allreduce(world, &loss, &loss, 1, LS_F32, LS_SUM, NULL) != LS_OK) {
            return failed();
        }
        printf("loss %g\n", (double)loss);
    }
    return ended(ls_finalize());
}
