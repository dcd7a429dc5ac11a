/*
 * Trials with a custom step, and the position of a trial's training loader before and after runs.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/trials.h"

#include <stdio.h>

#include "base/status.h"

/* ---- custom steps ------------------------------------------------------------------------------------------------ */

/* Records which hooks are called around the step. */
static ls_status note(void *user, const char *what) {
    strcat(user, what);
    return LS_OK;
}

#define NOTING(name)                                                                                                   \
    static ls_status note_##name(ls_trial_state *state, void *user) {                                                  \
        assert_non_null(state);                                                                                        \
        return note(user, #name " ");                                                                                  \
    }
NOTING(sample)
NOTING(forward)
NOTING(criterion)
NOTING(backward)
NOTING(step_training)

/* on_sample replaces the input, and the step must use the new input. */
static ls_status double_input(ls_trial_state *state, void *user) {
    state->input = ls_mul(state->input, 2);
    return note(user, "doubled ");
}

typedef struct own_step {
    char *log;
    int64_t steps;
    double input_sum;
} own_step;

static ls_status take_step(ls_trial_state *state, void *user) {
    own_step *own = user;
    own->steps++;
    own->input_sum += ls_item(ls_sum(state->input));
    ls_optimizer_zero_grad(state->optimizer);
    state->output = ls_forward(state->model, state->input);
    state->loss = ls_cross_entropy(state->output, state->target, NULL);
    LS_TRY(ls_backward(state->loss));
    LS_TRY(ls_optimizer_step(state->optimizer));
    return note(own->log, "step ");
}

TEST(test_hooks_around_a_step) {
    setting s = make_setting();
    char log[1024] = "";
    own_step own = {.log = log};
    double sum = 0;
    for (int64_t i = 0; i < 2 * TRAIN_COUNT; i++) {
        sum += 2 * input_at(0, i);
    }
    ls_callback *const callbacks[] = {ls_callback_new(&(ls_callback_hooks){.on_sample = note_sample,
                                                                           .on_forward = note_forward,
                                                                           .on_criterion = note_criterion,
                                                                           .on_backward = note_backward,
                                                                           .on_step_training = note_step_training},
                                                      log),
                                      ls_callback_new(&(ls_callback_hooks){.on_sample = double_input}, log)};
    ls_trial_options options = options_of(&s);
    options.callbacks = callbacks;
    options.callback_count = 2;
    options.step = take_step;
    options.step_user = &own;
    options.metrics = LS_METRICS("loss", "acc");
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
#define STEP "sample doubled step step_training "
    assert_string_equal(log, STEP STEP STEP);
    assert_int_equal(own.steps, 3);
    assert_true(fabs(own.input_sum - sum) < 1e-12);
    assert_true(ls_trial_metric(trial, "loss") > 0 && ls_trial_metric(trial, "acc") >= 0);
    assert_true(ls_trial_metric(trial, "val_loss") > 0);
    ls_trial_free(trial);
    free_setting(&s);
}

/* Training with the default step and with an equivalent custom step is bit-identical. */
TEST(test_the_same_step) {
    double losses[2];
    uint64_t hashes[2];
    for (int i = 0; i < 2; i++) {
        setting s = make_setting();
        char log[1024] = "";
        own_step own = {.log = log};
        assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, -1, 0.1), LS_OK);
        ls_trial_options options = options_of(&s);
        options.step = i == 0 ? NULL : take_step;
        options.step_user = &own;
        ls_trial *trial = ls_trial_new(&options);
        assert_int_equal(ls_trial_run(trial, 4), LS_OK);
        losses[i] = ls_trial_metric(trial, "val_loss");
        hashes[i] = ls_module_hash(s.model);
        ls_trial_free(trial);
        free_setting(&s);
    }
    assert_true(losses[0] == losses[1]);
    assert_true(hashes[0] == hashes[1]);
}

/* ---- mistakes of a step ------------------------------------------------------------------------------------------ */

static ls_status fail_in_words(ls_trial_state *state, void *user) {
    (void)state;
    (void)user;
    return ls_error_set(LS_ERR_IO, "the step's own words");
}

static ls_status fail_silently(ls_trial_state *state, void *user) {
    (void)state;
    (void)user;
    return LS_ERR_IO;
}

static ls_status set_nothing(ls_trial_state *state, void *user) {
    (void)state;
    (void)user;
    return LS_OK;
}

static ls_status set_loss_only(ls_trial_state *state, void *user) {
    (void)user;
    state->loss = ls_scalar(1, LS_F64);
    return LS_OK;
}

static ls_status set_what_goes(ls_trial_state *state, void *user) {
    (void)user;
    ls_scope *scope = ls_scope_begin();
    state->loss = ls_scalar(1, LS_F64);
    return ls_scope_end(scope);
}

