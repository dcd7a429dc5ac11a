/*
 * Precision, recall, F1 and the confusion matrix, of classes or of yes and no: how often each class was said, asked
 * for, and both, in a pass.
 */
#include <math.h>
#include <stdio.h>

#include "tensor/tensor.h"
#include "train/metrics/answers.h"

/* ---- counting ----------------------------------------------------------------------------------------------------
 *
 * Of each answer the host is told one number, classes * right + said; NaN of one that does not count.
 */

static ls_tensor *ask(ls_measure *measure, const ls_trial_state *state) {
    ls_answers answers;
    if (!ls_answers_read(measure, state, measure->rule->outputs, &answers)) {
        return NULL;
    }
    measure->classes = answers.classes;
    ls_tensor *code = ls_add(ls_mul(ls_to(answers.right, LS_F64), (double)answers.classes), answers.said);
    return answers.kept != NULL ? ls_where(answers.kept, code, ls_scalar((double)NAN, LS_F64)) : code;
}

static ls_status prepare(ls_measure *measure, const ls_trial_options *options) {
    measure->yes_or_no = ls_answers_reading(measure->rule->outputs, options) != LS_OUTPUTS_BY_CRITERION;
    return LS_OK;
}

/* The numbers of the answer that `code` tells; false where it does not count, or with the error set. */
static bool decode(const ls_measure *measure, const ls_trial_state *state, double code, int64_t *right, int64_t *said) {
    const double classes = (double)measure->classes;
    if (isnan(code)) {
        return false;
    }
    const double row = floor(code / classes);
    if (row < 0 || row >= classes) {
        (void)ls_fail(LS_ERR_ARGUMENT, "ls_trial: metric \"%s\": the target %.0f is no class of output %s",
                      measure->rule->name, row, LS_SHAPE_TEXT(state->output));
        return false;
    }
    *right = (int64_t)row;
    *said = (int64_t)(code - row * classes);
    return true;
}

/* Counts the answers of a batch, each by `count`. */
static ls_status count_answers(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch,
                               size_t width, void (*count)(const ls_measure *, double *, int64_t, int64_t)) {
    if (batch->state->count == 0) {
        return LS_OK;
    }
    LS_TRY(ls_numbers_settle(measure, numbers, width, batch->state));
    const uint32_t errors = ls_error_count;
    for (int64_t i = 0; i < measure->asked_count; i++) {
        int64_t right;
        int64_t said;
        if (decode(measure, batch->state, measure->asked[i], &right, &said)) {
            count(measure, numbers->items, right, said);
        } else if (ls_error_count != errors) {
            return ls_error_status();
        }
    }
    return LS_OK;
}

/* ---- precision, recall, f1: three numbers of each class --------------------------------------------------------- */

enum { BOTH = 0, SAID, RIGHT, PER_CLASS };

static void count_class(const ls_measure *measure, double *numbers, int64_t right, int64_t said) {
    (void)measure;
    numbers[PER_CLASS * said + SAID]++;
    numbers[PER_CLASS * right + RIGHT]++;
    numbers[PER_CLASS * said + BOTH] += right == said;
}

static ls_status add_classes(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch) {
    return count_answers(measure, numbers, batch, PER_CLASS * (size_t)measure->classes, count_class);
}

