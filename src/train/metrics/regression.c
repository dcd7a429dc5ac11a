/* Regression errors: "mse", "rmse", "mae" and "r2". */
#include <math.h>

#include "tensor/tensor.h"
#include "train/metrics/answers.h"

/* Returns output - target in f64, in the shape of the target. */
static ls_tensor *errors_of(const ls_metric *metric, const ls_trial_state *state) {
    return ls_answers_are_numbers(metric, state)
               ? ls_sub(ls_to(ls_reshape(state->output, ls_shape_of(state->target)), LS_F64),
                        ls_to(state->target, LS_F64))
               : NULL;
}

static ls_tensor *squares(const ls_metric *metric, const ls_trial_state *state, ls_tensor **kept) {
    (void)kept;
    return ls_square(errors_of(metric, state));
}

static ls_tensor *sizes(const ls_metric *metric, const ls_trial_state *state, ls_tensor **kept) {
    (void)kept;
    return ls_abs(errors_of(metric, state));
}

/* ---- r2 ----------------------------------------------------------------------------------------------------------
 *
 * 1 - (sum of squared errors) / (sum of squared differences of the targets from their mean), for each column of a
 * sample, averaged over columns, like scikit-learn's r2_score. A column has four numbers: the sum of squared errors,
 * and the count, mean and scatter of the targets. */
enum { ERRORS = 0, TARGETS, R2_NUMBERS = TARGETS + LS_MOMENTS };

/*
 * Returns three rows: squared errors, means of targets, and the scatter of targets. Means and scatters are computed
 * from differences to the first target. These differences are exactly 0 if all targets are equal.
 */
static ls_tensor *ask_r2(const ls_metric *metric, const ls_trial_state *state) {
    ls_tensor *errors = errors_of(metric, state);
    if (errors == NULL) {
        return NULL;
    }
    const ls_shape columns = LS_SHAPE(ls_size(state->output, 0), -1);
    ls_tensor *targets = ls_reshape(ls_to(state->target, LS_F64), columns);
    ls_tensor *first = ls_narrow(targets, 0, 0, 1), *apart = ls_sub(targets, first);
    ls_tensor *mean = ls_mean_axes(apart, LS_AXES(0), true);
    ls_tensor *rows[] = {ls_sum_axes(ls_square(ls_reshape(errors, columns)), LS_AXES(0), false),
                         ls_reshape(ls_add(first, mean), LS_SHAPE(-1)),
                         ls_sum_axes(ls_square(ls_sub(apart, mean)), LS_AXES(0), false)};
    return ls_stack(rows, 3, 0);
}

static ls_status add_r2(ls_tally *tally, const ls_batch_numbers *batch) {
    const size_t columns = (size_t)batch->asked_count / 3;
    if (batch->state->count == 0) {
        return LS_OK;
    }
    LS_TRY(ls_tally_settle(tally, R2_NUMBERS * columns, batch->state));
    const double samples = (double)ls_size(batch->state->output, 0);
    for (size_t i = 0; i < columns; i++) {
        double *column = tally->items + R2_NUMBERS * i;
        column[ERRORS] += batch->asked[i];
        ls_moments_add(column + TARGETS, samples, batch->asked[columns + i], batch->asked[2 * columns + i]);
    }
    return LS_OK;
}

static ls_status merge_r2(ls_tally *tally, const double *other, size_t count) {
    LS_TRY(tally->count < count ? ls_tally_resize(tally, count) : LS_OK);
    for (size_t i = 0; i < count; i += R2_NUMBERS) {
        const double *targets = other + i + TARGETS;
        tally->items[i + ERRORS] += other[i + ERRORS];
        ls_moments_add(tally->items + i + TARGETS, targets[0], targets[1], targets[2]);
    }
    return LS_OK;
}

/* If all targets are equal, returns 1 if all outputs are exact, otherwise 0. Returns NAN if there is only one
 * sample. */
static double explained(double errors, const double targets[LS_MOMENTS]) {
    return targets[0] < 2 ? (double)NAN : targets[2] != 0 ? 1 - errors / targets[2] : errors == 0;
}

static double r2(const ls_tally *tally) {
    double sum = 0;
    for (size_t i = 0; i < tally->count; i += R2_NUMBERS) {
        sum += explained(tally->items[i + ERRORS], tally->items + i + TARGETS);
    }
    return tally->count > 0 ? sum / (double)(tally->count / R2_NUMBERS) : (double)NAN;
}

const ls_metric_type ls_type_r2 = {
    .unit = R2_NUMBERS, .settles = true, .ask = ask_r2, .update = add_r2, .merge = merge_r2, .result = r2};

/* ------------------------------------------------------------------------------------------------------------------ */

const ls_batch_mean ls_mean_of_squares = {.elements = squares};
const ls_batch_mean ls_mean_of_sizes = {.elements = sizes};
