/*
 * Warnings for trials whose ranks train separately or do the same work, on any number of ranks, and no warnings for
 * correct trials: with data parallelism, tensor parallelism and pipelines, with gradients averaged by a hook, with
 * models averaged after each epoch, with separate data sets or targets per rank, with a partition of a model on each
 * rank, and with a communicator of one rank. Rank 0 warns once.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

enum { SAMPLES = 24, EPOCHS = 3 };

/* ---- the log ----------------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t lines, fitting; /* of all ranks that are threads of this process */
static const char *sought;

static void note(ls_log_level level, int rank, const char *line, void *user) {
    (void)rank;
    (void)user;
    pthread_mutex_lock(&lock);
    if (level == LS_LOG_WARNING) {
        lines++;
        fitting += sought != NULL && strstr(line, sought) != NULL;
    }
    pthread_mutex_unlock(&lock);
}

static void seek(const char *text) {
    pthread_mutex_lock(&lock);
    lines = fitting = 0;
    sought = text;
    pthread_mutex_unlock(&lock);
    ls_log_set_sink(note, NULL); /* not under this test's lock: the sink takes it while the log's own lock is held */
}

/* Sets `all` to the number of warnings, and to the number of warnings with the sought text. Collective. */
static ls_status count(ls_comm *world, int64_t all[2]) {
    LS_TRY(ls_comm_barrier(world, NULL));
    pthread_mutex_lock(&lock);
    all[0] = lines;
    all[1] = fitting;
    pthread_mutex_unlock(&lock);
    return ls_comm_allreduce(world, all, all, 2, LS_I64, LS_MAX, NULL);
}

/* ---- trials ------------------------------------------------------------------------------------------------------ */

static ls_status average_gradients(ls_trial_state *state, void *user) {
    return ls_sync_gradients(state->model, user);
}

static ls_status take_first_model(ls_trial_state *state, void *user) {
    return ls_sync_parameters(state->model, user, 0);
}

/* A program's callbacks may provide a string that the ranks compare. */
static void describe(void *user, char *text, size_t size) {
    (void)user;
    snprintf(text, size, "take the first model");
}

static ls_status do_nothing(ls_trial_state *state, void *user) {
    (void)state;
    (void)user;
    return LS_OK;
}

/* The model of each rank is one term of a sum. */
static ls_tensor *compare_sum(ls_tensor *output, ls_tensor *target, void *user) {
    return ls_criterion_mse(ls_allreduce(user, output, LS_SUM), target, NULL);
}

/* Each rank trains on its share of the batch, although the loader has no .comm. */
static ls_status take_share(ls_trial_state *state, void *user) {
    const int64_t ranks = ls_comm_size(user), rank = ls_comm_rank(user), rows = ls_size(state->input, 0);
    const int64_t first = rank * rows / ranks, last = (rank + 1) * rows / ranks;
    const int64_t count = last > first ? last - first : 1;
    state->input = ls_narrow(state->input, 0, first < rows - 1 ? first : rows - 1, count);
    state->target = ls_narrow(state->target, 0, first < rows - 1 ? first : rows - 1, count);
    return state->target != NULL ? LS_OK : ls_error_status();
}

static ls_status train_alone(ls_trial_state *state, void *user) {
    (void)user;
    ls_optimizer_zero_grad(state->optimizer);
    if (state->count > 0) {
        state->output = ls_forward(state->model, state->input);
        state->loss = ls_criterion_mse(state->output, state->target, NULL);
        LS_TRY(ls_backward(state->loss));
    }
    return ls_optimizer_step(state->optimizer);
}

static ls_status train_pipeline(ls_trial_state *state, void *user) {
    double loss = 0;
    (void)user;
    ls_optimizer_zero_grad(state->optimizer);
    LS_TRY(ls_pipeline_backward(state->model, state->input, state->target, ls_criterion_mse, NULL, &loss));
    state->output = state->target;
    state->loss = ls_scalar(loss, LS_F64);
    return ls_optimizer_step(state->optimizer);
}

