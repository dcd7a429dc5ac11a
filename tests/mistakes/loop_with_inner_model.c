/*
 * Trains the model itself instead of the module that ls_data_parallel returned. The same call without gradients, inside
 * the data-parallel module, or in evaluation mode causes no warning.
 *
 * ranks: 2 3
 * status: 0
 * says: ls_backward: the gradients of Linear are not averaged over the ranks, because ls_forward was called for this
 * model itself: call ls_forward for the module that ls_data_parallel returned
 */
#include "tests/mistakes/mistake.h"

static ls_status step_of(ls_module *model) {
    ls_scope *scope = ls_scope_begin();
    const ls_status status = ls_backward(ls_mean(ls_square(ls_forward(model, ls_randn(LS_SHAPE(3, 4), LS_F32)))));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

int main(int count, char **arguments) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    ls_module *model = ls_nn_linear(4, 2);
    ls_module *replicas = ls_data_parallel(model, world, NULL);
    if (replicas == NULL || step_of(replicas) != LS_OK) {
        return failed();
    }
    ls_scope *scope = ls_scope_begin();
    (void)ls_no_grad(true);
    (void)ls_forward(model, ls_ones(LS_SHAPE(1, 4), LS_F32));
    if (ls_scope_end(scope) != LS_OK) {
        return failed();
    }
    ls_module_train(model, false);
    scope = ls_scope_begin();
    (void)ls_forward(model, ls_ones(LS_SHAPE(1, 4), LS_F32));
    ls_module_train(model, true);
    if (ls_scope_end(scope) != LS_OK) {
        return failed();
    }
    ls_module *trained = count > 1 && strcmp(arguments[1], "right") == 0 ? replicas : model;
    for (int step = 0; step < 3; step++) {
        if (step_of(trained) != LS_OK) {
            return failed();
        }
    }
    ls_module_free(replicas);
    return ended(ls_finalize());
}
