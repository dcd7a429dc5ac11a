#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tensor/scope.h"
#include "train/trial.h"

static ls_status measure_loss(const ls_trial_state *state, void *user, double *sum, double *weight) {
    (void)user;
    if (state->loss == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial: metric \"loss\": the step has set no loss");
    }
    if (ls_numel(state->loss) != 1) {
        return ls_fail(LS_ERR_SHAPE, "ls_trial: the criterion's loss must be one number, not %lld",
                       (long long)ls_numel(state->loss));
    }
    *sum = ls_item(state->loss) * (double)state->count;
    *weight = (double)state->count;
    return LS_OK;
}

/* ---- accuracy ---------------------------------------------------------------------------------------------------- */

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
static ls_tensor *judge_classes(const ls_trial_state *state) {
    ls_tensor *output = state->output;
    ls_tensor *target = state->target;
    const bool one_hot = has_shape(output, ls_shape_of(target));
    const int last = ls_ndim(output) - 1;
    const int axis = last < 1 || one_hot || fits_without(output, 1, target) ? 1 : last;
    if (is_column(output) || ls_size(output, axis) == 1) {
        return ls_fail_null(
            LS_ERR_SHAPE,
            "ls_trial: metric \"acc\": output %s has one number for each target, and the criterion does "
            "not tell whether that is a probability or a logit: use ls_criterion_bce or "
            "ls_criterion_bce_with_logits, or metric \"binary_acc\" (yes beyond 0.5) or "
            "\"binary_acc_logits\" (yes beyond 0)",
            LS_SHAPE_TEXT(output));
    }
    if (!one_hot && !fits_without(output, axis, target)) {
        return ls_fail_null(LS_ERR_SHAPE,
                            "ls_trial: metric \"acc\": output %s with target %s: must be [n, classes, ...] with class "
                            "numbers [n, ...], or with one-hot targets of the same shape",
                            LS_SHAPE_TEXT(output), LS_SHAPE_TEXT(target));
    }
    return ls_eq(ls_argmax(output, axis, false), one_hot ? ls_argmax(target, axis, false) : ls_to(target, LS_I64));
}

static ls_tensor *judge(const ls_trial_state *state) {
    const ls_criterion criterion = state->trial->options.criterion;
    return criterion == ls_criterion_bce               ? judge_numbers(state, "acc", 0.5)
           : criterion == ls_criterion_bce_with_logits ? judge_numbers(state, "acc", 0.0)
                                                       : judge_classes(state);
}

static ls_tensor *judge_probabilities(const ls_trial_state *state) {
    return judge_numbers(state, "binary_acc", 0.5);
}

static ls_tensor *judge_logits(const ls_trial_state *state) {
    return judge_numbers(state, "binary_acc_logits", 0.0);
}

/* The share of answers that `judged` (bool) says are right. */
static ls_status measure_share(const ls_trial_state *state, ls_tensor *(*judged)(const ls_trial_state *state),
                               double *sum, double *weight) {
    if (state->output == NULL || state->target == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial: an accuracy is measured, but the %s",
                       state->output == NULL ? "step has set no output" : "loader gives no target");
    }
    ls_scope *scope = ls_scope_begin();
    if (scope == NULL) {
        return ls_error_status();
    }
    const bool before = ls_no_grad(true);
    ls_tensor *right = judged(state);
    ls_tensor *count = right != NULL ? ls_sum(ls_to(right, LS_F64)) : NULL;
    ls_no_grad(before);
    ls_status status = ls_error_status();
    if (count != NULL) {
        *sum = ls_item(count);
        *weight = (double)ls_numel(right);
        status = LS_OK;
    }
    const ls_status ended = ls_scope_close(scope);
    return status != LS_OK ? status : ended;
}

static ls_status measure_accuracy(const ls_trial_state *state, void *user, double *sum, double *weight) {
    (void)user;
    return measure_share(state, judge, sum, weight);
}

static ls_status measure_probabilities(const ls_trial_state *state, void *user, double *sum, double *weight) {
    (void)user;
    return measure_share(state, judge_probabilities, sum, weight);
}

static ls_status measure_logits(const ls_trial_state *state, void *user, double *sum, double *weight) {
    (void)user;
    return measure_share(state, judge_logits, sum, weight);
}

