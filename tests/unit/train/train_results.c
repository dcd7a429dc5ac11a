/*
 * Trials in one process: measured results, the history, and output.
 *
 * devices: cpu shadow cuda
 */
#include <fcntl.h>
#include <unistd.h>

#include "base/status.h"
#include "tests/support/elements.h"
#include "tests/support/files.h"
#include <lockstep/callbacks.h>

#include "tests/support/trials.h"

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* Computes the mean cross entropy and the accuracy over a data set, one sample at a time. */
static void measure(const ls_module *model, int set, int64_t count, double *loss, double *accuracy) {
    const double *weight = elements(ls_module_find(model, "weight"));
    const double *bias = elements(ls_module_find(model, "bias"));
    *loss = *accuracy = 0;
    for (int64_t row = 0; row < count; row++) {
        double sum = 0;
        double output[CLASSES];
        int best = 0;
        for (int c = 0; c < CLASSES; c++) {
            output[c] =
                bias[c] + weight[2 * c] * input_at(set, 2 * row) + weight[2 * c + 1] * input_at(set, 2 * row + 1);
            sum += exp(output[c]);
            best = output[c] > output[best] ? c : best;
        }
        *loss += (log(sum) - output[target_at(set, row)]) / (double)count;
        *accuracy += (best == target_at(set, row)) / (double)count;
    }
}

static void expect_near(double is, double want) {
    if (!(fabs(is - want) <= 1e-12)) {
        fail_msg("%.17g is not %.17g", is, want);
    }
}

/* A custom metric that measures the mean of the inputs. */
static ls_status measure_inputs(const ls_trial_state *state, void *user, double *sum, double *weight) {
    *(int *)user += 1;
    *sum = ls_item(ls_sum(state->input));
    *weight = (double)ls_numel(state->input);
    return LS_OK;
}

TEST(test_metrics_are_means_over_samples) {
    setting s = make_setting();
    int calls = 0;
    ls_metric *custom = ls_metric_new(&(ls_metric_functions){.name = "input", .mean = measure_inputs}, &calls);
    ls_trial_options options = options_of(&s);
    options.metrics = LS_METRICS("acc", "loss");
    options.custom_metrics = &custom;
    options.custom_metric_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    assert_true(isnan(ls_trial_metric(trial, "loss")));
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    assert_int_equal(calls, 2 * (3 + 2));
    double loss;
    double accuracy;
    measure(s.model, 0, TRAIN_COUNT, &loss, &accuracy);
    for (int epoch = 0; epoch < 2; epoch++) { /* the model has not changed */
        expect_near(ls_trial_history(trial, epoch, "loss"), loss);
        expect_near(ls_trial_history(trial, epoch, "acc"), accuracy);
    }
    measure(s.model, 1, TEST_COUNT, &loss, &accuracy);
    expect_near(ls_trial_metric(trial, "val_loss"), loss);
    expect_near(ls_trial_metric(trial, "val_acc"), accuracy);
    double mean = 0;
    for (int i = 0; i < 2 * TEST_COUNT; i++) {
        mean += input_at(1, i) / (2 * TEST_COUNT);
    }
    expect_near(ls_trial_metric(trial, "val_input"), mean);
    assert_true(isnan(ls_trial_metric(trial, "test_loss")));
    assert_true(isnan(ls_trial_history(trial, 2, "loss")) && isnan(ls_trial_history(trial, -1, "loss")));
    ls_trial_free(trial);
    free_setting(&s);
}

static void forget_error(void) {
    (void)ls_error_set_text(LS_OK, NULL);
}

/* Reads a name in each of four ways. Every way must set the error, or none if `message` is NULL. */
static void expect_no_result(const ls_trial *trial, const char *name, const char *message) {
    for (int i = 0; i < 4; i++) {
        forget_error();
        if (i == 0) {
            assert_true(isnan(ls_trial_metric(trial, name)));
        } else if (i == 1) {
            int64_t count = -1;
            assert_null(ls_trial_metric_values(trial, name, &count));
            assert_int_equal(count, 0);
        } else if (ls_trial_history_count(trial) == 0) {
            continue;
        } else {
            assert_true(isnan(ls_trial_history(trial, i == 2 ? 0 : 7, name)));
        }
        if (message == NULL) {
            assert_int_equal(ls_error_status(), LS_OK);
        } else {
            expect_error(ls_error_status(), LS_ERR_ARGUMENT, message);
        }
    }
}

