/*
 * A parameter changes between the forward and the backward pass.
 *
 * ranks: 1
 * says: ls_backward: .*modified in place
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_module *model = ls_sequential(ls_nn_linear(4, 8), ls_nn_tanh(), ls_nn_linear(8, 1));
    ls_scope *scope = ls_scope_begin();
    ls_tensor *loss = ls_mean(ls_square(ls_forward(model, ls_rand(LS_SHAPE(8, 4), LS_F32))));
    ls_no_grad(true);
    ls_status status = ls_fill(ls_module_find(model, "2.weight"), 0.5);
    ls_no_grad(false);
    if (status != LS_OK || ls_backward(loss) != LS_OK) {
        return failed();
    }
    return ended(ls_scope_end(scope));
}
