/*
 * Metrics over data sets in batches of several sizes, compared with the values of scikit-learn
 * (tests/fixtures/make_metrics.py).
 *
 * devices: cpu shadow cuda
 */
#include <math.h>

#include "tests/support/operations.h"
#include "tests/support/scores.h"
#include "tests/support/unit.h"

enum { SAMPLES = 41, CLASSES = 5 };

FIXTURES(expected, "metrics.txt")

/* The measured data: outputs and targets, which belong to the test's scope, and the criterion. */
typedef struct sample_set {
    ls_tensor *outputs;
    ls_tensor *targets;
    ls_criterion criterion;
    void *criterion_user;
    double tolerance; /* 0: 1e-12 */
} sample_set;

static void check_values_of(const ls_trial *trial, const char *metric, const char *name, double tolerance) {
    const fixture *want = fixture_find(expected, name);
    char full[80];
    int64_t count = 0;
    snprintf(full, sizeof full, "test_%s", metric);
    const double *values = ls_trial_metric_values(trial, full, &count);
    assert_int_equal(count, want->count);
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs(values[i] - want->values[i]) <= tolerance * fmax(1, fabs(want->values[i])))) {
            fail_msg("%s: number %d of %s is %.15g, not %.15g", metric, (int)i, name, values[i], want->values[i]);
        }
    }
}

static void measure_in_batches(const sample_set *set, ls_metric *metric, const char *name, int64_t batch) {
    ls_loader *loader =
        ls_loader_new(ls_tensor_dataset(set->outputs, set->targets), &(ls_loader_options){.batch_size = batch});
    ls_module *model = ls_nn_function("AsItIs", as_it_is, NULL);
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .criterion = set->criterion,
                                                       .criterion_user = set->criterion_user,
                                                       LS_CUSTOM_METRICS(metric),
                                                       .quiet = true});
    if (trial == NULL || ls_trial_evaluate(trial, loader, "test") != LS_OK) {
        fail_msg("%s: %s", name, ls_error_message());
    }
    check_values_of(trial, ls_metric_name(metric), name, set->tolerance != 0 ? set->tolerance : 1e-12);
    ls_trial_free(trial);
    ls_module_free(model);
    ls_loader_free(loader);
}

static void check_in_batches(const sample_set *set, ls_metric *const metrics[3], const char *name) {
    static const int64_t batches[] = {41, 7, 1};
    for (int i = 0; i < 3; i++) {
        measure_in_batches(set, metrics[i], name, batches[i]);
    }
}

/* Calls the constructor again for each trial. */
#define CHECK(set, constructor, name)                                                                                  \
    do {                                                                                                               \
        ls_metric *const check_metrics[] = {constructor, constructor, constructor};                                    \
        check_in_batches(set, check_metrics, name);                                                                    \
    } while (0)

static void check_named(const sample_set *set, const char *metric) {
    CHECK(set, ls_metric_named(metric), metric);
}

SCOPED_TEST(test_classes) {
    static const char *const names[] = {"acc",          "top_1_acc",       "top_2_acc",        "top_4_acc",
                                        "confusion",    "precision_macro", "precision_micro",  "precision_per_class",
                                        "recall_macro", "recall_micro",    "recall_per_class", "f1_macro",
                                        "f1_micro",     "f1_per_class",    "acc_var",          "acc_std"};
    const sample_set set = {.outputs = scores(1, LS_SHAPE(SAMPLES, CLASSES)),
                            .targets = score_targets(2, SAMPLES, CLASSES),
                            .criterion = ls_criterion_cross_entropy};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        check_named(&set, names[i]);
    }
    CHECK(&set, ls_metric_named("precision"), "precision_macro");
    CHECK(&set, ls_metric_recall(NULL), "recall_macro");
    CHECK(&set, ls_metric_f1(&(ls_class_metric_options){.average = LS_AVERAGE_NONE}), "f1_per_class");
    CHECK(&set, ls_metric_var(ls_metric_named("acc"), true), "acc_var_population");
}

