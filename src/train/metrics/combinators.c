/* Metrics derived from a mean: the mean over a pass, running means, variances and standard deviations. */
#include <math.h>

#include "train/metrics/metric.h"

/* ---- means over all samples: the sum over all batches and ranks, divided by the sum of the weights --------------- */

static ls_status add_to_mean(ls_tally *tally, const ls_batch_numbers *batch) {
    tally->items[0] += batch->sum;
    tally->items[1] += batch->weight;
    return LS_OK;
}

double ls_mean_of_numbers(const double numbers[2]) {
    return numbers[1] != 0 ? numbers[0] / numbers[1] : (double)NAN;
}

static double mean(const ls_tally *tally) {
    return ls_mean_of_numbers(tally->items);
}

static double root_mean(const ls_tally *tally) {
    return sqrt(mean(tally));
}

const ls_metric_type ls_type_mean = {.width = 2, .is_mean = true, .update = add_to_mean, .result = mean};
const ls_metric_type ls_type_root_mean = {.width = 2, .update = add_to_mean, .result = root_mean};

/* ---- running means -----------------------------------------------------------------------------------------------
 *
 * Like torchbearer 0.5's RunningMean: the mean of the means of the last training batches, which may belong to
 * earlier epochs. It is updated at the first batch of an epoch, and then every `every` batches. The value of a batch
 * depends on the sums and weights of all ranks, so every rank keeps the sum and weight of its share in a ring buffer
 * after the head. The head contains three batch counts: the total, the count at the last update of the mean, and the
 * count in this epoch. */
enum { SEEN, UPDATED_AT, IN_EPOCH, HEAD };

enum { WINDOW_LIMIT = 10000 };

static int64_t ring_size(const ls_metric *metric) {
    return metric->window + metric->every - 1;
}

static void begin_epoch(ls_tally *tally) {
    tally->items[IN_EPOCH] = 0;
}

static ls_status add_to_ring(ls_tally *tally, const ls_batch_numbers *batch) {
    double *head = tally->items;
    double *row = head + HEAD + 2 * ((int64_t)head[SEEN] % ring_size(tally->metric));
    row[0] = batch->sum;
    row[1] = batch->weight;
    head[SEEN]++;
    if ((int64_t)head[IN_EPOCH]++ % tally->metric->every == 0) {
        head[UPDATED_AT] = head[SEEN];
    }
    return LS_OK;
}

static double running_mean(const ls_tally *tally) {
    const int64_t end = (int64_t)tally->items[UPDATED_AT];
    const int window = tally->metric->window;
    double sum = 0;
    int64_t batches = 0;
    for (int64_t i = end > window ? end - window : 0; i < end; i++) {
        const double *row = tally->items + HEAD + 2 * (i % ring_size(tally->metric));
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

static bool is_ring(const ls_metric *metric, const double *numbers, size_t count) {
    return count > HEAD && is_count(numbers[SEEN]) && is_count(numbers[UPDATED_AT]) && is_count(numbers[IN_EPOCH]) &&
           numbers[UPDATED_AT] <= numbers[SEEN] && numbers[SEEN] - numbers[UPDATED_AT] < metric->every;
}

ls_metric *ls_metric_running(ls_metric *of, const ls_running_options *options) {
    static const ls_metric_type type = {.kept = HEAD,
                                        .alike = true,
                                        .lasting = true,
                                        .training_only = true,
                                        .init = begin_epoch,
                                        .update = add_to_ring,
                                        .result = running_mean,
                                        .valid = is_ring};
    ls_metric *metric = ls_metric_take_mean("ls_metric_running", of, "running_", "");
    if (metric == NULL) {
        return NULL;
    }
    metric->type = &type;
    metric->window = options != NULL && options->window != 0 ? options->window : 50;
    metric->every = options != NULL && options->every != 0 ? options->every : 10;
    if (metric->window < 1 || metric->every < 1 || metric->window > WINDOW_LIMIT || metric->every > WINDOW_LIMIT) {
        (void)ls_fail(LS_ERR_ARGUMENT, "ls_metric_running: %d batches, every %d: both must be from 1 to %d",
                      metric->window, metric->every, WINDOW_LIMIT);
        ls_metric_free(metric);
        return NULL;
    }
    metric->width = HEAD + 2 * (size_t)ring_size(metric);
    return metric;
}

/* ---- variances ---------------------------------------------------------------------------------------------------
 *
 * If a mean is over elements, so is the variance: count, mean and sum of squared differences from the mean are
 * merged batch by batch and rank by rank (Chan, Golub and LeVeque, 1979), so that no digits are lost if the mean is
 * large. Otherwise the variance is over batches, whose sums and weights are stored. */
void ls_moments_add(double moments[LS_MOMENTS], double count, double mean_of_these, double scatter) {
    const double total = moments[0] + count;
    const double apart = mean_of_these - moments[1];
    if (count == 0) {
        return;
    }
    moments[1] += apart * (count / total);
    moments[2] += scatter + apart * apart * (moments[0] * count / total);
    moments[0] = total;
}

/* Returns NAN if there are too few values. */
static double spread(const ls_metric *metric, const double moments[LS_MOMENTS]) {
    const double degrees = metric->population ? moments[0] : moments[0] - 1;
    const double variance = degrees > 0 ? moments[2] / degrees : (double)NAN;
    return metric->root ? sqrt(variance) : variance;
}

static ls_status add_elements(ls_tally *tally, const ls_batch_numbers *batch) {
    ls_moments_add(tally->items, batch->weight, batch->sum / batch->weight, batch->scatter);
    return LS_OK;
}

static ls_status merge_elements(ls_tally *tally, const double *other, size_t count) {
    (void)count;
    ls_moments_add(tally->items, other[0], other[1], other[2]);
    return LS_OK;
}

static double spread_of_elements(const ls_tally *tally) {
    return spread(tally->metric, tally->items);
}

/* A batch whose shares are all empty has no value. */
static ls_status add_batch(ls_tally *tally, const ls_batch_numbers *batch) {
    LS_TRY(ls_tally_resize(tally, tally->count + 2));
    tally->items[tally->count - 2] = batch->sum;
    tally->items[tally->count - 1] = batch->weight;
    return LS_OK;
}

static double spread_of_batches(const ls_tally *tally) {
    double all[LS_MOMENTS] = {0};
    for (const double *row = tally->items; row < tally->items + tally->count; row += 2) {
        ls_moments_add(all, row[1] != 0, row[0] / row[1], 0);
    }
    return spread(tally->metric, all);
}

static ls_metric *make_spread(const char *call, ls_metric *of, const char *suffix, bool population, bool root) {
    static const ls_metric_type of_batches = {.unit = 2, .update = add_batch, .result = spread_of_batches};
    static const ls_metric_type of_elements = {.width = LS_MOMENTS,
                                               .scatter = true,
                                               .update = add_elements,
                                               .merge = merge_elements,
                                               .result = spread_of_elements};
    ls_metric *metric = ls_metric_take_mean(call, of, "", suffix);
    if (metric != NULL) {
        metric->type = metric->of->elements != NULL ? &of_elements : &of_batches;
        metric->width = (size_t)metric->type->width;
        metric->population = population;
        metric->root = root;
    }
    return metric;
}

ls_metric *ls_metric_var(ls_metric *of, bool population) {
    return make_spread("ls_metric_var", of, "_var", population, false);
}

ls_metric *ls_metric_std(ls_metric *of, bool population) {
    return make_spread("ls_metric_std", of, "_std", population, true);
}
