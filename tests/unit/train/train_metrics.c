/*
 * The accuracy metrics for every shape of outputs and targets.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/trials.h"

static ls_tensor *same(ls_tensor *x, void *user) {
    (void)user;
    return x;
}

/* Returns the metric for these outputs and targets in batches of 2, or NAN if the trial fails. */
static double measured(const char *metric, ls_criterion criterion, ls_tensor *output, ls_tensor *target) {
    ls_loader *loader = ls_loader_new(ls_tensor_dataset(output, target), &(ls_loader_options){.batch_size = 2});
    assert_non_null(loader);
    ls_module *model = ls_nn_function("Same", same, NULL);
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .criterion = criterion,
                                                       .train = loader,
                                                       .metrics = (const char *const[]){metric, NULL},
                                                       .quiet = true});
    assert_non_null(trial);
    char name[64];
    snprintf(name, sizeof name, "test_%s", metric);
    const ls_status status = ls_trial_evaluate(trial, loader, "test");
    const double value = status == LS_OK ? ls_trial_metric(trial, name) : NAN;
    assert_true(status == LS_OK || status == LS_ERR_SHAPE);
    ls_trial_free(trial);
    ls_module_free(model);
    ls_loader_free(loader);
    return value;
}

static ls_tensor *any_loss(ls_tensor *output, ls_tensor *target, void *user) {
    (void)target;
    (void)user;
    return ls_mean(output);
}

#define F32(...)                                                                                                       \
    (float[]) {                                                                                                        \
        __VA_ARGS__                                                                                                    \
    }
#define NUMBERS(...)                                                                                                   \
    (int64_t[]) {                                                                                                      \
        __VA_ARGS__                                                                                                    \
    }

TEST(test_one_number_a_sample) {
    const ls_shape shapes[] = {LS_SHAPE(4), LS_SHAPE(4, 1)};
    for (int o = 0; o < 2; o++) {
        for (int t = 0; t < 2; t++) {
            if (o == t) { /* the losses require equal shapes */
                ls_tensor *probability = ls_from(shapes[o], LS_F32, F32(0.9F, 0.4F, 0.2F, 0.6F));
                ls_tensor *target = ls_from(shapes[t], LS_F32, F32(1, 1, 0, 0));
                assert_true(measured("acc", ls_criterion_bce, probability, target) == 0.5);
                ls_tensor *logit = ls_from(shapes[o], LS_F32, F32(0.1F, 0.4F, -2, -0.1F));
                target = ls_from(shapes[t], LS_F32, F32(1, 1, 0, 1));
                assert_true(measured("acc", ls_criterion_bce_with_logits, logit, target) == 0.75);
            }
            ls_tensor *output = ls_from(shapes[o], LS_F32, F32(0.9F, 0.4F, 0.2F, 0.6F));
            ls_tensor *target = ls_from(shapes[t], LS_I64, NUMBERS(1, 1, 0, 1));
            assert_true(measured("binary_acc", any_loss, output, target) == 0.75);
            output = ls_from(shapes[o], LS_F32, F32(0.9F, 0.4F, 0.2F, -0.6F));
            target = ls_from(shapes[t], LS_I64, NUMBERS(1, 1, 0, 1));
            assert_true(measured("binary_acc_logits", any_loss, output, target) == 0.5);
        }
    }
}

/* With a different criterion, the meaning of a single output is unknown. */
TEST(test_one_number_and_another_criterion) {
    ls_tensor *output = ls_from(LS_SHAPE(4, 1), LS_F32, F32(0.9F, 0.4F, 0.2F, 0.6F));
    ls_tensor *target = ls_from(LS_SHAPE(4, 1), LS_F32, F32(1, 1, 0, 1));
    assert_true(isnan(measured("acc", ls_criterion_mse, output, target)));
    expect_message("metric \"acc\": output [2, 1] has one number for each target");
    expect_message("binary_acc");
    output = ls_zeros(LS_SHAPE(4, 1), LS_F32);
    assert_true(isnan(measured("acc", ls_criterion_cross_entropy, output, ls_zeros(LS_SHAPE(4), LS_I64))));
    output = ls_zeros(LS_SHAPE(4, 1, 3), LS_F32);
    assert_true(isnan(measured("acc", any_loss, output, ls_zeros(LS_SHAPE(4, 1, 3), LS_F32))));
}

