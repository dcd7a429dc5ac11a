/*
 * Keeps a sum over steps in a variable, but not with ls_keep.
 *
 * ranks: 1
 * says: ls_add: .*scope.*ended
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_scope *outer = ls_scope_begin();
    ls_tensor *sum = ls_zeros(LS_SCALAR, LS_F32);
    ls_status status = LS_OK;
    for (int step = 0; step < 3 && status == LS_OK; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *loss = ls_mean(ls_rand(LS_SHAPE(8), LS_F32));
        sum = ls_add(sum, loss);
        status = ls_scope_end(scope);
    }
    if (status != LS_OK) {
        return failed();
    }
    printf("%g\n", ls_item(sum));
    return ended(ls_scope_end(outer));
}
