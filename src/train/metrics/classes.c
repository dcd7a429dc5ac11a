/*
 * Precision, recall, F1 and the confusion matrix, for classes and for binary outputs. These metrics count the
 * predictions and targets of a pass by class.
 */
#include <math.h>
#include <stdio.h>

#include "tensor/tensor.h"
#include "train/metrics/answers.h"

/* ---- counting ----------------------------------------------------------------------------------------------------
 *
 * The host gets one number for each prediction: classes * target + prediction, or NaN if the prediction does not
 * count. */

static ls_tensor *ask(const ls_metric *metric, const ls_trial_state *state) {
    ls_answers answers;
    if (!ls_answers_read(metric, state, &answers)) {
        return NULL;
    }
    ls_tensor *code = ls_add(ls_mul(ls_to(answers.targets, LS_F64), (double)answers.classes), answers.predicted);
    return answers.kept != NULL ? ls_where(answers.kept, code, ls_scalar((double)NAN, LS_F64)) : code;
}

static ls_status prepare(ls_metric *metric, const ls_trial_options *options) {
    metric->binary = ls_answers_reading(metric, options) != LS_OUTPUTS_BY_CRITERION;
    return LS_OK;
}

/* A metric with a score has three numbers for each class. The confusion matrix has one number for each pair of
   classes. */
enum { MATCHED = 0, PREDICTED, TARGETED, PER_CLASS };

static void count(ls_tally *tally, int64_t classes, int64_t target, int64_t prediction) {
    if (tally->metric->score == NULL) {
        tally->items[target * classes + prediction]++;
        return;
    }
    tally->items[PER_CLASS * prediction + PREDICTED]++;
    tally->items[PER_CLASS * target + TARGETED]++;
    tally->items[PER_CLASS * prediction + MATCHED] += target == prediction;
}

static ls_status update(ls_tally *tally, const ls_batch_numbers *batch) {
    const ls_metric *metric = tally->metric;
    const int64_t classes = ls_answers_classes(metric, batch->state);
    const int64_t width = classes * (metric->score != NULL ? PER_CLASS : classes);
    LS_TRY(classes > 0 ? ls_tally_settle(tally, (size_t)width, batch->state) : LS_OK);
    for (int64_t i = 0; i < batch->asked_count; i++) {
        const double code = batch->asked[i];
        const double target = floor(code / (double)classes);
        if (target < 0 || target >= (double)classes) {
            return target == (double)LS_NO_CLASS
                       ? ls_fail(LS_ERR_ARGUMENT, "ls_trial: metric \"%s\": a target is not a whole number",
                                 metric->name)
                       : ls_fail(LS_ERR_ARGUMENT,
                                 "ls_trial: metric \"%s\": the target %.0f is not a class of output %s", metric->name,
                                 target, LS_SHAPE_TEXT(batch->state->output));
        }
        if (!isnan(code)) {
            count(tally, classes, (int64_t)target, (int64_t)(code - target * (double)classes));
        }
    }
    return LS_OK;
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* Returns 0 if the divisor is 0, like scikit-learn. */
static double share(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

double ls_score_precision(const double counts[]) {
    return share(counts[MATCHED], counts[PREDICTED]);
}

double ls_score_recall(const double counts[]) {
    return share(counts[MATCHED], counts[TARGETED]);
}

double ls_score_f1(const double counts[]) {
    return share(2 * counts[MATCHED], counts[PREDICTED] + counts[TARGETED]);
}

/* Returns the mean over the classes that occur as predictions or targets. */
static double macro(const ls_tally *tally) {
    double sum = 0;
    int64_t classes = 0;
    for (const double *one = tally->items; one < tally->items + tally->count; one += PER_CLASS) {
        if (one[PREDICTED] + one[TARGETED] > 0) {
            sum += tally->metric->score(one);
            classes++;
        }
    }
    return classes > 0 ? sum / (double)classes : (double)NAN;
}

static double micro(const ls_tally *tally) {
    double all[PER_CLASS] = {0};
    for (size_t i = 0; i < tally->count; i++) {
        all[i % PER_CLASS] += tally->items[i];
    }
    return all[TARGETED] > 0 ? tally->metric->score(all) : (double)NAN;
}

static double average(const ls_tally *tally) {
    const ls_metric *metric = tally->metric;
    if (tally->count == 0) {
        return (double)NAN;
    }
    if (metric->average == LS_AVERAGE_USUAL && metric->binary) {
        return metric->score(tally->items + PER_CLASS); /* of the positive class */
    }
    return metric->average == LS_AVERAGE_MICRO ? micro(tally) : macro(tally);
}

static ls_status list_counts(const ls_tally *tally, ls_tally *values) {
    LS_TRY(ls_tally_resize(values, tally->count));
    for (size_t i = 0; i < values->count; i++) {
        values->items[i] = tally->items[i];
    }
    return LS_OK;
}

/* Lists the scores of all classes: NAN if no target counts. */
static ls_status list(const ls_tally *tally, ls_tally *values) {
    ls_class_score *score = tally->metric->score;
    if (score == NULL) {
        return list_counts(tally, values);
    }
    const bool any = !isnan(micro(tally));
    LS_TRY(ls_tally_resize(values, tally->count / PER_CLASS));
    for (size_t i = 0; i < values->count; i++) {
        values->items[i] = any ? score(tally->items + PER_CLASS * i) : (double)NAN;
    }
    return LS_OK;
}

static bool is_whole(const ls_metric *metric, const double *numbers, size_t size) {
    const double side = round(sqrt((double)size));
    (void)numbers;
    return metric->score != NULL ? size % PER_CLASS == 0 : side * side == (double)size;
}

/* ---- constructors ------------------------------------------------------------------------------------------------ */

ls_metric *ls_metric_of_classes(const char *call, const char *name, ls_class_score *score,
                                const ls_class_metric_options *options) {
    static const ls_metric_type type = {.unit = 1,
                                        .settles = true,
                                        .prepare = prepare,
                                        .ask = ask,
                                        .update = update,
                                        .result = average,
                                        .results = list,
                                        .valid = is_whole};
    static const char *const suffixes[] = {"", "_macro", "_micro", "_per_class"};
    const ls_class_metric_options given = options != NULL ? *options : (ls_class_metric_options){.average = 0};
    char full[LS_METRIC_NAME_LIMIT];
    if ((unsigned)given.average > LS_AVERAGE_NONE || (unsigned)given.outputs > LS_OUTPUTS_LOGITS) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: .average %d or .outputs %d is not a valid value", call,
                            (int)given.average, (int)given.outputs);
    }
    snprintf(full, sizeof full, "%s%s", name, score != NULL ? suffixes[given.average] : "");
    ls_metric *metric = ls_metric_make(full, &type, NULL);
    if (metric != NULL) {
        metric->score = score;
        metric->average = given.average;
        metric->outputs = given.outputs;
        metric->several = score == NULL || given.average == LS_AVERAGE_NONE;
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
