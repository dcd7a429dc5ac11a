/*
 * Metrics of trials: users' own, who frees them, and a trial that goes on in the midst of an epoch.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/kept_metrics.h"
#include "tests/support/trials.h"

static bool same_bits(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

/* ---- metrics of one's own ---------------------------------------------------------------------------------------- */

/* The correlation of the two inputs of a sample: of n, x, y, xx, yy, xy. */
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

static void test_several_numbers_and_a_formula(void **state) {
    (void)state;
    setting s = make_setting();
    int calls = 0;
    const ls_metric own = {.name = "r", .width = 6, .add = add_products, .result = correlation, .user = &calls};
    ls_trial_options options = options_of(&s);
    options.custom_metrics = &own;
    options.custom_metric_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    assert_int_equal(calls, 2 * (3 + 2));
    for (int epoch = 0; epoch < 2; epoch++) { /* each begins at 0 */
        assert_true(fabs(ls_trial_history(trial, epoch, "r") - correlation_of(0, TRAIN_COUNT)) < 1e-12);
        assert_true(fabs(ls_trial_history(trial, epoch, "val_r") - correlation_of(1, TEST_COUNT)) < 1e-12);
    }
    ls_trial_free(trial);
    free_setting(&s);
}

static void expect_refused(const setting *s, const ls_metric *metric, const char *reason) {
    ls_trial_options options = options_of(s);
    options.custom_metrics = metric;
    options.custom_metric_count = 1;
    assert_null(ls_trial_new(&options));
    expect_message(reason);
}

static ls_status measure_nothing(const ls_trial_state *state, void *user, double *sum, double *weight) {
    (void)state;
    (void)user;
    (void)sum;
    (void)weight;
    return LS_OK;
}

static void test_metrics_that_are_none(void **state) {
    (void)state;
    setting s = make_setting();
    const char *why = "(width 0) has either measure alone, or add, result and a width of 1 or more";
    expect_refused(&s, &(ls_metric){.name = "x", .add = add_products}, why);
    expect_refused(&s, &(ls_metric){.name = "x", .add = add_products, .result = correlation}, why);
    expect_refused(&s, &(ls_metric){.name = "x", .measure = measure_nothing, .result = correlation}, why);
    expect_refused(&s, &(ls_metric){.name = "x", .measure = measure_nothing, .width = 2}, "(width 2) has either");
    expect_refused(&s, &(ls_metric){.add = add_products, .result = correlation, .width = 1}, "0 has no name");
    expect_refused(&s, &(ls_metric){.name = "x"}, "custom metric 0 has no name or no function");
    expect_refused(&s, &(ls_metric){.name = "loss", .measure = measure_nothing}, "two metrics are named \"loss\"");
    const ls_metric longest = {.name = "a_name_of_thirty-two_characters_", .measure = measure_nothing};
    expect_refused(&s, &(ls_metric){.name = "a_name_of_thirty-three_characters", .measure = measure_nothing},
                   "is longer than 32 bytes");
    ls_trial_options options = options_of(&s);
    options.custom_metrics = &longest;
    options.custom_metric_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    ls_trial_free(trial);
    free_setting(&s);
}

/* ---- who frees them ---------------------------------------------------------------------------------------------- */

static void count_release(void *user) {
    *(int *)user += 1;
}

static ls_status refuse(ls_trial_state *state, void *user) {
    (void)user;
    (void)state;
    return ls_error_set(LS_ERR_STATE, "refused");
}

static void test_release(void **state) {
    (void)state;
    setting s = make_setting();
    int released = 0;
    const ls_metric two[] = {
        {.name = "a", .measure = measure_nothing, .user = &released, .release = count_release},
        {.name = "b",
         .width = 6,
         .add = add_products,
         .result = correlation,
         .user = &released,
         .release = count_release},
    };
    ls_trial_options options = options_of(&s);
    options.custom_metrics = two;
    options.custom_metric_count = 2;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(released, 0);
    ls_trial_free(trial);
    assert_int_equal(released, 2);

    /* A trial that cannot be made takes them over as well: where the options are wrong, before and behind a wrong
     * metric, and where a hook refuses. */
    options.max_steps = -1;
    assert_null(ls_trial_new(&options));
    assert_int_equal(released, 4);
    options.max_steps = 0;
    options.metrics = LS_METRICS("nonsense");
    assert_null(ls_trial_new(&options));
    assert_int_equal(released, 6);
    options.metrics = LS_METRICS("b");
    assert_null(ls_trial_new(&options));
    assert_int_equal(released, 8);
    options.metrics = LS_METRICS("loss");
    const ls_metric named_alike[] = {two[0], two[0]};
    options.custom_metrics = named_alike;
    assert_null(ls_trial_new(&options));
    expect_message("two metrics are named \"a\"");
    assert_int_equal(released, 10);
    options.custom_metrics = two;
    options.callbacks = (ls_callback *[]){ls_callback_new(&(ls_callback_hooks){.on_init = refuse}, NULL)};
    options.callback_count = 1;
    assert_null(ls_trial_new(&options));
    expect_message("refused");
    assert_int_equal(released, 12);
    free_setting(&s);
}