/* The same values with the classes last, [n, 1, classes] with [n, 1], and with one-hot rows. */
SCOPED_TEST(test_classes_in_other_shapes) {
    ls_tensor *outputs = scores(1, LS_SHAPE(SAMPLES, CLASSES));
    ls_tensor *targets = score_targets(2, SAMPLES, CLASSES);
    ls_tensor *rows = ls_eq(ls_unsqueeze(targets, 1), ls_arange(LS_SHAPE(1, CLASSES), LS_I64));
    const sample_set behind = {ls_unsqueeze(outputs, 1), ls_unsqueeze(targets, 1), mean_of_outputs, NULL, 0};
    const sample_set one_hot = {outputs, ls_to(rows, LS_F32), mean_of_outputs, NULL, 0};
    const sample_set single = {ls_to(outputs, LS_F32), ls_to(targets, LS_U8), mean_of_outputs, NULL, 0};
    const sample_set *const sets[] = {&behind, &one_hot, &single};
    for (int i = 0; i < 3; i++) {
        check_named(sets[i], "acc");
        check_named(sets[i], "top_2_acc");
        check_named(sets[i], "confusion");
        check_named(sets[i], "f1_macro");
    }
}

SCOPED_TEST(test_classes_that_do_not_occur) {
    static const char *const names[] = {"precision_macro", "precision_micro", "precision_per_class",
                                        "recall_macro",    "recall_micro",    "recall_per_class",
                                        "f1_macro",        "f1_micro",        "f1_per_class"};
    ls_tensor *outputs = scores(1, LS_SHAPE(SAMPLES, CLASSES));
    ls_tensor *targets = score_targets(2, SAMPLES, CLASSES);
    ls_tensor *low = ls_ge(ls_arange(LS_SHAPE(1, CLASSES), LS_I64), 3);
    const sample_set set = {.outputs = ls_where(low, ls_full(LS_SCALAR, LS_F64, -2), outputs),
                            .targets = ls_where(ls_eq(targets, 3), ls_zeros(LS_SCALAR, LS_I64), targets),
                            .criterion = mean_of_outputs};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        snprintf(name, sizeof name, "rare_%s", names[i]);
        CHECK(&set, ls_metric_named(names[i]), name);
    }
}

/* Tests targets that the criterion ignores: a class, and a number that is not a class. */
SCOPED_TEST(test_ignored_targets) {
    ls_tensor *targets = score_targets(2, SAMPLES, CLASSES);
    for (int64_t ignored = 2; ignored >= -100; ignored -= 102) {
        ls_class_loss_options loss = {.ignore = true, .ignore_index = ignored};
        const sample_set set = {.outputs = scores(1, LS_SHAPE(SAMPLES, CLASSES)),
                                .targets =
                                    ls_where(ls_eq(targets, 2), ls_full(LS_SCALAR, LS_I64, (double)ignored), targets),
                                .criterion = ls_criterion_cross_entropy,
                                .criterion_user = &loss};
        static const int64_t batch = SAMPLES; /* the loss of an empty batch is NaN */
        ls_metric *const metrics[] = {ls_metric_named("acc"), ls_metric_named("acc_var"), ls_metric_named("top_2_acc"),
                                      ls_metric_named("recall")};
        static const char *const names[] = {"acc_kept", "acc_var_kept", "top_2_acc_kept", "recall_kept"};
        for (int i = 0; i < 4; i++) {
            measure_in_batches(&set, metrics[i], names[i], batch);
        }
        CHECK(&set, ls_metric_named("acc"), "acc_kept");
        CHECK(&set, ls_metric_named("acc_var"), "acc_var_kept");
    }
}

SCOPED_TEST(test_yes_or_no) {
    ls_tensor *outputs = scores(3, LS_SHAPE(SAMPLES));
    ls_tensor *targets = ls_to(score_targets(4, SAMPLES, 2), LS_F64);
    ls_tensor *column = ls_unsqueeze(outputs, 1);
    const sample_set logits = {outputs, targets, ls_criterion_bce_with_logits, NULL, 0};
    const sample_set chances = {ls_div(ls_add(outputs, 1), 2), targets, ls_criterion_bce, NULL, 0};
    const sample_set columns = {column, targets, mean_of_outputs, NULL, 0};
    const ls_class_metric_options as_logits = {.outputs = LS_OUTPUTS_LOGITS};
    CHECK(&logits, ls_metric_named("binary_acc_logits"), "binary_acc_logits");
    CHECK(&logits, ls_metric_named("acc"), "binary_acc_logits");
    CHECK(&logits, ls_metric_named("precision"), "yes_precision");
    CHECK(&logits, ls_metric_named("recall"), "yes_recall");
    CHECK(&logits, ls_metric_named("f1"), "yes_f1");
    CHECK(&logits, ls_metric_named("f1_macro"), "yes_f1_macro");
    CHECK(&logits, ls_metric_named("precision_macro"), "yes_precision_macro");
    CHECK(&logits, ls_metric_named("recall_macro"), "yes_recall_macro");
    CHECK(&logits, ls_metric_named("confusion"), "yes_confusion");
    CHECK(&chances, ls_metric_named("precision"), "yes_precision_of_probabilities");
    CHECK(&columns, ls_metric_recall(&as_logits), "yes_recall");
    CHECK(&columns, ls_metric_confusion(&as_logits), "yes_confusion");
}

