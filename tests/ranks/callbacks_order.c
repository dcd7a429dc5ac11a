/*
 * Checkpoints that are loaded by a trial with other callbacks: in another order, with fewer or more of a kind, or with
 * other options. A state goes to the callback with the same kind and options, or to no callback. A trial with other
 * metrics fails to load the checkpoint.
 *
 * ranks: 1 2 3
 * devices: cpu
 */
#include "tests/support/scratch.h"
#include "tests/support/training.h"

enum { EPOCHS = 3 };

/* The log of this rank, which may be a thread. */
static _Thread_local int lines;
static _Thread_local char last_line[1024];

static void note(ls_log_level level, int rank, const char *line, void *user) {
    (void)level;
    (void)rank;
    (void)user;
    lines++;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static ls_callback *stop_by(const char *monitor, int64_t patience) {
    return ls_early_stopping(&(ls_early_stopping_options){.monitor = monitor, .patience = patience});
}

/* A trial with these callbacks that has loaded the checkpoint. */
static ls_status load(training *t, ls_comm *world, ls_callback *const *callbacks, int count) {
    LS_TRY(training_begin(t, &(training_plan){.callbacks = callbacks, .callback_count = count}, world));
    return ls_trial_load(t->trial, in_scratch("saved"));
}

/* `best` gets the best values of two of them, `stopping`. */
static ls_status save(ls_comm *world, ls_callback *const *callbacks, int count, ls_callback *const stopping[2],
                      double best[2]) {
    training t;
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = callbacks, .callback_count = count}, world));
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    LS_TRY(ls_trial_save(t.trial, in_scratch("saved")));
    for (int i = 0; i < 2; i++) {
        best[i] = ls_early_stopping_best(stopping[i]);
    }
    training_end(&t);
    return LS_OK;
}

/* Both callbacks get their states in each order, and one of them if the other is missing. */
static ls_status in_any_order(ls_comm *world, const double best[2]) {
    training t;
    for (int first = 0; first < 2; first++) {
        ls_callback *own[] = {stop_by("val_acc", 40), stop_by("val_loss", 3)};
        LS_TRY(load(&t, world, (ls_callback *[]){own[first], own[1 - first]}, 2));
        LS_CHECK(ls_early_stopping_best(own[0]) == best[0] && ls_early_stopping_best(own[1]) == best[1]);
        training_end(&t);
    }
    ls_callback *only = stop_by("val_loss", 3);
    LS_TRY(load(&t, world, &only, 1));
    LS_CHECK(ls_early_stopping_best(only) == best[1]);
    LS_TRY(ls_trial_run(t.trial, EPOCHS + 1));
    LS_CHECK(ls_trial_history_count(t.trial) == EPOCHS + 1);
    training_end(&t);
    return LS_OK;
}

/* A callback with another metric or direction keeps its state. With another patience, it gets the saved state. */
static ls_status with_other_options(ls_comm *world, const double best[2]) {
    training t;
    ls_callback *only = stop_by("acc", 40);
    LS_TRY(load(&t, world, &only, 1));
    LS_CHECK(isnan(ls_early_stopping_best(only)));
    training_end(&t);
    only =
        ls_early_stopping(&(ls_early_stopping_options){.monitor = "val_acc", .mode = LS_MONITOR_MIN, .patience = 40});
    LS_TRY(load(&t, world, &only, 1));
    LS_CHECK(isnan(ls_early_stopping_best(only)));
    training_end(&t);
    ls_callback *own[] = {stop_by("val_loss", 7), stop_by("val_acc", 40)};
    lines = 0;
    LS_TRY(load(&t, world, own, 2));
    LS_CHECK(ls_early_stopping_best(own[1]) == best[0] && ls_early_stopping_best(own[0]) == best[1]);
    LS_CHECK(lines == (ls_comm_rank(world) == 0) && (lines == 0 || strstr(last_line, "patience 7")));
    training_end(&t);
    return LS_OK;
}

/* If the options of two callbacks of a kind have changed, these two callbacks get no state. */
static ls_status two_of_a_kind(ls_comm *world) {
    training t;
    double best[2];
    ls_callback *const pair[] = {stop_by("loss", 5), stop_by("loss", 6)};
    LS_TRY(save(world, pair, 2, pair, best));
    ls_callback *own[] = {stop_by("loss", 7), stop_by("loss", 5), stop_by("loss", 8)};
    LS_TRY(load(&t, world, own, 3));
    LS_CHECK(ls_early_stopping_best(own[1]) == best[0]);
    LS_CHECK(isnan(ls_early_stopping_best(own[0])) && isnan(ls_early_stopping_best(own[2])));
    training_end(&t);
    return LS_OK;
}

/* In a group, the order matters. */
static ls_status in_a_group(ls_comm *world) {
    training t;
    double best[2];
    ls_callback *saved[] = {stop_by("val_acc", 40), stop_by("val_loss", 3)};
    ls_callback *const list[] = {ls_callbacks_of(saved, 2)};
    LS_TRY(save(world, list, 1, saved, best));
    ls_callback *own[] = {stop_by("val_loss", 3), stop_by("val_acc", 40)};
    ls_callback *const other[] = {ls_callbacks_of(own, 2)};
    LS_TRY(load(&t, world, other, 1));
    LS_CHECK(isnan(ls_early_stopping_best(own[0])) && isnan(ls_early_stopping_best(own[1])));
    training_end(&t);
    ls_callback *same[] = {stop_by("val_acc", 40), stop_by("val_loss", 3)};
    ls_callback *const again[] = {ls_callback_new(&(ls_callback_hooks){.name = NULL}, NULL), ls_callbacks_of(same, 2)};
    LS_TRY(load(&t, world, again, 2));
    LS_CHECK(ls_early_stopping_best(same[0]) == best[0] && ls_early_stopping_best(same[1]) == best[1]);
    training_end(&t);
    return LS_OK;
}

