/*
 * The area under the ROC curve, which plots true positives over false positives. It is computed from the scores of
 * positives (1) and negatives (0), as the fraction of pairs of a positive and a negative in which the positive has the
 * larger score. A pair with equal scores counts one half (Hanley and McNeil, Radiology 143, 1982). A rank keeps two
 * numbers for each of its samples. The exchange sends all numbers to all ranks.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"
#include "train/metrics/answers.h"

/* Returns the difference between the outputs of class 1 and class 0 as the score, for logits and for probabilities. */
static ls_tensor *scores_of_two(const ls_trial_state *state) {
    ls_tensor *output = ls_to(state->output, LS_F64);
    return ls_sub(ls_select(output, 1, 1), ls_select(output, 1, 0));
}

/* Returns whether outputs are [n, 2], and targets [n] are class numbers. */
static bool has_two_classes(const ls_trial_state *state) {
    const ls_tensor *output = state->output;
    const ls_tensor *target = state->target;
    return output != NULL && target != NULL && ls_ndim(output) == 2 && ls_size(output, 1) == 2 &&
           ls_ndim(target) == 1 && ls_size(target, 0) == ls_size(output, 0);
}

/* Marks a target that the criterion ignores. */
#define IGNORED (-INFINITY)

/* Returns the class numbers [n] in f64, with IGNORED for targets that do not count. */
static ls_tensor *counted_targets(const ls_trial_state *state) {
    ls_tensor *targets = ls_to(state->target, LS_I64);
    ls_tensor *kept = ls_class_targets_kept(state, &(ls_class_layout){.axis = 1}, targets);
    return ls_where(kept, ls_to(targets, LS_F64), ls_scalar(IGNORED, LS_F64));
}

/* Returns a row of scores and a row of targets. */
static ls_tensor *ask(const ls_metric *metric, const ls_trial_state *state) {
    const ls_tensor *output = state->output;
    const ls_tensor *target = state->target;
    const bool two_classes = has_two_classes(state);
    if (!two_classes && output != NULL && target != NULL && ls_ndim(output) > 1 && ls_size(output, -1) != 1) {
        return ls_fail_null(LS_ERR_SHAPE,
                            "ls_trial: metric \"%s\": output %s must be [n], [n, 1], or [n, 2] with class numbers "
                            "[n] as targets: this metric supports only two classes",
                            metric->name, LS_SHAPE_TEXT(output));
    }
    if (!two_classes && !ls_answers_are_numbers(metric, state)) {
        return NULL;
    }
    ls_tensor *rows[] = {two_classes ? scores_of_two(state) : ls_reshape(ls_to(state->output, LS_F64), LS_SHAPE(-1)),
                         two_classes && ls_class_ignored(state) != NULL
                             ? counted_targets(state)
                             : ls_reshape(ls_to(state->target, LS_F64), LS_SHAPE(-1))};
    return ls_stack(rows, 2, 0);
}

enum { SCORE = 0, YES, ROW };

static ls_status update(ls_tally *tally, const ls_batch_numbers *batch) {
    const size_t samples = (size_t)batch->asked_count / ROW;
    size_t end = tally->count;
    LS_TRY(ls_tally_resize(tally, end + ROW * samples));
    for (size_t i = 0; i < samples; i++) {
        const double target = batch->asked[samples + i];
        if (target == IGNORED && ls_class_ignored(batch->state) != NULL && has_two_classes(batch->state)) {
            continue;
        }
        if (target != 0 && target != 1) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_trial: metric \"%s\": the target %g is neither 0 nor 1",
                           tally->metric->name, target);
        }
        tally->items[end + SCORE] = batch->asked[i];
        tally->items[end + YES] = target;
        end += ROW;
    }
    return ls_tally_resize(tally, end);
}

static ls_status append(ls_tally *tally, const double *other, size_t count) {
    const size_t before = tally->count;
    LS_TRY(ls_tally_resize(tally, before + count));
    memcpy(tally->items + before, other, count * sizeof *other);
    return LS_OK;
}

static int by_score(const void *left, const void *right) {
    const double a = ((const double *)left)[SCORE];
    const double b = ((const double *)right)[SCORE];
    return (a > b) - (a < b);
}

static bool has_nan(const ls_tally *tally) {
    bool has = false;
    for (size_t i = 0; i < tally->count; i += ROW) {
        has = has || isnan(tally->items[i + SCORE]);
    }
    return has;
}

/* Counts pairs and half pairs. This is exact: the order of equal scores does not matter. */
static double result(const ls_tally *tally) {
    double *numbers = tally->items;
    double halves = 0;
    double yes = 0;
    double no = 0;
    if (tally->count == 0 || has_nan(tally)) {
        return (double)NAN;
    }
    qsort(numbers, tally->count / ROW, ROW * sizeof *numbers, by_score);
    for (size_t i = 0; i < tally->count;) {
        const double score = numbers[i + SCORE];
        double here[2] = {0, 0};
        for (; i < tally->count && numbers[i + SCORE] == score; i += ROW) {
            here[numbers[i + YES] != 0]++;
        }
        halves += here[1] * (2 * no + here[0]);
        no += here[0];
        yes += here[1];
    }
    return yes > 0 && no > 0 ? halves / (2 * yes * no) : (double)NAN;
}

const ls_metric_type ls_type_roc_auc = {
    .unit = ROW, .grows = true, .costly = true, .ask = ask, .update = update, .merge = append, .result = result};
