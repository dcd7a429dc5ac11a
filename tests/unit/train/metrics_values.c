/*
 * Trial metrics: running means and standard deviations over batches, per-step metrics of a run, and rejected arguments.
 *
 * devices: cpu shadow cuda
 */
#include "tests/shadow/shadow.h"
#include "tests/support/scores.h"
#include "tests/support/trials.h"

static void expect_near(double is, double want) {
    if (!(fabs(is - want) <= 1e-12 * fmax(1, fabs(want)))) {
        fail_msg("%.17g is not %.17g", is, want);
    }
}

/* ---- metrics of batches ------------------------------------------------------------------------------------------ */

enum { MOST_BATCHES = 300 };

/* The losses of all training batches, as a hook receives them. */
typedef struct seen_losses {
    double loss[MOST_BATCHES];
    double running[MOST_BATCHES]; /* at the end of an epoch */
    double spread[MOST_BATCHES];
    int batches;
    int epochs;
} seen_losses;

static ls_status see_loss(ls_trial_state *state, void *user) {
    seen_losses *seen = user;
    seen->loss[seen->batches++] = ls_item(state->loss);
    return LS_OK;
}

static ls_status see_epoch(ls_trial_state *state, void *user) {
    seen_losses *seen = user;
    seen->running[seen->epochs] = ls_trial_metric(state->trial, "running_loss");
    seen->spread[seen->epochs++] = ls_trial_metric(state->trial, "loss_std");
    return LS_OK;
}

/*
 * Computes torchbearer's RunningMean: a queue of the last batches, whose mean is updated at every `every`-th batch of
 * an epoch, beginning with the first.
 */
static double running_mean(const seen_losses *seen, int64_t per_epoch, int epochs, int64_t window, int64_t every) {
    double result = NAN;
    for (int64_t batch = 0; batch < per_epoch * epochs; batch++) {
        if (batch % per_epoch % every == 0) {
            const int64_t first = batch + 1 > window ? batch + 1 - window : 0;
            result = 0;
            for (int64_t i = first; i <= batch; i++) {
                result += seen->loss[i] / (double)(batch + 1 - first);
            }
        }
    }
    return result;
}

static double deviation(const double *values, int64_t count) {
    double mean = 0;
    double squares = 0;
    for (int64_t i = 0; i < count; i++) {
        mean += values[i] / (double)count;
    }
    for (int64_t i = 0; i < count; i++) {
        squares += (values[i] - mean) * (values[i] - mean);
    }
    return sqrt(squares / (double)(count - 1));
}

static void check_batches(int64_t samples, int epochs, const ls_running_options *running) {
    setting s = make_setting();
    ls_loader *train = make_loader(0, samples);
    seen_losses seen = {.batches = 0};
    ls_callback *see =
        ls_callback_new(&(ls_callback_hooks){.on_criterion = see_loss, .on_end_training = see_epoch}, &seen);
    ls_trial_options options = options_of(&s);
    ls_metric *const metrics[] = {ls_metric_running(ls_metric_named("loss"), running), ls_metric_named("loss_std")};
    assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, -1, 0.05), LS_OK);
    options.train = train;
    options.custom_metrics = metrics;
    options.custom_metric_count = 2;
    options.callbacks = &see;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, epochs), LS_OK);
    const int64_t per_epoch = (samples + BATCH - 1) / BATCH;
    const int64_t window = running != NULL && running->window != 0 ? running->window : 50;
    const int64_t every = running != NULL && running->every != 0 ? running->every : 10;
    assert_int_equal(seen.batches, per_epoch * epochs);
    for (int epoch = 0; epoch < epochs; epoch++) {
        const double want = running_mean(&seen, per_epoch, epoch + 1, window, every);
        expect_near(seen.running[epoch], want);
        expect_near(ls_trial_history(trial, epoch, "running_loss"), want);
        expect_near(seen.spread[epoch], deviation(&seen.loss[epoch * per_epoch], per_epoch));
        assert_true(isnan(ls_trial_history(trial, epoch, "val_running_loss")));
        assert_true(ls_trial_history(trial, epoch, "val_loss_std") >= 0);
    }
    ls_trial_free(trial);
    ls_loader_free(train);
    free_setting(&s);
}