static ls_status read_in_hook(ls_trial_state *state, void *user) {
    expect_no_result(state->trial, "lost", "there is no metric \"lost\"; available: loss, acc, val_loss, val_acc");
    forget_error();
    assert_true(ls_trial_metric(state->trial, "loss") > 0);
    assert_int_equal(ls_error_status(), LS_OK);
    *(int *)user += 1;
    return LS_OK;
}

TEST(test_unknown_names_of_metrics_are_errors) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.metrics = LS_METRICS("loss", "acc");
    int calls = 0;
    ls_callback *callback = ls_callback_new(&(ls_callback_hooks){.on_step_training = read_in_hook}, &calls);
    options.callbacks = &callback;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    for (int run = 0; run < 2; run++) {
        expect_no_result(trial, "accuracy", "there is no metric \"accuracy\"; available: loss, acc, val_loss, val_acc");
        expect_no_result(trial, "xacc", "there is no metric \"xacc\"");
        expect_no_result(trial, "", "there is no metric \"\"");
        expect_no_result(trial, NULL, "the name of the metric is NULL");
        expect_no_result(NULL, "loss", "the trial is NULL");
        expect_no_result(trial, "test_acc", NULL);
        if (run == 0) {
            expect_no_result(trial, "val_loss", NULL);
            assert_int_equal(ls_trial_run(trial, 1), LS_OK);
            assert_int_equal(calls, 3);
        }
    }
    const uint32_t errors = ls_error_count;
    assert_true(isnan(ls_trial_history(trial, 1, "loss")) && ls_error_count == errors); /* the epoch has not run */
    ls_trial_free(trial);
    options.validate = NULL;
    options.callback_count = 0;
    trial = ls_trial_new(&options);
    expect_no_result(trial, "val_loss", "available: loss, acc. Was .validate set?");
    ls_trial_free(trial);
    free_setting(&s);
}

TEST(test_training_learns) {
    setting s = make_setting();
    assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, -1, 0.3), LS_OK);
    ls_trial_options options = options_of(&s);
    ls_trial *trial = ls_trial_new(&options);
    assert_true(ls_trial_throughput(trial) == 0);
    assert_int_equal(ls_trial_run(trial, 20), LS_OK);
    assert_true(ls_trial_history(trial, 19, "loss") < ls_trial_history(trial, 0, "loss"));
    assert_int_equal(ls_trial_history_count(trial), 20);
    assert_true(ls_trial_throughput(trial) > 0);
    ls_trial_free(trial);
    free_setting(&s);
}

/* Evaluates with a different loader during training. */
static ls_status evaluate_now(ls_trial_state *state, void *user) {
    const ls_tensor *output = state->output;
    assert_int_equal(ls_trial_evaluate(state->trial, user, "now"), LS_OK);
    assert_true(ls_module_is_training(state->model));
    assert_int_equal(state->batches, 3);
    assert_ptr_equal(state->output, output);
    return LS_OK;
}

