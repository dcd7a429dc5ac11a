/*
 * Trials on several ranks: with the same global batches, every measured value equals the value of one process and is
 * bit-identical on all ranks, for any distribution of the samples. All ranks call the same hooks.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/ranks.h"

#include <math.h>
#include <string.h>

#include <lockstep/parallel.h>
#include <lockstep/train.h>

enum { SAMPLES = 60, HELD_BACK = 9, INPUTS = 4, CLASSES = 3, EPOCHS = 4, SEED = 21 };

/* ---- the trial --------------------------------------------------------------------------------------------------- */

static ls_dataset *make_dataset(int set, int64_t count) {
    ls_tensor *input = ls_empty(LS_SHAPE(count, INPUTS), LS_F64);
    ls_tensor *target = ls_empty(LS_SHAPE(count), LS_I64);
    double *x = elements(input);
    int64_t *classes = elements(target);
    for (int64_t row = 0; x != NULL && row < count; row++) {
        for (int64_t i = 0; i < INPUTS; i++) {
            x[row * INPUTS + i] = ls_random_normal(SEED, (uint64_t)set, (uint64_t)(row * INPUTS + i));
        }
        classes[row] = (x[row * INPUTS] > 0) + (x[row * INPUTS + 1] > 0.3);
    }
    return ls_tensor_dataset(input, target);
}

/* One participant: all ranks together, or this process alone with the same global batches. */
typedef struct participant {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_loader *train;
    ls_loader *validate;
    ls_trial *trial;
} participant;

/* The kind of trial. */
typedef struct plan {
    int64_t global_batch;
    bool by_hand; /* a plain model whose callbacks synchronize the ranks, instead of a data-parallel model */
    int64_t max_steps;
    uint64_t seed_apart;   /* difference of the last rank's seed */
    int64_t samples_apart; /* number of samples that the last rank's validation set lacks */
    ls_callback_hooks hooks;
    void *user; /* of the hooks */
} plan;

static ls_status sync_model(ls_trial_state *state, void *user) {
    (void)user;
    return state->comm != NULL ? ls_sync_parameters(state->model, state->comm, 0) : LS_OK;
}

static ls_status sync_gradients(ls_trial_state *state, void *user) {
    (void)user;
    return state->comm != NULL ? ls_sync_gradients(state->model, state->comm) : LS_OK;
}

static ls_status begin(participant *p, const plan *how, ls_comm *comm) {
    const ls_callback_hooks sync = {.on_init = sync_model, .on_backward = sync_gradients};
    ls_callback *const callbacks[] = {ls_callback_new(&how->hooks, how->user),
                                      how->by_hand ? ls_callback_new(&sync, NULL) : NULL};
    const ls_linear_options layer = {.dtype = LS_F64};
    const bool last = comm != NULL && ls_comm_rank(comm) == ls_comm_size(comm) - 1;
    const ls_loader_options loading = {
        .global_batch_size = how->global_batch, .comm = comm, .seed = SEED + (last ? how->seed_apart : 0)};
    ls_seed(comm != NULL ? (uint64_t)(SEED + ls_comm_rank(comm)) : SEED);
    p->model = ls_sequential(ls_nn_linear_with(INPUTS, 6, &layer), ls_nn_tanh(), ls_nn_linear_with(6, CLASSES, &layer));
    if (comm != NULL && !how->by_hand) {
        p->model = ls_data_parallel(p->model, comm, NULL);
    }
    p->optimizer = ls_sgd(p->model, &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.7});
    p->train = ls_loader_new(make_dataset(0, SAMPLES), &loading);
    p->validate = ls_loader_new(make_dataset(1, HELD_BACK - (last ? how->samples_apart : 0)), &loading);
    p->trial = ls_trial_new(&(ls_trial_options){.model = p->model,
                                                .optimizer = p->optimizer,
                                                .criterion = ls_criterion_cross_entropy,
                                                .train = p->train,
                                                .validate = p->validate,
                                                .comm = how->by_hand ? comm : NULL,
                                                .metrics = LS_METRICS("loss", "acc"),
                                                .callbacks = callbacks,
                                                .callback_count = how->by_hand ? 2 : 1,
                                                .max_steps = how->max_steps,
                                                .quiet = true});
    LS_CHECK(p->trial != NULL);
    return LS_OK;
}