typedef struct setup {
    bool parallel;           /* ls_data_parallel */
    bool divides;            /* the loader has .comm */
    bool own_samples;        /* different on each rank */
    bool own_targets;        /* different on each rank */
    bool sums;               /* the model is a sum over the ranks */
    bool first_steps;        /* rank 0 runs its own step */
    bool steps;              /* all ranks run their own step */
    bool sharded;            /* tensor parallelism */
    bool pipeline;           /* a stage of five layers on each rank */
    bool comm;               /* the trial has .comm */
    bool alone;              /* .comm has only one rank */
    ls_callback_hooks hooks; /* hooks with the world as user pointer */
    const char *says;        /* NULL: nothing */
} setup;

static ls_dataset *make_dataset(int rank, const setup *s) {
    ls_seed(7 + (uint64_t)(s->own_samples ? rank : 0));
    ls_tensor *input = ls_randn(LS_SHAPE(SAMPLES, 4), LS_F32);
    return ls_tensor_dataset(input, ls_full(LS_SHAPE(SAMPLES, 2), LS_F32, s->own_targets ? rank : 0));
}

static ls_module *make_model(ls_comm *world, const setup *s) {
    if (s->sharded) {
        return ls_sequential(ls_nn_column_parallel(world, 4, 5, NULL), ls_nn_row_parallel(world, 5, 2, NULL));
    }
    if (s->pipeline) {
        return ls_pipeline(ls_sequential(ls_nn_linear(4, 5), ls_nn_linear(5, 5), ls_nn_linear(5, 5), ls_nn_linear(5, 5),
                                         ls_nn_linear(5, 2)),
                           world, NULL);
    }
    ls_module *model = ls_nn_linear(4, 2);
    return s->parallel ? ls_data_parallel(model, world, NULL) : model;
}

static ls_callback_function choose_step(int rank, const setup *s) {
    return s->pipeline ? train_pipeline : s->steps || (s->first_steps && rank == 0) ? train_alone : NULL;
}

static ls_status run(ls_comm *world, ls_comm *part, const setup *s) {
    const ls_loader_options loading = {.batch_size = 4, .comm = s->divides ? world : NULL};
    const int rank = ls_comm_rank(world);
    ls_loader *loader = ls_loader_new(make_dataset(rank, s), &loading);
    ls_seed(s->sums ? 1 + (uint64_t)rank : 1);
    ls_module *model = make_model(world, s);
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1});
    const bool called = s->hooks.on_backward != NULL || s->hooks.on_end_epoch != NULL;
    ls_callback *callback = called ? ls_callback_new(&s->hooks, world) : NULL;
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = s->sums ? compare_sum : ls_criterion_mse,
                                                       .criterion_user = s->sums ? world : NULL,
                                                       .step = choose_step(rank, s),
                                                       .train = loader,
                                                       .comm = s->alone  ? part
                                                               : s->comm ? world
                                                                         : NULL,
                                                       .callbacks = &callback,
                                                       .callback_count = called,
                                                       .quiet = true});
    LS_CHECK(trial != NULL);
    LS_CHECK(ls_trial_run(trial, EPOCHS) == LS_OK);
    LS_CHECK(ls_trial_run(trial, EPOCHS + 1) == LS_OK); /* the second run does not warn again */
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_loader_free(loader);
    ls_module_free(model);
    return LS_OK;
}

static ls_status check(ls_comm *world, ls_comm *part, const setup *s) {
    LS_TRY(ls_comm_barrier(world, NULL));
    seek(s->says);
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_TRY(run(world, part, s));
    int64_t all[2];
    LS_TRY(count(world, all));
    const bool told = s->comm || s->parallel || ls_world() != NULL; /* ranks that are threads have no world */
    const int64_t wanted = s->says != NULL && told && ls_comm_size(world) > 1;
    if (all[0] != wanted || all[1] != wanted) {
        return ls_error_set(LS_ERR_INTERNAL, "%lld warnings, of which %lld say \"%s\"", (long long)all[0],
                            (long long)all[1], s->says != NULL ? s->says : "");
    }
    return LS_OK;
}

