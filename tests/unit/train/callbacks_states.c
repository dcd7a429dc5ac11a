/*
 * Callbacks after a failed run, the state of other objects after a rate test, and names and states that ls_callback_new
 * refuses.
 *
 * devices: cpu
 */
#include "tests/support/trials.h"

#include <string.h>

#include <lockstep/lockstep.h>

static ls_status fail_once(ls_trial_state *state, void *user) {
    int *failures = user;
    (void)state;
    return (*failures)++ == 0 ? ls_error_set(LS_ERR_IO, "the validation fails") : LS_OK;
}

/* After a failed validation, the model has its weights again, not their averages. */
TEST(test_averages_after_a_failed_validation) {
    setting s = make_setting();
    int failures = 0;
    ls_callback *callbacks[] = {ls_callback_new(&(ls_callback_hooks){.on_step_validation = fail_once}, &failures),
                                ls_weight_averaging(&(ls_weight_averaging_options){.decay = 0.5})};
    ls_trial_options options = options_of(&s);
    options.callbacks = callbacks;
    options.callback_count = 2;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_ERR_IO);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    const uint64_t trained = ls_module_hash(s.model);
    failures = 0;
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "test"), LS_ERR_IO);
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "test"), LS_OK);
    assert_true(ls_module_hash(s.model) == trained);
    ls_trial_free(trial);
    free_setting(&s);
}

static double scale_after(ls_callback *finder, uint64_t *hash) {
    setting s = make_setting();
    ls_grad_scaler *scaler = ls_grad_scaler_new(&(ls_grad_scaler_options){.initial_scale = 1024, .growth_interval = 5});
    ls_trial_options options = options_of(&s);
    options.callbacks = &finder;
    options.callback_count = 1;
    options.autocast = LS_F16;
    options.grad_scaler = scaler;
    options.quiet = true;
    assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, -1, 0.01), LS_OK);
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    const double scale = ls_grad_scaler_get_scale(scaler);
    *hash = ls_module_hash(s.model);
    ls_trial_free(trial);
    free_setting(&s);
    ls_grad_scaler_free(scaler);
    return scale;
}

/* The scale grows during the steps of a rate test, but the training begins with the scale from before the test. */
TEST(test_a_rate_test_restores_the_scaler) {
    uint64_t with, without;
    const ls_rate_finder_options sweep = {.lowest = 1e-6, .highest = 1e-5, .steps = 12};
    ls_callback *none = ls_callback_new(&(ls_callback_hooks){.name = "none"}, NULL);
    const double scale = scale_after(none, &without);
    assert_true(scale_after(ls_rate_finder(&sweep), &with) == scale);
    assert_true(with == without);
}

static ls_status divide_once(ls_trial_state *state, void *user) {
    state->output = *(int *)user == 0 ? ls_div(state->output, 0.0) : state->output;
    return LS_OK;
}

/* An infinite output of a step that failed for another reason does not end the next run. */
TEST(test_a_finding_of_a_failed_run) {
    setting s = make_setting();
    int failures = 0;
    ls_callback *callbacks[] = {ls_callback_new(&(ls_callback_hooks){.on_forward = divide_once}, &failures),
                                ls_terminate_on_nan(NULL),
                                ls_callback_new(&(ls_callback_hooks){.on_criterion = fail_once}, &failures)};
    ls_trial_options options = options_of(&s);
    options.callbacks = callbacks;
    options.callback_count = 3;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_ERR_IO);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    ls_trial_free(trial);
    free_setting(&s);
}

static ls_status no_state(void *user, const ls_named **tensors, int *count) {
    (void)user;
    *tensors = NULL;
    *count = 0;
    return LS_OK;
}

TEST(test_names_and_states_are_refused) {
    char long_name[82];
    memset(long_name, 'x', 81);
    long_name[81] = '\0';
    assert_null(ls_callback_new(&(ls_callback_hooks){.name = "a/b"}, NULL));
    expect_message("ls_callback_new: the name \"a/b\" has a slash");
    assert_null(ls_callback_new(&(ls_callback_hooks){.name = ""}, NULL));
    expect_message("ls_callback_new: the name is empty");
    assert_null(ls_callback_new(&(ls_callback_hooks){.name = long_name}, NULL));
    expect_message("has more than 80 bytes");
    assert_null(ls_callback_new(&(ls_callback_hooks){.state = no_state}, NULL));
    expect_message("only state is given");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_averages_after_a_failed_validation),
        cmocka_unit_test(test_a_rate_test_restores_the_scaler),
        cmocka_unit_test(test_a_finding_of_a_failed_run),
        cmocka_unit_test(test_names_and_states_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
