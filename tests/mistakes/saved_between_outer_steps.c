/*
 * Saves a model trained with DiLoCo in the middle of an outer period, because the number of steps is not a multiple of
 * .steps.
 *
 * ranks: 2 3
 * says: ls_module_save: the ranks' parameters differ between two outer steps of ls_outer: call ls_outer_sync
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    ls_module *model = ls_nn_linear(4, 2);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    ls_outer *outer = ls_outer_new(model, world, &(ls_outer_options){.steps = 4});
    for (int step = 0; step < 10; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *input = ls_full(LS_SHAPE(3, 4), LS_F32, ls_comm_rank(world) + step);
        ls_optimizer_zero_grad(optimizer);
        if (ls_backward(ls_mean(ls_square(ls_forward(model, input)))) != LS_OK ||
            ls_optimizer_step(optimizer) != LS_OK || ls_outer_step(outer) != LS_OK || ls_scope_end(scope) != LS_OK) {
            return failed();
        }
    }
    if (ls_module_save(model, "/dev/null/weights.safetensors", NULL) != LS_OK) {
        return failed();
    }
    return ended(ls_finalize());
}
