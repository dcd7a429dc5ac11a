/*
 * Trial metrics: custom metrics, their ownership, and a trial that resumes in the middle of an epoch.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/kept_metrics.h"
#include "tests/support/trials.h"

static bool same_bits(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

/* ---- custom metrics ---------------------------------------------------------------------------------------------- */

/* Computes the correlation of a sample's two inputs from the sums of n, x, y, xx, yy and xy. */
static ls_status add_products(const ls_trial_state *state, void *user, double *sums) {
    *(int *)user += 1;
    ls_tensor *x = ls_select(state->input, 1, 0);
    ls_tensor *y = ls_select(state->input, 1, 1);
    sums[0] += (double)state->count;
    sums[1] += ls_item(ls_sum(x));
    sums[2] += ls_item(ls_sum(y));
    sums[3] += ls_item(ls_sum(ls_mul(x, x)));
    sums[4] += ls_item(ls_sum(ls_mul(y, y)));
    sums[5] += ls_item(ls_sum(ls_mul(x, y)));
    return LS_OK;
}

static double correlation(const double *s, void *user) {
    (void)user;
    return (s[0] * s[5] - s[1] * s[2]) / sqrt((s[0] * s[3] - s[1] * s[1]) * (s[0] * s[4] - s[2] * s[2]));
}

static const ls_metric_functions formula = {.name = "r", .width = 6, .update = add_products, .result = correlation};

static double correlation_of(int set, int64_t count) {
    double s[6] = {(double)count};
    for (int64_t i = 0; i < count; i++) {
        const double x = input_at(set, 2 * i);
        const double y = input_at(set, 2 * i + 1);
        s[1] += x;
        s[2] += y;
        s[3] += x * x;
        s[4] += y * y;
        s[5] += x * y;
    }
    return correlation(s, NULL);
}

TEST(test_several_numbers_and_a_formula) {
    setting s = make_setting();
    int calls = 0;
    ls_trial_options options = options_of(&s);
    options.custom_metrics = &(ls_metric *){ls_metric_new(&formula, &calls)};
    options.custom_metric_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    assert_int_equal(calls, 2 * (3 + 2));
    for (int epoch = 0; epoch < 2; epoch++) { /* each epoch begins at 0 */
        assert_true(fabs(ls_trial_history(trial, epoch, "r") - correlation_of(0, TRAIN_COUNT)) < 1e-12);
        assert_true(fabs(ls_trial_history(trial, epoch, "val_r") - correlation_of(1, TEST_COUNT)) < 1e-12);
    }
    ls_trial_free(trial);
    free_setting(&s);
}

static ls_status measure_nothing(const ls_trial_state *state, void *user, double *sum, double *weight) {
    (void)state;
    (void)user;
    (void)sum;
    (void)weight;
    return LS_OK;
}

static void begin(double *numbers, void *user) {
    (void)user;
    numbers[0] = 1;
}

static void expect_refused(const ls_metric_functions *functions, const char *reason) {
    assert_null(ls_metric_new(functions, NULL));
    expect_message(reason);
}

TEST(test_functions_that_are_none) {
    const char *why = "(width 0) needs either mean alone, or update, result and a width of at least 1";
    expect_refused(&(ls_metric_functions){.name = "x", .update = add_products}, why);
    expect_refused(&(ls_metric_functions){.name = "x", .update = add_products, .result = correlation}, why);
    expect_refused(&(ls_metric_functions){.name = "x", .mean = measure_nothing, .result = correlation}, why);
    expect_refused(&(ls_metric_functions){.name = "x", .mean = measure_nothing, .width = 2},
                   "(width 2) needs either mean");
    expect_refused(&(ls_metric_functions){.update = add_products, .result = correlation, .width = 1}, "needs a name");
    expect_refused(&(ls_metric_functions){.name = "x"}, "a metric needs a name, and either .mean or .update");
    expect_refused(NULL, "a metric needs a name");
    expect_refused(
        &(ls_metric_functions){.name = "x", .width = 1, .init = begin, .update = add_products, .result = correlation},
        "\"x\" has init, but not merge");
    expect_refused(&(ls_metric_functions){.name = "x", .mean = measure_nothing, .init = begin},
                   "needs either mean alone");
    expect_refused(&(ls_metric_functions){.name = "a_name_of_thirty-three_characters", .mean = measure_nothing},
                   "is longer than 32 bytes");
    expect_refused(&(ls_metric_functions){.name = "two\nlines", .mean = measure_nothing}, "a control character");
    const ls_metric_functions longest = {.name = "a_name_of_thirty-two_characters_", .mean = measure_nothing};
    ls_metric *metric = ls_metric_new(&longest, NULL);
    assert_string_equal(ls_metric_name(metric), longest.name);
    ls_metric_free(metric);
}

