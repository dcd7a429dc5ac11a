/*
 * A layer was added to the model after its optimizer was created.
 *
 * ranks: 1
 * says: ls_trial_run: parameter "1.weight" was added to the model after ls_sgd was called, .*: create the optimizer
 * after all layers
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_module *model = ls_sequential(ls_nn_linear(4, 8));
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    if (ls_module_add_child(model, "1", ls_nn_linear(8, 2)) == NULL) {
        return failed();
    }
    ls_loader *loader =
        ls_loader_new(ls_tensor_dataset(ls_ones(LS_SHAPE(8, 4), LS_F32), ls_zeros(LS_SHAPE(8), LS_I64)), NULL);
    const ls_trial_options options = {.model = model,
                                      .optimizer = optimizer,
                                      .criterion = ls_criterion_cross_entropy,
                                      .train = loader,
                                      .quiet = true};
    ls_trial *trial = ls_trial_new(&options);
    if (trial == NULL) {
        return failed();
    }
    return ended(ls_trial_run(trial, 1));
}
