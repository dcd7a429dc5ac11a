/* The metrics of a trial: made, fed with batches, and evaluated where a pass ends. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tensor/tensor.h"
#include "train/metrics/metric.h"

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

ls_status ls_numbers_resize(ls_numbers *numbers, size_t count) {
    if (count > numbers->room) {
        const size_t room = count > 2 * numbers->room ? count : 2 * numbers->room;
        double *items = ls_reallocate(numbers->items, numbers->room * sizeof *items, room * sizeof *items);
        if (items == NULL) {
            return ls_fail_memory("ls_trial", room * sizeof *items);
        }
        numbers->items = items;
        numbers->room = room;
    }
    for (size_t i = numbers->count; i < count; i++) {
        numbers->items[i] = 0;
    }
    numbers->count = count;
    return LS_OK;
}

void ls_numbers_free(ls_numbers *numbers) {
    ls_free(numbers->items);
    *numbers = (ls_numbers){0};
}

ls_status ls_metrics_make_room(ls_metrics *metrics) {
    for (int i = 0; i < metrics->count; i++) {
        ls_numbers *numbers = &metrics->set->numbers[i];
        const size_t width = (size_t)metrics->measures[i].rule->width;
        LS_TRY(numbers->count < width ? ls_numbers_resize(numbers, width) : LS_OK);
    }
    return LS_OK;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

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
    *measure = (ls_measure){.rule = metric.rule, .given = metric};
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
        LS_TRY(ls_metric_rule_own(metric, &measure->own));
        measure->rule = &measure->own;
    }
    metrics->count++;
    return LS_OK;
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
    for (int i = 0; i < metrics->count; i++) {
        ls_metrics_drop(&metrics->measures[i].given, metrics->measures[i].lent ? 0 : 1);
    }
    ls_metrics_forget_state(metrics);
    free_sets(metrics->set);
    free_sets(metrics->spare);
    ls_numbers_free(&metrics->fetched);
    ls_numbers_free(&metrics->all);
    ls_free(metrics);
    trial->metrics = NULL;
}

/* ---- a pass ------------------------------------------------------------------------------------------------------ */

void ls_metrics_begin(ls_trial *trial) {
    for (int i = 0; i < trial->metrics->count; i++) {
        trial->metrics->set->numbers[i].count = 0;
    }
}

/* Sum and weight of the batch, where the kind has them. */
static ls_status take_mean(const ls_measure *measure, ls_batch_numbers *batch) {
    const ls_metric_kind *kind = measure->rule->kind;
    if (kind->elements != NULL) {
        batch->sum = measure->asked[0];
        batch->weight = (double)measure->elements;
        return LS_OK;
    }
    return kind->mean != NULL ? kind->mean(measure, batch) : LS_OK;
}

ls_status ls_metrics_add(ls_trial *trial) {
    ls_metrics *metrics = trial->metrics;
    const ls_trial_state *state = &trial->state;
    LS_TRY(ls_metrics_make_room(metrics));
    LS_TRY(state->count > 0 ? ls_metrics_fetch(metrics, state) : LS_OK);
    for (int i = 0; i < metrics->count; i++) {
        const ls_measure *measure = &metrics->measures[i];
        ls_batch_numbers batch = {.state = state};
        LS_TRY(state->count > 0 ? take_mean(measure, &batch) : LS_OK);
        LS_TRY(measure->rule->aggregate->add(measure, &metrics->set->numbers[i], &batch));
    }
    return LS_OK;
}

ls_status ls_metrics_end(ls_trial *trial, const char *prefix, ls_history_entry *entry) {
    ls_metrics *metrics = trial->metrics;
    ls_numbers parts[LS_METRIC_LIMIT];
    LS_TRY(ls_metrics_make_room(metrics));
    LS_TRY(ls_metrics_unite(metrics, trial->state.comm, parts));
    for (int i = 0; i < metrics->count; i++) {
        const ls_measure *measure = &metrics->measures[i];
        char name[LS_METRIC_NAME_LIMIT];
        snprintf(name, sizeof name, "%s%s", prefix, measure->rule->name);
        const double value = measure->rule->aggregate->value(measure, parts[i].items, parts[i].count);
        LS_TRY(ls_history_put(&trial->latest, name, value));
        LS_TRY(entry != NULL ? ls_history_put(entry, name, value) : LS_OK);
    }
    ls_metrics_begin(trial); /* a checkpoint between passes holds none of them */
    return LS_OK;
}

ls_status ls_metrics_set_aside(ls_trial *trial) {
    ls_metrics *metrics = trial->metrics;
    ls_metric_set *set = metrics->spare != NULL ? metrics->spare : ls_allocate_zeroed(1, sizeof *set);
    if (set == NULL) {
        return ls_fail_memory("ls_trial_evaluate", sizeof *set);
    }
    metrics->spare = NULL;
    set->outer = metrics->set;
    metrics->set = set;
    return LS_OK;
}

void ls_metrics_put_back(ls_trial *trial) {
    ls_metrics *metrics = trial->metrics;
    metrics->spare = metrics->set;
    metrics->set = metrics->set->outer;
    metrics->spare->outer = NULL;
}

/* ---- what others ask --------------------------------------------------------------------------------------------- */

size_t ls_metrics_longest(const ls_trial *trial) {
    size_t longest = 0;
    for (int i = 0; i < trial->metrics->count; i++) {
        const size_t length = strlen(trial->metrics->measures[i].rule->name);
        longest = length > longest ? length : longest;
    }
    return longest;
}

const char *ls_metrics_name(const ls_trial *trial, int index) {
    return index < trial->metrics->count ? trial->metrics->measures[index].rule->name : NULL;
}

double ls_metrics_so_far(const ls_trial *trial, int index) {
    const ls_measure *measure = &trial->metrics->measures[index];
    const ls_numbers *numbers = &trial->metrics->set->numbers[index];
    return numbers->count > 0 ? measure->rule->aggregate->value(measure, numbers->items, numbers->count) : (double)NAN;
}
