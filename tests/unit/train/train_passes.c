/*
 * Functions of a trial besides runs: prediction, replay, and epochs with a given number of steps. Also ownership of its
 * callbacks.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/trials.h"

#include <signal.h>
#include <stdio.h>

#include "tests/support/files.h"
#include <lockstep/callbacks.h>
#include <lockstep/checkpoint.h>

/* ---- a log of hooks ---------------------------------------------------------------------------------------------- */

typedef struct journal {
    char text[4096];
    double seen; /* the metric "loss" or "val_loss" at the last on_end_training or on_end_validation */
    double seen_other;
    int released;
} journal;

static ls_status note(journal *log, const char *what) {
    const size_t length = strlen(log->text);
    snprintf(log->text + length, sizeof log->text - length, "%s ", what);
    return LS_OK;
}

#define HOOKS(apply)                                                                                                   \
    apply(init) apply(start) apply(start_epoch) apply(start_training) apply(sample) apply(forward) apply(criterion)    \
        apply(backward) apply(step_training) apply(end_training) apply(start_validation) apply(sample_validation)      \
            apply(forward_validation) apply(criterion_validation) apply(step_validation) apply(end_validation)         \
                apply(end_epoch) apply(checkpoint) apply(end)
#define NOTING(name)                                                                                                   \
    static ls_status note_##name(ls_trial_state *state, void *user) {                                                  \
        (void)state;                                                                                                   \
        return note(user, #name);                                                                                      \
    }
HOOKS(NOTING)
#define FIELD(name) .on_##name = note_##name,

static void count_release(void *user) {
    ((journal *)user)->released++;
}

static ls_callback_hooks noting_hooks(void) {
    return (ls_callback_hooks){HOOKS(FIELD).release = count_release, .name = "the journal"};
}

static ls_callback *noting(journal *log) {
    const ls_callback_hooks hooks = noting_hooks();
    return ls_callback_new(&hooks, log);
}

/* ---- prediction -------------------------------------------------------------------------------------------------- */

#define PREDICTED "sample_validation forward_validation step_validation "

static void expect_predictions(const setting *s, int64_t count, ls_loader *loader, const char *hooks) {
    journal log = {.text = ""};
    ls_trial_options options = options_of(s);
    ls_callback *callback = noting(&log);
    options.callbacks = &callback;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    log.text[0] = '\0';
    ls_scope *scope = ls_scope_begin();
    ls_tensor *outputs = NULL;
    assert_int_equal(ls_trial_predict(trial, loader, false, &outputs), LS_OK);
    assert_int_equal(ls_size(outputs, 0), count);
    assert_int_equal(ls_size(outputs, 1), CLASSES);
    assert_int_equal(ls_dtype_of(outputs), LS_F64);
    if (hooks != NULL) {
        assert_string_equal(log.text, hooks);
    }
    const ls_tensor *weight = ls_module_parameter(s->model, 0), *bias = ls_module_parameter(s->model, 1);
    for (int64_t row = 0; row < count; row++) {
        for (int64_t c = 0; c < CLASSES; c++) {
            const double expected = ls_at(bias, &c) + input_at(0, 2 * row) * ls_at(weight, (const int64_t[]){c, 0}) +
                                    input_at(0, 2 * row + 1) * ls_at(weight, (const int64_t[]){c, 1});
            assert_true(fabs(ls_at(outputs, (const int64_t[]){row, c}) - expected) < 1e-12);
        }
    }
    assert_true(ls_module_is_training(s->model));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_trial_free(trial);
    assert_int_equal(log.released, 1);
}

/* The rows have the data set's order, whatever the order of the loader. */
TEST(test_prediction) {
    setting s = make_setting();
    ls_loader *in_order = make_loader_with(0, TRAIN_COUNT, &(ls_loader_options){.batch_size = 3, .no_shuffle = true});
    expect_predictions(&s, TRAIN_COUNT, in_order,
                       "start start_epoch start_validation " PREDICTED PREDICTED PREDICTED PREDICTED
                       "end_validation end_epoch end ");
    expect_predictions(&s, TRAIN_COUNT, s.train, NULL);
    ls_loader_free(in_order);
    free_setting(&s);
}

static ls_status evaluate_validation(ls_trial_state *state, void *user) {
    return ls_trial_evaluate(state->trial, user, "other");
}

