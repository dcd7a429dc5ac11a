/*
 * A hook changes a parameter only on the last rank.
 *
 * ranks: 2 3
 * on: shm tcp
 * says: ls_data_parallel: the parameters of the ranks differ: element 0 of "weight" is .* on rank 0 and 5 on rank [12];
 * change
 */
#include "tests/mistakes/mistake.h"

static ls_status change(ls_trial_state *state, void *user) {
    (void)user;
    if (ls_comm_rank(state->comm) < ls_comm_size(state->comm) - 1) {
        return LS_OK;
    }
    const bool before = ls_no_grad(true);
    const ls_status status = ls_copy_into(ls_module_find(state->model, "weight"), ls_full(LS_SHAPE(2, 4), LS_F32, 5));
    ls_no_grad(before);
    return status;
}

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
    const ls_trial_options options = {
        .model = model,
        .optimizer = optimizer,
        .criterion = ls_criterion_cross_entropy,
        .train = loader,
        LS_CALLBACKS(ls_callback_new(&(ls_callback_hooks){.on_end_training = change}, NULL)),
        .quiet = true};
    ls_trial *trial = ls_trial_new(&options);
    if (trial == NULL || ls_trial_run(trial, 3) != LS_OK) {
        return failed();
    }
    return ended(ls_finalize());
}
