/*
 * A root beyond the last rank.
 *
 * ranks: 2 3
 * says: ls_comm_broadcast: .*root.* 3
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    float number = 1;
    if (ls_comm_broadcast(world, &number, 1, LS_F32, 3, NULL) != LS_OK) {
        return failed();
    }
    return ended(ls_finalize());
}