/* Tests epochs that are shorter than `every`, equally long, or longer than the window, and a smaller last batch. */
TEST(test_running_means) {
    check_batches(3 * BATCH, 7, NULL);
    check_batches(10 * BATCH, 3, NULL);
    check_batches(11 * BATCH, 6, NULL);
    check_batches(74 * BATCH, 3, NULL);
    check_batches(23 * BATCH + 1, 4, NULL);
    check_batches(9 * BATCH, 5, &(ls_running_options){.window = 4, .every = 3});
    check_batches(9 * BATCH, 5, &(ls_running_options){.window = 1, .every = 1});
    check_batches(9 * BATCH, 2, &(ls_running_options){.window = 7});
}

/* An evaluation in the middle of an epoch does not affect metrics, not even a custom mean. */
static ls_status measure_batch_number(const ls_trial_state *state, void *user, double *sum, double *weight) {
    (void)user;
    *sum = 2 * (double)(state->batch + 1);
    *weight = 2;
    return LS_OK;
}

static ls_status evaluate_now(ls_trial_state *state, void *user) {
    return ls_trial_evaluate(state->trial, user, "now");
}

TEST(test_means_of_users_own) {
    setting s = make_setting();
    const ls_metric_functions number = {.name = "number", .mean = measure_batch_number};
    ls_metric *const metrics[] = {ls_metric_running(ls_metric_new(&number, NULL), &(ls_running_options){.every = 1}),
                                  ls_metric_var(ls_metric_new(&number, NULL), true),
                                  ls_metric_var(ls_metric_named("top_2_acc"), false), ls_metric_new(&number, NULL)};
    ls_callback *evaluating = ls_callback_new(&(ls_callback_hooks){.on_step_training = evaluate_now}, s.validate);
    ls_trial_options options = options_of(&s);
    options.validate = NULL;
    options.custom_metrics = metrics;
    options.custom_metric_count = 4;
    options.callbacks = &evaluating;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    expect_near(ls_trial_metric(trial, "number"), 2); /* 1, 2, 3 */
    expect_near(ls_trial_metric(trial, "running_number"), 2);
    expect_near(ls_trial_metric(trial, "number_var"), 2.0 / 3);
    expect_near(ls_trial_metric(trial, "now_number_var"), 0.25); /* 1, 2 */
    assert_true(ls_trial_metric(trial, "top_2_acc_var") > 0);
    ls_trial_free(trial);
    free_setting(&s);
}

/* ---- metrics of steps -------------------------------------------------------------------------------------------- */

static ls_status halve_rate(ls_trial_state *state, void *user) {
    (void)user;
    const double rate = ls_optimizer_learning_rate(state->optimizer, 0);
    return ls_optimizer_set_learning_rate(state->optimizer, -1, rate / 2);
}

TEST(test_rate_and_epoch) {
    setting s = make_setting();
    ls_callback *halving = ls_callback_new(&(ls_callback_hooks){.on_step_training = halve_rate}, NULL);
    ls_trial_options options = options_of(&s);
    assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, -1, 1), LS_OK);
    options.metrics = LS_METRICS("lr", "epoch");
    options.callbacks = &halving;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    for (int epoch = 0; epoch < 2; epoch++) { /* of 3 steps */
        assert_true(ls_trial_history(trial, epoch, "lr") == (epoch == 0 ? 0.125 : 0.015625));
        assert_true(ls_trial_history(trial, epoch, "epoch") == epoch);
        assert_true(ls_trial_history(trial, epoch, "val_epoch") == epoch);
        assert_true(isnan(ls_trial_history(trial, epoch, "val_lr")));
    }
    ls_trial_free(trial);
    free_setting(&s);
}