TEST(test_evaluate) {
    setting s = make_setting();
    ls_loader *test = make_loader(2, 6);
    ls_trial_options options = options_of(&s);
    options.metrics = LS_METRICS("loss", "acc");
    ls_callback *callback =
        ls_callback_new(&(ls_callback_hooks){.on_step_training = evaluate_now, .on_criterion = evaluate_now}, test);
    options.callbacks = &callback;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    const uint64_t hash = ls_module_hash(s.model);
    assert_int_equal(ls_trial_evaluate(trial, test, "test"), LS_OK);
    assert_true(ls_module_is_training(s.model)); /* as before */
    assert_true(ls_module_hash(s.model) == hash);
    assert_int_equal(ls_trial_history_count(trial), 0);
    double loss;
    double accuracy;
    measure(s.model, 2, 6, &loss, &accuracy);
    expect_near(ls_trial_metric(trial, "test_loss"), loss);
    expect_near(ls_trial_metric(trial, "test_acc"), accuracy);

    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    expect_near(ls_trial_metric(trial, "now_loss"), loss);
    expect_near(ls_trial_metric(trial, "test_loss"), loss);
    assert_true(isnan(ls_trial_history(trial, 0, "test_loss")) && isnan(ls_trial_history(trial, 0, "now_loss")));
    measure(s.model, 0, TRAIN_COUNT, &loss, &accuracy);
    expect_near(ls_trial_history(trial, 0, "loss"), loss);
    ls_trial_free(trial);

    options = options_of(&s); /* only evaluation */
    options.optimizer = NULL;
    options.train = NULL;
    trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_evaluate(trial, test, "test"), LS_OK);
    assert_int_equal(ls_trial_run(trial, 1), LS_ERR_ARGUMENT);
    ls_trial_free(trial);
    ls_loader_free(test);
    free_setting(&s);
}

static ls_status refuse_validation(ls_trial_state *state, void *user) {
    (void)user;
    return state->phase == LS_PHASE_EVALUATION ? ls_error_set(LS_ERR_FORMAT, "not today") : LS_OK;
}

/* The training loader and the modes are as before. */
TEST(test_evaluation_that_fails) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    ls_callback *callback = ls_callback_new(&(ls_callback_hooks){.on_step_validation = refuse_validation}, NULL);
    options.callbacks = &callback;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    int64_t epoch, batch;
    assert_int_equal(ls_loader_seek(s.train, 1, 2), LS_OK);
    assert_int_equal(ls_trial_evaluate(trial, s.train, "test"), LS_ERR_FORMAT);
    expect_message("not today");
    ls_loader_position(s.train, &epoch, &batch);
    assert_true(epoch == 1 && batch == 2 && ls_module_is_training(s.model));
    ls_trial_free(trial);
    free_setting(&s);
}

/* The name of a result, such as "test_loss", has at most 63 bytes. */
TEST(test_label_of_an_evaluation) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.metrics = LS_METRICS("loss");
    ls_trial *trial = ls_trial_new(&options);
    char label[60] = "", name[80];
    memset(label, 'a', 59);
    assert_int_equal(ls_trial_evaluate(trial, s.validate, label), LS_ERR_ARGUMENT);
    expect_message("a label and a metric's name together may have at most 62 bytes");
    label[58] = '\0';
    assert_int_equal(ls_trial_evaluate(trial, s.validate, label), LS_OK);
    snprintf(name, sizeof name, "%s_loss", label);
    assert_true(ls_trial_metric(trial, name) > 0);
    ls_trial_free(trial);
    free_setting(&s);
}

static ls_status evaluate_behind(ls_trial_state *state, void *user) {
    return ls_trial_evaluate(state->trial, user, "now");
}

/* A hook that evaluates in every pass also does so once during an evaluation. */
TEST(test_evaluate_in_an_evaluation) {
    setting s = make_setting();
    ls_loader *test = make_loader(2, 6);
    ls_trial_options options = options_of(&s);
    ls_callback *callback = ls_callback_new(&(ls_callback_hooks){.on_end_epoch = evaluate_behind}, test);
    options.callbacks = &callback;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "test"), LS_OK);
    assert_true(ls_trial_history(trial, 0, "test_loss") == ls_trial_history(trial, 0, "val_loss"));
    double loss, accuracy;
    measure(s.model, 2, 6, &loss, &accuracy);
    expect_near(ls_trial_metric(trial, "now_loss"), loss);
    assert_true(isnan(ls_trial_history(trial, 0, "now_loss")));
    ls_trial_free(trial);
    ls_loader_free(test);
    free_setting(&s);
}

/* Without .validate, "val_loss" is a valid name only after an evaluation with the label "val". A missing value is then
 * not an error. */
