/* Accuracies: the share of targets that are met. */
#include <string.h>

#include "tensor/tensor.h"
#include "train/metrics/metric.h"

static bool has_shape(const ls_tensor *tensor, ls_shape shape) {
    const ls_shape own = ls_shape_of(tensor);
    return own.ndim == shape.ndim && memcmp(own.size, shape.size, (size_t)own.ndim * sizeof *own.size) == 0;
}

/* [n] or [n, 1]: one number a sample. */
static bool is_column(const ls_tensor *tensor) {
    return ls_ndim(tensor) == 1 || (ls_ndim(tensor) == 2 && ls_size(tensor, 1) == 1);
}

/* Which answers are right where an output beyond the threshold says yes, as a target beyond one half does. */
static ls_tensor *judge_numbers(const ls_trial_state *state, const char *metric, double threshold) {
    ls_tensor *output = state->output;
    ls_tensor *target = state->target;
    const bool columns = is_column(output) && is_column(target) && ls_numel(output) == ls_numel(target);
    if (!columns && !has_shape(output, ls_shape_of(target))) {
        return ls_fail_null(LS_ERR_SHAPE, "ls_trial: metric \"%s\": output %s and target %s must have one shape",
                            metric, LS_SHAPE_TEXT(output), LS_SHAPE_TEXT(target));
    }
    return ls_eq(ls_gt(ls_reshape(output, ls_shape_of(target)), threshold), ls_gt(ls_to(target, LS_F64), 0.5));
}

/* Whether the target has the output's shape without `axis`. */
static bool fits_without(const ls_tensor *output, int axis, const ls_tensor *target) {
    bool fits = ls_ndim(target) == ls_ndim(output) - 1;
    for (int i = 0; fits && i < ls_ndim(target); i++) {
        fits = ls_size(target, i) == ls_size(output, i < axis ? i : i + 1);
    }
    return fits;
}

/* Where the largest output is, and where it should be: along axis 1, as ls_cross_entropy has the classes, or the last
 * axis where only that fits. */
static ls_tensor *judge_classes(const ls_trial_state *state, const char *metric) {
    ls_tensor *output = state->output;
    ls_tensor *target = state->target;
    const bool one_hot = has_shape(output, ls_shape_of(target));
    const int last = ls_ndim(output) - 1;
    const int axis = last < 1 || one_hot || fits_without(output, 1, target) ? 1 : last;
    if (is_column(output) || ls_size(output, axis) == 1) {
        return ls_fail_null(LS_ERR_SHAPE,
                            "ls_trial: metric \"%s\": output %s has one number for each target, and the criterion does "
                            "not tell whether that is a probability or a logit: use ls_criterion_bce or "
                            "ls_criterion_bce_with_logits, or metric \"binary_acc\" (yes beyond 0.5) or "
                            "\"binary_acc_logits\" (yes beyond 0)",
                            metric, LS_SHAPE_TEXT(output));
    }
    if (!one_hot && !fits_without(output, axis, target)) {
        return ls_fail_null(LS_ERR_SHAPE,
                            "ls_trial: metric \"%s\": output %s with target %s: must be [n, classes, ...] with class "
                            "numbers [n, ...], or with one-hot targets of the same shape",
                            metric, LS_SHAPE_TEXT(output), LS_SHAPE_TEXT(target));
    }
    return ls_eq(ls_argmax(output, axis, false), one_hot ? ls_argmax(target, axis, false) : ls_to(target, LS_I64));
}

/* ---- the rows ---------------------------------------------------------------------------------------------------- */

static bool are_there(const ls_trial_state *state) {
    if (state->output == NULL || state->target == NULL) {
        (void)ls_fail(LS_ERR_ARGUMENT, "ls_trial: an accuracy is measured, but the %s",
                      state->output == NULL ? "step has set no output" : "loader gives no target");
        return false;
    }
    return true;
}

/* The criterion says what an output means. */
static ls_tensor *judge(const ls_measure *measure, const ls_trial_state *state) {
    const ls_criterion criterion = state->trial->options.criterion;
    const char *metric = measure->rule->name;
    return !are_there(state)                           ? NULL
           : criterion == ls_criterion_bce             ? judge_numbers(state, metric, 0.5)
           : criterion == ls_criterion_bce_with_logits ? judge_numbers(state, metric, 0.0)
                                                       : judge_classes(state, metric);
}

static ls_tensor *judge_probabilities(const ls_measure *measure, const ls_trial_state *state) {
    return are_there(state) ? judge_numbers(state, measure->rule->name, 0.5) : NULL;
}

static ls_tensor *judge_logits(const ls_measure *measure, const ls_trial_state *state) {
    return are_there(state) ? judge_numbers(state, measure->rule->name, 0.0) : NULL;
}

const ls_metric_kind ls_metric_acc = {.name = "acc", .aggregate = &ls_aggregate_mean, .elements = judge};
const ls_metric_kind ls_metric_binary_acc = {
    .name = "binary_acc", .aggregate = &ls_aggregate_mean, .elements = judge_probabilities};
const ls_metric_kind ls_metric_binary_acc_logits = {
    .name = "binary_acc_logits", .aggregate = &ls_aggregate_mean, .elements = judge_logits};
