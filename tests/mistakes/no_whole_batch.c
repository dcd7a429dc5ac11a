/*
 * The data set has fewer samples than a batch, and drop_last is set.
 *
 * ranks: 1
 * says: ls_trial_run: the training loader has no batches: drop_last leaves out the only batch, .* global batch of 16;
 * make batches smaller
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_module *model = ls_nn_linear(4, 2);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    ls_loader *loader = ls_loader_new(ls_tensor_dataset(ls_ones(LS_SHAPE(8, 4), LS_F32), ls_zeros(LS_SHAPE(8), LS_I64)),
                                      &(ls_loader_options){.batch_size = 16, .drop_last = true});
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