/* A prediction continues after a hook has run an evaluation. */
TEST(test_evaluation_within_a_prediction) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    ls_callback *callback =
        ls_callback_new(&(ls_callback_hooks){.on_forward_validation = evaluate_validation}, s.validate);
    options.callbacks = &callback;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *outputs = NULL;
    assert_int_equal(ls_trial_predict(trial, s.train, false, &outputs), LS_OK);
    assert_int_equal(ls_size(outputs, 0), TRAIN_COUNT);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_trial_free(trial);
    free_setting(&s);
}

static ls_tensor *sum_of_all(ls_tensor *x, void *user) {
    (void)user;
    return ls_sum(x);
}

static ls_tensor *halves(ls_tensor *x, void *user) {
    (void)user;
    return ls_size(x, 0) == BATCH ? x : ls_to(x, LS_F32);
}

static void expect_no_prediction(ls_tensor *(*function)(ls_tensor *, void *), const char *reason) {
    setting s = make_setting();
    ls_module *model = ls_nn_function("odd", function, NULL);
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model, .criterion = ls_criterion_mse, .quiet = true});
    ls_tensor *outputs = NULL;
    ls_scope *scope = ls_scope_begin();
    assert_int_equal(ls_trial_predict(trial, s.train, true, &outputs), LS_ERR_SHAPE);
    expect_message(reason);
    assert_null(outputs);
    (void)ls_scope_end(scope);
    assert_int_equal(ls_trial_predict(trial, NULL, true, &outputs), LS_ERR_ARGUMENT);
    ls_trial_free(trial);
    ls_module_free(model);
    free_setting(&s);
}

TEST(test_what_cannot_be_predicted) {
    expect_no_prediction(sum_of_all, "the model returned [] for 4 samples: it must have one row per sample");
    expect_no_prediction(halves, "outputs [3, 2] (f32) do not match the outputs of earlier batches");
}

/* ---- replay ------------------------------------------------------------------------------------------------------ */

static ls_status see_training(ls_trial_state *state, void *user) {
    journal *log = user;
    log->seen = ls_trial_metric(state->trial, "loss");
    log->seen_other = ls_trial_metric(state->trial, "val_loss");
    return note_end_training(state, user);
}

static ls_status see_validation(ls_trial_state *state, void *user) {
    journal *log = user;
    assert_int_equal(state->phase, LS_PHASE_REPLAY);
    assert_true(isnan(log->seen_other) && log->seen == ls_trial_history(state->trial, state->epoch, "loss"));
    log->seen = ls_trial_metric(state->trial, "val_loss");
    assert_true(log->seen == ls_trial_history(state->trial, state->epoch, "val_loss"));
    return note_end_validation(state, user);
}

#define TRAIN_STEP    "sample forward criterion backward step_training "
#define VALIDATE_STEP "sample_validation forward_validation criterion_validation step_validation "
#define REPLAYED                                                                                                       \
    "start_epoch start_training " TRAIN_STEP TRAIN_STEP TRAIN_STEP                                                     \
    "end_training start_validation " VALIDATE_STEP VALIDATE_STEP "end_validation end_epoch "
#define REPLAYED_BRIEFLY                                                                                               \
    "start_epoch start_training " TRAIN_STEP "end_training start_validation " VALIDATE_STEP "end_validation "          \
    "end_epoch "

TEST(test_replay) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    const double loss = ls_trial_metric(trial, "val_loss");
    journal log = {.text = ""};
    ls_callback_hooks hooks = noting_hooks();
    hooks.on_end_training = see_training;
    hooks.on_end_validation = see_validation;
    ls_callback *callback = ls_callback_new(&hooks, &log);
    assert_int_equal(ls_trial_replay(trial, &callback, 1, false), LS_OK);
    assert_string_equal(log.text, "start " REPLAYED REPLAYED "end ");
    log.text[0] = '\0';
    assert_int_equal(ls_trial_replay(trial, &callback, 1, true), LS_OK);
    assert_string_equal(log.text, "start " REPLAYED_BRIEFLY REPLAYED_BRIEFLY "end ");
    assert_int_equal(log.released, 0); /* the trial borrowed it */
    assert_true(ls_trial_metric(trial, "val_loss") == loss);
    assert_int_equal(ls_trial_history_count(trial), 2);
    assert_int_equal(ls_trial_replay(trial, NULL, 1, true), LS_ERR_ARGUMENT);
    assert_int_equal(ls_trial_replay(NULL, &callback, 1, true), LS_ERR_ARGUMENT);
    assert_int_equal(ls_trial_replay(trial, (ls_callback *[]){NULL}, 1, true), LS_ERR_ARGUMENT);
    expect_message("ls_trial_replay: callback 0 is NULL");
    ls_callback_free(callback);
    assert_int_equal(log.released, 1);
    ls_trial_free(trial);
    free_setting(&s);
}