TEST(test_rates_of_groups) {
    setting s = make_setting();
    ls_optimizer *optimizer = ls_sgd(NULL, NULL);
    ls_tensor *weight = ls_module_find(s.model, "weight");
    ls_tensor *bias = ls_module_find(s.model, "bias");
    assert_int_equal(ls_optimizer_add_group(optimizer, &weight, 1, &(ls_group_options){.learning_rate = 0.5}), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, &bias, 1, &(ls_group_options){.learning_rate = 0.25}), LS_OK);
    ls_trial_options options = options_of(&s);
    ls_metric *const rates[] = {ls_metric_lr(0), ls_metric_lr(1)};
    options.optimizer = optimizer;
    options.custom_metrics = rates;
    options.custom_metric_count = 2;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_true(ls_trial_metric(trial, "lr") == 0.5 && ls_trial_metric(trial, "lr_1") == 0.25);
    ls_trial_free(trial);

    ls_metric *const beyond[] = {ls_metric_lr(2)};
    options.custom_metrics = beyond;
    options.custom_metric_count = 1;
    assert_null(ls_trial_new(&options));
    expect_message("metric \"lr_2\": the optimizer has no such group");
    ls_optimizer_free(optimizer);
    free_setting(&s);
}

/* A loader with a delay. The test can only check that the time is counted. */
static ls_status next_later(ls_loader *loader, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    const uint64_t began = ls_clock_ns();
    (void)loader;
    (void)epoch;
    *more = number < 4;
    if (*more) {
        batch->input = ls_ones(LS_SHAPE(2, 2), LS_F64);
        batch->target = ls_zeros(LS_SHAPE(2), LS_I64);
    }
    while (ls_clock_ns() - began < 2000000) {
    }
    return LS_OK;
}

TEST(test_time) {
    static const ls_loader_type later = {.name = "Later", .next = next_later};
    setting s = make_setting();
    ls_loader *train = ls_loader_custom(&later, 4);
    ls_trial_options options = options_of(&s);
    options.metrics = LS_METRICS("samples_per_second", "data_wait");
    options.train = train;
    ls_trial *trial = ls_trial_new(&options);
    const uint64_t began = ls_clock_ns();
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    const double seconds = (double)(ls_clock_ns() - began) * 1e-9;
    const double waited = ls_trial_metric(trial, "data_wait");
    assert_true(waited >= 4 * 0.002 && waited <= seconds);
    assert_true(ls_trial_metric(trial, "samples_per_second") >= 8 / seconds);
    assert_true(ls_trial_metric(trial, "samples_per_second") <= 8 / waited);
    assert_true(ls_trial_metric(trial, "val_data_wait") >= 0);
    ls_trial_free(trial);
    ls_loader_free(train);
    free_setting(&s);
}

/* ---- fetches ----------------------------------------------------------------------------------------------------- */

/* Returns how often an evaluation of 3 batches waits for the samples' device. */
static int waits_of(ls_dataset *samples, const char *const *metrics, ls_criterion criterion) {
    ls_loader *loader = ls_loader_new(samples, &(ls_loader_options){.batch_size = 4, .device = "shadow:0"});
    ls_module *model = ls_nn_function("AsItIs", as_it_is, NULL);
    ls_class_loss_options loss = {.ignore = true, .ignore_index = -1};
    ls_trial *trial = ls_trial_new(&(ls_trial_options){
        .model = model, .criterion = criterion, .criterion_user = &loss, .metrics = metrics, .quiet = true});
    const int before = shadow_waits;
    assert_int_equal(ls_trial_evaluate(trial, loader, "test"), LS_OK);
    const int waits = shadow_waits - before;
    ls_trial_free(trial);
    ls_module_free(model);
    ls_loader_free(loader);
    return waits;
}

