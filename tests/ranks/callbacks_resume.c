/*
 * A run that is interrupted in the middle of an epoch and resumes from a checkpoint: the state of its callbacks is
 * restored, so its parameters are bit-identical to the parameters of an uninterrupted run, and its log is the same.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/scratch.h"
#include "tests/support/training.h"

enum { EPOCHS = 6, STEPS = 5, INTERRUPTED = 13, LISTED = 9, BEST = 0, AVERAGING = 1 };

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static ls_status add_to_loss(ls_trial_state *state, void *user) {
    (void)user;
    state->loss = ls_mul(state->loss, 1 + 0.5 / (1 + (double)state->step));
    return state->loss != NULL ? LS_OK : ls_error_status();
}

/* Lists all callbacks with state, and a timer. */
static void list_callbacks(ls_callback *list[LISTED], ls_optimizer *optimizer, const char *log) {
    ls_callback *once = ls_callback_new(&(ls_callback_hooks){.on_criterion = add_to_loss, .name = "once"}, NULL);
    ls_callback *each =
        ls_callback_new(&(ls_callback_hooks){.on_criterion = add_to_loss, .name = "once an epoch"}, NULL);
    ls_callback *const several[] = {ls_once(once), ls_once_per_epoch(each)};
    ls_callback *const callbacks[LISTED] = {
        ls_early_stopping(&(ls_early_stopping_options){.monitor = "loss", .patience = 5}),
        ls_weight_averaging(&(ls_weight_averaging_options){.decay = 0.7}),
        ls_scheduler(ls_schedule_cosine(optimizer, EPOCHS * STEPS, 0), &(ls_scheduler_options){.per_step = true}),
        ls_callbacks_of(several, 2),
        ls_mixup(&(ls_mixup_options){.classes = TRAINING_CLASSES}),
        ls_rate_finder(&(ls_rate_finder_options){.steps = 8}),
        ls_lsuv(NULL),
        ls_csv_log(log, &(ls_csv_log_options){.per_batch = true}),
        ls_timer(&(ls_timer_options){.no_table = true})};
    memcpy(list, callbacks, sizeof callbacks);
}

typedef struct run {
    training t;
    ls_callback *list[LISTED];
} run;

/* `folder` holds checkpoints; the newest was written at step INTERRUPTED. NULL disables checkpoints. */
static ls_status begin_run(run *r, ls_comm *world, const char *log, const char *folder, bool resumes) {
    const ls_checkpoint_options checkpoint = {.folder = folder, .every_steps = INTERRUPTED, .no_signals = true};
    training_plan plan = {.callbacks = r->list,
                          .callback_count = LISTED,
                          .checkpoint = folder != NULL ? &checkpoint : NULL,
                          .max_steps = folder != NULL && !resumes ? INTERRUPTED + 1 : 0,
                          .resume = resumes ? folder : NULL};
    LS_TRY(training_prepare(&r->t, &plan, world));
    list_callbacks(r->list, r->t.optimizer, log);
    training_start(&r->t, &plan);
    LS_CHECK(r->t.trial != NULL);
    return ls_trial_run(r->t.trial, EPOCHS);
}

static ls_status same_files(const char *a, const char *b) {
    char texts[2][8192];
    const char *const paths[] = {a, b};
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen(paths[i], "r");
        LS_CHECK(file != NULL);
        texts[i][fread(texts[i], 1, sizeof texts[i] - 1, file)] = '\0';
        fclose(file);
    }
    LS_CHECK(strlen(texts[0]) > (size_t)EPOCHS * STEPS * 10);
    LS_CHECK(strcmp(texts[0], texts[1]) == 0);
    return LS_OK;
}

static ls_status fail_in_the_second_epoch(ls_trial_state *state, void *user) {
    (void)user;
    return state->step == STEPS + 2 ? ls_error_set(LS_ERR_IO, "no more") : LS_OK;
}

/* Loading a checkpoint after a failed run replaces all times. The failed run does not count. */
static ls_status times_of_a_checkpoint(ls_comm *world) {
    ls_callback *const callbacks[] = {
        ls_timer(&(ls_timer_options){.no_table = true}),
        ls_callback_new(&(ls_callback_hooks){.on_step_training = fail_in_the_second_epoch}, NULL)};
    training t;
    double saved[LS_TIMES];
    const char *const folder = in_scratch("times");
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = callbacks, .callback_count = 2}, world));
    LS_TRY(ls_trial_run(t.trial, 1));
    LS_TRY(ls_trial_save(t.trial, folder));
    for (int i = 0; i < LS_TIMES; i++) {
        saved[i] = ls_timer_seconds(callbacks[0], (ls_time)i);
    }
    LS_CHECK(ls_trial_run(t.trial, 2) == LS_ERR_IO);
    LS_CHECK(ls_timer_seconds(callbacks[0], LS_TIME_TOTAL) > saved[LS_TIME_TOTAL]);
    LS_TRY(ls_trial_load(t.trial, folder));
    for (int i = 0; i < LS_TIMES; i++) {
        LS_CHECK(ls_timer_seconds(callbacks[0], (ls_time)i) == saved[i]);
    }
    training_end(&t);
    return LS_OK;
}

static ls_status goes_on(ls_comm *world) {
    static _Thread_local run whole, first, second;
    const char *const logs[] = {in_scratch("whole.csv"), in_scratch("parts.csv")}, *const folder = in_scratch("run");
    LS_TRY(begin_run(&whole, world, logs[0], NULL, false));
    LS_TRY(begin_run(&first, world, logs[1], folder, false));
    training_end(&first.t);
    LS_TRY(begin_run(&second, world, logs[1], folder, true));
    LS_CHECK(ls_module_hash(second.t.model) == ls_module_hash(whole.t.model));
    for (int i = 0; i < EPOCHS; i++) {
        LS_CHECK(ls_trial_history(second.t.trial, i, "val_loss") == ls_trial_history(whole.t.trial, i, "val_loss"));
    }
    LS_CHECK(ls_early_stopping_best(second.list[BEST]) == ls_early_stopping_best(whole.list[BEST]));
    LS_CHECK(ls_weight_averaging_count(second.list[AVERAGING]) == EPOCHS * STEPS);
    LS_TRY(ls_trial_evaluate(second.t.trial, second.t.validate, "test"));
    LS_TRY(ls_trial_evaluate(whole.t.trial, whole.t.validate, "test"));
    LS_CHECK(ls_trial_metric(second.t.trial, "test_loss") == ls_trial_metric(whole.t.trial, "test_loss"));
    LS_TRY(ls_comm_rank(world) == 0 ? same_files(logs[0], logs[1]) : LS_OK);
    training_end(&second.t);
    training_end(&whole.t);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(make_scratch(world));
    LS_TRY(goes_on(world));
    LS_TRY(times_of_a_checkpoint(world));
    return remove_scratch(world);
}