/* An evaluation and a prediction by a model that is not data-parallel, with a loader that divides the samples. */
static ls_status evaluate(ls_comm *world, bool joins) {
    ls_seed(1);
    const setup usual = {.divides = true};
    ls_loader *loader = ls_loader_new(make_dataset(0, &usual), &(ls_loader_options){.batch_size = 4, .comm = world});
    ls_module *model = ls_nn_linear(4, 2);
    ls_tensor *outputs = NULL;
    ls_trial *trial = ls_trial_new(&(ls_trial_options){
        .model = model, .criterion = ls_criterion_mse, .comm = joins ? world : NULL, .quiet = true});
    LS_CHECK(trial != NULL);
    LS_TRY(ls_trial_evaluate(trial, loader, "test"));
    LS_TRY(ls_trial_predict(trial, loader, true, &outputs));
    const int64_t rows = ls_size(outputs, 0);
    LS_CHECK(joins || ls_comm_size(world) == 1 ? rows == SAMPLES : rows < SAMPLES);
    ls_release(outputs);
    ls_trial_free(trial);
    ls_loader_free(loader);
    ls_module_free(model);
    return LS_OK;
}

static ls_status check_evaluation(ls_comm *world, bool joins) {
    seek("each rank gets the results of its own samples only: set .comm of ls_trial_options");
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_TRY(evaluate(world, joins));
    int64_t all[2];
    LS_TRY(count(world, all));
    const int64_t wanted = !joins && ls_comm_size(world) > 1;
    LS_CHECK(all[0] == wanted && all[1] == wanted);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    static const ls_callback_hooks nothing = {.on_end_epoch = do_nothing};
    const setup setups[] = {
        {.divides = true, .says = "each rank that runs this trial trains its own model"},
        {.divides = true, .hooks = nothing, .says = "each rank that runs this trial trains its own model"},
        {.divides = true, .comm = true, .says = "nothing averages their gradients"},
        {.divides = true, .comm = true, .hooks = nothing, .says = "nothing averages their gradients"},
        {.parallel = true, .says = "trains on all samples"},
        {.parallel = true, .divides = true},
        {.parallel = true, .own_samples = true},
        {.parallel = true, .own_targets = true},
        {.sums = true, .comm = true},
        {.sums = true, .comm = true, .hooks = nothing},
        {.divides = true, .comm = true, .first_steps = true, .says = "nothing averages their gradients"},
        {.divides = true, .hooks = {.on_backward = average_gradients}},
        {.divides = true, .comm = true, .hooks = {.on_backward = average_gradients}},
        {.divides = true, .comm = true, .hooks = {.on_end_epoch = take_first_model}},
        {.divides = true, .hooks = {.on_end_epoch = take_first_model}},
        {.divides = true, .comm = true, .hooks = {.on_end_epoch = take_first_model, .describe = describe}},
        {.comm = true, .says = "ranks do the same work: each trains the same model on all samples"},
        {.comm = true, .hooks = nothing, .says = "ranks do the same work"},
        {.comm = true, .steps = true, .says = "ranks do the same work"},
        {.comm = true, .own_targets = true, .says = "nothing averages their gradients"},
        {.comm = true, .own_samples = true, .says = "nothing averages their gradients"},
        {.comm = true, .hooks = {.on_sample = take_share, .on_backward = average_gradients}},
        {.comm = true, .hooks = {.on_end_epoch = take_first_model}},
        {.comm = true, .sharded = true},
        {.comm = true, .pipeline = true},
        {.alone = true},
    };
    ls_comm *part = NULL;
    LS_TRY(ls_comm_split(world, ls_comm_rank(world), 0, &part));
    ls_status status = LS_OK;
    for (size_t i = 0; i < sizeof setups / sizeof *setups && status == LS_OK; i++) {
        status = check(world, part, &setups[i]);
    }
    status = status == LS_OK ? check_evaluation(world, false) : status;
    status = status == LS_OK ? check_evaluation(world, true) : status;
    ls_log_set_sink(NULL, NULL);
    ls_comm_free(part);
    return status;
}
