/* Means over all samples: the sum over all batches and ranks, divided by the sum of the weights. */
#include <math.h>

#include "train/metrics/metric.h"

static ls_status update(const ls_metric *metric, ls_numbers *numbers, const ls_batch_numbers *batch) {
    (void)metric;
    numbers->items[0] += batch->sum;
    numbers->items[1] += batch->weight;
    return LS_OK;
}

double ls_mean_of_numbers(const double numbers[2]) {
    return numbers[1] != 0 ? numbers[0] / numbers[1] : (double)NAN;
}

static double mean(const ls_metric *metric, double *numbers, size_t count) {
    (void)metric;
    (void)count;
    return ls_mean_of_numbers(numbers);
}

static double root_mean(const ls_metric *metric, double *numbers, size_t count) {
    return sqrt(mean(metric, numbers, count));
}

const ls_metric_type ls_type_mean = {.width = 2, .is_mean = true, .update = update, .result = mean};
const ls_metric_type ls_type_root_mean = {.width = 2, .update = update, .result = root_mean};
