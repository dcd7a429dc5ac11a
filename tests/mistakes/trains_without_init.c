/*
 * Trains under `lockstep run` without ls_init: each process trains its own model.
 *
 * ranks: 2 3
 * on: shm
 * status: 0
 * says: warning: `lockstep run` started [23] processes, and this program trains without ls_init: .* call ls_init first
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_module *model = ls_nn_linear(4, 2);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    for (int step = 0; step < 3; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *output = ls_forward(model, ls_ones(LS_SHAPE(8, 4), LS_F32));
        ls_optimizer_zero_grad(optimizer);
        if (ls_backward(ls_cross_entropy(output, ls_zeros(LS_SHAPE(8), LS_I64), NULL)) != LS_OK ||
            ls_optimizer_step(optimizer) != LS_OK || ls_scope_end(scope) != LS_OK) {
            return failed();
        }
    }
    return 0;
}
