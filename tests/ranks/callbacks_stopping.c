/*
 * Callbacks that end runs, limit gradients and weights, and set learning rates: on any number of ranks they act as in a
 * single process, and all ranks end together with the same message.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/training.h"

enum { EPOCHS = 6 };

/* ---- early stopping ---------------------------------------------------------------------------------------------- */

/* Makes parameters worse from epoch 3 on, in the same way on all ranks. */
static ls_status spoil(ls_trial_state *state, void *user) {
    (void)user;
    if (state->epoch < 3) {
        return LS_OK;
    }
    const bool before = ls_no_grad(true);
    ls_tensor *weight = ls_module_parameter(state->model, 2);
    ls_tensor *other = ls_mul(weight, -20.0);
    const ls_status status = other != NULL ? ls_copy_into(weight, other) : ls_error_status();
    ls_release(other);
    ls_no_grad(before);
    return status;
}

static ls_status stop_early(ls_comm *world, ls_comm *comm, uint64_t *best, double *best_loss) {
    ls_callback *stop =
        ls_early_stopping(&(ls_early_stopping_options){.monitor = "loss", .patience = 2, .restore_best = true});
    ls_callback *const callbacks[] = {stop, ls_callback_new(&(ls_callback_hooks){.on_start_training = spoil}, NULL)};
    training t;
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = callbacks, .callback_count = 2}, comm));
    LS_CHECK(isnan(ls_early_stopping_best(stop)) && !ls_early_stopping_stopped(stop));
    LS_TRY(ls_trial_run(t.trial, 20));
    LS_CHECK(ls_trial_history_count(t.trial) == 5 && ls_early_stopping_stopped(stop));
    *best_loss = ls_trial_history(t.trial, 2, "val_loss");
    LS_CHECK(ls_early_stopping_best(stop) == ls_trial_history(t.trial, 2, "loss"));
    LS_CHECK(ls_trial_history(t.trial, 4, "val_loss") > 2 * *best_loss);
    LS_TRY(ls_trial_evaluate(t.trial, t.validate, "test"));
    LS_CHECK(ls_trial_metric(t.trial, "test_loss") == *best_loss);
    LS_CHECK(ls_trial_history_count(t.trial) == 5);
    LS_TRY(same_on_all(world, *best_loss));
    *best = ls_module_hash(t.model);
    training_end(&t);
    return LS_OK;
}

static ls_status early_stopping(ls_comm *world) {
    uint64_t hash, alone_hash;
    double loss, alone_loss;
    LS_TRY(stop_early(world, world, &hash, &loss));
    LS_TRY(stop_early(world, NULL, &alone_hash, &alone_loss));
    LS_CHECK(fabs(loss - alone_loss) < 1e-10);
    LS_CHECK(ls_comm_size(world) > 1 || hash == alone_hash);
    return LS_OK;
}

/* ---- numbers that are not finite --------------------------------------------------------------------------------- */

/* Where the bad number appears. */
typedef enum fault { IN_INPUT, IN_LOSS, IN_PARAMETER_GRADIENT, IN_VALIDATION } fault;

typedef struct faulty {
    fault where;
    int rank;
    int64_t step;
} faulty;

static ls_status spoil_sample(ls_trial_state *state, void *user) {
    const faulty *f = user;
    const bool validation = state->phase == LS_PHASE_VALIDATION;
    if (ls_comm_rank(state->comm) == f->rank && (validation ? f->where == IN_VALIDATION : f->where == IN_INPUT) &&
        state->step >= f->step) {
        state->input = ls_mul(state->input, (double)NAN);
    }
    return LS_OK;
}

static ls_status spoil_loss(ls_trial_state *state, void *user) {
    const faulty *f = user;
    if (f->where == IN_LOSS && ls_comm_rank(state->comm) == f->rank && state->step == f->step) {
        state->loss = ls_mul(state->loss, (double)INFINITY);
    }
    return LS_OK;
}

