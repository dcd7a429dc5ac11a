/*
 * The program runs a second time, and finds the checkpoints of the first run.
 *
 * ranks: 1 2
 * on: shm tcp
 * says: checkpoint: an earlier run left checkpoints, and .* is further along than this trial: resume from it
 * \(.resume = "saved"
 */
#include "tests/mistakes/mistake.h"

static ls_status run_program(ls_comm *world) {
    ls_module *model = ls_data_parallel(ls_nn_linear(4, 2), world, NULL);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    ls_loader *loader = ls_loader_new(ls_tensor_dataset(ls_ones(LS_SHAPE(8, 4), LS_F32), ls_zeros(LS_SHAPE(8), LS_I64)),
                                      &(ls_loader_options){.batch_size = 2, .comm = world});
    const ls_trial_options options = {.model = model,
                                      .optimizer = optimizer,
                                      .criterion = ls_criterion_cross_entropy,
                                      .train = loader,
                                      .checkpoint = &(ls_checkpoint_options){.folder = "saved"},
                                      .quiet = true};
    ls_trial *trial = ls_trial_new(&options);
    return trial != NULL ? ls_trial_run(trial, 1) : LS_ERR_ARGUMENT;
}

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL || run_program(world) != LS_OK || run_program(world) != LS_OK) {
        return failed();
    }
    return ended(ls_finalize());
}