/* All data of a batch that metrics need is fetched from the device at once. */
SCOPED_TEST(test_one_fetch_for_all) {
    ls_dataset *classes = ls_dataset_retain(ls_tensor_dataset(scores(1, LS_SHAPE(12, 5)), score_targets(2, 12, 5)));
    ls_tensor *yes_or_no = ls_to(score_targets(4, 12, 2), LS_F64);
    ls_dataset *numbers = ls_dataset_retain(ls_tensor_dataset(scores(3, LS_SHAPE(12)), yes_or_no));
    const int one = waits_of(classes, LS_METRICS("acc"), ls_criterion_cross_entropy);
    const int many = waits_of(classes, LS_METRICS("loss", "acc", "acc_std", "top_2_acc", "loss_var", "f1", "confusion"),
                              ls_criterion_cross_entropy);
    assert_true(one >= 3);
    assert_int_equal(many, one);
    const int loss = waits_of(numbers, LS_METRICS("loss"), ls_criterion_mse);
    assert_int_equal(waits_of(numbers, LS_METRICS("loss", "mse", "mae_std", "rmse", "r2", "roc_auc"), ls_criterion_mse),
                     loss);
    ls_dataset_free(classes);
    ls_dataset_free(numbers);
}

static ls_tensor *loss_on_cpu(ls_tensor *output, ls_tensor *target, void *user) {
    (void)user;
    return ls_tensor_to_device(ls_mse_loss(output, target, LS_LOSS_MEAN), "cpu");
}

/* The loss may be on a different device from the output. */
SCOPED_TEST(test_two_devices) {
    ls_dataset *set = ls_tensor_dataset(scores(3, LS_SHAPE(12)), scores(4, LS_SHAPE(12)));
    ls_loader *loader = ls_loader_new(set, &(ls_loader_options){.batch_size = 4, .device = "shadow:0"});
    ls_module *model = ls_nn_function("AsItIs", as_it_is, NULL);
    ls_trial *trial = ls_trial_new(&(ls_trial_options){
        .model = model, .criterion = loss_on_cpu, .metrics = LS_METRICS("mse", "loss", "mae", "r2"), .quiet = true});
    assert_int_equal(ls_trial_evaluate(trial, loader, "test"), LS_OK);
    assert_true(ls_trial_metric(trial, "test_mse") > 0);
    expect_near(ls_trial_metric(trial, "test_loss"), ls_trial_metric(trial, "test_mse"));
    ls_trial_free(trial);
    ls_module_free(model);
    ls_loader_free(loader);
}

/* ---- several values ---------------------------------------------------------------------------------------------- */

TEST(test_several_values) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    int64_t count = -1;
    options.metrics = LS_METRICS("loss", "confusion");
    ls_trial *trial = ls_trial_new(&options);
    assert_null(ls_trial_metric_values(trial, "confusion", &count));
    assert_int_equal(count, 0);
    assert_null(ls_trial_metric_values(trial, "val_loss", NULL));
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    const double *cells = ls_trial_metric_values(trial, "confusion", &count);
    assert_int_equal(count, CLASSES * CLASSES);
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += cells[i];
    }
    assert_true(sum == TRAIN_COUNT);
    cells = ls_trial_metric_values(trial, "val_confusion", &count);
    assert_true(count == CLASSES * CLASSES && cells[0] + cells[1] + cells[2] <= TEST_COUNT);
    assert_true(ls_trial_metric_values(trial, "val_loss", &count)[0] == ls_trial_metric(trial, "val_loss"));
    assert_int_equal(count, 1);
    assert_true(isnan(ls_trial_metric(trial, "confusion")) && isnan(ls_trial_history(trial, 0, "confusion")));
    assert_null(ls_trial_metric_values(NULL, "loss", &count));
    assert_null(ls_trial_metric_values(trial, NULL, &count));
    ls_loader *empty = ls_loader_new(ls_dataset_subset(ls_loader_dataset(s.validate), 0, 0), NULL);
    assert_int_equal(ls_trial_evaluate(trial, empty, "val"), LS_OK);
    assert_null(ls_trial_metric_values(trial, "val_confusion", &count));
    assert_int_equal(count, 0);
    ls_loader_free(empty);
    ls_trial_free(trial);
    free_setting(&s);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void expect_unknown(const char *name, const char *nearest) {
    char words[96];
    assert_null(ls_metric_named(name));
    snprintf(words, sizeof words, "there is no metric \"%s\"; did you mean \"%s\"? Available: loss, acc, ", name,
             nearest);
    expect_message(words);
}