static void test_metrics_of_constructors(void **state) {
    (void)state;
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    const ls_metric metrics[] = {ls_metric_named("acc"), ls_metric_named("loss")};
    options.custom_metrics = metrics;
    options.custom_metric_count = 2;
    options.metrics = (const char *const[]){NULL};
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_true(ls_trial_metric(trial, "acc") >= 0 && ls_trial_metric(trial, "loss") > 0);
    ls_trial_free(trial);

    const ls_metric wrong[] = {ls_metric_named("acc"), ls_metric_named("nonsense")};
    assert_true(!wrong[0].invalid && wrong[1].invalid);
    (void)ls_error_set(LS_ERR_ARGUMENT, "the constructor's reason");
    options.custom_metrics = wrong;
    assert_null(ls_trial_new(&options));
    expect_message("the constructor's reason");
    assert_true(ls_metric_named(NULL).invalid);
    free_setting(&s);
}

/* ---- in the midst of an epoch ------------------------------------------------------------------------------------ */

/* Two epochs of 3 steps at once, and from behind one of those steps on: the same bits. */
static void goes_on_after(int64_t after) {
    static const char *const names[] = {"loss",     "acc",     "r",  "running_loss", "running_top_2_acc",
                                        "loss_std", "acc_var", "f1", "lr",           "val_loss",
                                        "val_f1",   "val_r"};
    setting s = make_setting();
    int calls = 0;
    const ls_metric own = {.name = "r", .width = 6, .add = add_products, .result = correlation, .user = &calls};
    kept_state kept = {.after = after};
    ls_callback *keep = ls_callback_new(&(ls_callback_hooks){.on_step_training = keep_state}, &kept);
    ls_trial_options options = options_of(&s);
    options.metrics = LS_METRICS("loss", "acc", "running_loss", "running_top_2_acc", "loss_std", "acc_var", "f1", "lr",
                                 "recall_per_class", "samples_per_second");
    options.custom_metrics = &own;
    options.custom_metric_count = 1;
    options.callbacks = &keep;
    options.callback_count = 1;
    ls_trial *whole = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(whole, 2), LS_OK);

    options.callback_count = 0;
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
    if (after > 3) { /* it was the last epoch of both */
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

static void test_going_on_in_the_midst_of_an_epoch(void **state) {
    (void)state;
    goes_on_after(1);
    goes_on_after(2);
    goes_on_after(4);
    goes_on_after(5);
}

static void expect_wrong_state(ls_trial *trial, const ls_named *tensors, int count, const char *why) {
    assert_int_equal(ls_metrics_set_state(trial, tensors, count), LS_ERR_FORMAT);
    expect_message(why);
}

static void test_what_other_metrics_counted(void **state) {
    (void)state;
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.metrics = LS_METRICS("loss", "acc");
    ls_trial *trial = ls_trial_new(&options);
    ls_tensor *two = ls_zeros(LS_SHAPE(2), LS_F64);
    ls_tensor *three = ls_zeros(LS_SHAPE(3), LS_F64);
    ls_tensor *single = ls_zeros(LS_SHAPE(2), LS_F32);
    const ls_named loss = {"loss", two};
    expect_wrong_state(trial, &loss, 1, "nothing that the metric \"acc\" has counted");
    expect_wrong_state(trial, (const ls_named[]){loss, {"acc", three}}, 2, "\"acc\" is to have counted, [3] of f64");
    expect_wrong_state(trial, (const ls_named[]){loss, {"acc", single}}, 2, "\"acc\" is to have counted, [2] of f32");
    expect_wrong_state(trial, (const ls_named[]){loss, {"acc", two}, {"mae", two}}, 3,
                       "3 metrics have counted, and there are 2 here");
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
        cmocka_unit_test(test_metrics_that_are_none),
        cmocka_unit_test(test_release),
        cmocka_unit_test(test_metrics_of_constructors),
        cmocka_unit_test(test_going_on_in_the_midst_of_an_epoch),
        cmocka_unit_test(test_what_other_metrics_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
