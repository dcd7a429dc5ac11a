/*
 * Only rank 0 evaluates the model after each epoch, to print the loss.
 *
 * ranks: 2 3
 * says: rank 0 called .*, in ls_trial_evaluate \(#[0-9]+\); ranks? .* called .*, in ls_trial_run \(#
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    ls_module *model = ls_data_parallel(ls_nn_linear(4, 2), world, NULL);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    ls_dataset *dataset = ls_tensor_dataset(ls_randn(LS_SHAPE(48, 4), LS_F32), ls_zeros(LS_SHAPE(48), LS_I64));
    ls_loader *loader = ls_loader_new(dataset, &(ls_loader_options){.batch_size = 4, .comm = world});
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_cross_entropy,
                                                       .train = loader,
                                                       .quiet = true});
    if (trial == NULL) {
        return failed();
    }
    for (int epoch = 1; epoch <= 2; epoch++) {
        if (ls_trial_run(trial, epoch) != LS_OK) {
            return failed();
        }
        if (ls_comm_rank(world) == 0) {
            if (ls_trial_evaluate(trial, loader, "test") != LS_OK) {
                return failed();
            }
            printf("%g\n", ls_trial_metric(trial, "test_loss"));
        }
    }
    return ended(ls_finalize());
}
