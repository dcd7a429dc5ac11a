/*
 * Rank 1 uses a different learning rate, for example read from its own file.
 *
 * ranks: 2 3
 * on: shm tcp
 * says: ls_trial: the ranks' optimizers differ: rank 0 has .*learning_rate 0\.1\), but rank 1 has .*learning_rate
 * 0\.01\)
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    ls_module *model = ls_data_parallel(ls_nn_linear(4, 2), world, NULL);
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = ls_comm_rank(world) == 1 ? 0.01 : 0.1});
    ls_loader *loader =
        ls_loader_new(ls_tensor_dataset(ls_randn(LS_SHAPE(48, 4), LS_F32), ls_zeros(LS_SHAPE(48), LS_I64)),
                      &(ls_loader_options){.batch_size = 4, .comm = world});
    const ls_trial_options options = {.model = model,
                                      .optimizer = optimizer,
                                      .criterion = ls_criterion_cross_entropy,
                                      .train = loader,
                                      .quiet = true};
    ls_trial *trial = ls_trial_new(&options);
    if (trial == NULL || ls_trial_run(trial, 3) != LS_OK) {
        return failed();
    }
    return ended(ls_finalize());
}
