/* The metrics of a trial during its passes: updates them with each batch, and computes results at the end. */
#include <math.h>
#include <stdio.h>

#include "comm/meter.h"
#include "tensor/tensor.h"
#include "train/metrics/metric.h"

static void begin_tallies(const ls_metrics *metrics, ls_metric_set *set, const ls_trial_state *state) {
    for (int i = 0; i < metrics->count; i++) {
        const ls_metric_type *type = metrics->items[i]->type;
        ls_tally *tally = &set->tallies[i];
        if (!type->lasting) {
            tally->count = 0; /* ls_metrics_make_room sets the count at the first batch */
        } else if (tally->count > 0 && ls_metric_is_on(tally->metric, state)) {
            type->init(tally);
        }
    }
}

void ls_metrics_begin(ls_trial *trial, const char *prefix, bool continues) {
    ls_metrics *metrics = trial->metrics;
    ls_metric_set *set = metrics->set;
    set->under_way = prefix != NULL;
    set->begun = continues;
    snprintf(set->prefix, sizeof set->prefix, "%s", prefix != NULL ? prefix : "");
    if (!continues) {
        ls_metrics_mark(metrics);
        for (; set != NULL; set = set->next) {
            begin_tallies(metrics, set, &trial->state);
        }
    }
}

/* If the metric is a mean, sets the sum and the weight of the batch. */
static ls_status take_mean(const ls_metric *metric, const ls_asked *asked, ls_batch_numbers *batch) {
    const ls_batch_mean *of = metric->of;
    if (of == NULL || of->elements == NULL) {
        return of != NULL ? of->measure(metric, batch) : LS_OK;
    }
    const double *next = batch->asked;
    batch->sum = *next++;
    if (of->refuses && isnan(batch->sum)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial: metric \"%s\": a target is not a class of output %s", metric->name,
                       LS_SHAPE_TEXT(batch->state->output));
    }
    batch->weight = asked->elements >= 0 ? (double)asked->elements : *next++;
    batch->scatter = metric->type->scatter ? *next : 0;
    return LS_OK;
}

void ls_metrics_waited(ls_trial *trial, uint64_t nanoseconds) {
    trial->metrics->set->data_ns += nanoseconds;
}

/* Returns the batch numbers that are the same for all metrics. */
static ls_batch_numbers begin_batch(ls_metrics *metrics, const ls_trial_state *state) {
    ls_metric_set *set = metrics->set;
    if (set->further) {
        return (ls_batch_numbers){.state = state, .further = true};
    }
    const uint64_t at_ns = set->at_ns;
    const uint64_t data_ns = set->data_ns;
    const uint64_t comm_ns = set->comm_ns;
    ls_metrics_mark(metrics);
    set->begun = true;
    return (ls_batch_numbers){.state = state,
                              .seconds = {[LS_CLOCK_ALL] = (double)(set->at_ns - at_ns) * 1e-9,
                                          [LS_CLOCK_DATA] = (double)data_ns * 1e-9,
                                          [LS_CLOCK_COMM] = (double)(set->comm_ns - comm_ns) * 1e-9}};
}

ls_status ls_metrics_add(ls_trial *trial) {
    ls_metrics *metrics = trial->metrics;
    const ls_trial_state *state = &trial->state;
    LS_TRY(ls_metrics_make_room(metrics, metrics->set));
    LS_TRY(state->count > 0 ? ls_metrics_fetch(metrics, state) : LS_OK);
    const ls_batch_numbers given = begin_batch(metrics, state);
    for (int i = 0; i < metrics->count; i++) {
        const ls_metric *metric = metrics->items[i];
        if (ls_metric_is_on(metric, state)) {
            ls_batch_numbers batch = given;
            if (state->count > 0) {
                batch.asked = metrics->asked[i].numbers;
                batch.asked_count = metrics->asked[i].count;
                LS_TRY(take_mean(metric, &metrics->asked[i], &batch));
            }
            LS_TRY(metric->type->update(&metrics->set->tallies[i], &batch));
        }
    }
    return LS_OK;
}

/* ---- the end of a pass ------------------------------------------------------------------------------------------- */

static ls_status update_at_end(const ls_metrics *metrics, ls_metric_set *set, const ls_trial_state *state) {
    const ls_batch_numbers batch = {.state = state};
    LS_TRY(ls_metrics_make_room(metrics, set));
    for (int i = 0; i < metrics->count; i++) {
        const ls_metric *metric = metrics->items[i];
        const bool at_end = metric->type->at_end && ls_metric_is_on(metric, state);
        LS_TRY(at_end ? metric->type->update(&set->tallies[i], &batch) : LS_OK);
    }
    return LS_OK;
}

static ls_status store(ls_trial *trial, const ls_tally *merged, ls_history_entry *entry) {
    const ls_metric *metric = merged->metric;
    char name[2 * LS_METRIC_NAME_LIMIT];
    snprintf(name, sizeof name, "%s%s", trial->metrics->set->prefix, metric->name);
    if (metric->several) {
        ls_tally *values = ls_metrics_keep_several(trial->metrics, name);
        return values != NULL ? metric->type->results(merged, values) : ls_error_status();
    }
    const double value = metric->type->result(merged);
    LS_TRY(ls_history_put(&trial->latest, name, value));
    return entry != NULL ? ls_history_put(entry, name, value) : LS_OK;
}

ls_status ls_metrics_end(ls_trial *trial, ls_history_entry *entry) {
    ls_metrics *metrics = trial->metrics;
    for (ls_metric_set *set = metrics->set; set != NULL; set = set->next) {
        LS_TRY(update_at_end(metrics, set, &trial->state));
    }
    const ls_tally *merged = ls_metrics_exchange(metrics, &trial->state);
    LS_TRY(ls_made(merged));
    for (int i = 0; i < metrics->count; i++) {
        LS_TRY(ls_metric_is_on(metrics->items[i], &trial->state) ? store(trial, &merged[i], entry) : LS_OK);
    }
    ls_metrics_begin(trial, NULL, false); /* a checkpoint between passes contains no numbers of a pass */
    return LS_OK;
}
