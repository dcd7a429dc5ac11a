/*
 * Begins a receive without waiting for it. No rank sends the message.
 *
 * ranks: 2 3
 * says: rank 0 called ls_finalize
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    if (ls_comm_rank(world) == 1) {
        ls_scope *scope = ls_scope_begin();
        ls_irecv(world, LS_SHAPE(4), LS_F32, 0, 7);
        if (ls_scope_end(scope) != LS_OK) {
            return failed();
        }
    }
    return ended(ls_finalize());
}