/*
 * The state of a schedule has its step, but its description in the checkpoint does not. After the next epoch, the rate
 * is the rate of a run without a checkpoint.
 */
static ls_status schedules(ls_comm *world) {
    enum { SAVES, LOADS, LOADS_WITH_OPTIONS, RUNS, RUNS_WITH_OPTIONS, CASES };
    training t;
    double rates[CASES];
    for (int i = 0; i < CASES; i++) { /* all but the first have the other order */
        const double gamma = i == LOADS_WITH_OPTIONS || i == RUNS_WITH_OPTIONS ? 0.25 : 0.5;
        const bool loads = i == LOADS || i == LOADS_WITH_OPTIONS;
        LS_TRY(training_prepare(&t, &(training_plan){0}, world));
        ls_callback *first = ls_scheduler(ls_schedule_exponential(t.optimizer, gamma), NULL);
        ls_callback *second = ls_scheduler(ls_schedule_step(t.optimizer, 2, 0.9), NULL);
        training_start(&t, &(training_plan){
                               .callbacks = (ls_callback *[]){i == SAVES ? first : second, i == SAVES ? second : first},
                               .callback_count = 2});
        lines = 0;
        LS_TRY(loads ? ls_trial_load(t.trial, in_scratch("saved")) : LS_OK);
        LS_CHECK(lines == (i == LOADS_WITH_OPTIONS && ls_comm_rank(world) == 0));
        LS_TRY(ls_trial_run(t.trial, i == SAVES ? EPOCHS : EPOCHS + 1));
        LS_TRY(i == SAVES ? ls_trial_save(t.trial, in_scratch("saved")) : LS_OK);
        rates[i] = ls_optimizer_learning_rate(t.optimizer, 0);
        training_end(&t);
    }
    LS_CHECK(rates[LOADS] == rates[RUNS] && rates[LOADS_WITH_OPTIONS] == rates[RUNS_WITH_OPTIONS]);
    LS_CHECK(rates[RUNS] > rates[RUNS_WITH_OPTIONS]);
    return LS_OK;
}

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

/* A trial with slices, or without slices if `shards` is 0. */
static ls_status begin_with(training *t, ls_comm *world, int shards, const char *const *metrics) {
    const ls_loader_options loading = {.global_batch_size = 12, .comm = world, .shards = shards};
    *t = (training){.model = ls_data_parallel(
                        ls_nn_linear_with(TRAINING_INPUTS, TRAINING_CLASSES, &(ls_linear_options){.dtype = LS_F64}),
                        world, &(ls_data_parallel_options){.shards = shards})};
    t->optimizer = ls_sgd(t->model, NULL);
    t->train = ls_loader_new(training_samples(0, TRAINING_SAMPLES), &loading);
    t->trial = ls_trial_new(&(ls_trial_options){.model = t->model,
                                                .optimizer = t->optimizer,
                                                .criterion = ls_criterion_cross_entropy,
                                                .train = t->train,
                                                .metrics = metrics,
                                                .quiet = true});
    LS_CHECK(t->trial != NULL);
    return LS_OK;
}

/*
 * The same metrics, in any order, must be in both, even if their numbers are not used because `.shards` differs at the
 * end of an epoch.
 */
static ls_status other_metrics(ls_comm *world, int before, int after) {
    training t;
    LS_TRY(begin_with(&t, world, before, LS_METRICS("loss", "acc")));
    LS_TRY(ls_trial_run(t.trial, 1));
    LS_TRY(ls_trial_save(t.trial, in_scratch("saved")));
    training_end(&t);
    LS_TRY(begin_with(&t, world, after, LS_METRICS("acc", "loss")));
    LS_TRY(ls_trial_load(t.trial, in_scratch("saved")));
    training_end(&t);
    LS_TRY(begin_with(&t, world, after, LS_METRICS("loss", "top_2_acc")));
    LS_CHECK(ls_trial_load(t.trial, in_scratch("saved")) == LS_ERR_FORMAT);
    training_end(&t);
    LS_TRY(begin_with(&t, world, after, LS_METRICS("loss", "acc", "top_2_acc")));
    LS_CHECK(ls_trial_load(t.trial, in_scratch("saved")) == LS_ERR_FORMAT);
    training_end(&t);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    double best[2];
    ls_log_set_sink(note, NULL);
    LS_TRY(make_scratch(world));
    ls_callback *const pair[] = {stop_by("val_acc", 40), stop_by("val_loss", 3)};
    LS_TRY(save(world, pair, 2, pair, best));
    LS_TRY(in_any_order(world, best));
    LS_TRY(with_other_options(world, best));
    LS_TRY(two_of_a_kind(world));
    LS_TRY(in_a_group(world));
    LS_TRY(schedules(world));
    LS_TRY(other_metrics(world, 0, 4));
    LS_TRY(other_metrics(world, 4, 0));
    LS_TRY(other_metrics(world, 4, 6));
    return remove_scratch(world);
}