/* A step that does not check its operations. */
static ls_status compute_nonsense(ls_trial_state *state, void *user) {
    (void)user;
    (void)ls_matmul(state->input, state->input);
    state->loss = ls_scalar(1, LS_F64);
    return LS_OK;
}

static void expect_failure(const ls_trial_options *options, ls_status status, const char *reason) {
    ls_trial *trial = ls_trial_new(options);
    assert_non_null(trial);
    assert_int_equal(ls_trial_run(trial, 1), status);
    expect_message(reason);
    ls_trial_free(trial);
}

TEST(test_steps_that_fail) {
    static const struct {
        ls_callback_function step;
        ls_status status;
        const char *reason;
    } cases[] = {
        {fail_in_words, LS_ERR_IO, "the step's own words"},
        {fail_silently, LS_ERR_IO, "ls_trial: the step failed with LS_ERR_IO"},
        {set_nothing, LS_ERR_ARGUMENT, "metric \"loss\": the step has set no loss"},
        {set_loss_only, LS_ERR_ARGUMENT, "the step has set no output"},
        {set_what_goes, LS_ERR_STATE, "ls_trial: the step's loss: the tensor belongs to a scope that has ended"},
        {compute_nonsense, LS_ERR_SHAPE, "ls_matmul: "},
    };
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.metrics = LS_METRICS("loss", "acc");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        (void)ls_error_set(LS_ERR_PEER, "an older error");
        options.step = cases[i].step;
        if (options.step == compute_nonsense) {
            options.metrics = NULL;
        }
        expect_failure(&options, cases[i].status, cases[i].reason);
    }
    free_setting(&s);
}

TEST(test_what_a_step_replaces) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.optimizer = NULL;
    options.criterion = NULL;
    options.step = set_loss_only;
    assert_null(ls_trial_new(&options));
    expect_message("validation needs a criterion");
    options.validate = NULL;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_true(ls_trial_metric(trial, "loss") == 1);
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "test"), LS_ERR_ARGUMENT);
    expect_message("has no criterion");
    ls_trial_free(trial);
    options.step = NULL;
    options.criterion = ls_criterion_cross_entropy;
    trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_ERR_ARGUMENT);
    expect_message("the trial has no user step (.step), and its .optimizer is NULL");
    ls_trial_free(trial);
    options.step = NULL;
    options.optimizer = s.optimizer;
    options.train = NULL;
    trial = ls_trial_new(&options);
    assert_null(ls_csv_read("absent.csv", NULL)); /* the cause, if the program does not check this result */
    assert_int_equal(ls_trial_run(trial, 1), LS_ERR_IO);
    expect_message("cannot open absent.csv: No such file or directory (the working directory is /");
    expect_message("the loader of training data (.train) is NULL");
    ls_trial_free(trial);
    free_setting(&s);
}

/* The error of the model's constructor is the cause. */
TEST(test_a_model_that_could_not_be_made) {
    ls_module *model = ls_nn_linear(2, -1);
    assert_null(model);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    assert_null(ls_trial_new(
        &(ls_trial_options){.model = model, .optimizer = optimizer, .criterion = ls_criterion_cross_entropy}));
    expect_message("ls_nn_linear: ");
    expect_message("; ls_trial_new: a trial needs a model, but .model is NULL");
    ls_optimizer_free(optimizer);
}

/* ---- the position of the loader ---------------------------------------------------------------------------------- */

static ls_status log_batch(ls_trial_state *state, void *user) {
    char *log = user;
    snprintf(log + strlen(log), 256 - strlen(log), "%d.%d ", (int)state->epoch, (int)state->batch);
    return LS_OK;
}

/* Makes a trial over the loader that appends its batches to `log`, a buffer of 256 bytes. */
static ls_trial *logged(const setting *s, ls_loader *train, int64_t max_steps, char *log) {
    ls_callback *callback = ls_callback_new(&(ls_callback_hooks){.on_sample = log_batch}, log);
    ls_trial_options options = options_of(s);
    options.train = train;
    options.callbacks = &callback;
    options.callback_count = 1;
    options.max_steps = max_steps;
    return ls_trial_new(&options);
}

static void stands_at(const ls_loader *loader, int64_t epoch, int64_t batch) {
    int64_t is[2] = {-1, -1};
    ls_loader_position(loader, &is[0], &is[1]);
    assert_int_equal(is[0], epoch);
    assert_int_equal(is[1], batch);
}

/* Three batches per epoch. The rest of an epoch counts as an epoch. */
TEST(test_a_trial_goes_on_where_its_loader_stands) {
    setting s = make_setting();
    char log[256] = "";
    ls_trial *trial = logged(&s, s.train, 0, log);
    assert_int_equal(ls_loader_seek(s.train, 7, 1), LS_OK);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    assert_string_equal(log, "0.1 0.2 1.0 1.1 1.2 ");
    stands_at(s.train, 9, 0);
    log[0] = '\0';
    assert_int_equal(ls_loader_seek(s.train, 4, 3), LS_OK); /* at the end of the epoch, so the next epoch begins */
    assert_int_equal(ls_trial_run(trial, 3), LS_OK);
    assert_string_equal(log, "2.0 2.1 2.2 ");
    stands_at(s.train, 6, 0);
    ls_trial_free(trial);
    free_setting(&s);
}

