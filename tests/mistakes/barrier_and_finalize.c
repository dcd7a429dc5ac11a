/*
 * Only rank 0 calls a barrier; the other ranks have already finished.
 *
 * ranks: 2 3
 * says: ls_comm_barrier #1: rank [12] called ls_finalize
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    if (ls_comm_rank(world) == 0 && ls_comm_barrier(world, NULL) != LS_OK) {
        return failed();
    }
    return ended(ls_finalize());
}
