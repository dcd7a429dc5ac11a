/*
 * Rank 1 returns from main before the other ranks have finished.
 *
 * ranks: 2 3
 * says: ls_comm_allreduce #2: rank 1 .*(ended|died|left|exit)
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    for (int i = 0; i < 2; i++) {
        float number = 1;
        if (ls_comm_rank(world) == 1 && i == 1) {
            return 0; /* nothing to do here */
        }
        if (ls_comm_allreduce(world, &number, &number, 1, LS_F32, LS_SUM, NULL) != LS_OK) {
            return failed();
        }
    }
    return ended(ls_finalize());
}
