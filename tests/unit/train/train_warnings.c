/*
 * Warnings for mistakes that train without an error: a loss of NaN, and standardization that was never fitted.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/lockstep.h>

#include "tests/support/log.h"

enum { ROWS = 8 };

static ls_status stop(ls_trial_state *state, void *user) {
    (void)user;
    state->stop = true;
    return LS_OK;
}

/* Trains on inputs that contain `first`, in a run of two epochs and a run of one epoch. Fits the standardization if
 * `fits`. Stops before the first step if `stops`. Returns the number of warnings. */
static int train(float first, bool fits, bool stops) {
    float inputs[2 * ROWS];
    for (int i = 0; i < 2 * ROWS; i++) {
        inputs[i] = (float)(i * 7 % 5);
    }
    ls_tensor *targets = ls_ones(LS_SHAPE(ROWS, 1), LS_F32);
    ls_dataset *fitted = ls_tensor_dataset(ls_from(LS_SHAPE(ROWS, 2), LS_F32, inputs), targets);
    inputs[3] = first;
    ls_dataset *data = ls_tensor_dataset(ls_from(LS_SHAPE(ROWS, 2), LS_F32, inputs), targets);
    ls_module *standardize = ls_nn_standardize(2);
    ls_module *model = ls_sequential(standardize, ls_nn_linear(2, 1));
    assert_true(!fits || ls_nn_standardize_fit(standardize, fitted) == LS_OK);
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.01});
    ls_loader *loader = ls_loader_new(data, &(ls_loader_options){.batch_size = 4});
    ls_callback *stopping = ls_callback_new(&(ls_callback_hooks){.on_start_training = stops ? stop : NULL}, NULL);
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_mse,
                                                       .train = loader,
                                                       .quiet = true,
                                                       .callbacks = &stopping,
                                                       .callback_count = 1,
                                                       .metrics = LS_METRICS("loss")});
    assert_non_null(trial);
    assert_int_equal(ls_loader_seek(loader, 0, stops ? 1 : 0), LS_OK);
    log_begin();
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    assert_int_equal(ls_trial_run(trial, 3), LS_OK);
    log_end();
    ls_trial_free(trial);
    ls_loader_free(loader);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_dataset_free(fitted);
    return log_lines();
}

SCOPED_TEST(test_no_warning_without_a_mistake) {
    assert_int_equal(train(1, true, false), 0);
}

SCOPED_TEST(test_no_warning_without_a_step) {
    assert_int_equal(train(1, true, true), 0);
}

SCOPED_TEST(test_a_loss_of_nan_is_named_once) {
    assert_int_equal(train(NAN, true, false), 1);
    assert_non_null(strstr(log_last(), "ls_trial_run: the training loss of epoch 0 is nan"));
    assert_non_null(strstr(log_last(), "ls_terminate_on_nan(NULL)"));
}

SCOPED_TEST(test_standardization_that_was_never_fitted) {
    assert_int_equal(train(1, false, false), 1);
    assert_non_null(strstr(log_last(), "call ls_nn_standardize_fit before the run"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_warning_without_a_mistake),
        cmocka_unit_test(test_no_warning_without_a_step),
        cmocka_unit_test(test_a_loss_of_nan_is_named_once),
        cmocka_unit_test(test_standardization_that_was_never_fitted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
