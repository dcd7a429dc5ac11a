/*
 * Only rank 0 loads weights into the model of all ranks, after ls_data_parallel.
 *
 * ranks: 2 3
 * on: shm tcp
 * says: ls_data_parallel: the parameters of the ranks differ: element 0 of "weight" is 1 on rank 0 and .* on rank 1; .*
 * ls_sync_parameters
 */
#include "tests/mistakes/mistake.h"

/* Writes a file as an earlier program would. */
static ls_status save_ones(const char *path) {
    ls_module *model = ls_nn_linear(4, 2);
    const bool before = ls_no_grad(true);
    ls_status status = ls_copy_into(ls_module_find(model, "weight"), ls_ones(LS_SHAPE(2, 4), LS_F32));
    ls_no_grad(before);
    status = status == LS_OK ? ls_module_save(model, path, NULL) : status;
    ls_module_free(model);
    return status;
}

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    ls_module *model = ls_data_parallel(ls_nn_linear(4, 2), world, NULL);
    if (ls_comm_rank(world) == 0 &&
        (save_ones("ones.safetensors") != LS_OK || ls_module_load(model, "ones.safetensors") != LS_OK)) {
        return failed();
    }
    ls_optimizer *optimizer = ls_sgd(model, NULL);
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
