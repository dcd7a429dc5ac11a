/*
 * Ranks pass buffers of different sizes.
 *
 * ranks: 2 3
 * says: ls_comm_allreduce #1: .*100.*101
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    static float numbers[200];
    const size_t count = ls_comm_rank(world) == 1 ? 101 : 100;
    if (ls_comm_allreduce(world, numbers, numbers, count, LS_F32, LS_SUM, NULL) != LS_OK) {
        return failed();
    }
    return ended(ls_finalize());
}
