/* What a trial knows of its steps: where it is, how fast it goes, and what it waits for. */
#include <math.h>
#include <stdio.h>

#include "train/metrics/metric.h"

/* ---- learning rate and epoch ------------------------------------------------------------------------------------
 *
 * One number, of rank 0: the others add 0 to it. As it is after the hooks of the last step.
 */

static void tell(ls_numbers *numbers, const ls_trial_state *state, double number) {
    numbers->items[0] = state->comm == NULL || ls_comm_rank(state->comm) == 0 ? number : 0;
}

static ls_status tell_rate(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch) {
    tell(numbers, batch->state, ls_optimizer_learning_rate(batch->state->optimizer, measure->rule->k));
    return LS_OK;
}

static ls_status tell_epoch(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch) {
    (void)measure;
    tell(numbers, batch->state, (double)batch->state->epoch);
    return LS_OK;
}

static double what_was_told(const ls_measure *measure, double *numbers, size_t count) {
    (void)measure;
    (void)count;
    return numbers[0];
}

static ls_status prepare_rate(ls_measure *measure, const ls_trial_options *options) {
    const int groups = options->optimizer != NULL ? ls_optimizer_group_count(options->optimizer) : 0;
    return measure->rule->k < groups
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: metric \"%s\": %s", measure->rule->name,
                         options->optimizer == NULL ? "the trial has no optimizer" : "the optimizer has no such group");
}

/* ---- time ------------------------------------------------------------------------------------------------------- */

enum { SECONDS = 0, RANKS, SAMPLES, CLOCK_NUMBERS };

static void add_seconds(ls_numbers *numbers, double seconds) {
    numbers->items[SECONDS] += seconds;
    numbers->items[RANKS] = 1;
}

static ls_status add_samples(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch) {
    (void)measure;
    add_seconds(numbers, batch->seconds);
    numbers->items[SAMPLES] += (double)batch->state->count;
    return LS_OK;
}

static ls_status add_data_wait(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch) {
    (void)measure;
    add_seconds(numbers, batch->data_seconds);
    return LS_OK;
}

static ls_status add_comm_wait(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch) {
    (void)measure;
    add_seconds(numbers, batch->comm_seconds);
    return LS_OK;
}

/* The time is that of the rank itself; the samples are those of both. */
static void join_time(double *numbers, const double *of, size_t count, bool nothing) {
    (void)count;
    if (nothing) {
        numbers[SECONDS] = of[SECONDS];
        numbers[RANKS] = of[RANKS];
    } else {
        numbers[SAMPLES] += of[SAMPLES];
    }
}

/* Of one rank, on average. */
static double seconds(const ls_measure *measure, double *numbers, size_t count) {
    (void)measure;
    (void)count;
    return numbers[RANKS] > 0 ? numbers[SECONDS] / numbers[RANKS] : (double)NAN;
}

static double samples_per_second(const ls_measure *measure, double *numbers, size_t count) {
    const double time = seconds(measure, numbers, count);
    return time > 0 ? numbers[SAMPLES] / time : (double)NAN;
}

/* ---- the rows ---------------------------------------------------------------------------------------------------- */

static const ls_aggregate by_rate = {
    .width = 1, .training_only = true, .add = tell_rate, .end = tell_rate, .value = what_was_told};
static const ls_aggregate by_epoch = {.width = 1, .add = tell_epoch, .end = tell_epoch, .value = what_was_told};
static const ls_aggregate by_samples = {
    .width = CLOCK_NUMBERS, .add = add_samples, .value = samples_per_second, .join = join_time};
static const ls_aggregate by_comm_wait = {
    .width = CLOCK_NUMBERS, .add = add_comm_wait, .value = seconds, .join = join_time};
static const ls_aggregate by_data_wait = {
    .width = CLOCK_NUMBERS, .add = add_data_wait, .value = seconds, .join = join_time};

const ls_metric_kind ls_kind_lr = {.name = "lr", .aggregate = &by_rate, .prepare = prepare_rate};
const ls_metric_kind ls_kind_epoch = {.name = "epoch", .aggregate = &by_epoch};
const ls_metric_kind ls_kind_samples_per_second = {.name = "samples_per_second", .aggregate = &by_samples};
const ls_metric_kind ls_kind_data_wait = {.name = "data_wait", .aggregate = &by_data_wait};
const ls_metric_kind ls_kind_comm_wait = {.name = "comm_wait", .aggregate = &by_comm_wait};

ls_metric *ls_metric_lr(int group) {
    if (group < 0) {
        (void)ls_fail(LS_ERR_ARGUMENT, "ls_metric_lr: there is no group %d", group);
        return NULL;
    }
    ls_metric *rule = ls_metric_make(&ls_kind_lr);
    if (rule != NULL && group > 0) {
        rule->k = group;
        snprintf(rule->name, sizeof rule->name, "lr_%d", group);
    }
    return rule;
}