/* ---- ownership --------------------------------------------------------------------------------------------------- */

static void count_release(void *user) {
    *(int *)user += 1;
}

static ls_status refuse(ls_trial_state *state, void *user) {
    (void)user;
    (void)state;
    return ls_error_set(LS_ERR_STATE, "refused");
}

static ls_metric *make_counted(const char *name, int *released) {
    ls_metric *metric = ls_metric_new(
        &(ls_metric_functions){.name = name, .mean = measure_nothing, .release = count_release}, released);
    assert_non_null(metric);
    return metric;
}

static void expect_released(ls_trial_options *options, ls_metric *second, int *released, const char *words) {
    ls_metric *const metrics[] = {make_counted("a", released), second, make_counted("c", released)};
    const int before = *released;
    options->custom_metrics = metrics;
    options->custom_metric_count = 3;
    assert_null(ls_trial_new(options));
    expect_message(words);
    assert_int_equal(*released - before, second != NULL ? 3 : 2);
}

/* Tests invalid options, before and after the metrics are checked, a hook that refuses, and the NULL of a failed
 * constructor. */
TEST(test_failures_free_metrics) {
    setting s = make_setting();
    int released = 0;
    ls_trial_options options = options_of(&s);
    options.max_steps = -1;
    expect_released(&options, make_counted("b", &released), &released, ".max_steps is -1, but must not be negative");
    options.max_steps = 0;
    options.metrics = LS_METRICS("nonsense");
    expect_released(&options, make_counted("b", &released), &released, "there is no metric");
    options.metrics = LS_METRICS("c");
    expect_released(&options, make_counted("b", &released), &released, "there is no metric");
    options.metrics = LS_METRICS("loss");
    expect_released(&options, make_counted("a", &released), &released, "two metrics are named \"a\"");
    expect_released(&options, make_counted("loss", &released), &released, "two metrics are named \"loss\"");
    expect_released(&options, ls_metric_top_k_acc(0), &released, "ls_metric_top_k_acc: k is 0");
    options.callbacks = (ls_callback *[]){ls_callback_new(&(ls_callback_hooks){.on_init = refuse}, NULL)};
    options.callback_count = 1;
    expect_released(&options, make_counted("b", &released), &released, "refused");
    free_setting(&s);
}

TEST(test_owners) {
    setting s = make_setting();
    int released = 0;
    ls_trial_options options = options_of(&s);
    ls_metric *const metrics[] = {make_counted("a", &released), make_counted("b", &released)};
    options.custom_metrics = metrics;
    options.custom_metric_count = 2;
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    assert_null(ls_trial_new(&options));
    expect_message("the metric \"a\" already belongs to a trial");
    assert_null(ls_metric_running(metrics[1], NULL));
    expect_message("the metric \"b\" already belongs to a trial");
    ls_metric_free(metrics[0]);
    assert_int_equal(released, 0);
    ls_trial_free(trial);
    assert_int_equal(released, 2);
    ls_metric_free(make_counted("a", &released));
    ls_metric_free(NULL);
    assert_int_equal(released, 3);

    ls_metric *twice = make_counted("a", &released);
    options.custom_metrics = (ls_metric *const[]){twice, twice};
    assert_null(ls_trial_new(&options));
    expect_message("two metrics are named \"a\"");
    assert_int_equal(released, 4);
    free_setting(&s);
}

/* Arrays are passed by languages without compound literals. */
TEST(test_arrays) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    ls_metric *const metrics[] = {NULL, ls_metric_named("acc"), ls_metric_named("mae")};
    ls_metric *const *array = ls_metric_array(metrics, 3);
    ls_metric *const *shorter = ls_metric_array(metrics, 2);
    assert_memory_equal(shorter, metrics, 2 * sizeof *metrics);
    assert_memory_equal(array, metrics, sizeof metrics);
    options.custom_metrics = array;
    options.custom_metric_count = 3;
    assert_null(ls_trial_new(&options)); /* the array is freed with its owner */
    expect_message("custom metric 0 is NULL");
    options.custom_metrics = ls_metric_array((ls_metric *const[]){ls_metric_named("nonsense")}, 1);
    options.custom_metric_count = 1;
    assert_null(ls_trial_new(&options));
    expect_message("there is no metric \"nonsense\"");
    options.custom_metrics = ls_metric_array((ls_metric *const[]){ls_metric_named("mae")}, 1);
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    ls_trial_free(trial); /* and the array */
    free_setting(&s);
}

