/*
 * Clips gradients only on rank 0.
 *
 * ranks: 2 3
 * on: shm tcp
 * says: ls_trial: the ranks' callbacks differ: rank 0 has ls_gradient_norm_clipping \(limit 1\), but rank 1 has none
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
        ls_loader_new(ls_tensor_dataset(ls_randn(LS_SHAPE(48, 4), LS_F32), ls_zeros(LS_SHAPE(48), LS_I64)),
                      &(ls_loader_options){.batch_size = 4, .comm = world});
    ls_callback *clipping = ls_comm_rank(world) == 0 ? ls_gradient_norm_clipping(1) : NULL;
    const ls_trial_options options = {.model = model,
                                      .optimizer = optimizer,
                                      .criterion = ls_criterion_cross_entropy,
                                      .train = loader,
                                      .callbacks = &clipping,
                                      .callback_count = clipping != NULL ? 1 : 0,
                                      .quiet = true};
    ls_trial *trial = ls_trial_new(&options);
    if (trial == NULL || ls_trial_run(trial, 3) != LS_OK) {
        return failed();
    }
    return ended(ls_finalize());
}
