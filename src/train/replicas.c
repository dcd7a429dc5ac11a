#include "train/replicas.h"

#include "parallel/outer.h"
#include "parallel/parallel.h"

ls_status ls_trial_check_outer(const ls_trial_options *options) {
    if (options->outer == NULL || ls_outer_model(options->outer) == options->model) {
        return LS_OK;
    }
    return ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: .outer was made for another model: pass the trial's .model to "
                                    "ls_outer_new");
}

ls_status ls_trial_outer_begin(const ls_trial *trial) {
    return trial->options.outer != NULL ? ls_outer_restart(trial->options.outer) : LS_OK;
}

ls_status ls_trial_outer_step(const ls_trial *trial) {
    return trial->options.outer != NULL ? ls_outer_step(trial->options.outer) : LS_OK;
}

ls_status ls_trial_outer_sync(const ls_trial *trial) {
    return trial->options.outer != NULL ? ls_outer_sync(trial->options.outer) : LS_OK;
}

bool ls_trial_awaits_outer_step(const ls_trial *trial) {
    return trial->options.outer != NULL && ls_outer_is_between(trial->options.outer);
}

ls_status ls_trial_check_replicas(const ls_trial *trial) {
    return trial->options.outer != NULL ? ls_outer_check(trial->options.outer) : ls_replicas_check(trial->state.model);
}
