/*
 * Modes of layers in a trial, with and without data parallelism: training mode is set before the hooks of a run. A mode
 * that a hook sets, or that a layer has when the run begins, persists through epochs and their validation. Modes set by
 * a hook do not affect an evaluation.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <lockstep/parallel.h>
#include <lockstep/train.h>

enum { SAMPLES = 12, EPOCHS = 3, HOOKS = 3 };

/* A hook that sets one layer to evaluation mode once, or all other layers to training mode each time. */
typedef struct freezer {
    ls_module *layer;
    int hook; /* index of the hook that changes the modes; HOOKS if none does */
    bool always;
    int calls[HOOKS];
    int64_t steps, wrong;
} freezer;

static ls_status act(ls_trial_state *state, freezer *self, int hook) {
    if (!ls_module_is_training(state->model)) {
        self->wrong++;
    }
    if (hook == self->hook && self->calls[hook]++ == 0) {
        ls_module_train(self->layer, false);
    } else if (hook == self->hook && self->always) {
        ls_module_train(state->model, true);
        ls_module_train(self->layer, false);
    }
    return LS_OK;
}

static ls_status on_start(ls_trial_state *state, void *user) {
    return act(state, user, 0);
}

static ls_status on_start_epoch(ls_trial_state *state, void *user) {
    return act(state, user, 1);
}

static ls_status on_start_training(ls_trial_state *state, void *user) {
    return act(state, user, 2);
}

static ls_status on_step_training(ls_trial_state *state, void *user) {
    freezer *self = user;
    self->steps++;
    self->wrong += !ls_module_is_training(state->model) || ls_module_is_training(self->layer);
    return LS_OK;
}

static ls_status in_validation(ls_trial_state *state, void *user) {
    freezer *self = user;
    self->wrong += ls_module_is_training(state->model) || ls_module_is_training(self->layer);
    return LS_OK;
}

static ls_loader *make_loader(ls_comm *world) {
    return ls_loader_new(
        ls_tensor_dataset(ls_ones(LS_SHAPE(SAMPLES, 4), LS_F32), ls_zeros(LS_SHAPE(SAMPLES, 2), LS_F32)),
        &(ls_loader_options){.global_batch_size = 6, .comm = world});
}

static ls_status check(ls_comm *world, int hook, bool always, bool parallel) {
    ls_module *norm = ls_nn_batch_norm_1d(4, NULL);
    ls_module *model = ls_sequential(norm, ls_nn_linear(4, 2));
    model = parallel ? ls_data_parallel(model, world, NULL) : model;
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    ls_loader *train = make_loader(parallel ? world : NULL);
    ls_loader *validate = make_loader(parallel ? world : NULL);
    freezer self = {.layer = norm, .hook = hook, .always = always};
    ls_callback *hooks = ls_callback_new(&(ls_callback_hooks){.on_start = on_start,
                                                              .on_start_epoch = on_start_epoch,
                                                              .on_start_training = on_start_training,
                                                              .on_step_training = on_step_training,
                                                              .on_start_validation = in_validation,
                                                              .on_step_validation = in_validation,
                                                              .on_end_validation = in_validation},
                                         &self);
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_mse,
                                                       .train = train,
                                                       .validate = validate,
                                                       .callbacks = &hooks,
                                                       .callback_count = 1,
                                                       .quiet = true});
    LS_CHECK(trial != NULL);
    if (hook == HOOKS) {
        ls_module_train(norm, false);
    } else {
        ls_module_train(model, false);
    }
    LS_CHECK(ls_trial_run(trial, EPOCHS) == LS_OK);
    LS_CHECK(ls_trial_evaluate(trial, validate, "test") == LS_OK);
    LS_CHECK(ls_module_is_training(model) && !ls_module_is_training(norm));
    LS_CHECK(self.steps == (int64_t)EPOCHS * 2);
    const int first = always && hook == 0; /* sets the model to training mode in the evaluation */
    LS_CHECK(self.wrong == 2 - first);     /* on_start and on_start_epoch of the evaluation */
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_loader_free(train);
    ls_loader_free(validate);
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    for (int hook = 0; hook <= HOOKS; hook++) {
        LS_TRY(check(world, hook, false, true));
        LS_TRY(check(world, hook, false, false));
        LS_TRY(check(world, hook, true, true));
        LS_TRY(check(world, hook, true, false));
    }
    return LS_OK;
}
