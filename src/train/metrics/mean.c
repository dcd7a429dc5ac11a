/* Means over all samples: the sum over all batches and ranks divided by that of the weights. */
#include <math.h>

#include "train/metrics/metric.h"

static ls_status add(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch) {
    (void)measure;
    numbers->items[0] += batch->sum;
    numbers->items[1] += batch->weight;
    return LS_OK;
}

double ls_mean_of_numbers(const ls_measure *measure, double *numbers, size_t count) {
    (void)measure;
    (void)count;
    return numbers[1] != 0 ? numbers[0] / numbers[1] : (double)NAN;
}

static double root_mean(const ls_measure *measure, double *numbers, size_t count) {
    return sqrt(ls_mean_of_numbers(measure, numbers, count));
}

const ls_aggregate ls_aggregate_mean = {.width = 2, .is_mean = true, .add = add, .value = ls_mean_of_numbers};
const ls_aggregate ls_aggregate_root_mean = {.width = 2, .add = add, .value = root_mean};
