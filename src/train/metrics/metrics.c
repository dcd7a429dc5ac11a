/* The metrics of a trial in its passes: fed with batches, and evaluated at the end. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/describe.h"
#include "base/memory.h"
#include "comm/meter.h"
#include "tensor/tensor.h"
#include "train/metrics/metric.h"

ls_status ls_metrics_make_room(ls_metrics *metrics) {
    for (int i = 0; i < metrics->count; i++) {
        ls_numbers *numbers = &metrics->set->numbers[i];
        const size_t width = (size_t)metrics->measures[i].width;
        LS_TRY(numbers->count < width ? ls_numbers_resize(numbers, width) : LS_OK);
    }
    return LS_OK;
}

bool ls_measure_is_on(const ls_measure *measure, const ls_trial_state *state) {
    return !measure->rule->aggregate->training_only || state->phase == LS_PHASE_TRAINING;
}

void ls_metrics_mark(ls_metrics *metrics) {
    for (int i = 0; i < metrics->count && !metrics->metered; i++) {
        if (metrics->measures[i].rule->kind == &ls_kind_comm_wait) {
            metrics->metered = true;
            ls_comm_metered.users++;
        }
    }
    metrics->set->at_ns = ls_clock_ns();
    metrics->set->data_ns = 0;
    metrics->set->comm_ns = ls_comm_metered.nanoseconds;
}

void ls_metrics_begin(ls_trial *trial) {
    ls_metrics_mark(trial->metrics);
    for (int i = 0; i < trial->metrics->count; i++) {
        const ls_measure *measure = &trial->metrics->measures[i];
        ls_numbers *numbers = &trial->metrics->set->numbers[i];
        if (!ls_measure_is_on(measure, &trial->state)) {
            continue;
        }
        if (measure->rule->aggregate->begin != NULL) {
            measure->rule->aggregate->begin(numbers);
        } else {
            numbers->count = 0;
        }
    }
}

/* Sum and weight of the batch, where the kind has them. */
static ls_status take_mean(const ls_measure *measure, ls_batch_numbers *batch) {
    const ls_metric_kind *kind = measure->rule->kind;
    if (kind->elements != NULL) {
        const double *next = measure->asked;
        batch->sum = *next++;
        if (kind->refuses && isnan(batch->sum)) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_trial: metric \"%s\": a target is no class of output %s",
                           measure->rule->name, LS_SHAPE_TEXT(batch->state->output));
        }
        batch->weight = measure->elements >= 0 ? (double)measure->elements : *next++;
        batch->scatter = measure->rule->aggregate->scatter ? *next : 0;
        return LS_OK;
    }
    return kind->mean != NULL ? kind->mean(measure, batch) : LS_OK;
}

void ls_metrics_waited(ls_trial *trial, uint64_t nanoseconds) {
    trial->metrics->set->data_ns += nanoseconds;
}

/* The batch as all metrics have it. */
static ls_batch_numbers begin_batch(ls_metrics *metrics, const ls_trial_state *state) {
    const ls_metric_set *set = metrics->set;
    const uint64_t at_ns = set->at_ns;
    const uint64_t data_ns = set->data_ns;
    const uint64_t comm_ns = set->comm_ns;
    ls_metrics_mark(metrics);
    return (ls_batch_numbers){.state = state,
                              .seconds = (double)(set->at_ns - at_ns) * 1e-9,
                              .data_seconds = (double)data_ns * 1e-9,
                              .comm_seconds = (double)(set->comm_ns - comm_ns) * 1e-9};
}

ls_status ls_metrics_add(ls_trial *trial) {
    ls_metrics *metrics = trial->metrics;
    const ls_trial_state *state = &trial->state;
    LS_TRY(ls_metrics_make_room(metrics));
    LS_TRY(state->count > 0 ? ls_metrics_fetch(metrics, state) : LS_OK);
    const ls_batch_numbers given = begin_batch(metrics, state);
    for (int i = 0; i < metrics->count; i++) {
        const ls_measure *measure = &metrics->measures[i];
        if (ls_measure_is_on(measure, state)) {
            ls_batch_numbers batch = given;
            LS_TRY(state->count > 0 ? take_mean(measure, &batch) : LS_OK);
            LS_TRY(measure->rule->aggregate->add(measure, &metrics->set->numbers[i], &batch));
        }
    }
    return LS_OK;
}