static ls_status count_to(const ls_trial_state *state, void *user, double *sum, double *weight) {
    (void)user;
    *sum = (double)state->step + (state->phase == LS_PHASE_VALIDATION ? 100 : 0);
    *weight = 1;
    return LS_OK;
}

static ls_status recall_training(ls_trial_state *state, void *user) {
    const ls_trial *trial = state->trial;
    *(int *)user += 1;
    assert_true(ls_trial_metric(trial, "interval_steps") == ls_trial_history(trial, state->epoch, "interval_steps"));
    assert_true(isnan(ls_trial_metric(trial, "val_interval_steps")) && isnan(ls_trial_metric(trial, "test_loss")));
    return LS_OK;
}

static ls_status recall_validation(ls_trial_state *state, void *user) {
    const ls_trial *trial = state->trial;
    *(int *)user += 1;
    assert_true(ls_trial_metric(trial, "val_interval_steps") >= 100);
    assert_true(isnan(ls_trial_metric(trial, "interval_steps")) && isnan(ls_trial_metric(trial, "test_loss")));
    return LS_OK;
}

/* A metric's name may contain "val_". Results of evaluations belong to neither pass. */
TEST(test_replay_knows_passes_by_names) {
    setting s = make_setting();
    int calls = 0;
    ls_metric *own = ls_metric_new(&(ls_metric_functions){.name = "interval_steps", .mean = count_to}, NULL);
    ls_callback *callback = ls_callback_new(
        &(ls_callback_hooks){.on_end_training = recall_training, .on_end_validation = recall_validation}, &calls);
    ls_trial_options options = options_of(&s);
    options.custom_metrics = &own;
    options.custom_metric_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "test"), LS_OK);
    assert_int_equal(ls_trial_replay(trial, &callback, 1, false), LS_OK);
    assert_int_equal(calls, 4);
    ls_callback_free(callback);
    ls_trial_free(trial);
    free_setting(&s);
}

static ls_status stop_in_epoch(ls_trial_state *state, void *user) {
    (void)user;
    return state->epoch == 1 && state->batch == 1 && raise(SIGTERM) != 0 ? LS_ERR_STATE : LS_OK;
}

/* After a signal within an epoch, the trial keeps the numbers of this epoch. A replay uses the history. */
TEST(test_replay_after_a_signal) {
    setting s = make_setting();
    journal log = {.text = ""};
    ls_callback *const stops = ls_callback_new(&(ls_callback_hooks){.on_step_training = stop_in_epoch}, NULL);
    ls_callback *see = ls_callback_new(
        &(ls_callback_hooks){.on_end_training = see_training, .on_end_validation = see_validation}, &log);
    ls_trial_options options = options_of(&s);
    options.callbacks = &stops;
    options.callback_count = 1;
    options.checkpoint = &(ls_checkpoint_options){.folder = test_path("run")};
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, -1, 0.1), LS_OK);
    assert_int_equal(ls_trial_run(trial, 3), LS_ERR_STOPPED);
    assert_int_equal(ls_trial_replay(trial, &see, 1, false), LS_OK);
    assert_string_equal(log.text, "end_training end_validation ");
    ls_callback_free(see);
    ls_trial_free(trial);
    free_setting(&s);
}

static ls_status recall_before_training(ls_trial_state *state, void *user) {
    if (state->epoch == 1) {
        *(double *)user = ls_trial_metric(state->trial, "loss");
    }
    return LS_OK;
}

