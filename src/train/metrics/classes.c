/*
 * Precision, recall, F1 and the confusion matrix, for classes and for binary outputs: they count predictions and
 * targets of a pass by class.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tensor/tensor.h"
#include "train/metrics/answers.h"

/* ---- counting ----------------------------------------------------------------------------------------------------
 *
 * The host gets one number for each answer, classes * target + prediction; NaN if the answer does not count.
 */

static ls_tensor *ask(const ls_metric *metric, const ls_trial_state *state) {
    ls_answers answers;
    if (!ls_answers_read(metric, state, metric->outputs, &answers)) {
        return NULL;
    }
    ls_tensor *code = ls_add(ls_mul(ls_to(answers.right, LS_F64), (double)answers.classes), answers.said);
    return answers.kept != NULL ? ls_where(answers.kept, code, ls_scalar((double)NAN, LS_F64)) : code;
}

static ls_status prepare(ls_metric *metric, const ls_trial_options *options) {
    metric->binary = ls_answers_reading(metric->outputs, options) != LS_OUTPUTS_BY_CRITERION;
    return LS_OK;
}

typedef void count_answer(double *numbers, int64_t classes, int64_t target, int64_t prediction);

/* Counts the answers of a batch in `width` numbers. */
static ls_status count_answers(const ls_metric *metric, ls_numbers *numbers, const ls_batch_numbers *batch,
                               int64_t classes, int64_t width, count_answer *count) {
    LS_TRY(ls_numbers_settle(metric, numbers, (size_t)width, batch->state));
    for (int64_t i = 0; i < batch->asked_count; i++) {
        const double code = batch->asked[i];
        const double target = floor(code / (double)classes);
        if (target < 0 || target >= (double)classes) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_trial: metric \"%s\": the target %.0f is no class of output %s",
                           metric->name, target, LS_SHAPE_TEXT(batch->state->output));
        }
        if (!isnan(code)) {
            count(numbers->items, classes, (int64_t)target, (int64_t)(code - target * (double)classes));
        }
    }
    return LS_OK;
}

/* ---- precision, recall, f1: three numbers for each class --------------------------------------------------------- */

enum { BOTH = 0, SAID, RIGHT, PER_CLASS };

static void count_class(double *numbers, int64_t classes, int64_t target, int64_t prediction) {
    (void)classes;
    numbers[PER_CLASS * prediction + SAID]++;
    numbers[PER_CLASS * target + RIGHT]++;
    numbers[PER_CLASS * prediction + BOTH] += target == prediction;
}

static ls_status add_classes(const ls_metric *metric, ls_numbers *numbers, const ls_batch_numbers *batch) {
    const int64_t classes = ls_answers_classes(metric, batch->state);
    return classes > 0 ? count_answers(metric, numbers, batch, classes, PER_CLASS * classes, count_class) : LS_OK;
}

