/*
 * Runs a backward pass after the communicator has been freed.
 *
 * ranks: 2 3
 * says: ls_backward: .*freed
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    ls_comm *part = NULL;
    if (ls_comm_split(world, 0, 0, &part) != LS_OK) {
        return failed();
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_ones(LS_SHAPE(4), LS_F32);
    ls_set_requires_grad(x, true);
    ls_tensor *loss = ls_sum(ls_allreduce(part, x, LS_SUM));
    ls_comm_free(part);
    if (ls_backward(loss) != LS_OK) {
        return failed();
    }
    return ended(ls_scope_end(scope));
}