/* The numbers of an epoch that a signal interrupted do not count after an older checkpoint is loaded. */
TEST(test_load_after_a_signal) {
    setting s = make_setting();
    double seen = 0;
    ls_callback *const callbacks[] = {
        ls_callback_new(&(ls_callback_hooks){.on_step_training = stop_in_epoch}, NULL),
        ls_callback_new(&(ls_callback_hooks){.on_start_training = recall_before_training}, &seen)};
    ls_trial_options options = options_of(&s);
    options.callbacks = callbacks;
    options.callback_count = 2;
    options.checkpoint = &(ls_checkpoint_options){.folder = test_path("loaded"), .overwrite = true};
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, -1, 0.1), LS_OK);
    assert_int_equal(ls_trial_run(trial, 3), LS_ERR_STOPPED);
    assert_int_equal(ls_trial_load(trial, test_path("loaded/epoch-000001-step-0000000003")), LS_OK);
    assert_int_equal(ls_trial_run(trial, 3), LS_ERR_STOPPED);
    assert_true(seen == ls_trial_history(trial, 0, "loss"));
    ls_trial_free(trial);
    free_setting(&s);
}

static ls_status replay_here(ls_trial_state *state, void *user) {
    *(ls_status *)user = ls_trial_replay(state->trial, NULL, 0, false);
    return LS_OK;
}

TEST(test_replay_in_a_hook) {
    setting s = make_setting();
    ls_status status = LS_OK;
    ls_callback *const replays = ls_callback_new(&(ls_callback_hooks){.on_end_validation = replay_here}, &status);
    ls_trial_options options = options_of(&s);
    options.callbacks = &replays;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_int_equal(status, LS_ERR_STATE);
    status = LS_OK;
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "test"), LS_OK);
    assert_int_equal(status, LS_ERR_STATE);
    ls_trial_free(trial);
    free_setting(&s);
}

/* ---- epochs with a fixed number of steps ------------------------------------------------------------------------- */

static ls_status log_batch(ls_trial_state *state, void *user) {
    int64_t epoch, batch;
    ls_loader_position(state->loader, &epoch, &batch);
    char text[64];
    snprintf(text, sizeof text, "%d.%d/%d=%d.%d", (int)state->epoch, (int)state->batch, (int)state->batches, (int)epoch,
             (int)batch);
    return note(user, text);
}

/* Checks the batches of each epoch, written as "epoch.batch/batches=position of the loader afterwards". */
static void expect_batches(const ls_trial_options *options, int64_t epochs, const char *batches) {
    journal log = {.text = ""};
    ls_callback *callback =
        ls_callback_new(&(ls_callback_hooks){.on_sample = log_batch, .on_sample_validation = log_batch}, &log);
    ls_trial_options own = *options;
    own.callbacks = &callback;
    own.callback_count = 1;
    ls_trial *trial = ls_trial_new(&own);
    assert_non_null(trial);
    assert_int_equal(ls_trial_run(trial, epochs), LS_OK);
    assert_string_equal(log.text, batches);
    ls_trial_free(trial);
}

static ls_status log_start(ls_trial_state *state, void *user) {
    char text[64];
    snprintf(text, sizeof text, "%d:%d.%d/%d", (int)state->phase, (int)state->epoch, (int)state->batch,
             (int)state->batches);
    return note(user, text);
}

/* The hooks before a pass have the number of its batches. */
TEST(test_batches_before_a_pass) {
    journal log = {.text = ""};
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    ls_callback *callback = ls_callback_new(&(ls_callback_hooks){.on_start_epoch = log_start,
                                                                 .on_start_training = log_start,
                                                                 .on_start_validation = log_start},
                                            &log);
    options.callbacks = &callback;
    options.callback_count = 1;
    options.validate_steps = 1;
    assert_int_equal(ls_loader_seek(s.train, 0, 1), LS_OK);
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    assert_string_equal(log.text, "0:0.1/3 1:0.1/3 2:0.0/1 0:1.0/3 1:1.0/3 2:1.0/1 ");
    log.text[0] = '\0';
    assert_int_equal(ls_trial_replay(trial, &callback, 1, false), LS_OK);
    assert_string_equal(log.text, "5:0.0/3 5:0.0/3 5:0.0/1 5:1.0/3 5:1.0/3 5:1.0/1 ");
    ls_trial_free(trial);
    free_setting(&s);
}

