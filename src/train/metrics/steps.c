/* Step metrics of a trial: learning rate, epoch, samples per second and waiting times. */
#include <math.h>
#include <stdio.h>

#include "train/metrics/metric.h"

/* ---- learning rate and epoch ------------------------------------------------------------------------------------- */

static ls_status set_rate(ls_tally *tally, const ls_batch_numbers *batch) {
    tally->items[0] = ls_optimizer_learning_rate(batch->state->optimizer, tally->metric->k);
    return LS_OK;
}

static ls_status set_epoch(ls_tally *tally, const ls_batch_numbers *batch) {
    tally->items[0] = (double)batch->state->epoch;
    return LS_OK;
}

static double first_number(const ls_tally *tally) {
    return tally->items[0];
}

static ls_status check_group(ls_metric *metric, const ls_trial_options *options) {
    const int groups = options->optimizer != NULL ? ls_optimizer_group_count(options->optimizer) : 0;
    return metric->k < groups
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: metric \"%s\": %s", metric->name,
                         options->optimizer == NULL ? "the trial has no optimizer" : "the optimizer has no such group");
}

#define ONE_NUMBER .width = 1, .kept = 1, .alike = true, .at_end = true, .result = first_number

const ls_metric_type ls_type_lr = {ONE_NUMBER, .training_only = true, .prepare = check_group, .update = set_rate};
const ls_metric_type ls_type_epoch = {ONE_NUMBER, .update = set_epoch};

ls_metric *ls_metric_lr(int group) {
    char name[LS_METRIC_NAME_LIMIT] = "lr";
    if (group < 0) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_metric_lr: the optimizer has no group %d", group);
    }
    if (group > 0) {
        snprintf(name, sizeof name, "lr_%d", group);
    }
    ls_metric *metric = ls_metric_make(name, &ls_type_lr, NULL);
    if (metric != NULL) {
        metric->k = group;
    }
    return metric;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

enum { SECONDS, RANKS, SAMPLES, CLOCK_NUMBERS };

static ls_status add_time(ls_tally *tally, const ls_batch_numbers *batch) {
    tally->items[SECONDS] += batch->seconds[tally->metric->type->clock];
    tally->items[RANKS] = !batch->further;
    tally->items[SAMPLES] += (double)ls_trial_samples(batch->state);
    return LS_OK;
}

/* Returns the mean over ranks. */
static double seconds(const ls_tally *tally) {
    return tally->items[RANKS] > 0 ? tally->items[SECONDS] / tally->items[RANKS] : (double)NAN;
}

static double samples_per_second(const ls_tally *tally) {
    const double time = seconds(tally);
    return time > 0 ? tally->items[SAMPLES] / time : (double)NAN;
}

#define CLOCK(kind) .width = CLOCK_NUMBERS, .kept = RANKS + 1, .update = add_time, .clock = (kind)

const ls_metric_type ls_type_samples_per_second = {CLOCK(LS_CLOCK_ALL), .result = samples_per_second};
const ls_metric_type ls_type_data_wait = {CLOCK(LS_CLOCK_DATA), .result = seconds};
const ls_metric_type ls_type_comm_wait = {CLOCK(LS_CLOCK_COMM), .result = seconds};
