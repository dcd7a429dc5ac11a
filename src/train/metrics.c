#include <math.h>
#include <stdio.h>
#include <string.h>

#include "train/trial.h"

static ls_status measure_loss(const ls_trial_state *state, void *user, double *sum, double *weight) {
    (void)user;
    if (ls_count(state->loss) != 1) {
        return ls_fail(LS_ERR_SHAPE, "ls_trial: the criterion's loss must be one number, not %lld",
                       (long long)ls_count(state->loss));
    }
    *sum = ls_item(state->loss) * (double)state->count;
    *weight = (double)state->count;
    return LS_OK;
}

static ls_status measure_accuracy(const ls_trial_state *state, void *user, double *sum, double *weight) {
    (void)user;
    ls_scope *scope = ls_scope_begin();
    if (scope == NULL) {
        return ls_error_status();
    }
    const bool before = ls_no_grad(true);
    /* Targets of the outputs' shape are one-hot rows. */
    ls_tensor *target = ls_ndim(state->target) == ls_ndim(state->output) ? ls_argmax(state->target, -1, false)
                                                                         : ls_to(state->target, LS_I64);
    ls_tensor *right = ls_sum(ls_to(ls_eq(ls_argmax(state->output, -1, false), target), LS_F64));
    ls_no_grad(before);
    if (right != NULL) {
        *sum = ls_item(right);
        *weight = (double)ls_count(target);
    }
    return ls_scope_end(scope);
}

static const ls_metric known_metrics[] = {
    {.name = "loss", .measure = measure_loss},
    {.name = "acc", .measure = measure_accuracy},
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
                   "ls_trial_new: there is no metric \"%s\"; there are \"loss\" and \"acc\", and custom_metrics", name);
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