TEST(test_steps_of_an_epoch) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.validate = NULL;
    options.train_steps = 2;
    expect_batches(&options, 2, "0.0/2=0.1 0.1/2=0.2 1.0/2=1.1 1.1/2=1.2 ");
    assert_int_equal(ls_loader_seek(s.train, 0, 0), LS_OK);
    options.endless = true;
    expect_batches(&options, 2, "0.0/2=0.1 0.1/2=0.2 1.0/2=0.3 1.1/2=1.1 ");
    assert_int_equal(ls_loader_seek(s.train, 0, 0), LS_OK);
    options.endless = false;
    options.train_steps = 4;
    expect_batches(&options, 2, "0.0/4=0.1 0.1/4=0.2 0.2/4=0.3 0.3/4=1.1 1.0/4=2.1 1.1/4=2.2 1.2/4=2.3 1.3/4=3.1 ");
    assert_int_equal(ls_loader_seek(s.train, 0, 0), LS_OK);
    options.train_steps = 1;
    options.validate = s.validate;
    options.validate_steps = 1;
    expect_batches(&options, 2, "0.0/1=0.1 0.0/1=0.1 1.0/1=1.1 1.0/1=0.1 ");
    options.validate_steps = 3;
    expect_batches(&options, 1, "0.0/1=2.1 0.0/3=0.1 0.1/3=0.2 0.2/3=1.1 ");
    free_setting(&s);
}

static ls_status give_nothing(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    (void)self;
    (void)epoch;
    (void)number;
    (void)batch;
    *more = false;
    return LS_OK;
}

TEST(test_steps_of_a_loader_without_batches) {
    static const ls_loader_type type = {.name = "nothing", .next = give_nothing};
    setting s = make_setting();
    ls_loader *nothing = ls_loader_custom(&type, -1);
    ls_trial_options options = options_of(&s);
    options.train = nothing;
    options.train_steps = 2;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_ERR_ARGUMENT);
    expect_message(".train_steps is 2, but the loader has no batches");
    ls_trial_free(trial);
    options.train_steps = -1;
    assert_null(ls_trial_new(&options));
    expect_message("must not be negative");
    ls_loader_free(nothing);
    free_setting(&s);
}

/* Results of an evaluation are added to the last epoch of the history. */
TEST(test_evaluations_in_the_history) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.evaluate_steps = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "test"), LS_OK);
    assert_int_equal(ls_trial_history_count(trial), 0);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "test"), LS_OK);
    assert_true(isnan(ls_trial_history(trial, 0, "test_loss")));
    assert_true(ls_trial_history(trial, 1, "test_loss") == ls_trial_metric(trial, "test_loss"));
    assert_true(ls_trial_metric(trial, "test_loss") != ls_trial_metric(trial, "val_loss")); /* of one batch */
    ls_trial_free(trial);
    free_setting(&s);
}

/* ---- ownership of callbacks -------------------------------------------------------------------------------------- */

static ls_status fail_by_name(ls_trial_state *state, void *user) {
    (void)state;
    (void)user;
    return LS_ERR_IO;
}

TEST(test_trial_takes_ownership_of_callbacks) {
    setting s = make_setting();
    journal log = {.text = ""}, failing = {.text = ""};
    ls_callback_hooks hooks = noting_hooks();
    hooks.on_start = fail_by_name;
    hooks.name = "the bad one";
    ls_callback *bad = ls_callback_new(&hooks, &failing);
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = s.model,
                                                       .optimizer = s.optimizer,
                                                       .criterion = ls_criterion_cross_entropy,
                                                       .train = s.train,
                                                       .quiet = true,
                                                       LS_CALLBACKS(noting(&log), bad)});
    assert_int_equal(ls_trial_run(trial, 1), LS_ERR_IO);
    expect_message("ls_trial: the hook on_start of the bad one failed with LS_ERR_IO");
    ls_trial_free(trial);
    assert_int_equal(log.released + failing.released, 2);

    ls_trial_options options = options_of(&s); /* also freed for a trial whose constructor fails */
    ls_callback *callback = noting(&log);
    options.callbacks = &callback;
    options.callback_count = 1;
    options.metrics = LS_METRICS("nonsense");
    assert_null(ls_trial_new(&options));
    assert_int_equal(log.released, 2);
    free_setting(&s);
}

