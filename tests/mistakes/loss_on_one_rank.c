/*
 * Only rank 0 asks for the loss of the global batch, to print it.
 *
 * ranks: 2 3
 * says: called allreduce of 3 f64, sum, in ls_data_parallel_loss \(#[0-9]+\); ranks? .* called .*, in ls_backward \(#
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    ls_module *model = ls_data_parallel(ls_nn_linear(4, 2), world, NULL);
    if (model == NULL) {
        return failed();
    }
    for (int step = 0; step < 2; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *loss = ls_mean(ls_square(ls_forward(model, ls_randn(LS_SHAPE(3, 4), LS_F32))));
        if (ls_backward(loss) != LS_OK) {
            return failed();
        }
        if (ls_comm_rank(world) == 0) {
            const double mean = ls_data_parallel_loss(model, loss);
            if (mean != mean) {
                return failed();
            }
        }
        if (ls_scope_end(scope) != LS_OK) {
            return failed();
        }
    }
    ls_module_free(model);
    return ended(ls_finalize());
}