SCOPED_TEST(test_roc_auc) {
    ls_tensor *targets = score_targets(4, SAMPLES, 2);
    ls_tensor *outputs = scores(3, LS_SHAPE(SAMPLES, 1));
    ls_tensor *two[] = {ls_neg(outputs), ls_mul(outputs, 3)};
    const sample_set distinct = {outputs, targets, mean_of_outputs, NULL, 0};
    const sample_set ties = {scores_of_steps(3, LS_SHAPE(SAMPLES), 6), targets, mean_of_outputs, NULL, 0};
    const sample_set equal = {ls_zeros(LS_SHAPE(SAMPLES), LS_F64), targets, mean_of_outputs, NULL, 0};
    const sample_set classes = {ls_concat(two, 2, 1), targets, ls_criterion_cross_entropy, NULL, 0};
    CHECK(&distinct, ls_metric_named("roc_auc"), "roc_auc_distinct");
    CHECK(&ties, ls_metric_named("roc_auc"), "roc_auc_ties");
    CHECK(&equal, ls_metric_named("roc_auc"), "roc_auc_equal");
    CHECK(&classes, ls_metric_named("roc_auc"), "roc_auc_distinct");
    ls_class_loss_options loss = {.ignore = true, .ignore_index = -1};
    ls_tensor *outputs_and_more[] = {classes.outputs, ls_ones(LS_SHAPE(9, 2), LS_F64)};
    ls_tensor *targets_and_more[] = {targets, ls_full(LS_SHAPE(9), LS_I64, -1)};
    const sample_set ignored = {ls_concat(outputs_and_more, 2, 0), ls_concat(targets_and_more, 2, 0),
                                ls_criterion_cross_entropy, &loss, 0};
    CHECK(&ignored, ls_metric_named("roc_auc"), "roc_auc_distinct");
}

SCOPED_TEST(test_numbers) {
    static const char *const names[] = {"mse", "rmse", "mae", "r2", "mse_var", "mae_std"};
    ls_tensor *outputs = scores(5, LS_SHAPE(SAMPLES));
    ls_tensor *targets = scores(6, LS_SHAPE(SAMPLES));
    ls_tensor *same = ls_full(LS_SHAPE(SAMPLES), LS_F64, 0.25);
    const sample_set set = {outputs, ls_unsqueeze(targets, 1), mean_of_outputs, NULL, 0};
    /* The mean is a million times the standard deviation, so a batch's mean has six digits fewer. */
    const sample_set far = {ls_add(outputs, 0x1p20), ls_add(targets, 0x1p20), ls_criterion_mse, NULL, 1e-9};
    const sample_set columns = {scores(7, LS_SHAPE(SAMPLES, 3)), scores(8, LS_SHAPE(SAMPLES, 3)), ls_criterion_mse,
                                NULL, 0};
    const sample_set alike = {outputs, same, ls_criterion_mse, NULL, 0};
    const sample_set met = {same, same, ls_criterion_mse, NULL, 0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        check_named(&set, names[i]);
    }
    CHECK(&far, ls_metric_named("r2"), "r2_far");
    CHECK(&columns, ls_metric_named("r2"), "r2_columns");
    CHECK(&columns, ls_metric_named("mse"), "mse_columns");
    CHECK(&alike, ls_metric_named("r2"), "r2_alike");
    CHECK(&met, ls_metric_named("r2"), "r2_alike_and_met");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_classes_in_other_shapes),
        cmocka_unit_test(test_classes_that_do_not_occur),
        cmocka_unit_test(test_ignored_targets),
        cmocka_unit_test(test_yes_or_no),
        cmocka_unit_test(test_roc_auc),
        cmocka_unit_test(test_numbers),
    };
    return cmocka_run_group_tests(tests, expected_begin, expected_end);
}