static void end(participant *p) {
    ls_trial_free(p->trial);
    ls_optimizer_free(p->optimizer);
    ls_loader_free(p->train);
    ls_loader_free(p->validate);
    ls_module_free(p->model);
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static ls_status same_bits(ls_comm *world, const void *value) {
    uint64_t bits;
    memcpy(&bits, value, sizeof bits);
    int64_t sides[2] = {(int64_t)(bits >> 1), -(int64_t)(bits >> 1)};
    LS_TRY(ls_comm_allreduce(world, sides, sides, 2, LS_I64, LS_MAX, NULL));
    LS_CHECK(sides[0] == -sides[1]);
    return LS_OK;
}

static ls_status compare_metric(ls_comm *world, double is, double want) {
    LS_TRY(same_bits(world, &is));
    if (!(fabs(is - want) <= 1e-10)) {
        return ls_fail(LS_ERR_INTERNAL, "measured %.17g, one process %.17g", is, want);
    }
    return LS_OK;
}

static ls_status compare_results(ls_comm *world, const participant *all, const participant *alone) {
    static const char *const names[] = {"loss", "acc", "val_loss", "val_acc"};
    const int64_t epochs = ls_trial_history_count(alone->trial);
    LS_CHECK(ls_trial_history_count(all->trial) == epochs);
    for (int64_t epoch = 0; epoch < epochs; epoch++) {
        for (int i = 0; i < 4; i++) {
            LS_TRY(compare_metric(world, ls_trial_history(all->trial, epoch, names[i]),
                                  ls_trial_history(alone->trial, epoch, names[i])));
        }
    }
    LS_CHECK(ls_trial_metric(all->trial, "loss") == ls_trial_history(all->trial, epochs - 1, "loss"));
    const uint64_t hash = ls_module_hash(all->model);
    return same_bits(world, &hash);
}

static ls_status compare(ls_comm *world, const plan *how) {
    participant all;
    participant alone;
    LS_TRY(begin(&all, how, world));
    LS_TRY(begin(&alone, how, NULL));
    LS_TRY(ls_trial_run(all.trial, EPOCHS));
    LS_TRY(ls_trial_run(alone.trial, EPOCHS));
    LS_TRY(compare_results(world, &all, &alone));
    LS_CHECK(ls_trial_history(all.trial, 0, "loss") > ls_trial_history(all.trial, EPOCHS - 1, "loss"));

    LS_TRY(ls_trial_evaluate(all.trial, all.validate, "test"));
    LS_TRY(ls_trial_evaluate(alone.trial, alone.validate, "test"));
    LS_TRY(compare_metric(world, ls_trial_metric(all.trial, "test_loss"), ls_trial_metric(alone.trial, "test_loss")));
    LS_CHECK(ls_trial_metric(all.trial, "test_acc") == ls_trial_metric(all.trial, "val_acc"));
    const double throughput = ls_trial_throughput(all.trial);
    LS_CHECK(throughput > 0 && isfinite(throughput));
    LS_TRY(same_bits(world, &throughput));
    end(&all);
    end(&alone);
    return LS_OK;
}

/* Tests global batches of 16 samples (the last has 12), of 2 samples (some shares are empty in every step) and of 11
 * samples (the last has 5). */
static ls_status equals_one_process(ls_comm *world) {
    LS_TRY(compare(world, &(plan){.global_batch = 16}));
    LS_TRY(compare(world, &(plan){.global_batch = 2}));
    return compare(world, &(plan){.global_batch = 11});
}

/*
 * Callbacks synchronize the model and average gradients. The mean over ranks equals the mean over samples only if
 * shares are equal. They are equal because each rank has one sample of each batch, and SAMPLES is divisible by every
 * number of ranks.
 */
static ls_status by_hand(ls_comm *world) {
    return compare(world, &(plan){.global_batch = ls_comm_size(world), .by_hand = true});
}

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

/* Counts calls, and sums the values that hooks receive. */
typedef struct counts {
    int64_t samples;
    int64_t global_samples;
    int forwards;
    int steps;
    int validations;
    int validation_samples;
    int64_t stop_at;
} counts;

static ls_status count_sample(ls_trial_state *state, void *user) {
    ((counts *)user)->samples += state->count;
    return state->count > 0 && state->count == ls_size(state->input, 0)
               ? LS_OK
               : ls_error_set(LS_ERR_INTERNAL, "%lld samples, not %lld", (long long)ls_size(state->input, 0),
                              (long long)state->count);
}

static ls_status count_forward(ls_trial_state *state, void *user) {
    ((counts *)user)->forwards++;
    return state->output != NULL ? LS_OK : ls_error_set(LS_ERR_INTERNAL, "no output");
}

static ls_status count_step(ls_trial_state *state, void *user) {
    counts *c = user;
    c->steps++;
    c->global_samples += state->global_count;
    state->stop = c->stop_at == state->step;
    return LS_OK;
}

static ls_status count_validation(ls_trial_state *state, void *user) {
    counts *c = user;
    c->validations++;
    c->validation_samples += (int)state->count;
    return LS_OK;
}

static const ls_callback_hooks counting = {.on_sample = count_sample,
                                           .on_forward = count_forward,
                                           .on_step_training = count_step,
                                           .on_step_validation = count_validation};

static ls_status sum_is(ls_comm *world, int64_t part, int64_t whole) {
    LS_TRY(ls_comm_allreduce(world, &part, &part, 1, LS_I64, LS_SUM, NULL));
    LS_CHECK(part == whole);
    return LS_OK;
}

/*
 * With two samples per batch, each rank has at most one sample (a single rank has two), and some ranks have none. All
 * ranks take every step.
 */
static ls_status hooks_on_every_rank(ls_comm *world) {
    counts c = {.stop_at = -1};
    participant all;
    LS_TRY(begin(&all, &(plan){.global_batch = 2, .hooks = counting, .user = &c}, world));
    LS_TRY(ls_trial_run(all.trial, 2));
    LS_CHECK(c.steps == 2 * (SAMPLES / 2) && c.validations == 2 * 5);
    LS_CHECK(c.global_samples == 2 * SAMPLES);
    LS_TRY(sum_is(world, c.samples, 2 * SAMPLES));
    LS_TRY(sum_is(world, c.validation_samples, 2 * HELD_BACK));
    LS_CHECK(c.forwards == (ls_comm_size(world) == 1 ? c.steps : c.samples));
    end(&all);
    return LS_OK;
}

static ls_status early_ends(ls_comm *world) {
    counts c = {.stop_at = 5};
    participant all;
    LS_TRY(begin(&all, &(plan){.global_batch = 16, .hooks = counting, .user = &c}, world)); /* 4 batches per epoch */
    LS_TRY(ls_trial_run(all.trial, 9));
    LS_CHECK(c.steps == 5 && ls_trial_history_count(all.trial) == 1);
    end(&all);
    c = (counts){.stop_at = -1};
    LS_TRY(begin(&all, &(plan){.global_batch = 16, .hooks = counting, .user = &c, .max_steps = 6}, world));
    LS_TRY(ls_trial_run(all.trial, 9));
    LS_CHECK(c.steps == 6 && ls_trial_history_count(all.trial) == 2);
    end(&all);
    return LS_OK;
}

/* A hook that fails on every rank ends the run at once, and the ranks can continue together. */
static ls_status refuse(ls_trial_state *state, void *user) {
    (void)user;
    return state->step == 3 ? ls_error_set(LS_ERR_STATE, "refused at step 3") : LS_OK;
}

static ls_status failing_hook(ls_comm *world) {
    participant all;
    LS_TRY(begin(&all, &(plan){.global_batch = 16, .hooks = {.on_step_training = refuse}}, world));
    LS_CHECK(ls_trial_run(all.trial, 2) == LS_ERR_STATE);
    LS_CHECK(strcmp(ls_error_message(), "refused at step 3") == 0);
    LS_CHECK(ls_trial_history_count(all.trial) == 0);
    end(&all);
    return ls_comm_barrier(world, NULL);
}

/* Different loaders on the ranks are refused: otherwise some data would be omitted or used twice without an error. */
static ls_status loaders_that_differ(ls_comm *world) {
    const plan plans[] = {{.global_batch = 16, .seed_apart = 1}, {.global_batch = 16, .samples_apart = 1}};
    for (int i = 0; i < 2; i++) {
        participant all;
        LS_TRY(begin(&all, &plans[i], world));
        const ls_status status = ls_trial_run(all.trial, 1);
        LS_CHECK(status == (ls_comm_size(world) > 1 ? LS_ERR_MISMATCH : LS_OK));
        LS_CHECK(status == LS_OK || strstr(ls_error_message(), "the ranks' loaders differ") != NULL);
        end(&all);
    }
    return ls_comm_barrier(world, NULL);
}

/* ---- prediction -------------------------------------------------------------------------------------------------- */

static ls_status same_outputs(const ls_tensor *is, const ls_tensor *want) {
    LS_CHECK(is != NULL && ls_ndim(is) == 2 && ls_size(is, 0) == HELD_BACK && ls_size(is, 1) == CLASSES);
    for (int64_t i = 0; i < HELD_BACK * CLASSES; i++) {
        const int64_t at[] = {i / CLASSES, i % CLASSES};
        LS_CHECK(fabs(ls_at(is, at) - ls_at(want, at)) < 1e-12);
    }
    return LS_OK;
}

static ls_status compare_predictions(ls_comm *world, int64_t global_batch, bool on_all) {
    participant all, alone;
    ls_tensor *outputs, *expected;
    ls_scope *scope = ls_scope_begin();
    LS_TRY(begin(&all, &(plan){.global_batch = global_batch}, world));
    LS_TRY(begin(&alone, &(plan){.global_batch = global_batch}, NULL));
    LS_TRY(ls_trial_predict(all.trial, all.validate, on_all, &outputs));
    LS_TRY(ls_trial_predict(alone.trial, alone.validate, false, &expected));
    const bool receives = on_all || ls_comm_rank(world) == 0;
    LS_TRY(receives ? same_outputs(outputs, expected) : LS_OK);
    LS_CHECK(receives == (outputs != NULL));
    end(&all);
    end(&alone);
    return ls_scope_end(scope);
}

/* On the last rank, the outputs of every batch have a different width. */
static ls_tensor *more_columns(ls_tensor *x, void *user) {
    return *(const bool *)user ? ls_concat((ls_tensor *const[]){x, x}, 2, 1) : x;
}

static ls_status predictions_that_differ(ls_comm *world) {
    bool wide = ls_comm_rank(world) == ls_comm_size(world) - 1;
    const ls_loader_options loading = {.global_batch_size = 8, .comm = world};
    ls_module *model = ls_nn_function("columns", more_columns, &wide);
    ls_loader *loader = ls_loader_new(make_dataset(1, HELD_BACK), &loading);
    ls_trial *trial =
        ls_trial_new(&(ls_trial_options){.model = model, .criterion = ls_criterion_mse, .comm = world, .quiet = true});
    ls_tensor *outputs;
    ls_scope *scope = ls_scope_begin();
    const ls_status status = ls_trial_predict(trial, loader, true, &outputs);
    LS_CHECK(status == (ls_comm_size(world) > 1 ? LS_ERR_SHAPE : LS_OK));
    LS_CHECK(status == LS_OK || strstr(ls_error_message(), "do not match the outputs of lower ranks") != NULL);
    (void)ls_scope_end(scope);
    ls_trial_free(trial);
    ls_loader_free(loader);
    ls_module_free(model);
    return LS_OK;
}

/* Rows are in the data set's order for any number of ranks, even if some ranks have no samples of a batch. */
static ls_status predictions(ls_comm *world) {
    LS_TRY(compare_predictions(world, 4, false));
    LS_TRY(compare_predictions(world, 4, true));
    LS_TRY(compare_predictions(world, 2, true));
    LS_TRY(compare_predictions(world, 64, false));
    return predictions_that_differ(world);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(predictions(world));
    LS_TRY(equals_one_process(world));
    LS_TRY(by_hand(world));
    LS_TRY(hooks_on_every_rank(world));
    LS_TRY(early_ends(world));
    LS_TRY(failing_hook(world));
    LS_TRY(loaders_that_differ(world));
    return ls_comm_barrier(world, NULL);
}
