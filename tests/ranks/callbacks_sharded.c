/*
 * Callbacks whose models are sharded over ranks, or whose trial has state of ranks: a callback works as in one process,
 * or the trial is refused on all ranks.
 *
 * ranks: 1 2 3
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <lockstep/lockstep.h>

/* ---- refused trials ---------------------------------------------------------------------------------------------- */

typedef enum sharding { WHOLE, TENSORS, ZERO_2, ZERO_3, PIPELINE } sharding;

static ls_module *make_model(ls_comm *world, sharding how) {
    ls_seed(1);
    if (how == TENSORS) {
        return ls_sequential(ls_nn_column_parallel(world, 8, 6, NULL), ls_nn_tanh(),
                             ls_nn_row_parallel(world, 6, 5, NULL));
    }
    ls_module *model = ls_sequential(ls_nn_linear(8, 6), ls_nn_tanh(), ls_nn_linear(6, 6), ls_nn_linear(6, 5));
    return how == PIPELINE ? ls_pipeline(model, world, NULL)
           : how == WHOLE  ? ls_data_parallel(model, world, NULL)
                           : ls_data_parallel(model, world, &(ls_data_parallel_options){.zero = how == ZERO_2 ? 2 : 3});
}

/* Creates a trial with the callback. Fails the test unless that fails with the message `part`, or succeeds if `part` is
 * NULL. */
static ls_status make_trial(ls_comm *world, sharding how, ls_callback *callback, const char *part) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_randn(LS_SHAPE(12, 8), LS_F32), *y = ls_randn(LS_SHAPE(12, 5), LS_F32);
    ls_loader *loader = ls_loader_new(ls_tensor_dataset(x, y), &(ls_loader_options){.batch_size = 4});
    ls_module *model = make_model(world, how);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    LS_CHECK(loader != NULL && optimizer != NULL && callback != NULL);
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_mse,
                                                       .train = loader,
                                                       .comm = world,
                                                       .quiet = true,
                                                       LS_CALLBACKS(callback)});
    LS_CHECK((trial != NULL) == (part == NULL));
    if (part != NULL) {
        LS_CHECK(ls_error_status() == LS_ERR_UNSUPPORTED);
        LS_EXPECT_MESSAGE(part);
        ls_callback_free(callback);
    }
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(loader);
    (void)ls_scope_end(scope);
    return LS_OK;
}

static ls_status refuses(ls_comm *world) {
    LS_TRY(make_trial(world, WHOLE, ls_weight_decay(0.1, 2), NULL));
    LS_TRY(make_trial(world, WHOLE, ls_lsuv(NULL), NULL));
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    LS_TRY(make_trial(world, TENSORS, ls_weight_decay(0.1, 2),
                      "ls_weight_decay: each rank has only a part of parameter 0, "));
    LS_TRY(make_trial(world, ZERO_2, ls_weight_decay(0.1, 2), "(.zero = 2 or 3): use .weight_decay of the optimizer"));
    LS_TRY(make_trial(world, ZERO_3, ls_weight_decay(0.1, 2), "(.zero = 2 or 3): use .weight_decay of the optimizer"));
    LS_TRY(make_trial(world, ZERO_2, ls_terminate_on_nan(NULL), "ls_terminate_on_nan: each rank has only a part"));
    LS_TRY(make_trial(world, ZERO_3, ls_terminate_on_nan(NULL), "ls_terminate_on_nan: each rank has only a part"));
    return make_trial(world, PIPELINE, ls_lsuv(NULL), "ls_lsuv: the model is a pipeline");
}

/* ---- the rate finder --------------------------------------------------------------------------------------------- */

typedef struct plan {
    bool capture, clips, outer;
    int powersgd_rank;
} plan;

/* Trains with or without a range test before. */
static ls_status train(ls_comm *world, const plan *how, bool finds, uint64_t *hash) {
    ls_scope *scope = ls_scope_begin();
    ls_seed(2);
    ls_tensor *x = ls_randn(LS_SHAPE(60, 8), LS_F32), *y = ls_sin(ls_sum_axes(x, LS_AXES(1), true));
    ls_loader *loader =
        ls_loader_new(ls_tensor_dataset(x, y), &(ls_loader_options){.global_batch_size = 12, .comm = world});
    ls_module *whole = ls_sequential(ls_nn_linear(8, 20), ls_nn_tanh(), ls_nn_linear(20, 12), ls_nn_linear(12, 1));
    ls_outer *outer = how->outer ? ls_outer_new(whole, world, &(ls_outer_options){.steps = 4}) : NULL;
    const ls_data_parallel_options options = {.powersgd_rank = how->powersgd_rank};
    ls_module *model = how->outer ? whole : ls_data_parallel(whole, world, &options);
    ls_optimizer *optimizer = ls_adam(model, &(ls_adam_options){.learning_rate = 0.01});
    ls_callback *callbacks[2];
    int count = 0;
    if (how->clips) {
        callbacks[count++] = ls_gradient_norm_clipping(0.01);
    }
    if (finds) {
        callbacks[count++] = ls_rate_finder(&(ls_rate_finder_options){.steps = 11, .highest = 0.1});
    }
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_mse,
                                                       .train = loader,
                                                       .outer = outer,
                                                       .capture = how->capture,
                                                       .callbacks = callbacks,
                                                       .callback_count = count,
                                                       .quiet = true});
    LS_CHECK(trial != NULL);
    LS_TRY(ls_trial_run(trial, 3));
    *hash = ls_module_hash(model);
    ls_trial_free(trial);
    ls_outer_free(outer);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(loader);
    return ls_scope_end(scope);
}

/* The range test leaves nothing behind. */
static ls_status restores(ls_comm *world, const plan *how) {
    uint64_t plain, found;
    LS_TRY(train(world, how, false, &plain));
    LS_TRY(train(world, how, true, &found));
    LS_CHECK(plain == found);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(refuses(world));
    LS_TRY(restores(world, &(plan){.clips = true}));
    LS_TRY(restores(world, &(plan){.clips = true, .capture = true}));
    LS_TRY(restores(world, &(plan){.outer = true}));
    LS_TRY(restores(world, &(plan){.powersgd_rank = ls_comm_size(world) > 1 ? 2 : 0}));
    return ls_comm_barrier(world, NULL);
}
