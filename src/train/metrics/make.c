/* The metrics of a trial: made from its options, and freed. */
#include <string.h>

#include "base/memory.h"
#include "comm/meter.h"
#include "train/metrics/metric.h"

/* For one metric more, which nobody has named before. */
static ls_measure *make_room(ls_metrics *metrics, const char *name) {
    for (int i = 0; i < metrics->count; i++) {
        if (strcmp(metrics->measures[i].rule->name, name) == 0) {
            return ls_fail_null(LS_ERR_ARGUMENT, "ls_trial_new: two metrics are named \"%s\"", name);
        }
    }
    return metrics->count < LS_METRIC_LIMIT
               ? &metrics->measures[metrics->count]
               : ls_fail_null(LS_ERR_ARGUMENT, "ls_trial_new: more than %d metrics", LS_METRIC_LIMIT);
}

static ls_status add(ls_metrics *metrics, ls_metric *metric) {
    ls_measure *measure = make_room(metrics, metric->name);
    if (measure == NULL) {
        return ls_error_status();
    }
    *measure = (ls_measure){.rule = metric, .width = metric->width};
    metrics->count++;
    return LS_OK;
}

static ls_status add_named(ls_metrics *metrics, const char *name) {
    ls_metric *metric = ls_metric_named(name);
    if (metric == NULL || add(metrics, metric) != LS_OK) {
        ls_metric_free(metric);
        return ls_error_status();
    }
    metrics->owned++;
    return LS_OK;
}

static ls_status add_custom(ls_metrics *metrics, ls_metric *metric, int number) {
    if (metric == NULL) { /* its constructor has set the error */
        return ls_error_status() != LS_OK ? ls_error_status()
                                          : ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: custom metric %d is NULL", number);
    }
    return metric->taken ? ls_fail(LS_ERR_STATE,
                                   "ls_trial_new: the metric \"%s\" belongs to another trial: make one for each trial",
                                   metric->name)
                         : add(metrics, metric);
}

static ls_status prepare(ls_measure *measure, const ls_trial_options *options) {
    const ls_metric_kind *kind = measure->rule->kind;
    return kind->prepare != NULL ? kind->prepare(measure, options) : LS_OK;
}

ls_status ls_metrics_find(ls_trial *trial) {
    const ls_trial_options *options = &trial->options;
    const char *const *names = options->metrics != NULL ? options->metrics : LS_METRICS("loss");
    ls_metrics *metrics = trial->metrics = ls_allocate_zeroed(1, sizeof *metrics);
    if (metrics == NULL || (metrics->set = ls_allocate_zeroed(1, sizeof *metrics->set)) == NULL) {
        return ls_fail_memory("ls_trial_new", sizeof *metrics + sizeof *metrics->set);
    }
    for (; *names != NULL; names++) {
        LS_TRY(add_named(metrics, *names));
    }
    for (int i = 0; i < options->custom_metric_count; i++) {
        LS_TRY(add_custom(metrics, options->custom_metrics[i], i));
    }
    for (int i = 0; i < metrics->count; i++) {
        LS_TRY(prepare(&metrics->measures[i], options));
    }
    return LS_OK;
}

void ls_metrics_take(ls_trial *trial) {
    ls_metrics *metrics = trial->metrics;
    for (int i = metrics->owned; i < metrics->count; i++) {
        metrics->measures[i].rule->taken = true;
    }
    metrics->owned = metrics->count;
}

/* ---- freeing ----------------------------------------------------------------------------------------------------- */

static void free_sets(ls_metric_set *set) {
    while (set != NULL) {
        ls_metric_set *outer = set->outer;
        for (int i = 0; i < LS_METRIC_LIMIT; i++) {
            ls_numbers_free(&set->numbers[i]);
        }
        ls_free(set);
        set = outer;
    }
}

void ls_metrics_free(ls_trial *trial) {
    ls_metrics *metrics = trial->metrics;
    if (metrics == NULL) {
        return;
    }
    ls_comm_metered.users -= metrics->metered;
    for (int i = 0; i < metrics->owned; i++) {
        ls_metric_destroy(metrics->measures[i].rule);
    }
    ls_metrics_forget_state(metrics);
    free_sets(metrics->set);
    free_sets(metrics->spare);
    ls_numbers_free(&metrics->fetched);
    ls_numbers_free(&metrics->all);
    ls_numbers_free(&metrics->rows);
    ls_free(metrics->row_counts);
    for (int i = 0; i < metrics->several_count; i++) {
        ls_numbers_free(&metrics->several[i].values);
    }
    ls_free(metrics->several);
    ls_free(metrics);
    trial->metrics = NULL;
}
