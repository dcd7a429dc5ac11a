/*
 * Callbacks whose models are sharded over ranks, or whose trial has state of ranks: a callback works as in a single
 * process, or the trial is refused on all ranks.
 *
 * ranks: 1 2 3 4
 * devices: cpu
 */
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"

#include <stdio.h>

#include <lockstep/lockstep.h>

/* ---- refused trials ---------------------------------------------------------------------------------------------- */

typedef enum sharding { WHOLE, TENSORS, ZERO_1, ZERO_2, ZERO_3, PIPELINE } sharding;

static ls_module *make_model(ls_comm *world, sharding how) {
    ls_seed(1);
    if (how == TENSORS) {
        return ls_sequential(ls_nn_column_parallel(world, 8, 6, NULL), ls_nn_tanh(),
                             ls_nn_row_parallel(world, 6, 5, NULL));
    }
    ls_module *model = ls_sequential(ls_nn_linear(8, 6), ls_nn_tanh(), ls_nn_linear(6, 6), ls_nn_linear(6, 5));
    static const int stages[] = {[ZERO_1] = 1, [ZERO_2] = 2, [ZERO_3] = 3};
    return how == PIPELINE ? ls_pipeline(model, world, NULL)
           : how == WHOLE  ? ls_data_parallel(model, world, NULL)
                           : ls_data_parallel(model, world, &(ls_data_parallel_options){.zero = stages[how]});
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
    }
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(loader);
    (void)ls_scope_end(scope);
    return LS_OK;
}

static ls_status add_to_loss(ls_trial_state *state, void *user) {
    (void)user;
    ls_tensor *weight = ls_module_parameter(state->model, 0);
    state->loss = ls_add(state->loss, ls_sum(ls_mul(weight, weight)));
    return state->loss != NULL ? LS_OK : ls_error_status();
}

/* The default step of a pipeline would train only the term that the hook adds. */
static ls_status refuses_to_run(ls_comm *world) {
    ls_tensor *x = ls_randn(LS_SHAPE(12, 8), LS_F32), *y = ls_randn(LS_SHAPE(12, 5), LS_F32);
    ls_loader *loader = ls_loader_new(ls_tensor_dataset(x, y), &(ls_loader_options){.batch_size = 4});
    ls_module *model = make_model(world, PIPELINE);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    ls_callback *callback = ls_callback_new(&(ls_callback_hooks){.on_criterion = add_to_loss}, NULL);
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_mse,
                                                       .train = loader,
                                                       .comm = world,
                                                       .quiet = true,
                                                       LS_CALLBACKS(callback)});
    LS_CHECK(trial != NULL && ls_trial_run(trial, 1) == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE("the default step cannot train a pipeline (ls_pipeline)");
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(loader);
    return LS_OK;
}

static ls_status refuses(ls_comm *world) {
    LS_TRY(make_trial(world, WHOLE, ls_weight_decay(0.1, 2), NULL));
    LS_TRY(make_trial(world, WHOLE, ls_lsuv(NULL), NULL));
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    LS_TRY(make_trial(world, TENSORS, ls_terminate_on_nan(NULL), NULL));
    LS_TRY(make_trial(world, TENSORS, ls_lsuv(NULL), NULL));
    LS_TRY(make_trial(world, ZERO_1, ls_terminate_on_nan(NULL), NULL));
    LS_TRY(make_trial(world, ZERO_1, ls_weight_decay(0.1, 2), NULL));
    LS_TRY(make_trial(world, TENSORS, ls_weight_decay(0.1, 2),
                      "ls_weight_decay: each rank has only a part of parameter 0, "));
    LS_TRY(make_trial(world, ZERO_2, ls_weight_decay(0.1, 2), "(.zero = 2 or 3): use .weight_decay of the optimizer"));
    LS_TRY(make_trial(world, ZERO_3, ls_weight_decay(0.1, 2), "(.zero = 2 or 3): use .weight_decay of the optimizer"));
    LS_TRY(make_trial(world, ZERO_2, ls_terminate_on_nan(NULL), "ls_terminate_on_nan: each rank has only a part"));
    LS_TRY(make_trial(world, ZERO_3, ls_terminate_on_nan(NULL), "ls_terminate_on_nan: each rank has only a part"));
    LS_TRY(refuses_to_run(world));
    LS_TRY(make_trial(world, PIPELINE, ls_weight_decay(0.1, 2), "ls_weight_decay: the model is a pipeline"));
    return make_trial(world, PIPELINE, ls_lsuv(NULL), "ls_lsuv: the model is a pipeline");
}