TEST(test_unknown_names) {
    expect_unknown("accuracy", "acc");
    expect_unknown("rocauc", "roc_auc");
    expect_unknown("runing_loss", "running_loss");
    expect_unknown("loss_sdt", "loss_std");
    expect_unknown("precision_mirco", "precision_micro");
    expect_unknown("top_k_acc", "top_5_acc");
    expect_unknown("top_5", "top_5_acc");
    expect_unknown("running_r2", "running_acc");
    expect_unknown("running_loss_std", "running_loss");
    expect_unknown("rmse_std", "mse_std");
    expect_unknown("", "loss");
    expect_message("running_NAME, NAME_var and NAME_std; other metrics can be set in .custom_metrics");
    expect_message("precision (_macro, _micro, _per_class)");
    assert_string_equal(ls_metric_named(NULL) == NULL ? ls_error_message() : "", "ls_metric_named: the name is NULL");
}

static void expect_null(const ls_metric *metric, const char *words) {
    assert_null(metric);
    expect_message(words);
}

static void count_release(void *user) {
    *(int *)user += 1;
}

TEST(test_wrong_options) {
    int released = 0;
    const ls_metric_functions own = {
        .name = "a_name_of_thirty-two_characters_", .mean = measure_batch_number, .release = count_release};
    expect_null(ls_metric_top_k_acc(0), "ls_metric_top_k_acc: k is 0, but must be 1 or more");
    expect_null(ls_metric_named("top_0_acc"), "k is 0");
    expect_null(ls_metric_lr(-1), "the optimizer has no group -1");
    expect_null(ls_metric_running(ls_metric_named("loss"), &(ls_running_options){.window = -1}),
                "ls_metric_running: -1 batches, every 10: both must be from 1 to 10000");
    expect_null(ls_metric_running(ls_metric_named("loss"), &(ls_running_options){.every = 10001}), "every 10001");
    expect_null(ls_metric_running(ls_metric_named("r2"), NULL), "ls_metric_running: the metric \"r2\" is not a mean");
    expect_null(ls_metric_std(ls_metric_named("loss_std"), false), "the metric \"loss_std\" is not a mean");
    expect_null(ls_metric_var(ls_metric_named("nonsense"), false), "there is no metric \"nonsense\"");
    expect_null(ls_metric_f1(&(ls_class_metric_options){.average = (ls_average)4}), ".average 4 or .outputs 0");
    expect_null(ls_metric_confusion(&(ls_class_metric_options){.outputs = (ls_outputs)-1}), "outputs -1");
    expect_null(ls_metric_running(ls_metric_new(&own, &released), NULL),
                "\"running_a_name_of_thirty-two_characters_\" is longer than 32 bytes");
    assert_int_equal(released, 1);
    expect_null(ls_metric_running(ls_metric_new(&(ls_metric_functions){.name = "x"}, NULL), NULL),
                "ls_metric_new: a metric needs a name, and either .mean or .update");
    expect_null(
        ls_metric_new(&(ls_metric_functions){.mean = measure_batch_number, .release = count_release}, &released),
        "ls_metric_new: a metric needs a name, and either .mean or .update");
    assert_int_equal(released, 2);
}

