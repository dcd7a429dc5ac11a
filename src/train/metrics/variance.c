/*
 * Variances and standard deviations of means. If a mean has elements, the variance is over elements: count, mean and
 * sum of squared differences from the mean are merged batch by batch and rank by rank (Chan, Golub and LeVeque, 1979),
 * so that no digits are lost if the mean is large. Otherwise the variance is over batches, whose sums and weights are
 * kept.
 */
#include <math.h>

#include "train/metrics/metric.h"

void ls_moments_add(double moments[LS_MOMENTS], double count, double mean, double scatter) {
    const double total = moments[0] + count;
    const double apart = mean - moments[1];
    if (count == 0) {
        return;
    }
    moments[1] += apart * (count / total);
    moments[2] += scatter + apart * apart * (moments[0] * count / total);
    moments[0] = total;
}

/* NAN if there are too few values. */
static double spread(const ls_metric *metric, const double moments[LS_MOMENTS]) {
    const double degrees = metric->population ? moments[0] : moments[0] - 1;
    const double variance = degrees > 0 ? moments[2] / degrees : (double)NAN;
    return metric->root ? sqrt(variance) : variance;
}

/* ---- of elements ------------------------------------------------------------------------------------------------- */

static ls_status add_elements(const ls_metric *metric, ls_numbers *numbers, const ls_batch_numbers *batch) {
    (void)metric;
    ls_moments_add(numbers->items, batch->weight, batch->sum / batch->weight, batch->scatter);
    return LS_OK;
}

static ls_status merge_elements(const ls_metric *metric, ls_numbers *numbers, const double *other, size_t count) {
    (void)metric;
    (void)count;
    ls_moments_add(numbers->items, other[0], other[1], other[2]);
    return LS_OK;
}

static double spread_of_elements(const ls_metric *metric, double *numbers, size_t count) {
    (void)count;
    return spread(metric, numbers);
}

static const ls_metric_type of_elements = {.width = LS_MOMENTS,
                                           .scatter = true,
                                           .update = add_elements,
                                           .merge = merge_elements,
                                           .result = spread_of_elements};

/* ---- of batches -------------------------------------------------------------------------------------------------- */

/* A batch of which no rank has a share has no value. */
static ls_status add_batch(const ls_metric *metric, ls_numbers *numbers, const ls_batch_numbers *batch) {
    (void)metric;
    LS_TRY(ls_numbers_resize(numbers, numbers->count + 2));
    numbers->items[numbers->count - 2] = batch->sum;
    numbers->items[numbers->count - 1] = batch->weight;
    return LS_OK;
}

static double spread_of_batches(const ls_metric *metric, double *numbers, size_t count) {
    double all[LS_MOMENTS] = {0};
    for (size_t i = 0; i < count; i += 2) {
        ls_moments_add(all, numbers[i + 1] != 0, numbers[i] / numbers[i + 1], 0);
    }
    return spread(metric, all);
}

static const ls_metric_type of_batches = {.unit = 2, .update = add_batch, .result = spread_of_batches};

/* ------------------------------------------------------------------------------------------------------------------ */

static ls_metric *make(const char *call, ls_metric *of, const char *suffix, bool population, bool root) {
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
    return make("ls_metric_var", of, "_var", population, false);
}

ls_metric *ls_metric_std(ls_metric *of, bool population) {
    return make("ls_metric_std", of, "_std", population, true);
}
