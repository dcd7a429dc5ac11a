/*
 * A layer was added to a module in the model after ls_data_parallel was called. ls_data_parallel does not average the
 * layer's gradients. The data-parallel module is a part of the trial's model.
 *
 * ranks: 1 2
 * says: ls_trial_run: a layer was added to the model after ls_data_parallel, ls_outer_new or .*: add all layers first
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    ls_module *head = ls_sequential(ls_nn_linear(8, 8));
    ls_module *model = ls_sequential(ls_data_parallel(ls_sequential(ls_nn_linear(4, 8), head), world, NULL));
    if (ls_module_add_child(head, "1", ls_nn_linear(8, 2)) == NULL) {
        return failed();
    }
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    ls_loader *loader = ls_loader_new(ls_tensor_dataset(ls_ones(LS_SHAPE(8, 4), LS_F32), ls_zeros(LS_SHAPE(8), LS_I64)),
                                      &(ls_loader_options){.batch_size = 4, .comm = world});
    const ls_trial_options options = {.model = model,
                                      .optimizer = optimizer,
                                      .criterion = ls_criterion_cross_entropy,
                                      .train = loader,
                                      .quiet = true};
    ls_trial *trial = ls_trial_new(&options);
    if (trial == NULL || ls_trial_run(trial, 1) != LS_OK) {
        return failed();
    }
    return ended(ls_finalize());
}