/* Tests which object frees a metric: the trial, or the constructor that failed. */
TEST(test_release) {
    setting s = make_setting();
    int released = 0;
    const ls_metric_functions own = {.name = "own", .mean = measure_batch_number, .release = count_release};
    ls_trial_options options = options_of(&s);
    ls_metric *const first[] = {ls_metric_running(ls_metric_new(&own, &released), NULL), ls_metric_named("acc_std")};
    options.custom_metrics = first;
    options.custom_metric_count = 2;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    expect_near(ls_trial_metric(trial, "running_own"), 1); /* computed at the first batch */
    assert_int_equal(released, 0);
    ls_trial_free(trial);
    assert_int_equal(released, 1);
    ls_metric *const again[] = {ls_metric_running(ls_metric_new(&own, &released), NULL), ls_metric_named("acc_std"),
                                ls_metric_named("lr")};
    options.custom_metrics = again;
    options.custom_metric_count = 3;
    options.optimizer = NULL;
    assert_null(ls_trial_new(&options));
    expect_message("ls_trial_new: metric \"lr\": the trial has no optimizer");
    assert_int_equal(released, 2);
    free_setting(&s);
}

static void expect_refused(ls_tensor *outputs, ls_tensor *targets, ls_metric *metric, ls_status status,
                           const char *words) {
    ls_loader *loader = ls_loader_new(ls_tensor_dataset(outputs, targets), &(ls_loader_options){.batch_size = 4});
    ls_module *model = ls_nn_function("AsItIs", as_it_is, NULL);
    ls_trial *trial = ls_trial_new(
        &(ls_trial_options){.model = model, .criterion = mean_of_outputs, LS_CUSTOM_METRICS(metric), .quiet = true});
    assert_non_null(trial);
    assert_int_equal(ls_trial_evaluate(trial, loader, "test"), status);
    expect_message(words);
    ls_trial_free(trial);
    ls_module_free(model);
    ls_loader_free(loader);
}

static ls_tensor *zeros(ls_shape shape) {
    return ls_zeros(shape, LS_F64);
}

SCOPED_TEST(test_wrong_samples) {
    ls_tensor *three = zeros(LS_SHAPE(4, 3));
    ls_tensor *labels = ls_arange(LS_SHAPE(4), LS_I64); /* class 3 does not exist among three classes */
    expect_refused(three, labels, ls_metric_named("top_5_acc"), LS_ERR_SHAPE,
                   "ls_trial: metric \"top_5_acc\": output [4, 3] has 3 classes, fewer than 5");
    expect_refused(three, labels, ls_metric_named("top_2_acc"), LS_ERR_ARGUMENT,
                   "ls_trial: metric \"top_2_acc\": a target is not a class of output [4, 3]");
    expect_refused(three, ls_sub(labels, 1), ls_metric_std(ls_metric_named("top_2_acc"), false), LS_ERR_ARGUMENT,
                   "ls_trial: metric \"top_2_acc_std\": a target is not a class of output [4, 3]");
    expect_refused(three, labels, ls_metric_named("precision"), LS_ERR_ARGUMENT,
                   "ls_trial: metric \"precision\": the target 3 is not a class of output [4, 3]");
    expect_refused(three, ls_sub(labels, 1), ls_metric_named("confusion"), LS_ERR_ARGUMENT,
                   "metric \"confusion\": the target -1 is not a class of output [4, 3]");
    expect_refused(three, ls_full(LS_SHAPE(4), LS_F64, 0.5), ls_metric_named("recall"), LS_ERR_ARGUMENT,
                   "metric \"recall\": a target is not a whole number");
    expect_refused(three, ls_full(LS_SHAPE(4), LS_F32, NAN), ls_metric_named("top_2_acc"), LS_ERR_ARGUMENT,
                   "metric \"top_2_acc\": a target is not a class of output [4, 3]");
    expect_refused(zeros(LS_SHAPE(4, 1)), labels, ls_metric_named("f1"), LS_ERR_SHAPE,
                   "ls_criterion_bce_with_logits, or set .outputs of the metric's options");
    expect_refused(three, zeros(LS_SHAPE(4, 2)), ls_metric_named("recall"), LS_ERR_SHAPE,
                   "metric \"recall\": output [4, 3] with target [4, 2]: must be [n, classes, ...]");
    expect_refused(three, labels, ls_metric_named("mse"), LS_ERR_SHAPE,
                   "metric \"mse\": output [4, 3] and target [4] must have the same shape");
    expect_refused(three, labels, ls_metric_named("r2"), LS_ERR_SHAPE, "metric \"r2\": output [4, 3] and target [4]");
    expect_refused(three, labels, ls_metric_named("roc_auc"), LS_ERR_SHAPE, "supports only two classes");
    expect_refused(three, three, ls_metric_named("roc_auc"), LS_ERR_SHAPE, "must be [n], [n, 1], or [n, 2] with class");
    expect_refused(zeros(LS_SHAPE(4)), labels, ls_metric_named("roc_auc"), LS_ERR_ARGUMENT, " is neither 0 nor 1");
}

