/*
 * Loss scaling on several ranks: all ranks skip the same steps, whichever rank's samples, or part of a model, overflow.
 * The parameters are bit-identical on all ranks.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <lockstep/lockstep.h>

#include "tests/support/numbers.h"

enum { INPUTS = 6, OUTPUTS = 3, SEED = 80, STEPS = 6, SAMPLES = 12 };

static const ls_grad_scaler_options options = {.initial_scale = 1024, .growth_interval = 2};

/* ---- common code ------------------------------------------------------------------------------------------------- */

/* Tries a step, and returns whether it took place. */
static ls_status try_step(ls_grad_scaler *scaler, ls_optimizer *optimizer, const ls_module *model, bool *taken) {
    const uint64_t before = ls_module_hash(model);
    const double scale = ls_grad_scaler_get_scale(scaler);
    LS_TRY(ls_grad_scaler_step(scaler, optimizer));
    LS_TRY(ls_grad_scaler_update(scaler));
    *taken = ls_grad_scaler_get_scale(scaler) >= scale;
    LS_CHECK(*taken == (ls_module_hash(model) != before) || ls_module_parameter_count(model) == 0);
    return LS_OK;
}

/* ---- data-parallel ----------------------------------------------------------------------------------------------- */

/* In f16, the last rank's samples of step 3 are infinite. */
static ls_status data_parallel(ls_comm *world, ls_dtype reduce_dtype) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    ls_seed(SEED);
    ls_module *model = ls_data_parallel(ls_sequential(ls_nn_linear(INPUTS, 5), ls_nn_tanh(), ls_nn_linear(5, OUTPUTS)),
                                        world, &(ls_data_parallel_options){.reduce_dtype = reduce_dtype});
    ls_optimizer *optimizer = ls_adam(model, &(ls_adam_options){.learning_rate = 0.01});
    ls_grad_scaler *scaler = ls_grad_scaler_new(&options);
    for (int step = 0; step < STEPS; step++) {
        bool taken = false;
        ls_scope *scope = ls_scope_begin();
        ls_optimizer_zero_grad(optimizer);
        ls_seed((uint64_t)(SEED + step * size + rank));
        ls_tensor *x = ls_randn(LS_SHAPE(2 + rank, INPUTS), LS_F32);
        x = step == 3 && rank == size - 1 ? ls_mul(x, 1e6) : x;
        (void)ls_autocast(LS_F16);
        ls_tensor *loss = ls_mean(ls_square(ls_forward(model, x)));
        (void)ls_autocast(LS_F32);
        LS_TRY(ls_backward(ls_grad_scaler_scale(scaler, loss)));
        LS_TRY(ls_scope_end(scope));
        LS_TRY(try_step(scaler, optimizer, model, &taken));
        LS_CHECK(taken == (step != 3));
        LS_TRY(ranks_have_same_module(world, model));
    }
    LS_CHECK(ls_grad_scaler_skipped(scaler) == 1);
    LS_CHECK(ls_grad_scaler_get_scale(scaler) ==
             2048); /* the scale grows to 2048, is halved at the overflow, and grows again */
    ls_grad_scaler_free(scaler);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

/* ---- sharded models ---------------------------------------------------------------------------------------------- */