TEST(test_metrics_of_constructors) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.custom_metrics = (ls_metric *const[]){ls_metric_named("acc"), ls_metric_named("loss")};
    options.custom_metric_count = 2;
    options.metrics = (const char *const[]){NULL};
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_true(ls_trial_metric(trial, "acc") >= 0 && ls_trial_metric(trial, "loss") > 0);
    ls_trial_free(trial);
    free_setting(&s);
}

/* ---- in the middle of an epoch ----------------------------------------------------------------------------------- */

/* Runs two epochs of 3 steps, once without interruption and once resumed after `after` steps: the results are
 * bit-identical. */
static void goes_on_after(int64_t after) {
    static const char *const names[] = {"loss",     "acc",     "r",  "running_loss", "running_top_2_acc",
                                        "loss_std", "acc_var", "f1", "lr",           "val_loss",
                                        "val_f1",   "val_r"};
    setting s = make_setting();
    int calls = 0;
    kept_state kept = {.after = after};
    ls_callback *keep = ls_callback_new(&(ls_callback_hooks){.on_step_training = keep_state}, &kept);
    ls_trial_options options = options_of(&s);
    options.metrics = LS_METRICS("loss", "acc", "running_loss", "running_top_2_acc", "loss_std", "acc_var", "f1", "lr",
                                 "recall_per_class", "samples_per_second");
    options.custom_metrics = &(ls_metric *){ls_metric_new(&formula, &calls)};
    options.custom_metric_count = 1;
    options.callbacks = &keep;
    options.callback_count = 1;
    ls_trial *whole = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(whole, 2), LS_OK);

    options.callback_count = 0;
    options.custom_metrics = &(ls_metric *){ls_metric_new(&formula, &calls)};
    ls_trial *rest = ls_trial_new(&options);
    assert_int_equal(ls_metrics_set_state(rest, kept.tensors, kept.count), LS_OK);
    rest->continues = true;
    rest->state.batch = after % 3;
    assert_int_equal(ls_loader_seek(s.train, after / 3, after % 3), LS_OK);
    assert_int_equal(ls_trial_run(rest, 1), LS_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_true(same_bits(ls_trial_history(rest, 0, names[i]), ls_trial_history(whole, after / 3, names[i])));
        assert_true(!isnan(ls_trial_history(rest, 0, names[i])));
    }
    if (after > 3) { /* both trials have finished the last epoch */
        int64_t count = 0;
        const double *values = ls_trial_metric_values(rest, "recall_per_class", &count);
        assert_int_equal(count, CLASSES);
        assert_memory_equal(values, ls_trial_metric_values(whole, "recall_per_class", NULL),
                            (size_t)CLASSES * sizeof *values);
    }
    release_state(&kept);
    ls_trial_free(whole);
    ls_trial_free(rest);
    free_setting(&s);
}

TEST(test_going_on_in_the_midst_of_an_epoch) {
    goes_on_after(1);
    goes_on_after(2);
    goes_on_after(4);
    goes_on_after(5);
}

static void expect_wrong_state(ls_trial *trial, const ls_named *tensors, int count, const char *why) {
    assert_int_equal(ls_metrics_set_state(trial, tensors, count), LS_ERR_FORMAT);
    expect_message(why);
}

TEST(test_what_other_metrics_counted) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.metrics = LS_METRICS("loss", "acc");
    ls_trial *trial = ls_trial_new(&options);
    ls_tensor *two = ls_zeros(LS_SHAPE(2), LS_F64);
    ls_tensor *three = ls_zeros(LS_SHAPE(3), LS_F64);
    ls_tensor *single = ls_zeros(LS_SHAPE(2), LS_F32);
    const ls_named loss = {"loss", two};
    expect_wrong_state(trial, &loss, 1, "there are no saved numbers of metric \"acc\"");
    expect_wrong_state(trial, (const ls_named[]){loss, {"acc", three}}, 2, "\"acc\", [3] of f64, do not fit");
    expect_wrong_state(trial, (const ls_named[]){loss, {"acc", single}}, 2, "\"acc\", [2] of f32, do not fit");
    expect_wrong_state(trial, (const ls_named[]){loss, {"acc", two}, {"mae", two}}, 3,
                       "3 metrics were saved, but the trial has 2");
    assert_int_equal(ls_metrics_set_state(trial, (const ls_named[]){{"acc", two}, loss}, 2), LS_OK);
    ls_release(two);
    ls_release(three);
    ls_release(single);
    ls_trial_free(trial);
    free_setting(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_several_numbers_and_a_formula),
        cmocka_unit_test(test_functions_that_are_none),
        cmocka_unit_test(test_failures_free_metrics),
        cmocka_unit_test(test_owners),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_metrics_of_constructors),
        cmocka_unit_test(test_going_on_in_the_midst_of_an_epoch),
        cmocka_unit_test(test_what_other_metrics_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
