/*
 * Computes a mean by hand: each rank divides by the number of its own samples that are not masked.
 *
 * ranks: 2 3
 * status: 0
 * says: this loss is a sum over samples, which data parallelism adds up over ranks; use ls_mean, or divide by the count
 * of the global batch
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    ls_module *model = ls_data_parallel(ls_nn_linear(3, 1), world, NULL);
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.01});
    ls_status status = optimizer != NULL ? LS_OK : ls_error_status();
    for (int step = 0; step < 3 && status == LS_OK; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = ls_randn(LS_SHAPE(8, 3), LS_F32);
        ls_tensor *mask = ls_to(ls_le(ls_arange(LS_SHAPE(8, 1), LS_F32), 3 + ls_comm_rank(world)), LS_F32);
        ls_tensor *loss = ls_div(ls_sum(ls_mul(ls_square(ls_forward(model, x)), mask)), ls_sum(mask));
        ls_module_zero_grad(model);
        status = ls_backward(loss);
        status = status == LS_OK ? ls_optimizer_step(optimizer) : status;
        const ls_status closed = ls_scope_end(scope);
        status = status == LS_OK ? closed : status;
    }
    if (status != LS_OK) {
        return failed();
    }
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return ended(ls_finalize());
}
