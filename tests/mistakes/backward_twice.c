/*
 * Two backward passes through one forward pass.
 *
 * ranks: 1
 * says: ls_backward:
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_module *model = ls_nn_linear(4, 1);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *loss = ls_mean(ls_square(ls_forward(model, ls_rand(LS_SHAPE(8, 4), LS_F32))));
    if (ls_backward(loss) != LS_OK || ls_backward(loss) != LS_OK) {
        return failed();
    }
    return ended(ls_scope_end(scope));
}
