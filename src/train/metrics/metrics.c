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
        const size_t width = (size_t)metrics->measures[i].width;
        LS_TRY(numbers->count < width ? ls_numbers_resize(numbers, width) : LS_OK);
    }
    return LS_OK;
}

ls_status ls_numbers_settle(const ls_measure *measure, ls_numbers *numbers, size_t count, const ls_trial_state *state) {
    if (numbers->count != 0 && numbers->count != count) {
        return ls_fail(
            LS_ERR_SHAPE,
            "ls_trial: metric \"%s\": output %s has another number of classes, or of columns, than those before",
            measure->rule->name, LS_SHAPE_TEXT(state->output));
    }
    return ls_numbers_resize(numbers, count);
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

/* ---- a pass ------------------------------------------------------------------------------------------------------ */

bool ls_measure_is_on(const ls_measure *measure, const ls_trial_state *state) {
    return !measure->rule->aggregate->training_only || state->phase == LS_PHASE_TRAINING;
}

void ls_metrics_begin(ls_trial *trial) {
    trial->metrics->set->at_ns = ls_clock_ns();
    trial->metrics->set->data_ns = 0;
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
    ls_metric_set *set = metrics->set;
    const uint64_t now = ls_clock_ns();
    const ls_batch_numbers batch = {
        .state = state, .seconds = (double)(now - set->at_ns) * 1e-9, .data_seconds = (double)set->data_ns * 1e-9};
    set->at_ns = now;
    set->data_ns = 0;
    return batch;
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

ls_status ls_metrics_set_aside(ls_trial *trial) {
    ls_metrics *metrics = trial->metrics;
    ls_metric_set *set = metrics->spare != NULL ? metrics->spare : ls_allocate_zeroed(1, sizeof *set);
    if (set == NULL) {
        return ls_fail_memory("ls_trial_evaluate", sizeof *set);
    }
    for (int i = 0; i < metrics->count; i++) {
        set->numbers[i].count = 0;
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
