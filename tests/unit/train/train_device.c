/*
 * A trial's device: the model and the batches are moved to it, and the results equal the CPU's.
 *
 * devices: cpu
 */
#include "tests/support/trials.h"

#include <lockstep/callbacks.h>
#include <lockstep/parallel.h>

static const char there[] = "shadow:0";

/* Makes a model on a device, and loaders whose batches are on the CPU. */
static setting make_apart(const char *device) {
    const ls_loader_options how = {.batch_size = BATCH, .device = "cpu"};
    setting s = {.train = make_loader_with(0, TRAIN_COUNT, &how), .validate = make_loader_with(1, TEST_COUNT, &how)};
    ls_seed(3);
    s.model = ls_nn_linear_with(2, CLASSES, &(ls_linear_options){.dtype = LS_F64});
    assert_ptr_equal(ls_to_device(s.model, device), s.model);
    s.optimizer = ls_sgd(s.model, &(ls_sgd_options){.learning_rate = 0.1, .momentum = 0.9});
    assert_non_null(s.optimizer);
    return s;
}

static ls_trial_options options_on(const setting *s, const char *device) {
    static const char *const metrics[] = {"loss", "acc", NULL};
    return (ls_trial_options){.model = s->model,
                              .optimizer = s->optimizer,
                              .criterion = ls_criterion_cross_entropy,
                              .train = s->train,
                              .validate = s->validate,
                              .metrics = metrics,
                              .device = device,
                              .quiet = true};
}

static ls_status see_batch(ls_trial_state *state, void *seen) {
    assert_string_equal(ls_device_of(state->input), there);
    assert_string_equal(ls_device_of(state->target), there);
    ++*(int *)seen;
    return LS_OK;
}

static uint64_t trained_on(const char *device, const char *named, double results[4]) {
    setting s = make_apart(device);
    ls_trial_options options = options_on(&s, named);
    int seen = 0;
    const ls_callback_hooks hooks = {.on_sample = named != NULL ? see_batch : NULL,
                                     .on_sample_validation = named != NULL ? see_batch : NULL};
    ls_callback *watch = ls_callback_new(&hooks, &seen);
    options.callbacks = &watch;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    assert_int_equal(ls_trial_run(trial, 3), LS_OK);
    assert_int_equal(seen, named != NULL ? 15 : 0); /* three and two batches in each epoch */
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "test"), LS_OK);
    const char *const names[] = {"loss", "val_loss", "test_loss", "test_acc"};
    for (int i = 0; i < 4; i++) {
        results[i] = ls_trial_metric(trial, names[i]);
        assert_true(isfinite(results[i]));
    }
    ls_trial_free(trial);
    const uint64_t hash = ls_module_hash(s.model);
    free_setting(&s);
    return hash;
}

TEST(test_training) {
    double here[4], away[4];
    const uint64_t hash = trained_on("cpu", NULL, here);
    assert_true(trained_on(there, there, away) == hash);
    assert_memory_equal(here, away, sizeof here);
}

/* No optimizer uses the model, so the trial moves it. */
TEST(test_a_model_that_moves) {
    setting s = make_apart("cpu");
    ls_optimizer_free(s.optimizer);
    s.optimizer = NULL;
    ls_scope *scope = ls_scope_begin();
    ls_trial_options options = options_on(&s, NULL);
    ls_tensor *here = NULL, *away = NULL;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_predict(trial, s.validate, false, &here), LS_OK);
    ls_trial_free(trial);
    assert_string_equal(ls_device_of(ls_module_parameter(s.model, 0)), "cpu");
    options.device = there;
    trial = ls_trial_new(&options);
    assert_non_null(trial);
    assert_string_equal(ls_device_of(ls_module_parameter(s.model, 0)), there);
    assert_int_equal(ls_trial_predict(trial, s.validate, false, &away), LS_OK);
    assert_string_equal(ls_device_of(away), "cpu");
    assert_true(ls_equal(here, away));
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "test"), LS_OK);
    ls_trial_free(trial);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    free_setting(&s);
}

static ls_status own_step(ls_trial_state *state, void *user) {
    (void)user;
    assert_string_equal(ls_device_of(state->input), there);
    state->output = ls_forward(state->model, state->input);
    state->loss = ls_cross_entropy(state->output, state->target, NULL);
    return ls_backward(state->loss);
}

TEST(test_a_step_of_ones_own) {
    setting s = make_apart("cpu");
    ls_optimizer_free(s.optimizer);
    s.optimizer = NULL;
    ls_trial_options options = options_on(&s, there);
    options.step = own_step;
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_string_equal(ls_device_of(ls_grad(ls_module_parameter(s.model, 0))), there);
    ls_trial_free(trial);
    free_setting(&s);
}

/* Callbacks that read from the training loader get batches on the trial's device. */
TEST(test_callbacks_that_read_batches) {
    setting s = make_apart(there);
    ls_trial_options options = options_on(&s, there);
    ls_callback *const readers[] = {ls_lsuv(NULL), ls_rate_finder(&(ls_rate_finder_options){.steps = 5})};
    options.callbacks = readers;
    options.callback_count = 2;
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    ls_trial_free(trial);
    free_setting(&s);
}

static void refused(const ls_trial_options *options, ls_status status, const char *words) {
    assert_null(ls_trial_new(options));
    assert_int_equal(ls_error_status(), status);
    expect_message(words);
}

TEST(test_what_is_refused) {
    setting s = make_apart("cpu");
    ls_trial_options options = options_on(&s, "nowhere");
    refused(&options, LS_ERR_ARGUMENT, "ls_trial_new: there is no device \"nowhere\"");
    options.device = "";
    refused(&options, LS_ERR_ARGUMENT, "ls_trial_new: there is no device \"\"");
    options.device = there;
    refused(&options, LS_ERR_STATE,
            "the model is on cpu and already belongs to an optimizer: call ls_to_device(model,");
    assert_string_equal(ls_device_of(ls_module_parameter(s.model, 0)), "cpu");
    options.device = "cpu"; /* the device on which the model already is */
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    ls_trial_free(trial);

    ls_comm *world = ls_init(NULL);
    assert_non_null(world);
    ls_optimizer_free(s.optimizer);
    s.optimizer = NULL;
    options = options_on(&s, there);
    s.model = options.model = ls_data_parallel(s.model, world, NULL);
    refused(&options, LS_ERR_STATE, "and already belongs to ls_data_parallel");
    free_setting(&s);
    assert_int_equal(ls_finalize(), LS_OK);
}

/* Without a device option, the trial does not move batches, and the model reports the mismatch. */
TEST(test_batches_elsewhere) {
    setting s = make_apart(there);
    const ls_trial_options options = options_on(&s, NULL);
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_ERR_ARGUMENT);
    expect_message(there);
    ls_trial_free(trial);
    free_setting(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training),           cmocka_unit_test(test_a_model_that_moves),
        cmocka_unit_test(test_a_step_of_ones_own), cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_batches_elsewhere),  cmocka_unit_test(test_callbacks_that_read_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
