/* The results of metrics: their names, their values so far in a pass, and lists of values. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/describe.h"
#include "base/memory.h"
#include "train/metrics/metric.h"

static int find(const ls_metrics *metrics, const char *name) {
    for (int i = 0; i < metrics->count; i++) {
        if (strcmp(metrics->items[i]->name, name) == 0) {
            return i;
        }
    }
    return -1;
}

bool ls_metrics_has(const ls_trial *trial, const char *name) {
    return find(trial->metrics, name) >= 0;
}

size_t ls_metrics_longest(const ls_trial *trial) {
    size_t longest = 0;
    for (int i = 0; i < trial->metrics->count; i++) {
        const size_t length = strlen(trial->metrics->items[i]->name);
        longest = length > longest ? length : longest;
    }
    return longest;
}

bool ls_metrics_describe(const ls_trial *trial, int index, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(ls_metric, k),
                                      LS_FIELD(ls_metric, average),
                                      LS_FIELD(ls_metric, outputs),
                                      LS_FIELD(ls_metric, window),
                                      LS_FIELD(ls_metric, every),
                                      LS_FIELD(ls_metric, population),
                                      {.name = NULL}};
    if (index >= trial->metrics->count) {
        return false;
    }
    const ls_metric *metric = trial->metrics->items[index];
    ls_describe(text, size, metric->name, fields, metric);
    return true;
}

/* ---- values so far in a pass ------------------------------------------------------------------------------------- */

/* Returns the value computed from this rank's numbers, or NAN before the first batch. */
static double value_so_far(const ls_trial *trial, int i) {
    const ls_metric_set *set = trial->metrics->set->first;
    if (!set->begun || set->tallies[i].count == 0) {
        return (double)NAN;
    }
    const ls_tally *tally = set->next != NULL ? ls_metrics_merge_slices(trial->metrics, set, i) : &set->tallies[i];
    return tally != NULL ? tally->metric->type->result(tally) : (double)NAN;
}

/* Returns the index of the metric whose result has this name in the current pass, or -1 if there is no such metric. */
static int find_under_way(const ls_trial *trial, const char *name) {
    const ls_metric_set *set = trial->metrics->set->first;
    const size_t length = strlen(set->prefix);
    const bool in_pass = trial->state.phase != LS_PHASE_NONE && trial->state.phase != LS_PHASE_REPLAY;
    if (!set->under_way || !in_pass || strncmp(name, set->prefix, length) != 0) {
        return -1;
    }
    const int i = find(trial->metrics, name + length);
    const ls_metric *metric = i >= 0 ? trial->metrics->items[i] : NULL;
    return metric != NULL && !metric->several && ls_metric_is_on(metric, &trial->state) ? i : -1;
}

/* Returns the position, among all metrics, of the `index`-th metric of this pass that has a single value, or -1
 * after the last. */
static int find_shown(const ls_trial *trial, int index) {
    for (int i = 0; i < trial->metrics->count; i++) {
        const ls_metric *metric = trial->metrics->items[i];
        if (!metric->several && ls_metric_is_on(metric, &trial->state) && index-- == 0) {
            return i;
        }
    }
    return -1;
}

const char *ls_metrics_name(const ls_trial *trial, int index) {
    const int i = find_shown(trial, index);
    return i >= 0 ? trial->metrics->items[i]->name : NULL;
}

double ls_metrics_so_far(const ls_trial *trial, int index) {
    const int i = find_shown(trial, index);
    return i >= 0 && !trial->metrics->items[i]->type->costly ? value_so_far(trial, i) : (double)NAN;
}

/* ---- metrics with several values --------------------------------------------------------------------------------- */

static ls_several *find_several(const ls_metrics *metrics, const char *name) {
    for (int i = 0; name != NULL && i < metrics->several_count; i++) {
        if (strcmp(metrics->several[i].name, name) == 0) {
            return &metrics->several[i];
        }
    }
    return NULL;
}

ls_tally *ls_metrics_keep_several(ls_metrics *metrics, const char *name) {
    ls_several *found = find_several(metrics, name);
    if (found == NULL) {
        ls_several *several = ls_grow(metrics->several, (size_t)metrics->several_count, sizeof *several);
        if (several == NULL) {
            (void)ls_fail_memory("ls_trial", ((size_t)metrics->several_count + 1) * sizeof *several);
            return NULL;
        }
        metrics->several = several;
        found = &several[metrics->several_count++];
        *found = (ls_several){.values = {.count = 0}};
        snprintf(found->name, sizeof found->name, "%s", name);
    }
    found->values.count = 0;
    return &found->values;
}

/* ---- names of results -------------------------------------------------------------------------------------------- */

static const char validation[] = "val_";

/*
 * Returns whether a training or validation pass has a result of the metric. The result is a single number or, with
 * `several`, possibly several numbers.
 */
static bool has_result(const ls_metric *metric, bool validates, bool several) {
    return (several || !metric->several) && !(validates && metric->type->training_only);
}

