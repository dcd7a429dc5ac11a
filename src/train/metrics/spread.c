/*
 * Variances and standard deviations. Of what has a number for each sample, of those: count, mean and sum of squared
 * differences from the mean are brought together part by part (Chan, Golub and LeVeque, 1979: batches, then ranks), so
 * that nothing is lost where the mean is large. Of what has only a number for each batch, of those: sums and weights of
 * all batches are kept.
 */
#include <math.h>

#include "train/metrics/metric.h"

/* ---- of samples -------------------------------------------------------------------------------------------------- */

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

static ls_status add_elements(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch) {
    (void)measure;
    ls_moments_add(numbers->items, batch->weight, batch->sum / batch->weight, batch->scatter);
    return LS_OK;
}

/* Of `count` values; NAN where there are too few. */
static double variance_of(const ls_measure *measure, double count, double scatter) {
    const double degrees = measure->rule->population ? count : count - 1;
    return degrees > 0 ? scatter / degrees : (double)NAN;
}

static void join_elements(double *numbers, const double *of, size_t count, bool nothing) {
    (void)count;
    if (!nothing) {
        ls_moments_add(numbers, of[0], of[1], of[2]);
    }
}

static double element_var(const ls_measure *measure, double *numbers, size_t count) {
    double all[LS_MOMENTS] = {0};
    for (size_t i = 0; i < count; i += LS_MOMENTS) {
        ls_moments_add(all, numbers[i], numbers[i + 1], numbers[i + 2]);
    }
    return variance_of(measure, all[0], all[2]);
}

static double element_std(const ls_measure *measure, double *numbers, size_t count) {
    return sqrt(element_var(measure, numbers, count));
}

/* ---- of batches -------------------------------------------------------------------------------------------------- */

/* A batch of which nobody has a share has no value. */
static ls_status add_batch(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch) {
    (void)measure;
    LS_TRY(ls_numbers_resize(numbers, numbers->count + 2));
    numbers->items[numbers->count - 2] = batch->sum;
    numbers->items[numbers->count - 1] = batch->weight;
    return LS_OK;
}

static double batch_var(const ls_measure *measure, double *numbers, size_t count) {
    double all[LS_MOMENTS] = {0};
    for (size_t i = 0; i < count; i += 2) {
        ls_moments_add(all, numbers[i + 1] != 0, numbers[i] / numbers[i + 1], 0);
    }
    return variance_of(measure, all[0], all[2]);
}

static double batch_std(const ls_measure *measure, double *numbers, size_t count) {
    return sqrt(batch_var(measure, numbers, count));
}

static bool are_pairs(const ls_metric *rule, const double *numbers, size_t count) {
    (void)rule;
    (void)numbers;
    return count % 2 == 0;
}

/* ---- the rows and their constructors ----------------------------------------------------------------------------- */

#define OF_ELEMENTS                                                                                                    \
    .width = LS_MOMENTS, .together = LS_APART, .scatter = true, .add = add_elements, .join = join_elements

static const ls_aggregate of_elements[] = {
    {OF_ELEMENTS, .value = element_var},
    {OF_ELEMENTS, .value = element_std},
};
static const ls_aggregate of_batches[] = {
    {.add = add_batch, .value = batch_var, .fits = are_pairs},
    {.add = add_batch, .value = batch_std, .fits = are_pairs},
};

static ls_metric *make(const char *call, ls_metric *of, const char *behind, bool population, int row) {
    ls_metric *rule = ls_metric_take_mean(call, of, "", behind);
    if (rule != NULL) {
        rule->aggregate = rule->kind->elements != NULL ? &of_elements[row] : &of_batches[row];
        rule->width = rule->aggregate->width;
        rule->population = population;
    }
    return rule;
}

ls_metric *ls_metric_var(ls_metric *of, bool population) {
    return make("ls_metric_var", of, "_var", population, 0);
}

ls_metric *ls_metric_std(ls_metric *of, bool population) {
    return make("ls_metric_std", of, "_std", population, 1);
}
