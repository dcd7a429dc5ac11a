/*
 * The area under the curve of true over false positives, from the scores of yes (1) and no (0): the share of all pairs
 * of a yes and a no in which the yes has the larger score, where equal ones count one half (Hanley and McNeil,
 * Radiology 143, 1982). All scores of a pass are kept: two numbers of each sample, on the ranks that saw it, and where
 * the pass ends on all.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"
#include "train/metrics/answers.h"

/* Outputs of two classes say the score of class 1 by what it has more than class 0, be they logits or probabilities. */
static ls_tensor *scores_of_two(const ls_trial_state *state) {
    ls_tensor *output = ls_to(state->output, LS_F64);
    return ls_sub(ls_select(output, 1, 1), ls_select(output, 1, 0));
}

/* A row of scores and a row of targets. */
static ls_tensor *ask(const ls_metric *metric, const ls_trial_state *state) {
    const ls_tensor *output = state->output;
    const ls_tensor *target = state->target;
    const bool two_classes = output != NULL && target != NULL && ls_ndim(output) == 2 && ls_size(output, 1) == 2 &&
                             ls_ndim(target) == 1 && ls_size(target, 0) == ls_size(output, 0);
    if (!two_classes && output != NULL && target != NULL && ls_ndim(output) > 1 && ls_size(output, -1) != 1) {
        return ls_fail_null(LS_ERR_SHAPE,
                            "ls_trial: metric \"%s\": output %s must be [n] or [n, 1], or [n, 2] with class numbers "
                            "[n]: this metric is for two classes only",
                            metric->name, LS_SHAPE_TEXT(output));
    }
    if (!two_classes && !ls_answers_are_numbers(metric, state)) {
        return NULL;
    }
    ls_tensor *rows[] = {two_classes ? scores_of_two(state) : ls_reshape(ls_to(state->output, LS_F64), LS_SHAPE(-1)),
                         ls_reshape(ls_to(state->target, LS_F64), LS_SHAPE(-1))};
    return ls_stack(rows, 2, 0);
}

enum { SCORE = 0, YES, ROW };

static ls_status update(const ls_metric *metric, ls_numbers *numbers, const ls_batch_numbers *batch) {
    if (batch->state->count == 0) {
        return LS_OK;
    }
    const size_t samples = (size_t)batch->asked_count / ROW;
    const size_t before = numbers->count;
    LS_TRY(ls_numbers_resize(numbers, before + ROW * samples));
    for (size_t i = 0; i < samples; i++) {
        const double target = batch->asked[samples + i];
        if (target != 0 && target != 1) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_trial: metric \"%s\": the target %g is neither 0 nor 1", metric->name,
                           target);
        }
        numbers->items[before + ROW * i + SCORE] = batch->asked[i];
        numbers->items[before + ROW * i + YES] = target;
    }
    return LS_OK;
}

static int by_score(const void *left, const void *right) {
    const double a = ((const double *)left)[SCORE];
    const double b = ((const double *)right)[SCORE];
    return (a > b) - (a < b);
}

/* Whole and half pairs are counted, which is exact: the order of equal scores does not matter. */
static double result(const ls_metric *metric, double *numbers, size_t count) {
    double halves = 0;
    double yes = 0;
    double no = 0;
    (void)metric;
    for (size_t i = 0; i < count; i += ROW) {
        if (isnan(numbers[i + SCORE])) {
            return (double)NAN;
        }
    }
    if (count > 0) {
        qsort(numbers, count / ROW, ROW * sizeof *numbers, by_score);
    }
    for (size_t i = 0; i < count;) {
        const double score = numbers[i + SCORE];
        double here[2] = {0, 0};
        for (; i < count && numbers[i + SCORE] == score; i += ROW) {
            here[numbers[i + YES] != 0]++;
        }
        halves += here[1] * (2 * no + here[0]);
        no += here[0];
        yes += here[1];
    }
    return yes > 0 && no > 0 ? halves / (2 * yes * no) : (double)NAN;
}

static ls_status append(const ls_metric *metric, ls_numbers *numbers, const double *other, size_t count) {
    const size_t before = numbers->count;
    (void)metric;
    LS_TRY(ls_numbers_resize(numbers, before + count));
    if (count > 0) {
        memcpy(numbers->items + before, other, count * sizeof *other);
    }
    return LS_OK;
}

const ls_metric_type ls_type_roc_auc = {
    .unit = ROW, .grows = true, .costly = true, .ask = ask, .update = update, .merge = append, .result = result};