/* An element of this rank's own shard overflows, only on rank `spoilt`. */
static ls_status steps_of_parts(ls_comm *world, ls_module *model, int spoilt,
                                ls_status (*go_backwards)(ls_module *model, const ls_grad_scaler *scaler)) {
    ls_optimizer *optimizer = ls_adam(model, NULL);
    ls_grad_scaler *scaler = ls_grad_scaler_new(&options);
    LS_CHECK(model != NULL && optimizer != NULL);
    for (int step = 0; step < STEPS; step++) {
        const bool spoils = step % 3 == 1;
        bool taken = false;
        ls_optimizer_zero_grad(optimizer);
        LS_TRY(go_backwards(model, scaler));
        if (spoils && ls_comm_rank(world) == spoilt) {
            ls_tensor *gradient = ls_grad(ls_module_parameter(model, 0));
            LS_CHECK(gradient != NULL);
            ls_scope *scope = ls_scope_begin();
            LS_TRY(ls_copy_into(gradient, ls_full(ls_shape_of(gradient), LS_F32, (double)INFINITY)));
            LS_TRY(ls_scope_end(scope));
        }
        LS_TRY(try_step(scaler, optimizer, model, &taken));
        LS_CHECK(taken == !spoils);
        const double scale = ls_grad_scaler_get_scale(scaler);
        LS_TRY(ranks_have_same_bytes(world, &scale, sizeof scale));
    }
    LS_CHECK(ls_grad_scaler_skipped(scaler) == 2);
    ls_grad_scaler_free(scaler);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

static ls_status layers_backwards(ls_module *model, const ls_grad_scaler *scaler) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *y = ls_forward(model, ls_ones(LS_SHAPE(4, INPUTS), LS_F32));
    const ls_status status = ls_backward(ls_grad_scaler_scale(scaler, ls_mean(ls_square(y))));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static ls_tensor *scaled_mse(ls_tensor *output, ls_tensor *target, void *user) {
    return ls_grad_scaler_scale(user, ls_mse_loss(output, target, LS_LOSS_MEAN));
}

static ls_status pipeline_backwards(ls_module *model, const ls_grad_scaler *scaler) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_ones(LS_SHAPE(SAMPLES, INPUTS), LS_F32), *y = ls_zeros(LS_SHAPE(SAMPLES, OUTPUTS), LS_F32);
    const ls_status status = ls_pipeline_backward(model, x, y, scaled_mse, (void *)(uintptr_t)scaler, NULL);
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static ls_status models_in_parts(ls_comm *world) {
    for (int spoilt = 0; spoilt<ls_comm_size(world); spoilt += ls_comm_size(world)> 1 ? ls_comm_size(world) - 1 : 1) {
        ls_seed(SEED);
        LS_TRY(steps_of_parts(world,
                              ls_sequential(ls_nn_column_parallel(world, INPUTS, 8, NULL), ls_nn_tanh(),
                                            ls_nn_row_parallel(world, 8, OUTPUTS, NULL)),
                              spoilt, layers_backwards));
        ls_seed(SEED);
        LS_TRY(steps_of_parts(world,
                              ls_pipeline(ls_sequential(ls_nn_linear(INPUTS, 8), ls_nn_linear(8, 7), ls_nn_linear(7, 6),
                                                        ls_nn_linear(6, 5), ls_nn_linear(5, OUTPUTS)),
                                          world, NULL),
                              spoilt, pipeline_backwards));
    }
    return LS_OK;
}

/* All stages but the first have no parameters, but take part in the agreement and in the norm. */
static ls_status stages_without_parameters(ls_comm *world) {
    ls_seed(SEED);
    ls_module *layers = ls_sequential(ls_nn_linear(INPUTS, OUTPUTS));
    for (int i = 1; i < ls_comm_size(world); i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        (void)ls_module_add_child(layers, name, ls_nn_tanh());
    }
    int cut[8] = {1, 2, 3, 4, 5, 6, 7};
    LS_CHECK(ls_comm_size(world) <= 8);
    ls_module *model = ls_pipeline(layers, world, &(ls_pipeline_options){.cut = cut});
    ls_grad_scaler *scaler = ls_grad_scaler_new(&options);
    double norm = 0;
    LS_CHECK(model != NULL && scaler != NULL);
    LS_TRY(pipeline_backwards(model, scaler));
    LS_TRY(ls_clip_grad_norm(model, 1e-3, &norm));
    LS_CHECK(norm > 0);
    LS_TRY(ranks_have_same_bytes(world, &norm, sizeof norm));
    ls_module *larger = ls_sequential(ls_module_retain(model));
    LS_TRY(ls_clip_grad_norm(larger, 1, &norm));
    LS_CHECK(norm > 0 && norm < 1.001e-3);
    ls_module_free(larger);
    ls_grad_scaler_free(scaler);
    return steps_of_parts(world, model, 0, pipeline_backwards);
}

/* ---- a trial ----------------------------------------------------------------------------------------------------- */

/* The loss of step 4 is too large, only on rank 0. */
static ls_tensor *criterion(ls_tensor *output, ls_tensor *target, void *user) {
    const ls_trial_state *state = *(ls_trial_state **)user;
    ls_tensor *loss = ls_mse_loss(output, target, LS_LOSS_MEAN);
    const bool spoils = state != NULL && state->step == 4 && ls_comm_rank(state->comm) == 0;
    return spoils ? ls_mul(loss, 1e36) : loss;
}

/* Hooks see unscaled gradients. */
static ls_status on_backward(ls_trial_state *state, void *user) {
    ls_scope *scope = ls_scope_begin();
    const double largest = ls_item(ls_max(ls_abs(ls_detach(ls_grad(ls_module_parameter(state->model, 0))))));
    LS_TRY(ls_scope_end(scope));
    LS_CHECK(state->step == 4 || largest < 50);
    if (ls_data_parallel_comm(state->model) == NULL) { /* a program that averages by itself */
        LS_TRY(ls_sync_gradients(state->model, state->comm));
    }
    *(ls_trial_state **)user = state;
    return LS_OK;
}

static ls_status trial(ls_comm *world, bool averages) {
    ls_seed(SEED);
    ls_trial_state *seen = NULL;
    ls_module *model = ls_sequential(ls_nn_linear(INPUTS, 5), ls_nn_tanh(), ls_nn_linear(5, OUTPUTS));
    model = averages ? model : ls_data_parallel(model, world, NULL);
    ls_optimizer *optimizer = ls_adam(model, NULL);
    ls_grad_scaler *scaler = ls_grad_scaler_new(&(ls_grad_scaler_options){.growth_interval = 100});
    ls_scope *scope = ls_scope_begin();
    ls_dataset *set = ls_tensor_dataset(ls_randn(LS_SHAPE(5 * SAMPLES, INPUTS), LS_F32),
                                        ls_mul(ls_randn(LS_SHAPE(5 * SAMPLES, OUTPUTS), LS_F32),
                                               0.25)); /* so that no single sample's gradient overflows in f16 */
    ls_loader *loader = ls_loader_new(set, &(ls_loader_options){.global_batch_size = SAMPLES, .comm = world});
    LS_TRY(ls_scope_end(scope));
    ls_trial *trial = ls_trial_new(
        &(ls_trial_options){.model = model,
                            .optimizer = optimizer,
                            .criterion = criterion,
                            .criterion_user = &seen,
                            .train = loader,
                            .comm = averages ? world : NULL,
                            .autocast = LS_F16,
                            .grad_scaler = scaler,
                            .quiet = true,
                            LS_CALLBACKS(ls_callback_new(&(ls_callback_hooks){.on_backward = on_backward}, &seen),
                                         ls_terminate_on_nan(NULL))});
    LS_CHECK(trial != NULL);
    LS_TRY(ls_trial_run(trial, 2));
    LS_CHECK(ls_grad_scaler_skipped(scaler) == 1 && ls_grad_scaler_get_scale(scaler) == 32768);
    LS_CHECK(ls_trial_history(trial, 1, "loss") < 3);
    LS_TRY(ranks_have_same_module(world, model));
    ls_trial_free(trial);
    ls_loader_free(loader);
    ls_grad_scaler_free(scaler);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(data_parallel(world, LS_F32));
    LS_TRY(data_parallel(world, LS_F16));
    LS_TRY(models_in_parts(world));
    LS_TRY(stages_without_parameters(world));
    LS_TRY(trial(world, false));
    LS_TRY(trial(world, true));
    return ls_comm_barrier(world, NULL);
}