/* ---- metrics by name --------------------------------------------------------------------------------------------- */

static const ls_metric known_metrics[] = {
    {.name = "loss", .measure = measure_loss},
    {.name = "acc", .measure = measure_accuracy},
    {.name = "binary_acc", .measure = measure_probabilities},
    {.name = "binary_acc_logits", .measure = measure_logits},
};

static ls_status add_metric(ls_trial *trial, const ls_metric *metric) {
    if (trial->metric_count == LS_METRIC_LIMIT) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: more than %d metrics", LS_METRIC_LIMIT);
    }
    if (strlen(metric->name) > LS_METRIC_NAME_LIMIT / 2) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: the metric's name \"%s\" is longer than %d bytes", metric->name,
                       LS_METRIC_NAME_LIMIT / 2);
    }
    for (int i = 0; i < trial->metric_count; i++) {
        if (strcmp(trial->metrics[i].name, metric->name) == 0) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: two metrics are named \"%s\"", metric->name);
        }
    }
    trial->metrics[trial->metric_count++] = *metric;
    return LS_OK;
}

static ls_status add_known_metric(ls_trial *trial, const char *name) {
    for (size_t i = 0; i < sizeof known_metrics / sizeof *known_metrics; i++) {
        if (strcmp(known_metrics[i].name, name) == 0) {
            return add_metric(trial, &known_metrics[i]);
        }
    }
    return ls_fail(LS_ERR_ARGUMENT,
                   "ls_trial_new: there is no metric \"%s\"; there are \"loss\", \"acc\", \"binary_acc\" and "
                   "\"binary_acc_logits\", and custom_metrics",
                   name);
}

ls_status ls_metrics_find(ls_trial *trial) {
    const char *const *names = trial->options.metrics != NULL ? trial->options.metrics : LS_METRICS("loss");
    for (; *names != NULL; names++) {
        LS_TRY(add_known_metric(trial, *names));
    }
    for (int i = 0; i < trial->options.custom_metric_count; i++) {
        const ls_metric *metric = &trial->options.custom_metrics[i];
        if (metric->name == NULL || metric->measure == NULL) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: custom metric %d has no name or no function", i);
        }
        LS_TRY(add_metric(trial, metric));
    }
    return LS_OK;
}

size_t ls_metrics_longest(const ls_trial *trial) {
    size_t longest = 0;
    for (int i = 0; i < trial->metric_count; i++) {
        const size_t length = strlen(trial->metrics[i].name);
        longest = length > longest ? length : longest;
    }
    return longest;
}

void ls_metrics_begin(ls_trial *trial) {
    memset(trial->sums, 0, sizeof trial->sums);
}

ls_status ls_metrics_add(ls_trial *trial) {
    for (int i = 0; i < trial->metric_count; i++) {
        double sum = 0;
        double weight = 0;
        const uint32_t errors = ls_error_count;
        const ls_status status = trial->metrics[i].measure(&trial->state, trial->metrics[i].user, &sum, &weight);
        if (status != LS_OK) {
            return ls_error_count != errors ? status
                                            : ls_fail(status, "ls_trial: the metric \"%s\" failed with %s",
                                                      trial->metrics[i].name, ls_status_name(status));
        }
        trial->sums[i].sum += sum;
        trial->sums[i].weight += weight;
    }
    return LS_OK;
}

ls_status ls_metrics_end(ls_trial *trial, const char *prefix, ls_history_entry *entry) {
    if (trial->state.comm != NULL) {
        LS_TRY(ls_comm_allreduce(trial->state.comm, trial->sums, trial->sums, 2 * (size_t)trial->metric_count, LS_F64,
                                 LS_SUM, NULL));
    }
    for (int i = 0; i < trial->metric_count; i++) {
        char name[LS_METRIC_NAME_LIMIT];
        snprintf(name, sizeof name, "%s%s", prefix, trial->metrics[i].name);
        const ls_metric_sum *sum = &trial->sums[i];
        const double mean = sum->weight != 0 ? sum->sum / sum->weight : NAN;
        LS_TRY(ls_history_put(&trial->latest, name, mean));
        if (entry != NULL) {
            LS_TRY(ls_history_put(entry, name, mean));
        }
    }
    return LS_OK;
}