TEST(test_history_of_an_evaluation_named_val) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.validate = NULL;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    expect_error((isnan(ls_trial_history(trial, 0, "val_loss")), ls_error_status()), LS_ERR_ARGUMENT,
                 "Was .validate set?");
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "val"), LS_OK);
    const uint32_t errors = ls_error_count;
    assert_true(ls_trial_history(trial, 1, "val_loss") == ls_trial_metric(trial, "val_loss"));
    assert_true(isnan(ls_trial_history(trial, 0, "val_loss")) && isnan(ls_trial_history(trial, 7, "val_loss")));
    assert_true(ls_error_count == errors);
    ls_trial_free(trial);
    free_setting(&s);
}

TEST(test_history_as_csv) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.metrics = LS_METRICS("loss", "acc");
    ls_trial *trial = ls_trial_new(&options);
    const char *path = test_path("history.csv");
    assert_int_equal(ls_trial_write_history(trial, path), LS_OK);
    char text[1024];
    FILE *stream = fopen(path, "r");
    assert_string_equal(fgets(text, sizeof text, stream), "epoch\n");
    assert_null(fgets(text, sizeof text, stream));
    fclose(stream);
    for (int epoch = 0; epoch < 2; epoch++) {
        assert_int_equal(ls_trial_run(trial, epoch + 1), LS_OK);
        assert_int_equal(ls_trial_write_history(trial, path), LS_OK);
        stream = fopen(path, "r");
        assert_string_equal(fgets(text, sizeof text, stream), "epoch,loss,acc,val_loss,val_acc\n");
        if (epoch == 0) {
            fclose(stream);
        }
    }
    for (int epoch = 0; epoch < 2; epoch++) {
        int number;
        double loss, acc, val_loss, val_acc;
        assert_int_equal(fscanf(stream, "%d,%lf,%lf,%lf,%lf", &number, &loss, &acc, &val_loss, &val_acc), 5);
        assert_int_equal(number, epoch);
        assert_true(fabs(loss - ls_trial_history(trial, epoch, "loss")) < 1e-8);
        assert_true(fabs(val_acc - ls_trial_history(trial, epoch, "val_acc")) < 1e-8);
    }
    fclose(stream);
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "test"), LS_OK); /* changes only the last epoch */
    assert_int_equal(ls_trial_write_history(trial, path), LS_OK);
    stream = fopen(path, "r");
    assert_string_equal(fgets(text, sizeof text, stream), "epoch,loss,acc,val_loss,val_acc,test_loss,test_acc\n");
    assert_non_null(strstr(fgets(text, sizeof text, stream), ",nan,nan\n"));
    double test_loss, test_acc;
    assert_int_equal(fscanf(stream, "%*d,%*f,%*f,%*f,%*f,%lf,%lf", &test_loss, &test_acc), 2);
    assert_true(fabs(test_loss - ls_trial_metric(trial, "test_loss")) < 1e-8);
    fclose(stream);
    assert_int_equal(ls_trial_write_history(trial, test_path("absent/all.csv")), LS_ERR_IO);
    expect_message("/absent/all.csv");
    assert_int_equal(ls_trial_write_history(trial, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_trial_write_history(NULL, path), LS_ERR_ARGUMENT);
    assert_int_equal(test_files_count(), 1);
    ls_trial_free(trial);
    free_setting(&s);
    test_files_remove();
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

/* Captures the standard output of a run and an evaluation. */
static void captured(ls_trial *trial, ls_loader *test, char *text, size_t capacity) {
    const char *path = test_path("output.txt");
    fflush(stdout);
    const int kept = dup(STDOUT_FILENO);
    const int file = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    assert_true(kept >= 0 && file >= 0);
    dup2(file, STDOUT_FILENO);
    const ls_status status = ls_trial_run(trial, 2);
    const ls_status evaluated = ls_trial_evaluate(trial, test, "test");
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    const ssize_t length = pread(file, text, capacity - 1, 0);
    close(kept);
    close(file);
    assert_int_equal(status, LS_OK);
    assert_int_equal(evaluated, LS_OK);
    assert_true(length >= 0);
    text[length] = '\0';
    test_files_remove();
}

TEST(test_progress) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.quiet = false;
    options.metrics = LS_METRICS("loss", "acc");
    ls_trial *trial = ls_trial_new(&options);
    char text[4096];
    captured(trial, s.validate, text, sizeof text);
    static const char *const begins[] = {"0/2(t): 100%|##########| 3/3 [", "0/2(v): 100%|##########| 2/2 [",
                                         "1/2(t): 100%|##########| 3/3 [", "1/2(v): 100%|##########| 2/2 [",
                                         "test: 100%|##########| 2/2 ["};
    const char *line = text;
    for (int i = 0; i < 5; i++) {
        assert_memory_equal(line, begins[i], strlen(begins[i]));
        const char *prefix = i == 4 ? "test_" : i % 2 == 1 ? "val_" : "";
        char metrics[64];
        snprintf(metrics, sizeof metrics, "%sloss", prefix);
        const double loss = ls_trial_metric(trial, metrics);
        snprintf(metrics, sizeof metrics, "it/s, %sloss=%.4g, %sacc=", prefix, loss, prefix);
        const char *end = strchr(line, '\n');
        assert_non_null(end);
        const char *found = strstr(line, metrics);
        assert_true(found != NULL && found < end);
        double rate, samples; /* batches and samples per second */
        assert_int_equal(sscanf(strchr(strstr(line, " ["), ',') + 1, "%lf", &rate), 1);
        assert_int_equal(sscanf(strrchr(strndupa(line, (size_t)(end - line)), ',') + 1, "%lf samples/s]", &samples), 1);
        const double per_batch = i == 0 || i == 2 ? TRAIN_COUNT / 3.0 : TEST_COUNT / 2.0;
        assert_true(fabs(samples - rate * per_batch) <= 1 + 0.01 * per_batch); /* both numbers are rounded */
        line = end + 1;
    }
    assert_string_equal(line, "");
    ls_trial_free(trial);
    options.quiet = true;
    trial = ls_trial_new(&options);
    captured(trial, s.validate, text, sizeof text);
    assert_string_equal(text, "");
    ls_trial_free(trial);
    free_setting(&s);
}