/* ---- parameters in parts ----------------------------------------------------------------------------------------- */

enum { KINDS = 6, TENSORBOARD = 5 };

static ls_callback *make_callback(const ls_comm *world, int kind) {
    switch (kind) {
    case 0:
        return ls_weight_averaging(&(ls_weight_averaging_options){.keep = true});
    case 1:
        return ls_early_stopping(&(ls_early_stopping_options){.monitor = "loss", .restore_best = true});
    case 2:
        return ls_rate_finder(&(ls_rate_finder_options){.steps = 4});
    case 3:
        return ls_initialize(NULL);
    case 4:
        return ls_lsuv(NULL);
    default:
        return ls_tensorboard(ls_comm_rank(world) == 0 ? in_scratch("board") : "/dev/null/folder",
                              &(ls_tensorboard_options){.no_model = true});
    }
}

typedef struct run_plan {
    sharding how;
    int kind; /* of the callback */
    bool gathers;
    const char *folder; /* of checkpoints, from which the run resumes; may be NULL */
    int64_t epochs;
} run_plan;

typedef struct trained {
    bool created;
    ls_status status;
    uint64_t hash;
    int64_t epochs; /* number of epochs that this run trained */
} trained;

static ls_status count_epoch(ls_trial_state *state, void *user) {
    (void)state;
    ((trained *)user)->epochs++;
    return LS_OK;
}

/* Trains a model with the callback. */
static ls_status train_with(ls_comm *world, const run_plan *plan, trained *is) {
    ls_scope *scope = ls_scope_begin();
    const ls_checkpoint_options checkpoint = {.folder = plan->folder};
    ls_seed(3);
    ls_tensor *x = ls_randn(LS_SHAPE(12, 8), LS_F32), *y = ls_randn(LS_SHAPE(12, 5), LS_F32);
    ls_loader *loader =
        ls_loader_new(ls_tensor_dataset(x, y), &(ls_loader_options){.global_batch_size = 12, .comm = world});
    ls_module *model = make_model(world, plan->how);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    LS_TRY(plan->gathers ? ls_data_parallel_gather(model, true) : LS_OK);
    ls_callback *counter = ls_callback_new(&(ls_callback_hooks){.on_start_epoch = count_epoch}, is);
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_mse,
                                                       .train = loader,
                                                       .comm = world,
                                                       .quiet = true,
                                                       .checkpoint = plan->folder != NULL ? &checkpoint : NULL,
                                                       .resume = plan->folder,
                                                       LS_CALLBACKS(make_callback(world, plan->kind), counter)});
    *is = (trained){.created = trial != NULL, .status = ls_error_status()};
    if (trial != NULL) {
        /* allowed until the program ends the gathering */
        ls_tensor *alias = plan->gathers && plan->folder != NULL ? ls_detach(ls_module_parameter(model, 0)) : NULL;
        is->status = ls_trial_run(trial, plan->epochs);
        ls_release(alias);
    }
    if (is->status == LS_OK) {
        LS_TRY(plan->gathers ? LS_OK : ls_data_parallel_gather(model, true));
        is->hash = ls_module_hash(model); /* fails unless the model is still gathered */
        LS_CHECK(is->hash != 0);
        LS_TRY(ls_data_parallel_gather(model, false));
    }
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(loader);
    (void)ls_scope_end(scope);
    return ls_comm_barrier(world, NULL);
}