/* ---- its end ----------------------------------------------------------------------------------------------------- */

static ls_status end_batches(ls_metrics *metrics, const ls_trial_state *state) {
    const ls_batch_numbers batch = {.state = state};
    LS_TRY(ls_metrics_make_room(metrics));
    for (int i = 0; i < metrics->count; i++) {
        const ls_measure *measure = &metrics->measures[i];
        const ls_aggregate *aggregate = measure->rule->aggregate;
        if (aggregate->end != NULL && ls_measure_is_on(measure, state)) {
            LS_TRY(aggregate->end(measure, &metrics->set->numbers[i], &batch));
        }
    }
    return LS_OK;
}

static ls_several *find_several(const ls_metrics *metrics, const char *name) {
    for (int i = 0; name != NULL && i < metrics->several_count; i++) {
        if (strcmp(metrics->several[i].name, name) == 0) {
            return &metrics->several[i];
        }
    }
    return NULL;
}

/* Where the values of that name are kept; NULL and an error when there is no memory. */
static ls_numbers *keep_several(ls_metrics *metrics, const char *name) {
    ls_several *found = find_several(metrics, name);
    if (found == NULL) {
        ls_several *several = ls_grow(metrics->several, (size_t)metrics->several_count, sizeof *several);
        if (several == NULL) {
            (void)ls_fail_memory("ls_trial", ((size_t)metrics->several_count + 1) * sizeof *several);
            return NULL;
        }
        metrics->several = several;
        found = &several[metrics->several_count++];
        *found = (ls_several){.values = {NULL, 0, 0}};
        snprintf(found->name, sizeof found->name, "%s", name);
    }
    found->values.count = 0;
    return &found->values;
}

static ls_status store(ls_trial *trial, const ls_measure *measure, const ls_numbers *part, const char *name,
                       ls_history_entry *entry) {
    const ls_aggregate *aggregate = measure->rule->aggregate;
    if (aggregate->values != NULL) {
        ls_numbers *values = keep_several(trial->metrics, name);
        return values != NULL ? aggregate->values(part->items, part->count, values) : ls_error_status();
    }
    const double value = aggregate->value(measure, part->items, part->count);
    LS_TRY(ls_history_put(&trial->latest, name, value));
    return entry != NULL ? ls_history_put(entry, name, value) : LS_OK;
}

ls_status ls_metrics_end(ls_trial *trial, const char *prefix, ls_history_entry *entry) {
    ls_metrics *metrics = trial->metrics;
    ls_numbers parts[LS_METRIC_LIMIT];
    LS_TRY(end_batches(metrics, &trial->state));
    LS_TRY(ls_metrics_unite(metrics, &trial->state, parts));
    for (int i = 0; i < metrics->count; i++) {
        const ls_measure *measure = &metrics->measures[i];
        char name[LS_METRIC_NAME_LIMIT];
        if (ls_measure_is_on(measure, &trial->state)) {
            snprintf(name, sizeof name, "%s%s", prefix, measure->rule->name);
            LS_TRY(store(trial, measure, &parts[i], name, entry));
        }
    }
    ls_metrics_begin(trial); /* a checkpoint between passes holds none of them */
    return LS_OK;
}

const double *ls_trial_metric_values(const ls_trial *trial, const char *name, int64_t *count) {
    const ls_several *several = trial != NULL ? find_several(trial->metrics, name) : NULL;
    const ls_numbers *values = several != NULL ? &several->values : NULL;
    const double *one = trial != NULL ? ls_history_find(&trial->latest, name) : NULL;
    if (count != NULL) {
        *count = values != NULL ? (int64_t)values->count : one != NULL;
    }
    return values != NULL ? values->items : one;
}

/* ---- passes within passes ---------------------------------------------------------------------------------------- */

