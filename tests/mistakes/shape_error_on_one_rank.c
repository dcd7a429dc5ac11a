/*
 * A model that fails on one rank only, in data-parallel training.
 *
 * ranks: 2 3
 * says: ls_linear: .*5.*4|ls_linear: .*4.*5
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    ls_module *model = ls_data_parallel(ls_sequential(ls_nn_linear(4, 2)), world, NULL);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    ls_status status = LS_OK;
    for (int step = 0; step < 3 && status == LS_OK; step++) {
        ls_scope *scope = ls_scope_begin();
        const int64_t width = ls_comm_rank(world) == 1 && step == 1 ? 5 : 4;
        ls_tensor *loss = ls_mean(ls_square(ls_forward(model, ls_ones(LS_SHAPE(8, width), LS_F32))));
        ls_optimizer_zero_grad(optimizer);
        if (ls_backward(loss) == LS_OK) {
            (void)!ls_optimizer_step(optimizer);
        }
        status = ls_scope_end(scope);
    }
    if (status != LS_OK) {
        return failed();
    }
    return ended(ls_finalize());
}
