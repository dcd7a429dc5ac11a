/* Errors of numbers: the mean of their squares, its root, the mean of their sizes, and how much is explained. */
#include <math.h>

#include "tensor/tensor.h"
#include "train/metrics/answers.h"

/* In double precision: of what the output is too large, the size of the target. */
static ls_tensor *errors_of(const ls_measure *measure, const ls_trial_state *state) {
    return ls_answers_are_numbers(measure, state)
               ? ls_sub(ls_to(ls_reshape(state->output, ls_shape_of(state->target)), LS_F64),
                        ls_to(state->target, LS_F64))
               : NULL;
}

static ls_tensor *squares(const ls_measure *measure, const ls_trial_state *state, ls_tensor **kept) {
    (void)kept;
    return ls_square(errors_of(measure, state));
}

static ls_tensor *sizes(const ls_measure *measure, const ls_trial_state *state, ls_tensor **kept) {
    (void)kept;
    return ls_abs(errors_of(measure, state));
}

/* ---- r2 ----------------------------------------------------------------------------------------------------------
 *
 * 1 - (sum of squared errors) / (sum of squared differences of the targets from their mean): of each number that a
 * sample has, and the mean of those, as scikit-learn's r2_score has it. Each has four numbers: the squared errors, and
 * count, mean and scatter of the targets.
 */
enum { ERRORS = 0, TARGETS, R2_NUMBERS = TARGETS + LS_MOMENTS };

/* Three rows: squared errors, sums of targets, their scatter. */
static ls_tensor *ask_r2(ls_measure *measure, const ls_trial_state *state) {
    ls_tensor *errors = errors_of(measure, state);
    if (errors == NULL) {
        return NULL;
    }
    const ls_shape columns = LS_SHAPE(ls_size(state->output, 0), -1);
    ls_tensor *targets = ls_reshape(ls_to(state->target, LS_F64), columns);
    ls_tensor *apart = ls_sub(targets, ls_mean_axes(targets, LS_AXES(0), true));
    ls_tensor *rows[] = {ls_sum_axes(ls_square(ls_reshape(errors, columns)), LS_AXES(0), false),
                         ls_sum_axes(targets, LS_AXES(0), false), ls_sum_axes(ls_square(apart), LS_AXES(0), false)};
    return ls_stack(rows, 3, 0);
}

static ls_status add_r2(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch) {
    const size_t columns = (size_t)measure->asked_count / 3;
    if (batch->state->count == 0) {
        return LS_OK;
    }
    LS_TRY(ls_numbers_settle(measure, numbers, R2_NUMBERS * columns, batch->state));
    const double samples = (double)ls_size(batch->state->output, 0);
    for (size_t i = 0; i < columns; i++) {
        double *column = numbers->items + R2_NUMBERS * i;
        column[ERRORS] += measure->asked[i];
        ls_moments_add(column + TARGETS, samples, measure->asked[columns + i] / samples,
                       measure->asked[2 * columns + i]);
    }
    return LS_OK;
}

/* Where all targets are alike there is nothing to explain: 1 where all are met, else 0. Of one sample it means nothing.
 */
static double explained(double errors, const double targets[LS_MOMENTS]) {
    return targets[0] < 2 ? (double)NAN : targets[2] != 0 ? 1 - errors / targets[2] : errors == 0;
}

static double r2(const ls_measure *measure, double *numbers, size_t count) {
    const size_t width = measure->width > 0 ? (size_t)measure->width : count;
    double sum = 0;
    for (size_t column = 0; column < width; column += R2_NUMBERS) {
        double errors = 0;
        double targets[LS_MOMENTS] = {0};
        for (size_t i = column; i < count; i += width) {
            errors += numbers[i + ERRORS];
            ls_moments_add(targets, numbers[i + TARGETS], numbers[i + TARGETS + 1], numbers[i + TARGETS + 2]);
        }
        sum += explained(errors, targets);
    }
    return width > 0 ? sum / (double)(width / R2_NUMBERS) : (double)NAN;
}

static bool fits_r2(const ls_metric *rule, const double *numbers, size_t count) {
    (void)rule;
    (void)numbers;
    return count % R2_NUMBERS == 0;
}

static void join_r2(double *numbers, const double *of, size_t count, bool nothing) {
    for (size_t i = 0; i < count && !nothing; i += R2_NUMBERS) {
        numbers[i + ERRORS] += of[i + ERRORS];
        ls_moments_add(numbers + i + TARGETS, of[i + TARGETS], of[i + TARGETS + 1], of[i + TARGETS + 2]);
    }
}

static const ls_aggregate by_r2 = {
    .together = LS_APART, .settles = true, .add = add_r2, .value = r2, .fits = fits_r2, .join = join_r2};

/* ---- the rows ---------------------------------------------------------------------------------------------------- */

const ls_metric_kind ls_kind_mse = {.name = "mse", .aggregate = &ls_aggregate_mean, .elements = squares};
const ls_metric_kind ls_kind_mae = {.name = "mae", .aggregate = &ls_aggregate_mean, .elements = sizes};
const ls_metric_kind ls_kind_rmse = {.name = "rmse", .aggregate = &ls_aggregate_root_mean, .elements = squares};
const ls_metric_kind ls_kind_r2 = {.name = "r2", .aggregate = &by_r2, .ask = ask_r2};