/* With .zero = 3, these callbacks need ls_data_parallel_gather. Then they train like with .zero = 2. */
static ls_status need_parameters(ls_comm *world) {
    for (int kind = 0; kind < KINDS; kind++) {
        trained parts, whole, reference;
        run_plan plan = {.how = ZERO_3, .kind = kind, .epochs = 2};
        LS_TRY(train_with(world, &plan, &parts));
        if (ls_comm_size(world) == 1) {
            LS_CHECK(parts.status == LS_OK);
        } else {
            LS_CHECK(parts.status == LS_ERR_UNSUPPORTED && parts.created == (kind == TENSORBOARD));
            LS_EXPECT_MESSAGE("with .zero = 3 in ls_data_parallel, each rank has only a part of the parameters: ");
            LS_EXPECT_MESSAGE("or call ls_data_parallel_gather(model, true) before ls_trial_new");
        }
        plan.gathers = true;
        LS_TRY(train_with(world, &plan, &whole));
        plan.how = ZERO_2;
        plan.gathers = false;
        LS_TRY(train_with(world, &plan, &reference));
        LS_CHECK(whole.status == LS_OK && reference.status == LS_OK && whole.hash == reference.hash);
    }
    return LS_OK;
}

/* With ls_data_parallel_gather, a resumed run needs the parameters too, and trains like with .zero = 2. */
static ls_status resumes_with_parameters(ls_comm *world) {
    uint64_t hashes[2];
    for (int i = 0; i < 2; i++) {
        run_plan plan = {
            .how = i == 0 ? ZERO_2 : ZERO_3, .gathers = true, .folder = in_scratch(i == 0 ? "stage-2" : "stage-3")};
        for (plan.epochs = 1; plan.epochs <= 2; plan.epochs++) {
            trained is;
            LS_TRY(train_with(world, &plan, &is));
            LS_CHECK(is.status == LS_OK && is.epochs == 1); /* the second run resumes after the first epoch */
            hashes[i] = is.hash;
        }
    }
    LS_CHECK(hashes[0] == hashes[1]);
    return LS_OK;
}

/* ---- the rate finder --------------------------------------------------------------------------------------------- */

typedef enum replicas { AVERAGED, OUTER, LOCAL_SGD, LEVELS } replicas;

typedef struct plan {
    replicas replicas;
    int powersgd_rank;
    bool capture, clips, decays, scales;
    double highest; /* last rate of the test */
} plan;

/* The model with its optimizers. With LEVELS, pairs of ranks average gradients, and take outer steps between pairs. */
typedef struct parts {
    ls_module *model;
    ls_outer *outer;
    ls_optimizer *optimizer;
    ls_grad_scaler *scaler;
    ls_comm *inside, *between;
} parts;

static ls_status make_parts(ls_comm *world, const plan *how, parts *made) {
    const int rank = ls_comm_rank(world);
    const ls_data_parallel_options options = {.powersgd_rank = how->powersgd_rank};
    const ls_outer_options local_sgd = {.steps = 4, .learning_rate = 1, .momentum = LS_ZERO};
    ls_module *whole = ls_sequential(ls_nn_linear(8, 20), ls_nn_tanh(), ls_nn_linear(20, 12), ls_nn_linear(12, 1));
    *made = (parts){.model = whole, .inside = NULL};
    if (how->replicas == LEVELS) {
        LS_TRY(ls_comm_split(world, rank / 2, rank, &made->inside));
        LS_TRY(ls_comm_split(world, rank % 2, rank, &made->between));
    }
    if (how->replicas == AVERAGED || how->replicas == LEVELS) {
        made->model = ls_data_parallel(whole, made->inside != NULL ? made->inside : world, &options);
    }
    if (how->replicas != AVERAGED) {
        made->outer = ls_outer_new(made->model, made->between != NULL ? made->between : world,
                                   how->replicas == LOCAL_SGD ? &local_sgd : &(ls_outer_options){.steps = 4});
        LS_CHECK(made->outer != NULL);
    }
    made->optimizer = ls_adam(made->model, &(ls_adam_options){.learning_rate = 0.01});
    made->scaler = how->scales ? ls_grad_scaler_new(&(ls_grad_scaler_options){.growth_interval = 4}) : NULL;
    return LS_OK;
}

static void free_parts(const parts *made) {
    ls_outer_free(made->outer);
    ls_grad_scaler_free(made->scaler);
    ls_optimizer_free(made->optimizer);
    ls_module_free(made->model);
    ls_comm_free(made->inside);
    ls_comm_free(made->between);
}

/* Results of a run: what later training depends on, and the steps of the range test. */
typedef struct outcome {
    uint64_t hash;
    double loss, scale;
    int64_t tested;
} outcome;