static ls_status measure_nothing(const ls_trial_state *state, void *user, double *numbers) {
    (void)state;
    (void)user;
    (void)numbers;
    return LS_OK;
}

static double negative_nan(const double *numbers, void *user) {
    (void)numbers;
    (void)user;
    return copysign(NAN, -1);
}

/* On x86, invalid operations produce a NaN with a sign, which printf writes as "-nan". */
TEST(test_history_of_negative_nan) {
    setting s = make_setting();
    ls_metric *custom = ls_metric_new(
        &(ls_metric_functions){.name = "x", .width = 1, .update = measure_nothing, .result = negative_nan}, NULL);
    ls_trial_options options = options_of(&s);
    options.validate = NULL;
    options.metrics = LS_METRICS("epoch");
    options.custom_metrics = &custom;
    options.custom_metric_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    const char *path = test_path("nan.csv");
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_int_equal(ls_trial_write_history(trial, path), LS_OK);
    char text[64] = "";
    FILE *stream = fopen(path, "r");
    assert_true(fread(text, 1, sizeof text - 1, stream) > 0);
    fclose(stream);
    assert_string_equal(text, "epoch,x\n0,nan\n");
    ls_trial_free(trial);
    free_setting(&s);
}

/* Shows one bar for the whole run, with the last results of every metric. */
TEST(test_a_bar_per_run) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.quiet = false;
    options.bar_per_run = true;
    ls_trial *trial = ls_trial_new(&options);
    char text[4096], wanted[128];
    captured(trial, s.validate, text, sizeof text);
    static const char begin[] = "epochs: 100%|##########| 2/2 [";
    assert_memory_equal(text, begin, sizeof begin - 1);
    snprintf(wanted, sizeof wanted, "it/s, loss=%.4g, val_loss=%.4g]\ntest: 100%%", ls_trial_history(trial, 1, "loss"),
             ls_trial_history(trial, 1, "val_loss"));
    assert_non_null(strstr(text, wanted));
    ls_trial_free(trial);
    free_setting(&s);
}

