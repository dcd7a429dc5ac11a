/*
 * Runs with ls_rate_finder, with ls_manifold_mixup, and with callbacks whose on_init a condition has skipped.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/trials.h"

#include <lockstep/lockstep.h>

/* A warm-up from 0 freezes all groups at the start of the run. */
static void test_rate_finder_without_rates(void **unused) {
    (void)unused;
    setting s = make_setting();
    ls_callback *finder = ls_rate_finder(NULL);
    assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, -1, 0.1), LS_OK);
    ls_schedule *schedule = ls_schedule_warm_up(ls_schedule_exponential(s.optimizer, 0.9), 5, 0);
    ls_callback *const callbacks[] = {ls_scheduler(schedule, NULL), finder};
    ls_trial_options options = options_of(&s);
    options.callbacks = callbacks;
    options.callback_count = 2;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_ERR_STATE);
    expect_message("ls_rate_finder: all learning rates are 0");
    assert_int_equal(ls_rate_finder_count(finder), 0);
    ls_trial_free(trial);
    free_setting(&s);
}

/* A run records its steps, even if the program has switched recording off. */
static void test_rate_finder_without_recording(void **unused) {
    (void)unused;
    setting s = make_setting();
    ls_callback *finder = ls_rate_finder(&(ls_rate_finder_options){.steps = 4});
    assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, -1, 0.1), LS_OK);
    ls_trial_options options = options_of(&s);
    options.callbacks = &finder;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    const bool before = ls_no_grad(true);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_true(ls_no_grad(before));
    assert_int_equal(ls_rate_finder_count(finder), 4);
    ls_trial_free(trial);
    free_setting(&s);
}

enum { SWEEP = 9 };

typedef struct noted {
    int steps;
    unsigned batches; /* bit i: a step of the test had batch i */
} noted;

static ls_status note_batch(ls_trial_state *state, void *user) {
    noted *all = user;
    all->batches |= all->steps++ < SWEEP ? 1U << state->batch : 0;
    assert_true(state->batch < state->batches);
    state->loss = ls_mean(ls_square(ls_forward(state->model, state->input)));
    return ls_backward(state->loss);
}

/* A user step may accumulate gradients over the batches of an epoch, so the test numbers them. */
static void test_rate_finder_numbers_batches(void **unused) {
    (void)unused;
    setting s = make_setting();
    noted all = {.steps = 0};
    ls_callback *finder = ls_rate_finder(&(ls_rate_finder_options){.steps = SWEEP, .highest = 1e-6});
    assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, -1, 0.1), LS_OK);
    ls_trial_options options = options_of(&s);
    options.callbacks = &finder;
    options.callback_count = 1;
    options.step = note_batch;
    options.step_user = &all;
    options.train_steps = 3;
    options.validate = NULL;
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_int_equal(ls_rate_finder_count(finder), SWEEP);
    ls_trial_free(trial);
    free_setting(&s);
    assert_int_equal(all.batches, 7);
}

static ls_status fail_in_hook(ls_trial_state *state, void *user) {
    (void)state;
    (void)user;
    return LS_ERR_IO;
}

/* The step fails after ls_manifold_mixup has chosen a layer, which an evaluation must not mix. */
static void test_evaluation_after_a_failed_mixup(void **unused) {
    (void)unused;
    setting s = make_setting();
    ls_module *model = ls_sequential(ls_module_retain(s.model));
    ls_trial_options options = options_of(&s);
    options.model = model;
    options.callbacks = (ls_callback *const[]){ls_manifold_mixup(&(ls_manifold_mixup_options){.classes = CLASSES}),
                                               ls_callback_new(&(ls_callback_hooks){.on_sample = fail_in_hook}, NULL)};
    options.callback_count = 2;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_ERR_IO);
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "test"), LS_OK);
    ls_trial_free(trial);
    ls_module_free(model);
    free_setting(&s);
}

static bool in_later_epochs(const ls_trial_state *state, void *user) {
    (void)user;
    return state->epoch > 0;
}