/* 0 if there is nothing to divide by, like scikit-learn. */
static double share(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

double ls_score_precision(const double counts[]) {
    return share(counts[BOTH], counts[SAID]);
}

double ls_score_recall(const double counts[]) {
    return share(counts[BOTH], counts[RIGHT]);
}

double ls_score_f1(const double counts[]) {
    return share(2 * counts[BOTH], counts[SAID] + counts[RIGHT]);
}

/* The mean over the classes that are predicted, or are a target. */
static double macro(const ls_metric *metric, const double *numbers, size_t count) {
    double sum = 0;
    int64_t classes = 0;
    for (size_t i = 0; i < count; i += PER_CLASS) {
        if (numbers[i + SAID] + numbers[i + RIGHT] > 0) {
            sum += metric->score(numbers + i);
            classes++;
        }
    }
    return classes > 0 ? sum / (double)classes : (double)NAN;
}

static double micro(const ls_metric *metric, const double *numbers, size_t count) {
    double all[PER_CLASS] = {0};
    for (size_t i = 0; i < count; i++) {
        all[i % PER_CLASS] += numbers[i];
    }
    return all[RIGHT] > 0 ? metric->score(all) : (double)NAN;
}

static double average(const ls_metric *metric, double *numbers, size_t count) {
    if (count == 0) {
        return (double)NAN;
    }
    const bool of_positives = metric->average == LS_AVERAGE_USUAL && metric->binary;
    return of_positives                          ? metric->score(numbers + PER_CLASS)
           : metric->average == LS_AVERAGE_MICRO ? micro(metric, numbers, count)
                                                 : macro(metric, numbers, count);
}

static ls_status list_scores(const ls_metric *metric, const double *numbers, size_t count, ls_numbers *values) {
    LS_TRY(ls_numbers_resize(values, count / PER_CLASS));
    for (size_t i = 0; i < values->count; i++) {
        values->items[i] = metric->score(numbers + PER_CLASS * i);
    }
    return LS_OK;
}

/* ---- the confusion matrix ---------------------------------------------------------------------------------------- */

static void count_cell(double *numbers, int64_t classes, int64_t target, int64_t prediction) {
    numbers[target * classes + prediction]++;
}

static ls_status add_cells(const ls_metric *metric, ls_numbers *numbers, const ls_batch_numbers *batch) {
    const int64_t classes = ls_answers_classes(metric, batch->state);
    return classes > 0 ? count_answers(metric, numbers, batch, classes, classes * classes, count_cell) : LS_OK;
}

static ls_status list_cells(const ls_metric *metric, const double *numbers, size_t count, ls_numbers *values) {
    (void)metric;
    LS_TRY(ls_numbers_resize(values, count));
    if (count > 0) {
        memcpy(values->items, numbers, count * sizeof *numbers);
    }
    return LS_OK;
}

static bool is_square(const ls_metric *metric, const double *numbers, size_t count) {
    const double side = round(sqrt((double)count));
    (void)metric;
    (void)numbers;
    return side * side == (double)count;
}

/* ---- types and constructors -------------------------------------------------------------------------------------- */

static const ls_metric_type by_class = {.unit = PER_CLASS,
                                        .settles = true,
                                        .prepare = prepare,
                                        .ask = ask,
                                        .update = add_classes,
                                        .result = average,
                                        .results = list_scores};
static const ls_metric_type by_cell = {.unit = 1,
                                       .settles = true,
                                       .prepare = prepare,
                                       .ask = ask,
                                       .update = add_cells,
                                       .results = list_cells,
                                       .valid = is_square};

ls_metric *ls_metric_of_classes(const char *call, const char *name, ls_class_score *score,
                                const ls_class_metric_options *options) {
    static const char *const suffixes[] = {"", "_macro", "_micro", "_per_class"};
    const ls_average average_by = options != NULL ? options->average : LS_AVERAGE_USUAL;
    const ls_outputs outputs = options != NULL ? options->outputs : LS_OUTPUTS_BY_CRITERION;
    char full[LS_METRIC_NAME_LIMIT];
    if ((unsigned)average_by > LS_AVERAGE_NONE || (unsigned)outputs > LS_OUTPUTS_LOGITS) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: there is no average %d or outputs %d", call, (int)average_by,
                            (int)outputs);
    }
    snprintf(full, sizeof full, "%s%s", name, score != NULL ? suffixes[average_by] : "");
    ls_metric *metric = ls_metric_make(full, score != NULL ? &by_class : &by_cell, NULL);
    if (metric != NULL) {
        metric->score = score;
        metric->average = average_by;
        metric->outputs = outputs;
        metric->several = score == NULL || average_by == LS_AVERAGE_NONE;
    }
    return metric;
}

ls_metric *ls_metric_precision(const ls_class_metric_options *options) {
    return ls_metric_of_classes("ls_metric_precision", "precision", ls_score_precision, options);
}

ls_metric *ls_metric_recall(const ls_class_metric_options *options) {
    return ls_metric_of_classes("ls_metric_recall", "recall", ls_score_recall, options);
}

ls_metric *ls_metric_f1(const ls_class_metric_options *options) {
    return ls_metric_of_classes("ls_metric_f1", "f1", ls_score_f1, options);
}

ls_metric *ls_metric_confusion(const ls_class_metric_options *options) {
    return ls_metric_of_classes("ls_metric_confusion", "confusion", NULL, options);
}