static ls_status spoil_gradient(ls_trial_state *state, void *user) {
    const faulty *f = user;
    ls_tensor *gradient = ls_grad(ls_module_parameter(state->model, 2));
    return f->where == IN_PARAMETER_GRADIENT && state->step == f->step && gradient != NULL
               ? ls_fill(gradient, -INFINITY)
               : LS_OK;
}

/* All ranks have the same message, which contains the words. It names `rank`, or all ranks if `rank` is -1. */
static ls_status one_sentence(ls_comm *world, const char *words, int rank) {
    char mine[512] = "", first[512] = "", where[64];
    snprintf(mine, sizeof mine, "%s", ls_error_message());
    memcpy(first, mine, sizeof first);
    snprintf(where, sizeof where, rank < 0 ? "on every rank" : "on rank %d", rank);
    LS_TRY(ls_comm_broadcast(world, first, sizeof first, LS_U8, 0, NULL));
    if (strcmp(first, mine) != 0 || strstr(mine, words) == NULL || strstr(mine, where) == NULL) {
        return ls_fail(LS_ERR_INTERNAL, "\"%s\" and rank 0's \"%s\" must be one and say \"%s\" and \"%s\"", mine, first,
                       words, where);
    }
    return LS_OK;
}

static ls_status end_at(ls_comm *world, faulty f, bool by_layer, const char *words, int rank) {
    ls_callback *const callbacks[] = {ls_callback_new(&(ls_callback_hooks){.on_sample = spoil_sample,
                                                                           .on_criterion = spoil_loss,
                                                                           .on_backward = spoil_gradient,
                                                                           .on_sample_validation = spoil_sample},
                                                      &f),
                                      ls_terminate_on_nan(&(ls_terminate_on_nan_options){.by_layer = by_layer})};
    training t;
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = callbacks, .callback_count = 2}, world));
    LS_CHECK(ls_trial_run(t.trial, EPOCHS) == LS_ERR_STATE);
    LS_TRY(one_sentence(world, words, rank));
    for (int i = 0; i < ls_module_parameter_count(t.model); i++) {
        ls_scope *scope = ls_scope_begin();
        const bool before = ls_no_grad(true);
        LS_CHECK(isfinite(ls_item(ls_sum(ls_module_parameter(t.model, i)))));
        ls_no_grad(before);
        LS_TRY(ls_scope_end(scope));
    }
    training_end(&t);
    return LS_OK;
}

static ls_status not_finite(ls_comm *world) {
    const int last = ls_comm_size(world) - 1;
    LS_TRY(end_at(world, (faulty){IN_INPUT, last, 7}, false, "the model's output has NaN", last));
    LS_TRY(end_at(world, (faulty){IN_INPUT, last, 7}, true, "the output of layer \"0\" (Linear) has NaN", last));
    LS_TRY(end_at(world, (faulty){IN_LOSS, last, 3}, false, "the loss has an infinite number", last));
    LS_TRY(end_at(world, (faulty){IN_PARAMETER_GRADIENT, last, 2}, true,
                  "the gradient of \"2.weight\" has an infinite number", last > 0 ? -1 : 0));
    LS_TRY(end_at(world, (faulty){IN_VALIDATION, last, 0}, false, "the model's output has NaN", last));
    LS_EXPECT_MESSAGE("in the validation of epoch 0, batch 0 (step 5)");
    return LS_OK;
}

/* The number that is not finite appears in batch `batch` of a pass. */
typedef struct position {
    ls_trial_phase phase;
    int64_t batch;
    int rank;
} position;

static ls_status spoil_batch(ls_trial_state *state, void *user) {
    const position *p = user;
    if (state->phase == p->phase && state->batch == p->batch && ls_comm_rank(state->comm) == p->rank) {
        state->input = ls_mul(state->input, (double)NAN);
    }
    return LS_OK;
}

static ls_status own_step(ls_trial_state *state, void *user) {
    (void)user;
    state->output = ls_forward(state->model, state->input);
    state->loss = ls_cross_entropy(state->output, state->target, NULL);
    ls_optimizer_zero_grad(state->optimizer);
    LS_TRY(ls_backward(state->loss));
    return ls_optimizer_step(state->optimizer);
}

