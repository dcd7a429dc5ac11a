#include "train/metrics/answers.h"

#include "tensor/tensor.h"

/* Returns whether the shape is [n] or [n, 1]: one number per sample. */
static bool is_column(const ls_tensor *tensor) {
    return ls_ndim(tensor) == 1 || (ls_ndim(tensor) == 2 && ls_size(tensor, 1) == 1);
}

static bool are_there(const ls_metric *metric, const ls_trial_state *state) {
    if (state->output == NULL || state->target == NULL) {
        (void)ls_fail(LS_ERR_ARGUMENT, "ls_trial: metric \"%s\" cannot be computed, because the %s", metric->name,
                      state->output == NULL ? "step has set no output" : "loader returned no target");
        return false;
    }
    return true;
}

/* ---- one number per target --------------------------------------------------------------------------------------- */

bool ls_answers_are_numbers(const ls_metric *metric, const ls_trial_state *state) {
    const ls_tensor *output = state->output;
    const ls_tensor *target = state->target;
    if (!are_there(metric, state)) {
        return false;
    }
    const bool columns = is_column(output) && is_column(target) && ls_numel(output) == ls_numel(target);
    if (!columns && !ls_tensor_same_shape(output, target)) {
        (void)ls_fail(LS_ERR_SHAPE, "ls_trial: metric \"%s\": output %s and target %s must have the same shape",
                      metric->name, LS_SHAPE_TEXT(output), LS_SHAPE_TEXT(target));
        return false;
    }
    return true;
}

static bool read_numbers(const ls_metric *metric, const ls_trial_state *state, double threshold, ls_answers *answers) {
    if (!ls_answers_are_numbers(metric, state)) {
        return false;
    }
    answers->predicted = ls_gt(ls_reshape(state->output, ls_shape_of(state->target)), threshold);
    answers->targets = ls_gt(ls_to(state->target, LS_F64), 0.5);
    answers->classes = 2;
    return true;
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

/* Returns whether the target has the shape of the output without `axis`. */
static bool fits_without(const ls_tensor *output, int axis, const ls_tensor *target) {
    bool fits = ls_ndim(target) == ls_ndim(output) - 1;
    for (int i = 0; fits && i < ls_ndim(target); i++) {
        fits = ls_size(target, i) == ls_size(output, i < axis ? i : i + 1);
    }
    return fits;
}

static bool refuse_numbers(const ls_metric *metric, const ls_tensor *output) {
    const bool is_share = metric->of != NULL;
    (void)ls_fail(LS_ERR_SHAPE,
                  "ls_trial: metric \"%s\": output %s has one number for each target, and the criterion does not say "
                  "whether it is a probability or a logit: use ls_criterion_bce or ls_criterion_bce_with_logits, or "
                  "%s",
                  metric->name, LS_SHAPE_TEXT(output),
                  is_share ? "metric \"binary_acc\" (positive above 0.5) or \"binary_acc_logits\" (above 0)"
                           : "set .outputs of the metric's options");
    return false;
}

/* The class axis is axis 1, as in ls_cross_entropy, or the last axis if only the last axis fits. */
bool ls_class_layout_find(const ls_metric *metric, const ls_trial_state *state, ls_class_layout *layout) {
    const ls_tensor *output = state->output;
    const ls_tensor *target = state->target;
    if (!are_there(metric, state)) {
        return false;
    }
    const int last = ls_ndim(output) - 1;
    layout->one_hot = ls_tensor_same_shape(output, target);
    layout->axis = last < 1 || layout->one_hot || fits_without(output, 1, target) ? 1 : last;
    if (is_column(output) || ls_size(output, layout->axis) == 1) {
        return refuse_numbers(metric, output);
    }
    if (!layout->one_hot && !fits_without(output, layout->axis, target)) {
        (void)ls_fail(LS_ERR_SHAPE,
                      "ls_trial: metric \"%s\": output %s with target %s: must be [n, classes, ...] with class "
                      "numbers [n, ...], or with one-hot targets of the same shape",
                      metric->name, LS_SHAPE_TEXT(output), LS_SHAPE_TEXT(target));
        return false;
    }
    return true;
}

/* Returns class numbers. A fraction and NaN become LS_NO_CLASS. */
static ls_tensor *to_class_numbers(ls_tensor *target) {
    ls_tensor *numbers = ls_to(target, LS_I64);
    return ls_dtype_is_floating(ls_dtype_of(target))
               ? ls_where(ls_eq(target, ls_floor(target)), numbers, ls_scalar((double)LS_NO_CLASS, LS_I64))
               : numbers;
}

ls_tensor *ls_class_targets(const ls_trial_state *state, const ls_class_layout *layout) {
    return layout->one_hot ? ls_argmax(state->target, layout->axis, false) : to_class_numbers(state->target);
}

const int64_t *ls_class_ignored(const ls_trial_state *state) {
    const ls_trial_options *options = &state->trial->options;
    const ls_class_loss_options *loss =
        options->criterion == ls_criterion_cross_entropy ? options->criterion_user : NULL;
    return loss != NULL && loss->ignore ? &loss->ignore_index : NULL;
}

ls_tensor *ls_class_targets_kept(const ls_trial_state *state, const ls_class_layout *layout, ls_tensor *targets) {
    const int64_t *ignored = ls_class_ignored(state);
    return ignored != NULL && !layout->one_hot ? ls_ne(targets, *ignored) : NULL;
}

static bool read_classes(const ls_metric *metric, const ls_trial_state *state, ls_answers *answers) {
    ls_class_layout layout;
    if (!ls_class_layout_find(metric, state, &layout)) {
        return false;
    }
    answers->predicted = ls_argmax(state->output, layout.axis, false);
    answers->targets = ls_class_targets(state, &layout);
    answers->kept = ls_class_targets_kept(state, &layout, answers->targets);
    answers->classes = ls_size(state->output, layout.axis);
    return true;
}

/* ------------------------------------------------------------------------------------------------------------------ */

ls_outputs ls_answers_reading(const ls_metric *metric, const ls_trial_options *options) {
    return metric->outputs != LS_OUTPUTS_BY_CRITERION           ? metric->outputs
           : options->criterion == ls_criterion_bce             ? LS_OUTPUTS_PROBABILITIES
           : options->criterion == ls_criterion_bce_with_logits ? LS_OUTPUTS_LOGITS
                                                                : LS_OUTPUTS_BY_CRITERION;
}

bool ls_answers_read(const ls_metric *metric, const ls_trial_state *state, ls_answers *answers) {
    const ls_outputs reading = ls_answers_reading(metric, &state->trial->options);
    *answers = (ls_answers){.kept = NULL};
    return reading == LS_OUTPUTS_PROBABILITIES ? read_numbers(metric, state, 0.5, answers)
           : reading == LS_OUTPUTS_LOGITS      ? read_numbers(metric, state, 0.0, answers)
                                               : read_classes(metric, state, answers);
}

int64_t ls_answers_classes(const ls_metric *metric, const ls_trial_state *state) {
    ls_class_layout layout;
    if (state->count == 0) {
        return 0;
    }
    if (ls_answers_reading(metric, &state->trial->options) != LS_OUTPUTS_BY_CRITERION) {
        return 2;
    }
    return ls_class_layout_find(metric, state, &layout) ? ls_size(state->output, layout.axis) : 0;
}