TEST(test_a_constructor_that_failed) {
    setting s = make_setting();
    journal log = {.text = ""};
    ls_trial_options options = options_of(&s);
    ls_callback *const callbacks[] = {noting(&log), NULL};
    options.callbacks = callbacks;
    options.callback_count = 2;
    (void)ls_error_set(LS_ERR_IO, "the constructor's own words");
    assert_null(ls_trial_new(&options));
    assert_int_equal(ls_error_status(), LS_ERR_IO);
    expect_message("the constructor's own words; ls_trial_new: callback 1 is NULL");
    assert_int_equal(log.released, 1);
    free_setting(&s);
}

/* A callback belongs to one trial, which frees it. The callbacks of a refused list are freed exactly once. */
TEST(test_callbacks_of_two_owners) {
    setting s = make_setting();
    journal log = {.text = ""}, other = {.text = ""};
    ls_trial_options options = options_of(&s);
    ls_callback *own = noting(&log), *twice = noting(&other);
    options.callbacks = &own;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    ls_callback *const taken[] = {noting(&other), own};
    options.callbacks = taken;
    options.callback_count = 2;
    assert_null(ls_trial_new(&options));
    assert_int_equal(ls_error_status(), LS_ERR_STATE);
    expect_message("ls_trial_new: callback 1 already belongs to a trial");
    assert_null(ls_once(own));
    assert_int_equal(ls_error_status(), LS_ERR_STATE);
    ls_callback_free(own);
    assert_int_equal(other.released, 1);
    ls_callback *const same[] = {twice, noting(&other), twice};
    options.callbacks = same;
    options.callback_count = 3;
    assert_null(ls_trial_new(&options));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    expect_message("ls_trial_new: callback 2 is in the list twice");
    assert_int_equal(other.released, 3);
    assert_int_equal(log.released, 0);
    ls_trial_free(trial);
    assert_int_equal(log.released, 1);
    free_setting(&s);
}

/* As with LS_CALLBACKS in C++, the callbacks own copies of the arrays. */
TEST(test_copies_of_arrays) {
    setting s = make_setting();
    journal log = {.text = ""};
    ls_trial_options options = options_of(&s);
    ls_callback *list[] = {NULL, noting(&log), noting(&log)};
    options.callbacks = ls_callback_array(list, 3);
    options.callback_count = 3;
    ls_callback *const *rest = ls_callback_array(list + 1, 2);
    assert_true(options.callbacks[0] == NULL && options.callbacks[2] == list[2] && rest[0] == list[1]);
    assert_null(ls_trial_new(&options));
    expect_message("callback 0 is NULL");
    assert_int_equal(log.released, 2);
    assert_null(ls_callback_array(list, 1));
    assert_null(ls_callback_array(NULL, 0));
    assert_null(ls_callback_array(NULL, 2));
    assert_null(ls_callback_array(list, -1));
    expect_message("ls_callback_array: the number of callbacks is -1");
    list[1] = noting(&log);
    options.callbacks = ls_callback_array(list + 1, 1);
    options.callback_count = 1;
    list[1] = NULL;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    ls_trial_free(trial);
    assert_int_equal(log.released, 3);
    free_setting(&s);
}

TEST(test_callbacks_of_ones_own) {
    journal log = {.text = ""};
    assert_null(ls_callback_new(NULL, &log));
    expect_message("ls_callback_new: the hooks are NULL");
    ls_callback_free(noting(&log));
    ls_callback_free(NULL);
    assert_int_equal(log.released, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prediction),
        cmocka_unit_test(test_evaluation_within_a_prediction),
        cmocka_unit_test(test_what_cannot_be_predicted),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_replay_knows_passes_by_names),
        cmocka_unit_test(test_replay_after_a_signal),
        cmocka_unit_test(test_load_after_a_signal),
        cmocka_unit_test(test_replay_in_a_hook),
        cmocka_unit_test(test_batches_before_a_pass),
        cmocka_unit_test(test_steps_of_an_epoch),
        cmocka_unit_test(test_steps_of_a_loader_without_batches),
        cmocka_unit_test(test_evaluations_in_the_history),
        cmocka_unit_test(test_trial_takes_ownership_of_callbacks),
        cmocka_unit_test(test_a_constructor_that_failed),
        cmocka_unit_test(test_callbacks_of_two_owners),
        cmocka_unit_test(test_copies_of_arrays),
        cmocka_unit_test(test_callbacks_of_ones_own),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