static ls_status run_pass(const training *t, ls_trial_phase phase) {
    ls_tensor *outputs = NULL;
    return phase == LS_PHASE_EVALUATION   ? ls_trial_evaluate(t->trial, t->validate, "test")
           : phase == LS_PHASE_PREDICTION ? ls_trial_predict(t->trial, t->validate, true, &outputs)
                                          : ls_trial_run(t->trial, 1);
}

static ls_status names_position(ls_comm *world, ls_trial_phase phase, ls_callback_function step, const char *words) {
    const int rank = ls_comm_size(world) > 1 ? 1 : 0;
    position p = {phase, 1, rank};
    ls_callback *const callbacks[] = {
        ls_callback_new(&(ls_callback_hooks){.on_sample = spoil_batch, .on_sample_validation = spoil_batch}, &p),
        ls_terminate_on_nan(NULL)};
    training t;
    LS_TRY(training_begin(
        &t, &(training_plan){.callbacks = callbacks, .callback_count = 2, .global_batch = 5, .step = step}, world));
    LS_CHECK(run_pass(&t, phase) == LS_ERR_STATE);
    LS_TRY(one_sentence(world, words, rank));
    training_end(&t);
    return LS_OK;
}

/* The message names the batch and the step in every kind of pass. */
static ls_status names_positions(ls_comm *world) {
    static const struct {
        ls_trial_phase phase;
        ls_callback_function step;
        const char *words;
    } cases[] = {{LS_PHASE_TRAINING, NULL, "in epoch 0, batch 1 (step 1)"},
                 {LS_PHASE_TRAINING, own_step, "in epoch 0, batch 1 (step 1)"},
                 {LS_PHASE_VALIDATION, NULL, "in the validation of epoch 0, batch 1 (step 12)"},
                 {LS_PHASE_VALIDATION, own_step, "in the validation of epoch 0, batch 1 (step 12)"},
                 {LS_PHASE_EVALUATION, NULL, "in ls_trial_evaluate, batch 1 (step 0)"},
                 {LS_PHASE_PREDICTION, NULL, "in ls_trial_predict, batch 1 (step 0)"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        LS_TRY(names_position(world, cases[i].phase, cases[i].step, cases[i].words));
    }
    return LS_OK;
}

/* ---- limits and rates -------------------------------------------------------------------------------------------- */

typedef ls_callback *(*maker)(ls_optimizer *optimizer);

static ls_callback *clip_norms(ls_optimizer *optimizer) {
    (void)optimizer;
    return ls_gradient_norm_clipping(0.05);
}

static ls_callback *clip_values(ls_optimizer *optimizer) {
    (void)optimizer;
    return ls_gradient_value_clipping(0.01);
}

static ls_callback *decay_1(ls_optimizer *optimizer) {
    (void)optimizer;
    return ls_weight_decay(0.01, 1);
}

static ls_callback *decay_2(ls_optimizer *optimizer) {
    (void)optimizer;
    return ls_weight_decay(0.02, 2);
}

static ls_callback *schedule_epochs(ls_optimizer *optimizer) {
    return ls_scheduler(ls_schedule_exponential(optimizer, 0.5), NULL);
}

static ls_callback *schedule_steps(ls_optimizer *optimizer) {
    return ls_scheduler(ls_schedule_warm_up(ls_schedule_cosine(optimizer, 20, 0), 6, 0.1),
                        &(ls_scheduler_options){.per_step = true});
}

static ls_callback *schedule_plateau(ls_optimizer *optimizer) {
    return ls_scheduler(ls_schedule_plateau(optimizer, &(ls_plateau_options){.threshold = 0.5, .patience = 1}),
                        &(ls_scheduler_options){.monitor = "val_loss"});
}

static ls_status train(training *t, ls_comm *comm, maker make) {
    training_plan plan = {.global_batch = 7};
    LS_TRY(training_prepare(t, &plan, comm));
    ls_callback *callback =
        make != NULL ? make(t->optimizer) : ls_callback_new(&(ls_callback_hooks){.name = NULL}, NULL);
    plan.callbacks = &callback;
    plan.callback_count = 1;
    training_start(t, &plan);
    LS_CHECK(t->trial != NULL);
    return ls_trial_run(t->trial, EPOCHS);
}

/* Training gives the same result as in a single process, and a result that differs from training without the
 * callback. */
static ls_status as_alone(ls_comm *world, maker make) {
    training all, alone, plain;
    LS_TRY(train(&all, world, make));
    LS_TRY(train(&alone, NULL, make));
    LS_TRY(train(&plain, NULL, NULL));
    LS_CHECK(parameter_difference(all.model, alone.model) < 1e-10);
    LS_CHECK(parameter_difference(plain.model, alone.model) > 1e-4);
    LS_CHECK(ls_optimizer_learning_rate(all.optimizer, 0) == ls_optimizer_learning_rate(alone.optimizer, 0));
    LS_CHECK(fabs(ls_trial_metric(all.trial, "loss") - ls_trial_metric(alone.trial, "loss")) < 1e-10);
    training_end(&all);
    training_end(&alone);
    training_end(&plain);
    return LS_OK;
}

/* Learning rates follow the schedule, and an evaluation does not advance it. */
static ls_status advances(ls_comm *world) {
    training t;
    LS_TRY(train(&t, world, schedule_epochs));
    LS_CHECK(ls_optimizer_learning_rate(t.optimizer, 0) == 0.05 / 64);
    LS_TRY(ls_trial_evaluate(t.trial, t.validate, "test"));
    LS_CHECK(ls_optimizer_learning_rate(t.optimizer, 0) == 0.05 / 64);
    training_end(&t);
    LS_TRY(train(&t, world, schedule_plateau));
    LS_CHECK(ls_optimizer_learning_rate(t.optimizer, 0) < 0.01);
    training_end(&t);
    return LS_OK;
}

/* ---- composition ------------------------------------------------------------------------------------------------- */

static ls_status count(ls_trial_state *state, void *user) {
    (void)state;
    ++*(int *)user;
    return LS_OK;
}

static ls_status fail(ls_trial_state *state, void *user) {
    (void)user;
    return ls_error_set(LS_ERR_IO, "no more in step %d", (int)state->step);
}

static ls_status one_rank(ls_comm *world) {
    int calls = 0;
    const int last = ls_comm_size(world) - 1;
    ls_callback *const callbacks[] = {
        ls_on_rank(ls_callback_new(&(ls_callback_hooks){.on_end_epoch = count}, &calls), last)};
    training t;
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = callbacks, .callback_count = 1}, world));
    LS_TRY(ls_trial_run(t.trial, 3));
    LS_CHECK(calls == (ls_comm_rank(world) == last ? 3 : 0));
    training_end(&t);

    ls_callback *failing = ls_on_rank(
        ls_once(ls_callback_new(&(ls_callback_hooks){.on_step_training = fail, .name = "mine"}, NULL)), last);
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = &failing, .callback_count = 1}, world));
    LS_CHECK(ls_trial_run(t.trial, 3) == LS_ERR_IO);
    LS_EXPECT_MESSAGE("no more in step 1");
    LS_CHECK(last == 0 || strstr(ls_error_message(), "the hook on_step_training of mine") != NULL);
    training_end(&t);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    static const maker makers[] = {clip_norms,      clip_values,    decay_1,         decay_2,
                                   schedule_epochs, schedule_steps, schedule_plateau};
    LS_TRY(early_stopping(world));
    LS_TRY(not_finite(world));
    LS_TRY(names_positions(world));
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        LS_TRY(as_alone(world, makers[i]));
    }
    LS_TRY(advances(world));
    LS_TRY(one_rank(world));
    return ls_comm_barrier(world, NULL);
}