/* A stopped run continues after its last batch. */
TEST(test_a_stopped_run_goes_on) {
    for (int64_t steps = 1; steps <= 3; steps++) {
        setting s = make_setting();
        char log[256] = "";
        ls_trial *first = logged(&s, s.train, steps, log);
        assert_int_equal(ls_trial_run(first, 5), LS_OK);
        stands_at(s.train, 0, steps);
        ls_trial *second = logged(&s, s.train, 0, log);
        assert_int_equal(ls_trial_run(second, 1), LS_OK);
        assert_string_equal(log, steps == 1   ? "0.0 0.1 0.2 "
                                 : steps == 2 ? "0.0 0.1 0.2 "
                                              : "0.0 0.1 0.2 0.0 0.1 0.2 ");
        stands_at(s.train, steps == 3 ? 2 : 1, 0);
        ls_trial_free(first);
        ls_trial_free(second);
        free_setting(&s);
    }
}

static ls_status give_ones(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    (void)self;
    (void)epoch;
    (void)number;
    (void)more;
    batch->input = ls_ones(LS_SHAPE(BATCH, 2), LS_F64);
    batch->target = ls_zeros(LS_SHAPE(BATCH), LS_I64);
    return LS_OK;
}

static ls_status give_two(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    *more = number < 2;
    return *more ? give_ones(self, epoch, number, batch, more) : LS_OK;
}

/* After the run, even a loader without a known length is at the end of its epoch. */
TEST(test_a_run_stopped_at_an_end_nobody_knew) {
    static const ls_loader_type type = {.name = "two", .next = give_two};
    setting s = make_setting();
    ls_loader *loader = ls_loader_custom(&type, -1);
    char log[256] = "";
    ls_trial *first = logged(&s, loader, 2, log);
    assert_int_equal(ls_trial_run(first, 5), LS_OK);
    stands_at(loader, 0, 2);
    ls_trial *second = logged(&s, loader, 0, log);
    assert_int_equal(ls_trial_run(second, 1), LS_OK);
    assert_string_equal(log, "0.0 0.1 0.0 0.1 ");
    stands_at(loader, 2, 0);
    ls_trial_free(first);
    ls_trial_free(second);
    ls_loader_free(loader);
    free_setting(&s);
}

/* Measuring on the training loader does not move it: training continues from the previous position. */
TEST(test_measuring_on_the_training_data) {
    for (int validates = 0; validates < 2; validates++) {
        setting s = make_setting();
        ls_trial_options options = options_of(&s);
        options.validate = validates ? s.train : NULL;
        ls_trial *trial = ls_trial_new(&options);
        for (int64_t epochs = 1; epochs <= 3; epochs++) {
            assert_int_equal(ls_trial_run(trial, epochs), LS_OK);
            stands_at(s.train, epochs, 0);
            assert_int_equal(ls_trial_evaluate(trial, s.train, "train"), LS_OK);
            stands_at(s.train, epochs, 0);
        }
        ls_trial_free(trial);
        free_setting(&s);
    }
}

/* An epoch of the loader never ends, so a limit of steps ends the run. */
TEST(test_an_endless_loader) {
    static const ls_loader_type type = {.name = "ones", .next = give_ones};
    setting s = make_setting();
    ls_loader *endless = ls_loader_custom(&type, -1);
    char log[256] = "";
    ls_trial *trial = logged(&s, endless, 5, log);
    assert_int_equal(ls_trial_run(trial, 3), LS_OK);
    assert_string_equal(log, "0.0 0.1 0.2 0.3 0.4 ");
    assert_int_equal(ls_trial_history_count(trial), 1);
    assert_true(ls_trial_metric(trial, "loss") > 0);
    stands_at(endless, 0, 5);
    ls_trial_free(trial);
    ls_loader_free(endless);
    free_setting(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hooks_around_a_step),
        cmocka_unit_test(test_the_same_step),
        cmocka_unit_test(test_steps_that_fail),
        cmocka_unit_test(test_a_model_that_could_not_be_made),
        cmocka_unit_test(test_what_a_step_replaces),
        cmocka_unit_test(test_a_trial_goes_on_where_its_loader_stands),
        cmocka_unit_test(test_a_stopped_run_goes_on),
        cmocka_unit_test(test_an_endless_loader),
        cmocka_unit_test(test_a_run_stopped_at_an_end_nobody_knew),
        cmocka_unit_test(test_measuring_on_the_training_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
