/*
 * The metric "loss" of criteria that ignore targets or weight classes, and of criteria that are sums: on any number of
 * ranks it equals the value of one process with the same global batches, even if a rank's share has only ignored
 * targets, so that its mean is NaN. It has the same value with slices, too, on one rank and on several.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/callbacks.h>
#include <lockstep/train.h>

#include "train/callbacks/callback.h"

enum { SAMPLES = 23, WIDTH = 4, CLASSES = 3, BATCH = 7, IGNORED = -100 };

/* ---- data and criteria ------------------------------------------------------------------------------------------- */

/* Few targets are not ignored, and none of them is among the first samples of a batch in the data set's order. */
static ls_dataset *make_dataset(void) {
    float inputs[SAMPLES * WIDTH];
    int64_t targets[SAMPLES];
    for (int i = 0; i < SAMPLES * WIDTH; i++) {
        inputs[i] = (float)sin(i);
    }
    for (int i = 0; i < SAMPLES; i++) {
        targets[i] = i % BATCH < 4 && i % 5 != 4 ? IGNORED : i % CLASSES;
    }
    ls_scope *scope = ls_scope_begin();
    ls_dataset *set = ls_tensor_dataset(ls_from(LS_SHAPE(SAMPLES, WIDTH), LS_F32, inputs),
                                        ls_from(LS_SHAPE(SAMPLES), LS_I64, targets));
    return ls_scope_end(scope) == LS_OK ? set : NULL;
}

typedef struct criterion {
    const char *name;
    bool weights;
    bool ignores;
    double factor;
    bool sums;
    int calls;
} criterion;

static const criterion criteria[] = {{"ignored", false, true, 1, false, 0},
                                     {"weights", true, false, 1, false, 0},
                                     {"both", true, true, 0.5, false, 0},
                                     {"sum", false, false, 0.25, true, 0},
                                     {"sum of ignored", true, true, 0.5, true, 0}};

static ls_tensor *measure(ls_tensor *output, ls_tensor *target, void *user) {
    criterion *c = user;
    c->calls++;
    static const float weights[CLASSES] = {0.25F, 1, 7};
    ls_class_loss_options options = {
        .ignore = c->ignores, .ignore_index = IGNORED, .reduction = c->sums ? LS_LOSS_SUM : LS_LOSS_MEAN};
    if (c->weights) {
        options.weight = ls_from(LS_SHAPE(CLASSES), LS_F32, weights);
    }
    if (!c->ignores) {
        target = ls_maximum(target, 0);
    }
    return ls_mul(ls_cross_entropy(output, ls_to(target, LS_I64), &options), c->factor);
}

static ls_status compute_gradients(ls_trial_state *state, void *user) {
    if (state->count == 0) {
        return ls_data_parallel_skip(state->model);
    }
    state->output = ls_forward(state->model, state->input);
    state->loss = measure(state->output, state->target, user);
    return ls_backward(state->loss);
}

static ls_status own_step(ls_trial_state *state, void *user) {
    ls_optimizer_zero_grad(state->optimizer);
    LS_TRY(compute_gradients(state, user));
    return ls_optimizer_step(state->optimizer);
}

/* The losses of each step, as logs show them: the loss of the global batch. */
typedef struct step_losses {
    double sum;
    int64_t count;
} step_losses;

static ls_status on_step_training(ls_trial_state *state, void *user) {
    step_losses *losses = user;
    double loss = 0;
    LS_TRY(ls_callback_batch_loss(state, &loss));
    losses->sum += isnan(loss) ? 0 : loss;
    losses->count += !isnan(loss);
    return LS_OK;
}

/* ---- trials ------------------------------------------------------------------------------------------------------ */

static const char *const names[] = {"loss",     "val_loss",     "test_loss",     "running_loss",
                                    "loss_std", "val_loss_std", "test_loss_var", "the mean of steps"};
enum { NAMES = sizeof names / sizeof *names };

/* How the default step runs, or the program's own step. */
typedef struct manner {
    bool own;
    int shards;
    bool apart;   /* each rank has its own model, with a learning rate of 0 */
    bool capture; /* needs `apart`, because a sum of ls_data_parallel cannot be captured */
} manner;

