/* Evaluation and prediction: one pass over a loader, between runs or, if a hook requests it, within a run. */
#include "train/pass.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "comm/public_call.h"
#include "data/loader.h"
#include "nn/module.h"
#include "parallel/slices.h"
#include "train/agree.h"
#include "train/replicas.h"
#include "train/setup.h"

static ls_status pass_with_hooks(ls_trial *trial, const ls_trial_pass *pass) {
    ls_trial_expect(trial, pass->phase, pass->loader, pass->steps);
    LS_TRY(LS_CALL(trial, on_start));
    LS_TRY(LS_CALL(trial, on_start_epoch));
    ls_trial_enter(trial, pass->phase, pass->loader);
    ls_module_train(trial->state.model, false); /* hooks that freeze layers may have set training mode */
    LS_TRY(LS_CALL(trial, on_start_validation));
    LS_TRY(ls_trial_measure_pass(trial, pass));
    LS_TRY(LS_CALL(trial, on_end_validation));
    ls_trial_enter(trial, LS_PHASE_NONE, NULL);
    LS_TRY(LS_CALL(trial, on_end_epoch));
    return LS_CALL(trial, on_end);
}

/* Runs a pass for a hook within ls_trial_new, a run or an evaluation, which continues afterwards. */
static ls_status pass_within_another(ls_trial *trial, const ls_trial_pass *pass) {
    const int hooks = trial->options.callback_count;
    trial->options.callback_count = 0;
    ls_trial_enter(trial, pass->phase, pass->loader);
    const ls_status status = ls_trial_measure_pass(trial, pass);
    trial->options.callback_count = hooks;
    return status;
}

/* Runs a pass between runs. The next run of the trial may start within an epoch. */
static ls_status pass_between_runs(ls_trial *trial, const ls_trial_pass *pass) {
    trial->state.epoch = 0;
    trial->state.epochs = 1;
    trial->state.stop = false;
    trial->measuring = true;
    ls_status status = ls_trial_begin_agreeing(trial);
    status = ls_trial_agree_at_end(trial, status == LS_OK ? pass_with_hooks(trial, pass) : status);
    trial->measuring = false;
    return status;
}

/* Ranks have different numbers of slices, but a pass is collective. */
static ls_status refuse_in_slice(const ls_trial *trial, const ls_trial_pass *pass) {
    const ls_slices *slices = ls_data_parallel_slices(trial->state.model);
    return slices == NULL || slices->running < 0
               ? LS_OK
               : ls_fail(LS_ERR_STATE,
                         "ls_trial_%s: called by a hook that runs once for each slice, because the data-parallel "
                         "module has .shards: call it in another hook, such as on_step_training or on_end_validation",
                         pass->phase == LS_PHASE_PREDICTION ? "predict" : "evaluate");
}

/* Without a communicator, the trial cannot combine the results of the ranks. */
static void warn_of_shares(ls_trial *trial, const ls_trial_pass *pass) {
    const int ranks = ls_loader_ranks(pass->loader);
    if (trial->state.comm == NULL && ranks > 1 && ls_loader_share(pass->loader) == 0 && !trial->shares_reported) {
        trial->shares_reported = true;
        ls_log_write(
            LS_LOG_WARNING,
            "%s: the loader divides its samples over %d ranks, but the trial has no communicator, so each rank "
            "gets the results of its own samples only: set .comm of ls_trial_options",
            pass->phase == LS_PHASE_PREDICTION ? "ls_trial_predict" : "ls_trial_evaluate", ranks);
    }
}

ls_status ls_trial_evaluation_pass(ls_trial *trial, const ls_trial_pass *pass) {
    LS_TRY(refuse_in_slice(trial, pass));
    warn_of_shares(trial, pass);
    LS_TRY(ls_trial_check_stages(pass->phase == LS_PHASE_PREDICTION ? "ls_trial_predict" : "ls_trial_evaluate",
                                 "loader", trial, pass->loader));
    const ls_trial_state state = trial->state;
    const ls_progress progress = trial->progress;
    const ls_batch *batch = trial->batch;
    const bool continues = trial->continues;
    const ls_loss_divisor divisor = trial->divisor;
    ls_modes modes;
    LS_TRY(ls_modes_take(&modes, state.model));
    if (ls_metrics_push(trial) != LS_OK) {
        ls_modes_put(&modes, state.model);
        return ls_error_status();
    }
    ls_module_train(state.model, false);
    trial->continues = false;
    trial->divisor = (ls_loss_divisor){.least = NULL};
    /* If a pass inside another pass fails, the hook that started it gets the error. */
    const ls_status status =
        ls_trial_is_busy(trial) ? pass_within_another(trial, pass) : pass_between_runs(trial, pass);
    ls_metrics_pop(trial);
    ls_modes_put(&modes, state.model);
    trial->batch = batch;
    trial->continues = continues;
    trial->progress = progress;
    trial->divisor = divisor;
    trial->state = state;
    return status;
}

static ls_status check(ls_trial *trial, const ls_loader *loader, const char *label) {
    if (trial == NULL || loader == NULL || label == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_evaluate: the trial, the loader or the label is NULL");
    }
    LS_TRY(ls_trial_check_here("ls_trial_evaluate", trial));
    if (trial->options.criterion == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_evaluate: the trial has no criterion");
    }
    if (!ls_text_is_utf8(label)) { /* as in files */
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_evaluate: the label \"%s\" is not UTF-8", label);
    }
    if (strlen(label) + 1 + ls_metrics_longest(trial) + 1 > LS_METRIC_NAME_LIMIT) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_trial_evaluate: the label \"%s\" is too long: a label and a metric's name together may have "
                       "at most %d bytes",
                       label, LS_METRIC_NAME_LIMIT - 2);
    }
    return ls_trial_check_loader("ls_trial_evaluate", trial, loader);
}

ls_status ls_trial_evaluate(ls_trial *trial, ls_loader *loader, const char *label) {
    LS_TRY(check(trial, loader, label));
    char prefix[LS_METRIC_NAME_LIMIT];
    snprintf(prefix, sizeof prefix, "%s_", label);
    ls_history_entry results = {.count = 0};
    const ls_trial_pass pass = {.loader = loader,
                                .phase = LS_PHASE_EVALUATION,
                                .steps = trial->options.evaluate_steps,
                                .step = ls_trial_validation_step,
                                .label = label,
                                .prefix = prefix,
                                .entry = &results};
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_TRIAL_EVALUATE);
    LS_TRY(ls_public_end(outer, ls_trial_evaluation_pass(trial, &pass)));
    /* The results belong to the last epoch in the history, as in torchbearer. */
    return ls_trial_is_busy(trial) ? LS_OK : ls_history_extend(&trial->history, &results);
}