ls_status ls_metrics_refuse(const ls_trial *trial, const char *call, const char *name, bool several) {
    const ls_metrics *metrics = trial->metrics;
    const int passes = trial->options.validate != NULL ? 2 : 1;
    char list[600] = "";
    size_t length = 0;
    for (int k = 0; k < passes * metrics->count && length < sizeof list; k++) {
        const bool validates = k >= metrics->count;
        const ls_metric *metric = metrics->items[k % metrics->count];
        if (has_result(metric, validates, several)) {
            length += (size_t)snprintf(list + length, sizeof list - length, "%s%s%s", length > 0 ? ", " : "",
                                       validates ? validation : "", metric->name);
        }
    }
    const bool of_validation = passes == 1 && strncmp(name, validation, sizeof validation - 1) == 0;
    return ls_fail(LS_ERR_ARGUMENT, "%s: there is no metric \"%s\"; available: %s%s", call, name, list,
                   of_validation ? ". Was .validate set?" : "");
}

static bool find_result(const ls_trial *trial, const char *name, bool validates) {
    const int i = find(trial->metrics, name);
    return i >= 0 && has_result(trial->metrics->items[i], validates, false);
}

ls_status ls_metrics_check_result(const ls_trial *trial, const char *call, const char *name) {
    const size_t length = sizeof validation - 1;
    const bool validated = trial->options.validate != NULL && strncmp(name, validation, length) == 0;
    return find_result(trial, name, false) || (validated && find_result(trial, name + length, true)) ||
                   ls_history_find(&trial->latest, name) != NULL || trial->watch.user_hooks || trial->watch.user_step
               ? LS_OK
               : ls_metrics_refuse(trial, call, name, false);
}

ls_status ls_metrics_check_confusion(const ls_trial *trial, const char *call, const char *name) {
    const int i = find(trial->metrics, name);
    const ls_metric *metric = i >= 0 ? trial->metrics->items[i] : NULL;
    if (metric == NULL) {
        return ls_metrics_refuse(trial, call, name, true);
    }
    return metric->several && metric->score == NULL
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: metric \"%s\" is not a confusion matrix (ls_metric_confusion)", call,
                         name);
}

/* ---- access to results ------------------------------------------------------------------------------------------- */

/* Returns whether a name is a metric, or a prefix and a metric, such as "test_loss". */
static bool can_have(const ls_trial *trial, const char *name) {
    const size_t length = strlen(name);
    for (int i = 0; i < trial->metrics->count; i++) {
        const ls_metric *metric = trial->metrics->items[i];
        const size_t own = strlen(metric->name);
        if (own > length || strcmp(name + length - own, metric->name) != 0) {
            continue;
        }
        const size_t prefix = length - own;
        const bool validates = prefix == sizeof validation - 1 && strncmp(name, validation, prefix) == 0;
        if (prefix == 0 || (name[prefix - 1] == '_' && (!validates || trial->options.validate != NULL))) {
            return true;
        }
    }
    return false;
}

/* Sets an error if a value is missing because the arguments are wrong, and not because it has not been computed yet. */
static void explain_missing(const ls_trial *trial, const char *call, const char *name, bool several) {
    if (trial == NULL || name == NULL) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: the %s is NULL", call, trial == NULL ? "trial" : "name of the metric");
    } else if (ls_history_find(&trial->latest, name) == NULL && !ls_history_has(&trial->history, name) &&
               !can_have(trial, name)) {
        (void)ls_metrics_refuse(trial, call, name, several);
    }
}

double ls_trial_metric(const ls_trial *trial, const char *name) {
    if (trial != NULL && ls_trial_check_here("ls_trial_metric", trial) != LS_OK) {
        return (double)NAN;
    }
    if (trial != NULL && name != NULL) {
        const int i = find_under_way(trial, name);
        if (i >= 0) {
            return value_so_far(trial, i);
        }
        const double *latest = ls_history_find(&trial->latest, name);
        if (latest != NULL) {
            return *latest;
        }
    }
    explain_missing(trial, "ls_trial_metric", name, false);
    return (double)NAN;
}

const double *ls_trial_metric_values(const ls_trial *trial, const char *name, int64_t *count) {
    if (trial != NULL && ls_trial_check_here("ls_trial_metric_values", trial) != LS_OK) {
        if (count != NULL) {
            *count = 0;
        }
        return NULL;
    }
    const ls_several *several = trial != NULL ? find_several(trial->metrics, name) : NULL;
    const double *one = trial != NULL ? ls_history_find(&trial->latest, name) : NULL;
    if (count != NULL) {
        *count = several != NULL ? (int64_t)several->values.count : one != NULL;
    }
    if (several != NULL) {
        return several->values.count > 0 ? several->values.items : NULL;
    }
    if (one == NULL) {
        explain_missing(trial, "ls_trial_metric_values", name, true);
    }
    return one;
}

double ls_trial_history(const ls_trial *trial, int64_t epoch, const char *name) {
    if (trial != NULL && ls_trial_check_here("ls_trial_history", trial) != LS_OK) {
        return (double)NAN;
    }
    const bool in_range = trial != NULL && epoch >= 0 && epoch < trial->history.count;
    const double value = in_range && name != NULL ? ls_history_value(&trial->history, epoch, name) : (double)NAN;
    if (isnan(value)) {
        explain_missing(trial, "ls_trial_history", name, false);
    }
    return value;
}
