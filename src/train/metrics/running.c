/*
 * Running means, as torchbearer 0.5's RunningMean has them: the mean of the means of the last batches of training,
 * made anew with the first batch of an epoch and every so many later; batches of the epochs before are among them. Of
 * each batch the sum and weight of all ranks count, so every rank keeps those of its share.
 *
 * The numbers are a head and then a ring of batches, of which each is a sum and a weight.
 */
#include <math.h>

#include "train/metrics/metric.h"

/* The head: 1 (added up, that says how many ranks there are), the batches so far, how many there were when the value
 * was made, and the batches of this epoch. */
enum { RANKS = 0, SEEN, MADE_AT, IN_EPOCH, HEAD };

static int64_t ring_size(const ls_metric *rule) {
    return rule->window + rule->every - 1;
}

static void begin(ls_numbers *numbers) {
    if (numbers->count > 0) {
        numbers->items[IN_EPOCH] = 0;
    }
}

static ls_status add(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch) {
    const ls_metric *rule = measure->rule;
    double *head = numbers->items;
    double *row = head + HEAD + 2 * ((int64_t)head[SEEN] % ring_size(rule));
    row[0] = batch->sum;
    row[1] = batch->weight;
    head[RANKS] = 1;
    head[SEEN]++;
    if ((int64_t)head[IN_EPOCH]++ % rule->every == 0) {
        head[MADE_AT] = head[SEEN];
    }
    return LS_OK;
}

static double value(const ls_measure *measure, double *numbers, size_t count) {
    const ls_metric *rule = measure->rule;
    const int64_t end = numbers[RANKS] > 0 ? (int64_t)(numbers[MADE_AT] / numbers[RANKS]) : 0;
    double sum = 0;
    int64_t batches = 0;
    (void)count;
    for (int64_t i = end > rule->window ? end - rule->window : 0; i < end; i++) {
        const double *row = numbers + HEAD + 2 * (i % ring_size(rule));
        if (row[1] != 0) {
            sum += row[0] / row[1];
            batches++;
        }
    }
    return batches > 0 ? sum / (double)batches : (double)NAN;
}

static bool is_count(double number) {
    return number >= 0 && number < 0x1p53 && number == floor(number);
}

static bool fits(const ls_metric *rule, const double *numbers, size_t count) {
    return count == (size_t)rule->width && (numbers[RANKS] == 0 || numbers[RANKS] == 1) && is_count(numbers[SEEN]) &&
           is_count(numbers[MADE_AT]) && is_count(numbers[IN_EPOCH]) && numbers[MADE_AT] <= numbers[SEEN] &&
           numbers[SEEN] - numbers[MADE_AT] < rule->every;
}

/* All ranks have seen as many batches, of which each had its share. */
static void join(double *numbers, const double *of, size_t count, bool nothing) {
    for (size_t i = 0; i < count; i++) {
        numbers[i] = i < HEAD ? of[i] : nothing ? 0 : numbers[i] + of[i];
    }
}

const ls_aggregate ls_aggregate_running = {
    .training_only = true, .begin = begin, .add = add, .value = value, .fits = fits, .join = join};

/* ---- the constructor --------------------------------------------------------------------------------------------- */

ls_metric *ls_metric_running(ls_metric *of, const ls_running_options *options) {
    ls_metric *rule = ls_metric_take_mean("ls_metric_running", of, "running_", "");
    if (rule == NULL) {
        return NULL;
    }
    rule->window = options != NULL && options->window != 0 ? options->window : 50;
    rule->every = options != NULL && options->every != 0 ? options->every : 10;
    if (rule->window < 1 || rule->every < 1 || rule->window > LS_WINDOW_LIMIT || rule->every > LS_WINDOW_LIMIT) {
        (void)ls_fail(LS_ERR_ARGUMENT, "ls_metric_running: the mean of %d batches, every %d: both must be from 1 to %d",
                      rule->window, rule->every, LS_WINDOW_LIMIT);
        ls_metric_free(rule);
        return NULL;
    }
    rule->aggregate = &ls_aggregate_running;
    rule->width = HEAD + 2 * (int)ring_size(rule);
    return rule;
}
