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

static ls_status add_named(ls_metrics *metrics, const char *name) {
    const ls_metric metric = ls_metric_named(name);
    ls_measure *measure = metric.rule != NULL ? make_room(metrics, metric.name) : NULL;
    if (measure == NULL) {
        ls_metrics_drop(&metric, 1);
        return ls_error_status();
    }
    *measure = (ls_measure){.rule = metric.rule, .width = metric.rule->width, .given = metric};
    metrics->count++;
    return LS_OK;
}

static ls_status check_custom(const ls_metric *metric, int number) {
    if (metric->invalid) {
        return ls_error_status() != LS_OK
                   ? ls_error_status()
                   : ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: custom metric %d is invalid", number);
    }
    return metric->rule != NULL || (metric->name != NULL && (metric->measure != NULL || metric->add != NULL))
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: custom metric %d has no name or no function", number);
}

static ls_status add_custom(ls_metrics *metrics, const ls_metric *metric, int number) {
    LS_TRY(check_custom(metric, number));
    ls_measure *measure = make_room(metrics, metric->name);
    if (measure == NULL) {
        return ls_error_status();
    }
    *measure = (ls_measure){.rule = metric->rule, .given = *metric, .lent = true};
    if (metric->rule == NULL) {
        LS_TRY(ls_metric_rule_own("ls_trial_new", metric, &measure->own));
        measure->rule = &measure->own;
    }
    measure->width = measure->rule->width;
    metrics->count++;
    return LS_OK;
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
        LS_TRY(add_custom(metrics, &options->custom_metrics[i], i));
    }
    for (int i = 0; i < metrics->count; i++) {
        LS_TRY(prepare(&metrics->measures[i], options));
    }
    return LS_OK;
}

void ls_metrics_take(ls_trial *trial) {
    for (int i = 0; i < trial->metrics->count; i++) {
        trial->metrics->measures[i].lent = false;
    }
}

/* ---- freeing ----------------------------------------------------------------------------------------------------- */

void ls_metrics_drop(const ls_metric *metrics, int count) {
    for (int i = 0; metrics != NULL && i < count; i++) {
        if (metrics[i].release != NULL && !metrics[i].invalid) {
            metrics[i].release(metrics[i].user);
        }
        if (metrics[i].rule != NULL) {
            ls_metrics_drop(&metrics[i].rule->own, 1);
            ls_free(metrics[i].rule);
        }
    }
}

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
    for (int i = 0; i < metrics->count; i++) {
        ls_metrics_drop(&metrics->measures[i].given, metrics->measures[i].lent ? 0 : 1);
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