/* Runs two epochs over shuffled samples, on all ranks or, without a communicator, in this process alone. */
static ls_status run(ls_comm *comm, const criterion *c, manner how, double values[NAMES], int *calls) {
    const int shards = comm != NULL ? how.shards : 0;
    const ls_loader_options shuffled = {.global_batch_size = BATCH, .comm = comm, .seed = 5, .shards = shards};
    const ls_loader_options ordered = {.global_batch_size = BATCH, .comm = comm, .no_shuffle = true, .shards = shards};
    ls_seed(7);
    ls_module *model = ls_nn_linear(WIDTH, CLASSES);
    model = comm != NULL && !how.apart ? ls_data_parallel(model, comm, &(ls_data_parallel_options){.shards = shards})
                                       : model;
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = how.apart ? LS_ZERO : 0.05});
    ls_loader *train = ls_loader_new(make_dataset(), &shuffled);
    ls_loader *validate = ls_loader_new(make_dataset(), &ordered);
    criterion user = *c;
    step_losses steps = {0, 0};
    ls_callback *callbacks[2] = {ls_callback_new(&(ls_callback_hooks){.on_step_training = on_step_training}, &steps)};
    callbacks[1] = how.apart ? NULL : ls_terminate_on_nan(NULL); /* this callback prevents the capture */
    ls_trial *trial = ls_trial_new(&(ls_trial_options){
        .model = model,
        .optimizer = optimizer,
        .criterion = measure,
        .criterion_user = &user,
        .step = how.own ? own_step : NULL,
        .step_user = &user,
        .train = train,
        .validate = validate,
        .comm = comm,
        .metrics = LS_METRICS("loss", "loss_std", "loss_var"),
        LS_CUSTOM_METRICS(ls_metric_running(ls_metric_named("loss"), &(ls_running_options){.window = 3, .every = 2})),
        .callbacks = callbacks,
        .callback_count = how.apart ? 1 : 2,
        .capture = how.capture,
        .quiet = true});
    LS_CHECK(trial != NULL);
    LS_TRY(ls_trial_run(trial, 2));
    LS_TRY(ls_trial_evaluate(trial, validate, "test"));
    for (int i = 0; i < NAMES; i++) {
        values[i] = ls_trial_metric(trial, names[i]);
    }
    values[NAMES - 1] = steps.sum / (double)steps.count;
    *calls = user.calls;
    ls_trial_free(trial);
    ls_loader_free(train);
    ls_loader_free(validate);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

static ls_status compare(ls_comm *world, const criterion *c, manner how) {
    double all[NAMES], alone[NAMES];
    int calls, calls_alone;
    LS_TRY(run(world, c, how, all, &calls));
    LS_TRY(run(NULL, c, (manner){.own = how.own, .apart = how.apart}, alone, &calls_alone));
    LS_CHECK(!how.capture || calls < calls_alone);
    for (int i = 0; i < NAMES; i++) {
        if (!(fabs(all[i] - alone[i]) <= 1e-5 * fabs(alone[i]))) {
            return ls_fail(LS_ERR_INTERNAL, "criterion \"%s\": %s is %.9g, one process has %.9g", c->name, names[i],
                           all[i], alone[i]);
        }
        double sides[2] = {all[i], -all[i]};
        LS_TRY(ls_comm_allreduce(world, sides, sides, 2, LS_F64, LS_MAX, NULL));
        LS_CHECK(sides[0] == -sides[1]);
    }
    return LS_OK;
}

/* In one process, the metric is the mean of the criterion over batches, weighted by their number of samples. */
static ls_status mean_of_batches(void) {
    const criterion c = {"both", true, true, 1, false, 0};
    const ls_loader_options ordered = {.global_batch_size = BATCH, .no_shuffle = true};
    criterion user = c;
    ls_module *model = ls_nn_linear(WIDTH, CLASSES);
    ls_loader *loader = ls_loader_new(make_dataset(), &ordered);
    ls_trial *trial =
        ls_trial_new(&(ls_trial_options){.model = model, .criterion = measure, .criterion_user = &user, .quiet = true});
    LS_CHECK(trial != NULL);
    LS_TRY(ls_trial_evaluate(trial, loader, "test"));
    double sum = 0, samples = 0;
    ls_batch batch;
    bool more = true;
    LS_TRY(ls_loader_seek(loader, 0, 0));
    LS_TRY(ls_loader_next(loader, &batch, &more));
    while (more) {
        ls_scope *scope = ls_scope_begin();
        const double loss = ls_item(measure(ls_forward(model, batch.input), batch.target, &user));
        sum += isnan(loss) ? 0 : (double)batch.count * loss; /* all targets of the last batch are ignored */
        samples += isnan(loss) ? 0 : (double)batch.count;
        LS_TRY(ls_scope_end(scope));
        LS_TRY(ls_loader_next(loader, &batch, &more));
    }
    LS_CHECK(fabs(sum / samples - ls_trial_metric(trial, "test_loss")) < 1e-12);
    ls_trial_free(trial);
    ls_loader_free(loader);
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    const bool on_cpu = strcmp(ls_default_device(), "cpu") == 0;
    for (size_t i = 0; i < sizeof criteria / sizeof *criteria; i++) {
        LS_TRY(compare(world, &criteria[i], (manner){.own = false}));
        LS_TRY(compare(world, &criteria[i], (manner){.own = true}));
        LS_TRY(compare(world, &criteria[i], (manner){.apart = true}));
        const bool capture = on_cpu && !criteria[i].weights; /* the criterion writes its weights on the host */
        LS_TRY(capture ? compare(world, &criteria[i], (manner){.apart = true, .capture = true}) : LS_OK);
        LS_TRY(on_cpu ? compare(world, &criteria[i], (manner){.shards = 5}) : LS_OK);
    }
    LS_TRY(mean_of_batches());
    return ls_comm_barrier(world, NULL);
}