/* Returns outputs with 3 classes, and then with 4. */
static ls_status next_wider(ls_loader *loader, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    (void)loader;
    (void)epoch;
    *more = number < 2;
    batch->input = *more ? ls_zeros(LS_SHAPE(2, 3 + number), LS_F64) : NULL;
    batch->target = *more ? ls_zeros(LS_SHAPE(2), LS_I64) : NULL;
    return LS_OK;
}

TEST(test_classes_that_become_more) {
    static const ls_loader_type wider = {.name = "Wider", .next = next_wider};
    ls_loader *loader = ls_loader_custom(&wider, 2);
    ls_module *model = ls_nn_function("AsItIs", as_it_is, NULL);
    ls_trial *trial = ls_trial_new(
        &(ls_trial_options){.model = model, .criterion = mean_of_outputs, .metrics = LS_METRICS("f1"), .quiet = true});
    assert_int_equal(ls_trial_evaluate(trial, loader, "test"), LS_ERR_SHAPE);
    expect_message("metric \"f1\": output [2, 4] has a different number of classes or columns than earlier outputs");
    ls_trial_free(trial);
    ls_module_free(model);
    ls_loader_free(loader);
}

static ls_status next_without_target(ls_loader *loader, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    (void)loader;
    (void)epoch;
    *more = number < 1;
    batch->input = *more ? ls_zeros(LS_SHAPE(2, 3), LS_F64) : NULL;
    return LS_OK;
}

TEST(test_no_targets) {
    static const ls_loader_type without = {.name = "WithoutTargets", .next = next_without_target};
    static const char *const names[] = {"acc", "top_2_acc", "binary_acc", "f1", "confusion", "mae", "r2", "roc_auc"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ls_loader *loader = ls_loader_custom(&without, 1);
        ls_module *model = ls_nn_function("AsItIs", as_it_is, NULL);
        ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                           .criterion = mean_of_outputs,
                                                           .metrics = (const char *const[]){names[i], NULL},
                                                           .quiet = true});
        assert_int_equal(ls_trial_evaluate(trial, loader, "test"), LS_ERR_ARGUMENT);
        expect_message("cannot be computed, because the loader returned no target");
        ls_trial_free(trial);
        ls_module_free(model);
        ls_loader_free(loader);
    }
}

/* Returns the metric of a pass over batches of 4 samples. */
static double value_of(ls_tensor *outputs, ls_tensor *targets, const char *metric) {
    ls_loader *loader = ls_loader_new(ls_tensor_dataset(outputs, targets), &(ls_loader_options){.batch_size = 4});
    ls_module *model = ls_nn_function("AsItIs", as_it_is, NULL);
    ls_trial *trial = ls_trial_new(&(ls_trial_options){
        .model = model, .criterion = mean_of_outputs, .metrics = (const char *const[]){metric, NULL}, .quiet = true});
    char name[64];
    snprintf(name, sizeof name, "test_%s", metric);
    assert_int_equal(ls_trial_evaluate(trial, loader, "test"), LS_OK);
    const double value = ls_trial_metric(trial, name);
    ls_trial_free(trial);
    ls_module_free(model);
    ls_loader_free(loader);
    return value;
}