static ls_status give_ones(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    (void)self;
    (void)epoch;
    *more = number < 2;
    batch->input = ls_ones(LS_SHAPE(BATCH, 2), LS_F64);
    batch->target = ls_zeros(LS_SHAPE(BATCH), LS_I64);
    return LS_OK;
}

/* The number of batches is unknown. */
TEST(test_progress_without_an_end) {
    static const ls_loader_type type = {.name = "ones", .next = give_ones};
    setting s = make_setting();
    ls_loader *endless = ls_loader_custom(&type, -1);
    ls_trial_options options = options_of(&s);
    options.quiet = false;
    options.train = endless;
    options.validate = NULL;
    ls_trial *trial = ls_trial_new(&options);
    char text[4096];
    captured(trial, s.validate, text, sizeof text);
    static const char begin[] = "0/2(t): 2it [";
    assert_memory_equal(text, begin, sizeof begin - 1);
    assert_non_null(strstr(text, "it/s, loss="));
    ls_trial_free(trial);
    ls_loader_free(endless);
    free_setting(&s);
}

/* Names are written to files in UTF-8, so they must be valid UTF-8. */
TEST(test_names_are_utf_8) {
    setting s = make_setting();
    int calls = 0;
    const ls_metric_functions own = {.name = "gr\xf6\xdf"
                                             "e",
                                     .mean = measure_inputs};
    ls_trial_options options = options_of(&s);
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_evaluate(trial, s.validate,
                                       "gr\xf6\xdf"
                                       "e"),
                     LS_ERR_ARGUMENT);
    expect_message("ls_trial_evaluate: the label \"gr??e\" is not UTF-8");
    assert_int_equal(ls_trial_evaluate(trial, s.validate,
                                       "gr\xc3\xb6\xc3\x9f"
                                       "e"),
                     LS_OK);
    ls_trial_free(trial);
    assert_null(ls_metric_new(&own, &calls));
    expect_message("ls_metric_new: the metric's name \"gr??e\" is not UTF-8");
    free_setting(&s);
}

typedef struct sighting {
    const ls_loader *loader;
    int batches; /* number of training batches over this loader */
} sighting;

static ls_status see_training(const ls_trial_state *state, void *user, double *sum, double *weight) {
    sighting *seen = user;
    seen->batches += state->phase == LS_PHASE_TRAINING && state->loader == seen->loader;
    *sum = *weight = 1;
    return LS_OK;
}

/* Measurements during a rate finder's sweep count as training. */
TEST(test_a_sweep_is_training) {
    setting s = make_setting();
    sighting seen = {.loader = s.train};
    ls_metric *own = ls_metric_new(&(ls_metric_functions){.name = "own", .mean = see_training}, &seen);
    ls_callback *finder = ls_rate_finder(&(ls_rate_finder_options){.steps = 7, .highest = 1e-3});
    ls_trial_options options = options_of(&s);
    options.custom_metrics = &own;
    options.custom_metric_count = 1;
    options.callbacks = &finder;
    options.callback_count = 1;
    assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, -1, 0.01), LS_OK);
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_int_equal(seen.batches, 7 + 3);
    ls_trial_free(trial);
    free_setting(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics_are_means_over_samples),
        cmocka_unit_test(test_unknown_names_of_metrics_are_errors),
        cmocka_unit_test(test_training_learns),
        cmocka_unit_test(test_evaluate),
        cmocka_unit_test(test_a_bar_per_run),
        cmocka_unit_test(test_evaluate_in_an_evaluation),
        cmocka_unit_test(test_evaluation_that_fails),
        cmocka_unit_test(test_label_of_an_evaluation),
        cmocka_unit_test(test_history_of_an_evaluation_named_val),
        cmocka_unit_test(test_history_as_csv),
        cmocka_unit_test(test_history_of_negative_nan),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_progress_without_an_end),
        cmocka_unit_test(test_names_are_utf_8),
        cmocka_unit_test(test_a_sweep_is_training),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