/* The condition skips on_init. */
static void test_callbacks_without_on_init(void **unused) {
    (void)unused;
    setting s = make_setting();
    ls_module *model = ls_sequential(ls_module_retain(s.model));
    struct {
        ls_callback *callback;
        ls_status status;
        const char *message;
    } cases[] = {{ls_manifold_mixup(&(ls_manifold_mixup_options){.classes = CLASSES}), LS_OK, ""},
                 {ls_early_stopping(&(ls_early_stopping_options){.restore_best = true}), LS_ERR_STATE,
                  "a condition skipped on_init, which .restore_best needs"},
                 {ls_weight_averaging(NULL), LS_ERR_STATE, "a condition skipped on_init: set .first_epoch"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ls_callback *callback = ls_only_if(cases[i].callback, in_later_epochs, NULL);
        ls_trial_options options = options_of(&s);
        options.model = model;
        options.callbacks = &callback;
        options.callback_count = 1;
        ls_trial *trial = ls_trial_new(&options);
        assert_int_equal(ls_trial_run(trial, 2), cases[i].status);
        if (cases[i].status != LS_OK) {
            expect_message(cases[i].message);
        }
        ls_trial_free(trial);
    }
    ls_module_free(model);
    free_setting(&s);
}

/* The callback that comes first appends rows to the inputs. */
static void test_callbacks_after_a_mixup_of_layers(void **unused) {
    (void)unused;
    setting s = make_setting();
    ls_module *model = ls_sequential(ls_module_retain(s.model));
    ls_loader *single = ls_loader_new(ls_dataset_retain(ls_loader_dataset(s.train)), NULL);
    ls_callback *later[] = {ls_mixup(&(ls_mixup_options){.classes = CLASSES}),
                            ls_manifold_mixup(&(ls_manifold_mixup_options){.classes = CLASSES})};
    for (int i = 0; i < 2; i++) {
        ls_callback *callbacks[] = {ls_manifold_mixup(&(ls_manifold_mixup_options){.classes = CLASSES}), later[i]};
        ls_trial_options options = options_of(&s);
        options.model = model;
        options.train = single;
        options.callbacks = callbacks;
        options.callback_count = 2;
        ls_trial *trial = ls_trial_new(&options);
        assert_int_equal(ls_trial_run(trial, 1), LS_ERR_SHAPE);
        expect_message("ls_manifold_mixup, it must come after the other callbacks");
        ls_trial_free(trial);
    }
    ls_dataset_free(ls_loader_dataset(single));
    ls_loader_free(single);
    ls_module_free(model);
    free_setting(&s);
}

/* A user step that does not call the model. */
static ls_status step_without_model(ls_trial_state *state, void *user) {
    (void)user;
    state->output = ls_zeros(LS_SHAPE(state->count, CLASSES), LS_F64);
    state->loss = ls_scalar(1, LS_F64);
    return LS_OK;
}

static void test_mixup_of_a_layer_that_a_user_step_does_not_call(void **unused) {
    (void)unused;
    setting s = make_setting();
    ls_module *model = ls_sequential(ls_module_retain(s.model));
    ls_trial_options options = options_of(&s);
    options.model = model;
    options.step = step_without_model;
    options.callbacks = (ls_callback *const[]){ls_manifold_mixup(&(ls_manifold_mixup_options){.classes = CLASSES})};
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_ERR_STATE);
    expect_message("ls_manifold_mixup: the model did not call the selected layer");
    ls_trial_free(trial);
    ls_module_free(model);
    free_setting(&s);
}

static ls_status give_inputs(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    (void)self;
    (void)epoch;
    *more = number < 1;
    batch->input = ls_ones(LS_SHAPE(BATCH, 2), LS_F64);
    return LS_OK;
}

/* The message must not report an earlier error of the program. */
static void test_smoothing_without_targets(void **unused) {
    (void)unused;
    static const ls_loader_type type = {.name = "inputs", .next = give_inputs};
    setting s = make_setting();
    ls_loader *inputs = ls_loader_custom(&type, 1);
    ls_callback *smoothing = ls_label_smoothing(0.1, CLASSES);
    ls_trial_options options = options_of(&s);
    options.train = inputs;
    options.validate = NULL;
    options.callbacks = &smoothing;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    (void)ls_error_set(LS_ERR_IO, "earlier");
    assert_int_equal(ls_trial_run(trial, 1), LS_ERR_ARGUMENT);
    expect_message("ls_label_smoothing: the batch has no targets");
    ls_trial_free(trial);
    ls_loader_free(inputs);
    free_setting(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate_finder_without_rates),
        cmocka_unit_test(test_rate_finder_without_recording),
        cmocka_unit_test(test_rate_finder_numbers_batches),
        cmocka_unit_test(test_evaluation_after_a_failed_mixup),
        cmocka_unit_test(test_callbacks_without_on_init),
        cmocka_unit_test(test_callbacks_after_a_mixup_of_layers),
        cmocka_unit_test(test_mixup_of_a_layer_that_a_user_step_does_not_call),
        cmocka_unit_test(test_smoothing_without_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
