/* Accuracies: the fraction of targets that are predicted correctly. */
#include <math.h>
#include <stdio.h>

#include "tensor/tensor.h"
#include "train/metrics/answers.h"

static ls_tensor *judge(const ls_metric *metric, const ls_trial_state *state, ls_tensor **kept) {
    ls_answers answers;
    if (!ls_answers_read(metric, state, &answers)) {
        return NULL;
    }
    *kept = answers.kept;
    return ls_eq(answers.predicted, answers.targets);
}

/* ---- top-k accuracy ---------------------------------------------------------------------------------------------- */

/* Returns the number of classes that come before the target in descending order of outputs. NaN is the largest
 * output. Among equal outputs, lower class numbers come first. */
static ls_tensor *ranks_of(ls_tensor *output, int axis, ls_tensor *targets) {
    ls_tensor *index = ls_unsqueeze(targets, axis);
    ls_tensor *score = ls_take_along_axis(output, axis, index);
    ls_shape along = {.ndim = ls_ndim(output)};
    for (int i = 0; i < along.ndim; i++) {
        along.size[i] = i == axis ? ls_size(output, axis) : 1;
    }
    ls_tensor *earlier = ls_lt(ls_arange(along, LS_I64), index);
    ls_tensor *worse =
        ls_sub(ls_to(ls_le(output, score), LS_F64), ls_mul(ls_to(ls_eq(output, score), LS_F64), earlier));
    return ls_sub((double)ls_size(output, axis), ls_sum_axes(worse, LS_AXES(axis), false));
}

static ls_tensor *judge_top_k(const ls_metric *metric, const ls_trial_state *state, ls_tensor **kept) {
    const int k = metric->k;
    ls_class_layout layout;
    if (!ls_class_layout_find(metric, state, &layout)) {
        return NULL;
    }
    const int64_t classes = ls_size(state->output, layout.axis);
    if (k > classes) {
        return ls_fail_null(LS_ERR_SHAPE, "ls_trial: metric \"%s\": output %s has %lld classes, fewer than %d",
                            metric->name, LS_SHAPE_TEXT(state->output), (long long)classes, k);
    }
    ls_tensor *targets = ls_class_targets(state, &layout);
    *kept = ls_class_targets_kept(state, &layout, targets);
    if (*kept != NULL) {
        targets = ls_where(*kept, targets, ls_zeros(LS_SCALAR, LS_I64)); /* any class */
    }
    ls_tensor *is_class = ls_logical_and(ls_ge(targets, 0), ls_lt(targets, (double)classes));
    targets = ls_where(is_class, targets, ls_zeros(LS_SCALAR, LS_I64));
    ls_tensor *met = ls_to(ls_lt(ranks_of(state->output, layout.axis, targets), k), LS_F64);
    return ls_where(is_class, met, ls_scalar((double)NAN, LS_F64));
}

ls_metric *ls_metric_top_k_acc(int k) {
    char name[LS_METRIC_NAME_LIMIT];
    if (k < 1) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_metric_top_k_acc: k is %d, but must be 1 or more", k);
    }
    snprintf(name, sizeof name, "top_%d_acc", k);
    ls_metric *metric = ls_metric_make(name, &ls_type_mean, &ls_mean_of_top_k);
    if (metric != NULL) {
        metric->k = k;
    }
    return metric;
}

/* ------------------------------------------------------------------------------------------------------------------ */

const ls_batch_mean ls_mean_of_matches = {.elements = judge};
const ls_batch_mean ls_mean_of_top_k = {.elements = judge_top_k, .refuses = true};
