/*
 * Runs backward from a loss with several elements.
 *
 * ranks: 1
 * says: ls_backward: .*\[8\]
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_module *model = ls_nn_linear(4, 1);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *output = ls_squeeze(ls_forward(model, ls_rand(LS_SHAPE(8, 4), LS_F32)), 1);
    ls_tensor *loss = ls_mse_loss(output, ls_zeros(LS_SHAPE(8), LS_F32), LS_LOSS_NONE);
    if (ls_backward(loss) != LS_OK) {
        return failed();
    }
    return ended(ls_scope_end(scope));
}
