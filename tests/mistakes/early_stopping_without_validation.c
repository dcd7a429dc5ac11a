/*
 * Stops early by the validation loss, without validation.
 *
 * ranks: 1 2
 * says: ls_early_stopping: there is no metric "val_loss"; available: loss\. Was \.validate set\?
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    ls_module *model = ls_data_parallel(ls_nn_linear(4, 2), world, NULL);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    ls_loader *loader =
        ls_loader_new(ls_tensor_dataset(ls_ones(LS_SHAPE(48, 4), LS_F32), ls_zeros(LS_SHAPE(48), LS_I64)),
                      &(ls_loader_options){.batch_size = 4, .comm = world});
    const ls_trial_options options = {.model = model,
                                      .optimizer = optimizer,
                                      .criterion = ls_criterion_cross_entropy,
                                      .train = loader,
                                      LS_CALLBACKS(ls_early_stopping(NULL)),
                                      .quiet = true};
    ls_trial *trial = ls_trial_new(&options);
    if (trial == NULL || ls_trial_run(trial, 3) != LS_OK) {
        return failed();
    }
    return ended(ls_finalize());
}
