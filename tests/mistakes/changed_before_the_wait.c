/*
 * A tensor that is changed while ranks still exchange it.
 *
 * ranks: 1 2 3
 * says: ls_allreduce_begin: its tensor \[1000\] was changed in place \(by ls_fill\) before ls_handle_wait
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_ones(LS_SHAPE(1000), LS_F32);
    ls_handle *handle = ls_allreduce_begin(world, x, LS_SUM);
    if (ls_fill(x, 0) != LS_OK) {
        return failed();
    }
    ls_handle_wait(handle);
    return ended(ls_scope_end(scope));
}
