/* Creates, names and frees metrics and their tallies. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"
#include "train/metrics/metric.h"

/* A copy of an array, owned by one of the metrics in it. */
struct ls_metric_copy {
    struct ls_metric_copy *next;
    ls_metric *items[];
};

/* ---- tallies ----------------------------------------------------------------------------------------------------- */

ls_status ls_tally_resize(ls_tally *tally, size_t count) {
    if (count > tally->room) {
        const size_t room = count > 2 * tally->room ? count : 2 * tally->room;
        double *items = ls_reallocate(tally->items, tally->room * sizeof *items, room * sizeof *items);
        if (items == NULL) {
            return ls_fail_memory("ls_trial", room * sizeof *items);
        }
        tally->items = items;
        tally->room = room;
    }
    for (size_t i = tally->count; i < count; i++) {
        tally->items[i] = 0;
    }
    tally->count = count;
    return LS_OK;
}

ls_status ls_tally_settle(ls_tally *tally, size_t count, const ls_trial_state *state) {
    if (tally->count != 0 && tally->count != count) {
        return ls_fail(
            LS_ERR_SHAPE,
            "ls_trial: metric \"%s\": output %s has a different number of classes or columns than earlier outputs",
            tally->metric->name, LS_SHAPE_TEXT(state->output));
    }
    return ls_tally_resize(tally, count);
}

ls_status ls_tally_begin(ls_tally *tally) {
    const ls_metric *metric = tally->metric;
    if (tally->count < metric->width) {
        LS_TRY(ls_tally_resize(tally, metric->width));
        if (metric->type->init != NULL) {
            metric->type->init(tally);
        }
    }
    return LS_OK;
}

ls_status ls_tally_add(ls_tally *tally, const double *numbers, size_t count, size_t first) {
    const ls_metric_type *type = tally->metric->type;
    if (type->merge != NULL) {
        return count > 0 ? type->merge(tally, numbers, count) : LS_OK;
    }
    LS_TRY(tally->count < count ? ls_tally_resize(tally, count) : LS_OK);
    for (size_t i = first; i < count; i++) {
        tally->items[i] += numbers[i];
    }
    return LS_OK;
}

void ls_tally_free(ls_tally *tally) {
    ls_free(tally->items);
    *tally = (ls_tally){.count = 0};
}

/* ---- objects ----------------------------------------------------------------------------------------------------- */

ls_metric *ls_metric_make(const char *name, const ls_metric_type *type, const ls_batch_mean *of) {
    ls_metric *metric = ls_allocate_for("ls_metric", 1, sizeof *metric);
    if (metric == NULL) {
        return NULL;
    }
    metric->type = type;
    metric->of = of;
    metric->width = (size_t)type->width;
    snprintf(metric->name, sizeof metric->name, "%s", name);
    return metric;
}

static ls_status rename_mean(const char *call, ls_metric *metric, const char *prefix, const char *suffix) {
    char full[2 * LS_METRIC_NAME_LIMIT];
    const int length = snprintf(full, sizeof full, "%s%s%s", prefix, metric->name, suffix);
    LS_TRY(ls_metric_check_here(call, metric));
    if (metric->taken) {
        return ls_fail(LS_ERR_STATE, "%s: the metric \"%s\" already belongs to a trial: create another metric", call,
                       metric->name);
    }
    if (!metric->type->is_mean) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the metric \"%s\" is not a mean", call, metric->name);
    }
    if (length > LS_METRIC_NAME_LIMIT / 2) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the metric's name \"%s\" is longer than %d bytes", call, full,
                       LS_METRIC_NAME_LIMIT / 2);
    }
    memcpy(metric->name, full, sizeof metric->name);
    return LS_OK;
}

ls_metric *ls_metric_take_mean(const char *call, ls_metric *of, const char *prefix, const char *suffix) {
    if (of == NULL) {
        (void)ls_fail_missing("%s: the metric", call);
        return NULL;
    }
    if (rename_mean(call, of, prefix, suffix) != LS_OK) {
        ls_metric_free(of);
        return NULL;
    }
    return of;
}

void ls_metric_destroy(ls_metric *metric) {
    if (metric->own.release != NULL) {
        metric->own.release(metric->user);
    }
    while (metric->copies != NULL) {
        struct ls_metric_copy *copy = metric->copies;
        metric->copies = copy->next;
        ls_free(copy);
    }
    *metric = (ls_metric){.type = NULL};
    ls_retire(metric, LS_RETIRED_PART);
}

ls_status ls_metric_check_here(const char *call, const ls_metric *metric) {
    return metric->type != NULL
               ? LS_OK
               : ls_fail(
                     LS_ERR_STATE,
                     "%s: a metric was freed, by ls_metric_free or with the trial that owned it: create another one",
                     call);
}

void ls_metric_free(ls_metric *metric) {
    if (metric != NULL && metric->type != NULL && !metric->taken) {
        ls_metric_destroy(metric);
    }
}

const char *ls_metric_name(const ls_metric *metric) {
    return metric != NULL ? metric->name : "";
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

/* Returns the index of the first metric that is not NULL, or `count`. */
static int find_first(ls_metric *const *metrics, int count) {
    int first = 0;
    while (metrics != NULL && first < count && metrics[first] == NULL) {
        first++;
    }
    return metrics != NULL ? first : count;
}

/* Frees the first metric last, because it may own the array. */
void ls_metrics_drop(ls_metric *const *metrics, int count) {
    const int first = find_first(metrics, count);
    for (int i = count - 1; i >= first; i--) {
        bool repeated = false;
        for (int j = first; j < i; j++) {
            repeated = repeated || metrics[j] == metrics[i];
        }
        ls_metric_free(repeated ? NULL : metrics[i]);
    }
}

ls_metric *const *ls_metric_array(ls_metric *const *metrics, int count) {
    const int first = find_first(metrics, count);
    if (first >= count) {
        return NULL;
    }
    const size_t size = sizeof(struct ls_metric_copy) + (size_t)count * sizeof *metrics;
    const bool here = ls_metric_check_here("ls_metric_array", metrics[first]) == LS_OK;
    struct ls_metric_copy *copy = here ? ls_allocate_for("ls_metric_array", 1, size) : NULL;
    if (copy == NULL) {
        ls_metrics_drop(metrics, count);
        return NULL;
    }
    copy->next = metrics[first]->copies;
    metrics[first]->copies = copy;
    return memcpy(copy->items, metrics, (size_t)count * sizeof *metrics);
}