/* Trains. `finder` is NULL for a run without a range test. */
static ls_status train(ls_comm *world, const plan *how, ls_callback *finder, outcome *is) {
    ls_scope *scope = ls_scope_begin();
    ls_seed(2);
    ls_tensor *x = ls_randn(LS_SHAPE(60, 8), LS_F32), *y = ls_sin(ls_sum_axes(x, LS_AXES(1), true));
    ls_loader *loader =
        ls_loader_new(ls_tensor_dataset(x, y), &(ls_loader_options){.global_batch_size = 12, .comm = world});
    parts with;
    LS_TRY(make_parts(world, how, &with));
    ls_callback *const possible[] = {how->clips ? ls_gradient_norm_clipping(0.01) : NULL,
                                     how->decays ? ls_weight_decay(0.1, 2) : NULL, finder};
    ls_callback *callbacks[3];
    int count = 0;
    for (int i = 0; i < 3; i++) {
        if (possible[i] != NULL) {
            callbacks[count++] = possible[i];
        }
    }
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = with.model,
                                                       .optimizer = with.optimizer,
                                                       .criterion = ls_criterion_mse,
                                                       .train = loader,
                                                       .comm = world,
                                                       .outer = with.outer,
                                                       .grad_scaler = with.scaler,
                                                       .capture = how->capture,
                                                       .callbacks = callbacks,
                                                       .callback_count = count,
                                                       .quiet = true});
    LS_CHECK(trial != NULL);
    LS_TRY(ls_trial_run(trial, 3));
    *is = (outcome){.hash = ls_module_hash(with.model),
                    .loss = ls_trial_metric(trial, "loss"),
                    .scale = with.scaler != NULL ? ls_grad_scaler_get_scale(with.scaler) : 1,
                    .tested = ls_rate_finder_count(finder)};
    ls_trial_free(trial);
    free_parts(&with);
    ls_loader_free(loader);
    return ls_scope_end(scope);
}

/* A run after the range test is bit-identical to a run without the test. */
static ls_status restores(ls_comm *world, plan how) {
    enum { STEPS = 11 }; /* not a multiple of the steps between outer steps */
    ls_callback *finder = ls_rate_finder(&(ls_rate_finder_options){.steps = STEPS, .highest = how.highest});
    outcome plain, after;
    LS_TRY(train(world, &how, NULL, &plain));
    LS_TRY(train(world, &how, finder, &after));
    LS_CHECK(plain.hash == after.hash && plain.loss == after.loss && plain.scale == after.scale);
    LS_CHECK(plain.tested == 0 && after.tested > 1 && (after.tested == STEPS || how.highest > 1));
    return LS_OK;
}

/* The test ends early, with parameters that diverged. */
static const double diverges = 1e6;

static ls_status restores_captured_steps(ls_comm *world) {
    LS_TRY(restores(world, (plan){.highest = 0.1, .clips = true}));
    LS_TRY(restores(world, (plan){.highest = 0.1, .clips = true, .capture = true}));
    LS_TRY(restores(world, (plan){.highest = 0.1, .decays = true, .capture = true}));
    return restores(world, (plan){.highest = diverges, .clips = true, .decays = true, .capture = true});
}

static ls_status restores_replicas(ls_comm *world) {
    for (int i = OUTER; i <= LOCAL_SGD; i++) {
        LS_TRY(restores(world, (plan){.highest = 0.1, .replicas = (replicas)i}));
        LS_TRY(restores(world, (plan){.highest = 0.1, .replicas = (replicas)i, .clips = true, .capture = true}));
        LS_TRY(restores(world, (plan){.highest = diverges, .replicas = (replicas)i, .scales = true}));
    }
    if (ls_comm_size(world) == 4) {
        LS_TRY(restores(world, (plan){.highest = 0.1, .replicas = LEVELS, .powersgd_rank = 2}));
    }
    LS_TRY(restores(world, (plan){.highest = 0.1, .powersgd_rank = 2, .capture = true, .clips = true}));
    return restores(world, (plan){.highest = diverges, .powersgd_rank = 2});
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(make_scratch(world));
    LS_TRY(refuses(world));
    LS_TRY(need_parameters(world));
    LS_TRY(resumes_with_parameters(world));
    LS_TRY(restores_captured_steps(world));
    LS_TRY(restores_replicas(world));
    return remove_scratch(world);
}