/* Without data, a metric is NaN. */
static void expect_nan(ls_tensor *outputs, ls_tensor *targets, const char *metric) {
    assert_true(isnan(value_of(outputs, targets, metric)));
}

/* In f64, the mean of three values 0.1 is not 0.1, and the means of batches differ. */
SCOPED_TEST(test_r2_of_equal_targets) {
    for (int64_t count = 2; count < 10; count++) {
        ls_tensor *targets = ls_full(LS_SHAPE(count), LS_F64, 0.1);
        assert_true(value_of(ls_full(LS_SHAPE(count), LS_F64, 0.5), targets, "r2") == 0);
        assert_true(value_of(ls_full(LS_SHAPE(count), LS_F64, 0.1), targets, "r2") == 1);
    }
}

SCOPED_TEST(test_no_value) {
    ls_tensor *one = ls_full(LS_SHAPE(1), LS_F64, 0.5);
    ls_tensor *scores_with_nan = ls_from(LS_SHAPE(3), LS_F64, (double[]){0.5, NAN, 0.1});
    ls_tensor *both = ls_from(LS_SHAPE(3), LS_I64, (int64_t[]){0, 1, 1});
    expect_nan(one, one, "r2");
    expect_nan(one, one, "mse_var");
    expect_nan(one, one, "loss_std");
    expect_nan(zeros(LS_SHAPE(3)), ls_ones(LS_SHAPE(3), LS_I64), "roc_auc");
    expect_nan(zeros(LS_SHAPE(3)), ls_zeros(LS_SHAPE(3), LS_I64), "roc_auc");
    expect_nan(scores_with_nan, both, "roc_auc");
}

SCOPED_TEST(test_scores_of_classes_without_targets) {
    ls_class_loss_options loss = {.ignore = true, .ignore_index = -1};
    ls_dataset *set = ls_tensor_dataset(scores(3, LS_SHAPE(4, 2)), ls_full(LS_SHAPE(4), LS_I64, -1));
    ls_loader *loader = ls_loader_new(set, NULL);
    ls_module *model = ls_nn_function("AsItIs", as_it_is, NULL);
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .criterion = ls_criterion_cross_entropy,
                                                       .criterion_user = &loss,
                                                       .metrics = LS_METRICS("precision", "precision_per_class"),
                                                       .quiet = true});
    int64_t count = 0;
    assert_int_equal(ls_trial_evaluate(trial, loader, "test"), LS_OK);
    assert_true(isnan(ls_trial_metric(trial, "test_precision")));
    const double *values = ls_trial_metric_values(trial, "test_precision_per_class", &count);
    assert_int_equal(count, 2);
    assert_true(isnan(values[0]) && isnan(values[1]));
    ls_trial_free(trial);
    ls_module_free(model);
    ls_loader_free(loader);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_running_means),
        cmocka_unit_test(test_means_of_users_own),
        cmocka_unit_test(test_rate_and_epoch),
        cmocka_unit_test(test_rates_of_groups),
        cmocka_unit_test(test_time),
        cmocka_unit_test(test_one_fetch_for_all),
        cmocka_unit_test(test_two_devices),
        cmocka_unit_test(test_several_values),
        cmocka_unit_test(test_unknown_names),
        cmocka_unit_test(test_wrong_options),
        cmocka_unit_test(test_release),
        cmocka_unit_test(test_wrong_samples),
        cmocka_unit_test(test_classes_that_become_more),
        cmocka_unit_test(test_no_targets),
        cmocka_unit_test(test_r2_of_equal_targets),
        cmocka_unit_test(test_no_value),
        cmocka_unit_test(test_scores_of_classes_without_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
