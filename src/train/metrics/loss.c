/*
 * The loss of the criterion: the mean over samples of the losses of global batches.
 * - The loss of a global batch is the mean of the losses of its shares, weighted by the criterion's divisor.
 * - If the divisor is the number of samples, shares are summed in the same way as batches.
 * - If the criterion is a sum over samples, the loss of a global batch is the sum over its shares.
 * - Otherwise the loss of a batch is unknown until the ranks exchange their numbers at the end of the pass, so each
 *   batch has its own row.
 * - If no target of a share counts, its loss is NaN, and the share adds nothing. If no target of a batch counts, the
 *   batch is ignored.
 */
#include <math.h>

#include "tensor/tensor.h"
#include "train/metrics/metric.h"

/* ---- a batch ----------------------------------------------------------------------------------------------------- */

/* The fetched numbers: the loss, and its divisor if there is one. */
enum { LOSS, DIVISOR, ASKED };

static ls_tensor *as_number(ls_tensor *x) {
    return ls_reshape(ls_to(x, LS_F64), LS_SCALAR);
}

static ls_tensor *ask(const ls_metric *metric, const ls_trial_state *state) {
    ls_tensor *divisor = state->trial->divisor.least;
    if (state->loss == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_trial: metric \"%s\": the step has set no loss", metric->name);
    }
    if (ls_numel(state->loss) != 1) {
        return ls_fail_null(LS_ERR_SHAPE, "ls_trial: the criterion's loss must be one number, not %lld",
                            (long long)ls_numel(state->loss));
    }
    return divisor == NULL ? state->loss
                           : ls_stack((ls_tensor *[]){as_number(state->loss), as_number(divisor)}, ASKED, 0);
}

static ls_status measure(const ls_metric *metric, ls_batch_numbers *batch) {
    const double samples = (double)batch->state->count;
    const bool noted = batch->asked_count == ASKED;
    const double divisor = noted ? batch->asked[DIVISOR] : samples;
    const bool apart = noted && batch->state->trial->metrics->parts > 1; /* ranks or slices */
    (void)metric;
    batch->samples = apart ? samples : 0;
    batch->weight = divisor == 0 || apart ? divisor : samples;
    const double factor = noted ? batch->weight : ls_trial_loss_samples(batch->state->trial);
    batch->sum = divisor == 0 ? 0 : batch->asked[LOSS] * factor;
    return LS_OK;
}

const ls_batch_mean ls_mean_of_loss = {.ask = ask, .measure = measure};

/* ---- a pass ------------------------------------------------------------------------------------------------------ */

/* Sum and weight of the batches that are summed, followed by one row per batch. */
enum { SUM, WEIGHT, HEAD };
enum { ROW_SAMPLES = HEAD, ROW };

static ls_status update(ls_tally *tally, const ls_batch_numbers *batch) {
    size_t at = 0;
    if (batch->samples != 0) {
        at = HEAD + ROW * (size_t)batch->state->batch;
        LS_TRY(tally->count < at + ROW ? ls_tally_resize(tally, at + ROW) : LS_OK);
        tally->items[at + ROW_SAMPLES] += batch->samples;
    }
    tally->items[at + SUM] += batch->sum;
    tally->items[at + WEIGHT] += batch->weight;
    return LS_OK;
}

static double result(const ls_tally *tally) {
    double all[HEAD] = {tally->items[SUM], tally->items[WEIGHT]};
    for (const double *row = tally->items + HEAD; row < tally->items + tally->count; row += ROW) {
        if (row[WEIGHT] != 0) {
            all[SUM] += row[ROW_SAMPLES] * (row[SUM] / row[WEIGHT]);
            all[WEIGHT] += row[ROW_SAMPLES];
        }
    }
    return ls_mean_of_numbers(all);
}

const ls_metric_type ls_type_loss = {
    .width = HEAD, .unit = ROW, .grows = true, .is_mean = true, .update = update, .result = result};