ls_status ls_metrics_push(ls_trial *trial) {
    ls_metrics *metrics = trial->metrics;
    ls_metric_set *set = metrics->spare != NULL ? metrics->spare : ls_allocate_zeroed(1, sizeof *set);
    if (set == NULL) {
        return ls_fail_memory("ls_trial_evaluate", sizeof *set);
    }
    for (int i = 0; i < metrics->count; i++) {
        set->numbers[i].count = 0;
    }
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

/* ---- what others ask --------------------------------------------------------------------------------------------- */

bool ls_metrics_has(const ls_trial *trial, const char *name) {
    bool has = false;
    for (int i = 0; i < trial->metrics->count; i++) {
        has = has || strcmp(trial->metrics->measures[i].rule->name, name) == 0;
    }
    return has;
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
    const ls_metric *rule = trial->metrics->measures[index].rule;
    ls_describe(text, size, rule->name, fields, rule);
    return true;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static const char validation[] = "val_";

/* Whether a pass of training, or of validation, has a result of the metric: one number, or also several numbers. */
static bool has_result(const ls_measure *measure, bool validates, bool several) {
    const ls_aggregate *aggregate = measure->rule->aggregate;
    return (several || aggregate->value != NULL) && !(validates && aggregate->training_only);
}

ls_status ls_metrics_refuse(const ls_trial *trial, const char *call, const char *name, bool several) {
    const int passes = trial->options.validate != NULL ? 2 : 1;
    char list[600] = "";
    size_t length = 0;
    for (int k = 0; k < passes * trial->metrics->count && length < sizeof list; k++) {
        const bool validates = k >= trial->metrics->count;
        const ls_measure *measure = &trial->metrics->measures[k % trial->metrics->count];
        if (has_result(measure, validates, several)) {
            length += (size_t)snprintf(list + length, sizeof list - length, "%s%s%s", length > 0 ? ", " : "",
                                       validates ? validation : "", measure->rule->name);
        }
    }
    const bool of_validation = passes == 1 && strncmp(name, validation, sizeof validation - 1) == 0;
    return ls_fail(LS_ERR_ARGUMENT, "%s: there is no metric \"%s\"; available: %s%s", call, name, list,
                   of_validation ? ". Was .validate set?" : "");
}

static bool find_result(const ls_trial *trial, const char *name, bool validates) {
    bool found = false;
    for (int i = 0; i < trial->metrics->count && !found; i++) {
        const ls_measure *measure = &trial->metrics->measures[i];
        found = has_result(measure, validates, false) && strcmp(measure->rule->name, name) == 0;
    }
    return found;
}

ls_status ls_metrics_check_result(const ls_trial *trial, const char *call, const char *name) {
    const size_t length = sizeof validation - 1;
    const bool validated = trial->options.validate != NULL && strncmp(name, validation, length) == 0;
    return find_result(trial, name, false) || (validated && find_result(trial, name + length, true)) ||
                   ls_history_find(&trial->latest, name) != NULL || trial->watch.own_hooks || trial->watch.own_step
               ? LS_OK
               : ls_metrics_refuse(trial, call, name, false);
}

size_t ls_metrics_longest(const ls_trial *trial) {
    size_t longest = 0;
    for (int i = 0; i < trial->metrics->count; i++) {
        const size_t length = strlen(trial->metrics->measures[i].rule->name);
        longest = length > longest ? length : longest;
    }
    return longest;
}

/* The place of number `index` of those that are shown; -1 when there are no more. */
static int find_shown(const ls_trial *trial, int index) {
    for (int i = 0; i < trial->metrics->count; i++) {
        const ls_measure *measure = &trial->metrics->measures[i];
        const bool shown = measure->rule->aggregate->value != NULL && ls_measure_is_on(measure, &trial->state);
        if (shown && index-- == 0) {
            return i;
        }
    }
    return -1;
}

const char *ls_metrics_name(const ls_trial *trial, int index) {
    const int at = find_shown(trial, index);
    return at >= 0 ? trial->metrics->measures[at].rule->name : NULL;
}

double ls_metrics_so_far(const ls_trial *trial, int index) {
    const int at = find_shown(trial, index);
    const ls_measure *measure = &trial->metrics->measures[at];
    const ls_numbers *numbers = &trial->metrics->set->numbers[at];
    const ls_aggregate *aggregate = measure->rule->aggregate;
    return numbers->count > 0 && !aggregate->costly ? aggregate->value(measure, numbers->items, numbers->count)
                                                    : (double)NAN;
}