/* 0 where there is nothing to divide by, as scikit-learn has it. */
static double share(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

static double precision(const double *one) {
    return share(one[BOTH], one[SAID]);
}

static double recall(const double *one) {
    return share(one[BOTH], one[RIGHT]);
}

static double f1(const double *one) {
    return share(2 * one[BOTH], one[SAID] + one[RIGHT]);
}

/* Of the classes that were said or asked for. */
static double macro(const double *numbers, size_t count, double (*score)(const double *one)) {
    double sum = 0;
    int64_t classes = 0;
    for (size_t i = 0; i < count; i += PER_CLASS) {
        if (numbers[i + SAID] + numbers[i + RIGHT] > 0) {
            sum += score(numbers + i);
            classes++;
        }
    }
    return classes > 0 ? sum / (double)classes : (double)NAN;
}

static double micro(const double *numbers, size_t count, double (*score)(const double *one)) {
    double all[PER_CLASS] = {0};
    for (size_t i = 0; i < count; i++) {
        all[i % PER_CLASS] += numbers[i];
    }
    return all[RIGHT] > 0 ? score(all) : (double)NAN;
}

static double average(const ls_measure *measure, const double *numbers, size_t count,
                      double (*score)(const double *one)) {
    if (count == 0) {
        return (double)NAN;
    }
    const ls_average by = measure->rule->average;
    const bool of_yes = by == LS_AVERAGE_USUAL && measure->yes_or_no;
    return of_yes                   ? score(numbers + PER_CLASS)
           : by == LS_AVERAGE_MICRO ? micro(numbers, count, score)
                                    : macro(numbers, count, score);
}

static double value_of_precision(const ls_measure *measure, double *numbers, size_t count) {
    return average(measure, numbers, count, precision);
}

static double value_of_recall(const ls_measure *measure, double *numbers, size_t count) {
    return average(measure, numbers, count, recall);
}

static double value_of_f1(const ls_measure *measure, double *numbers, size_t count) {
    return average(measure, numbers, count, f1);
}

static ls_status list(const double *numbers, size_t count, double (*score)(const double *one), ls_numbers *values) {
    LS_TRY(ls_numbers_resize(values, count / PER_CLASS));
    for (size_t i = 0; i < values->count; i++) {
        values->items[i] = score(numbers + PER_CLASS * i);
    }
    return LS_OK;
}

static ls_status list_precision(const double *numbers, size_t count, ls_numbers *values) {
    return list(numbers, count, precision, values);
}

static ls_status list_recall(const double *numbers, size_t count, ls_numbers *values) {
    return list(numbers, count, recall, values);
}

static ls_status list_f1(const double *numbers, size_t count, ls_numbers *values) {
    return list(numbers, count, f1, values);
}

static bool fits_classes(const ls_metric *rule, const double *numbers, size_t count) {
    (void)rule;
    (void)numbers;
    return count % PER_CLASS == 0;
}

/* ---- the confusion matrix ---------------------------------------------------------------------------------------- */

static void count_cell(const ls_measure *measure, double *numbers, int64_t right, int64_t said) {
    numbers[right * measure->classes + said]++;
}

static ls_status add_cells(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch) {
    return count_answers(measure, numbers, batch, (size_t)measure->classes * (size_t)measure->classes, count_cell);
}

static ls_status list_cells(const double *numbers, size_t count, ls_numbers *values) {
    LS_TRY(ls_numbers_resize(values, count));
    for (size_t i = 0; i < count; i++) {
        values->items[i] = numbers[i];
    }
    return LS_OK;
}

static bool fits_cells(const ls_metric *rule, const double *numbers, size_t count) {
    const double side = round(sqrt((double)count));
    (void)rule;
    (void)numbers;
    return side * side == (double)count;
}

/* ---- the rows ---------------------------------------------------------------------------------------------------- */

#define BY_CLASS .settles = true, .add = add_classes, .fits = fits_classes

static const ls_aggregate by_precision = {BY_CLASS, .value = value_of_precision};
static const ls_aggregate by_recall = {BY_CLASS, .value = value_of_recall};
static const ls_aggregate by_f1 = {BY_CLASS, .value = value_of_f1};
static const ls_aggregate by_precisions = {BY_CLASS, .values = list_precision};
static const ls_aggregate by_recalls = {BY_CLASS, .values = list_recall};
static const ls_aggregate by_f1s = {BY_CLASS, .values = list_f1};
static const ls_aggregate by_cells = {.settles = true, .add = add_cells, .values = list_cells, .fits = fits_cells};

const ls_metric_kind ls_kind_precision = {
    .name = "precision", .aggregate = &by_precision, .by_average = ls_metric_precision, .prepare = prepare, .ask = ask};
const ls_metric_kind ls_kind_recall = {
    .name = "recall", .aggregate = &by_recall, .by_average = ls_metric_recall, .prepare = prepare, .ask = ask};
const ls_metric_kind ls_kind_f1 = {
    .name = "f1", .aggregate = &by_f1, .by_average = ls_metric_f1, .prepare = prepare, .ask = ask};
const ls_metric_kind ls_kind_confusion = {.name = "confusion", .aggregate = &by_cells, .prepare = prepare, .ask = ask};

/* ---- constructors ------------------------------------------------------------------------------------------------ */

static ls_metric *make(const char *call, const ls_metric_kind *kind, const ls_aggregate *per_class,
                       const ls_class_metric_options *options) {
    static const char *const endings[] = {"", "_macro", "_micro", "_per_class"};
    const ls_average by = options != NULL ? options->average : LS_AVERAGE_USUAL;
    const ls_outputs outputs = options != NULL ? options->outputs : LS_OUTPUTS_BY_CRITERION;
    if ((unsigned)by > LS_AVERAGE_NONE || (unsigned)outputs > LS_OUTPUTS_LOGITS) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: average %d or outputs %d is none that there is", call, (int)by,
                      (int)outputs);
        return NULL;
    }
    ls_metric *rule = ls_metric_make(kind);
    if (rule != NULL) {
        rule->average = by;
        rule->outputs = outputs;
        rule->aggregate = by == LS_AVERAGE_NONE && per_class != NULL ? per_class : rule->aggregate;
        snprintf(rule->name, sizeof rule->name, "%s%s", kind->name, per_class != NULL ? endings[by] : "");
    }
    return rule;
}

ls_metric *ls_metric_precision(const ls_class_metric_options *options) {
    return make("ls_metric_precision", &ls_kind_precision, &by_precisions, options);
}

ls_metric *ls_metric_recall(const ls_class_metric_options *options) {
    return make("ls_metric_recall", &ls_kind_recall, &by_recalls, options);
}

ls_metric *ls_metric_f1(const ls_class_metric_options *options) {
    return make("ls_metric_f1", &ls_kind_f1, &by_f1s, options);
}

ls_metric *ls_metric_confusion(const ls_class_metric_options *options) {
    return make("ls_metric_confusion", &ls_kind_confusion, NULL, options);
}
