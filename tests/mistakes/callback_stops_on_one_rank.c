/*
 * A callback fails on one rank.
 *
 * ranks: 2 3
 * says: rank 1.*no space for pictures|no space for pictures
 */
#include "tests/mistakes/mistake.h"

static ls_status draw(ls_trial_state *state, void *user) {
    (void)user;
    return ls_comm_rank(state->comm) == 1 ? ls_error_set(LS_ERR_IO, "draw: no space for pictures") : LS_OK;
}

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
    ls_callback *callback = ls_callback_new(&(ls_callback_hooks){.on_end_epoch = draw}, NULL);
    const ls_trial_options options = {.model = model,
                                      .optimizer = optimizer,
                                      .criterion = ls_criterion_cross_entropy,
                                      .train = loader,
                                      .callbacks = &callback,
                                      .callback_count = 1,
                                      .quiet = true};
    ls_trial *trial = ls_trial_new(&options);
    if (trial == NULL || ls_trial_run(trial, 3) != LS_OK) {
        return failed();
    }
    return ended(ls_finalize());
}
