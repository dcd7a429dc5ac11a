/* Creates the metrics of a trial from its options, with the numbers of each pass in progress, and frees them. */
#include <string.h>

#include "base/memory.h"
#include "comm/meter.h"
#include "parallel/slices.h"
#include "train/metrics/metric.h"

/* ---- making ------------------------------------------------------------------------------------------------------ */

static ls_status add(ls_metrics *metrics, ls_metric *metric) {
    for (int i = 0; i < metrics->count; i++) {
        if (strcmp(metrics->items[i]->name, metric->name) == 0) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: two metrics are named \"%s\"", metric->name);
        }
    }
    if (metrics->count == LS_METRIC_LIMIT) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: more than %d metrics", LS_METRIC_LIMIT);
    }
    metrics->items[metrics->count++] = metric;
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
    if (metric == NULL) {
        return ls_fail_missing("ls_trial_new: custom metric %d", number);
    }
    LS_TRY(ls_metric_check_here("ls_trial_new", metric));
    return metric->taken
               ? ls_fail(LS_ERR_STATE,
                         "ls_trial_new: the metric \"%s\" already belongs to a trial: create one metric per trial",
                         metric->name)
               : add(metrics, metric);
}

static void free_set(ls_metric_set *set) {
    while (set != NULL) {
        ls_metric_set *next = set->next;
        for (int i = 0; i < LS_METRIC_LIMIT; i++) {
            ls_tally_free(&set->tallies[i]);
        }
        ls_free(set);
        set = next;
    }
}

/* Creates the sets for all parts of this rank. */
static ls_metric_set *make_set(const ls_metrics *metrics) {
    ls_metric_set *first = NULL;
    for (int part = 0; part < metrics->own_parts; part++) {
        ls_metric_set *set = ls_allocate_zeroed(1, sizeof *set);
        if (set == NULL) {
            free_set(first);
            return NULL;
        }
        for (int i = 0; i < metrics->count; i++) {
            set->tallies[i].metric = metrics->items[i];
        }
        set->further = part + 1 < metrics->own_parts;
        set->next = first;
        first = set;
    }
    for (ls_metric_set *set = first; set != NULL; set = set->next) {
        set->first = first;
    }
    return first;
}

static void count_parts(ls_metrics *metrics, const ls_trial_options *options, const ls_comm *comm) {
    const ls_slices *slices = ls_data_parallel_slices(options->model);
    metrics->parts = slices != NULL ? slices->total : comm != NULL ? ls_comm_size(comm) : 1;
    metrics->first_part = slices != NULL ? slices->first : comm != NULL ? ls_comm_rank(comm) : 0;
    metrics->own_parts = slices != NULL ? slices->count : 1;
    metrics->sliced = slices != NULL;
}

ls_status ls_metrics_find(ls_trial *trial) {
    const ls_trial_options *options = &trial->options;
    const char *const *names = options->metrics != NULL ? options->metrics : LS_METRICS("loss");
    ls_metrics *metrics = trial->metrics = ls_allocate_for("ls_trial_new", 1, sizeof *metrics);
    LS_TRY(ls_made(metrics));
    for (; *names != NULL; names++) {
        LS_TRY(add_named(metrics, *names));
    }
    for (int i = 0; i < options->custom_metric_count; i++) {
        LS_TRY(add_custom(metrics, options->custom_metrics[i], i));
    }
    for (int i = 0; i < metrics->count; i++) {
        ls_metric *metric = metrics->items[i];
        metrics->merged[i].metric = metric;
        LS_TRY(metric->type->prepare != NULL ? metric->type->prepare(metric, options) : LS_OK);
    }
    count_parts(metrics, options, trial->state.comm);
    metrics->set = make_set(metrics);
    return metrics->set != NULL ? LS_OK : ls_fail_memory("ls_trial_new", sizeof *metrics->set);
}

void ls_metrics_take(ls_trial *trial) {
    ls_metrics *metrics = trial->metrics;
    for (int i = metrics->owned; i < metrics->count; i++) {
        metrics->items[i]->taken = true;
    }
    metrics->owned = metrics->count;
}

/* ---- sets of numbers --------------------------------------------------------------------------------------------- */

ls_status ls_metrics_make_room(const ls_metrics *metrics, ls_metric_set *set) {
    for (int i = 0; i < metrics->count; i++) {
        LS_TRY(ls_tally_begin(&set->tallies[i]));
    }
    return LS_OK;
}

void ls_metrics_mark(ls_metrics *metrics) {
    for (int i = 0; i < metrics->count && !metrics->metered; i++) {
        if (metrics->items[i]->type->clock == LS_CLOCK_COMM) {
            metrics->metered = true;
            ls_comm_metered.users++;
        }
    }
    metrics->set->at_ns = ls_clock_ns();
    metrics->set->data_ns = 0;
    metrics->set->comm_ns = ls_comm_metered.nanoseconds;
}

ls_status ls_metrics_push(ls_trial *trial) {
    ls_metrics *metrics = trial->metrics;
    ls_metric_set *set = metrics->spare != NULL ? metrics->spare : make_set(metrics);
    if (set == NULL) {
        return ls_fail_memory("ls_trial_evaluate", sizeof *set);
    }
    for (ls_metric_set *own = set; own != NULL; own = own->next) {
        for (int i = 0; i < metrics->count; i++) {
            own->tallies[i].count = 0;
        }
    }
    set->under_way = false;
    metrics->spare = set->outer;
    set->outer = metrics->set;
    metrics->set = set;
    return LS_OK;
}

void ls_metrics_pop(ls_trial *trial) {
    ls_metrics *metrics = trial->metrics;
    ls_metric_set *set = metrics->set;
    metrics->set = set->outer;
    set->outer = metrics->spare;
    metrics->spare = set;
}

ls_metric_set *ls_metrics_enter(ls_trial *trial, int slice) {
    ls_metrics *metrics = trial->metrics;
    ls_metric_set *whole = metrics->set;
    for (int i = 0; i < slice; i++) {
        metrics->set = metrics->set->next;
    }
    return whole;
}

void ls_metrics_leave(ls_trial *trial, ls_metric_set *whole) {
    trial->metrics->set = whole;
}

static void free_sets(ls_metric_set *set) {
    while (set != NULL) {
        ls_metric_set *outer = set->outer;
        free_set(set);
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
        ls_metric_destroy(metrics->items[i]);
    }
    for (int i = 0; i < LS_METRIC_LIMIT; i++) {
        ls_tensor_drop(metrics->state[i].tensor);
        ls_tally_free(&metrics->merged[i]);
    }
    free_sets(metrics->set);
    free_sets(metrics->spare);
    ls_tally_free(&metrics->fetched);
    ls_tally_free(&metrics->exchanged[0]);
    ls_tally_free(&metrics->exchanged[1]);
    for (int i = 0; i < metrics->several_count; i++) {
        ls_tally_free(&metrics->several[i].values);
    }
    ls_free(metrics->several);
    ls_free(metrics);
    trial->metrics = NULL;
}
