/* The criterion's loss: a mean over the samples of a batch. */
#include "train/metrics/metric.h"

static ls_tensor *ask(ls_measure *measure, const ls_trial_state *state) {
    if (state->loss == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_trial: metric \"%s\": the step has set no loss", measure->rule->name);
    }
    if (ls_numel(state->loss) != 1) {
        return ls_fail_null(LS_ERR_SHAPE, "ls_trial: the criterion's loss must be one number, not %lld",
                            (long long)ls_numel(state->loss));
    }
    return state->loss;
}

static ls_status mean(const ls_measure *measure, ls_batch_numbers *batch) {
    batch->weight = (double)batch->state->count;
    batch->sum = measure->asked[0] * batch->weight;
    return LS_OK;
}

const ls_metric_kind ls_kind_loss = {.name = "loss", .aggregate = &ls_aggregate_mean, .ask = ask, .mean = mean};