TEST(test_several_labels) {
    ls_tensor *output = ls_from(LS_SHAPE(2, 3), LS_F32, F32(1, -1, 2, -3, 0.5F, -0.5F));
    ls_tensor *target = ls_from(LS_SHAPE(2, 3), LS_F32, F32(1, 1, 1, 0, 0, 0));
    assert_true(fabs(measured("acc", ls_criterion_bce_with_logits, output, target) - 4.0 / 6) < 1e-15);
}

TEST(test_classes_along_axis_1) {
    ls_tensor *output = ls_from(LS_SHAPE(2, 3), LS_F32, F32(1, 5, 2, 3, 0, -1));
    assert_true(measured("acc", ls_criterion_cross_entropy, output, ls_from(LS_SHAPE(2), LS_I64, NUMBERS(1, 2))) ==
                0.5);
    /* [n, classes, length] with [n, length]: the largest classes are 1 0 1 0 and 0 0 1 1. */
    const float values[] = {0, 5, 2, 3, 1, 4, 9, 2, 8, 8, 1, 2, 3, 3, 4, 4};
    output = ls_from(LS_SHAPE(2, 2, 4), LS_F32, values);
    ls_tensor *target = ls_from(LS_SHAPE(2, 4), LS_I64, NUMBERS(1, 0, 1, 1, 0, 0, 1, 1));
    assert_true(measured("acc", ls_criterion_cross_entropy, output, target) == 7.0 / 8);
    /* Even if there are as many classes as positions, axis 1 is the class axis. */
    output = ls_from(LS_SHAPE(1, 2, 2), LS_F32, F32(0, 5, 9, 3));
    target = ls_from(LS_SHAPE(1, 2), LS_I64, NUMBERS(1, 0));
    assert_true(measured("acc", ls_criterion_cross_entropy, output, target) == 1.0);
}

TEST(test_one_hot_and_classes_last) {
    ls_tensor *output = ls_from(LS_SHAPE(2, 3), LS_F32, F32(1, 5, 2, 3, 0, -1));
    ls_tensor *target = ls_from(LS_SHAPE(2, 3), LS_F32, F32(0, 1, 0, 0, 0, 1));
    assert_true(measured("acc", ls_criterion_mse, output, target) == 0.5);
    output = ls_from(LS_SHAPE(1, 2, 3), LS_F32, F32(1, 5, 2, 3, 0, -1));
    target = ls_from(LS_SHAPE(1, 2), LS_I64, NUMBERS(1, 2));
    assert_true(measured("acc", any_loss, output, target) == 0.5);
}

TEST(test_what_fits_nothing) {
    assert_true(isnan(measured("acc", any_loss, ls_zeros(LS_SHAPE(4, 3), LS_F32), ls_zeros(LS_SHAPE(4, 1), LS_I64))));
    expect_message("output [2, 3] with target [2, 1]: must be [n, classes, ...]");
    assert_true(
        isnan(measured("acc", any_loss, ls_zeros(LS_SHAPE(4, 3, 5), LS_F32), ls_zeros(LS_SHAPE(4, 4), LS_I64))));
    expect_message("output [2, 3, 5] with target [2, 4]");
    assert_true(
        isnan(measured("binary_acc", any_loss, ls_zeros(LS_SHAPE(4, 3), LS_F32), ls_zeros(LS_SHAPE(4), LS_F32))));
    expect_message("metric \"binary_acc\": output [2, 3] and target [2] must have the same shape");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_number_a_sample),      cmocka_unit_test(test_one_number_and_another_criterion),
        cmocka_unit_test(test_several_labels),           cmocka_unit_test(test_classes_along_axis_1),
        cmocka_unit_test(test_one_hot_and_classes_last), cmocka_unit_test(test_what_fits_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
