/* Runs: epochs of training and validation. */
#include <stdio.h>

#include "comm/meter.h"
#include "comm/public_call.h"
#include "data/loader.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel/outer.h"
#include "train/agree.h"
#include "train/alike.h"
#include "train/budget.h"
#include "train/checkpoint/checkpoint.h"
#include "train/pass.h"
#include "train/progress.h"
#include "train/replicas.h"
#include "train/setup.h"

/* If the trial resumes from a checkpoint within an epoch, that epoch has already begun. */
static ls_status begin_epoch(ls_trial *trial) {
    if (trial->continues) {
        ls_trial_enter(trial, LS_PHASE_TRAINING, trial->options.train);
        return LS_OK;
    }
    ls_trial_expect(trial, LS_PHASE_TRAINING, trial->options.train, trial->options.train_steps);
    LS_TRY(LS_CALL(trial, on_start_epoch));
    ls_trial_enter(trial, LS_PHASE_TRAINING, trial->options.train);
    LS_TRY(LS_CALL(trial, on_start_training));
    return ls_trial_agree(trial, LS_OK);
}

/* Returns a pass of an epoch of the run, with the label "0/3(t)" or "0/3(v)". */
static ls_trial_pass make_pass(const ls_trial *trial, bool training, char label[LS_LABEL_LIMIT],
                               ls_history_entry *entry) {
    const ls_trial_options *options = &trial->options;
    snprintf(label, LS_LABEL_LIMIT, "%lld/%lld(%c)", (long long)trial->state.epoch, (long long)trial->state.epochs,
             training ? 't' : 'v');
    return (ls_trial_pass){.loader = training ? options->train : options->validate,
                           .phase = training ? LS_PHASE_TRAINING : LS_PHASE_VALIDATION,
                           .steps = training ? options->train_steps : options->validate_steps,
                           .step = training ? ls_trial_training_step : ls_trial_validation_step,
                           .label = label,
                           .prefix = training ? "" : "val_",
                           .entry = entry};
}

static ls_status train(ls_trial *trial, ls_history_entry *entry) {
    char label[LS_LABEL_LIMIT];
    const ls_trial_pass pass = make_pass(trial, true, label, entry);
    const int64_t before = trial->state.step;
    ls_trial_watch_begin(trial);
    LS_TRY(ls_trial_outer_begin(trial));
    LS_TRY(ls_trial_train_pass(trial, &pass));
    if (trial->state.step == before && trial->state.batch == 0 && !ls_trial_has_ended(trial)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_run: the training loader returned no batch");
    }
    entry->train_steps = trial->state.batch;
    LS_TRY(ls_trial_outer_sync(trial));
    return LS_CALL(trial, on_end_training);
}

static ls_status validate_model(ls_trial *trial, ls_history_entry *entry) {
    char label[LS_LABEL_LIMIT];
    const ls_trial_pass pass = make_pass(trial, false, label, entry);
    ls_trial_enter(trial, LS_PHASE_VALIDATION, pass.loader);
    ls_trial_expect(trial, LS_PHASE_VALIDATION, pass.loader, pass.steps);
    LS_TRY(LS_CALL(trial, on_start_validation));
    LS_TRY(ls_trial_measure_pass(trial, &pass));
    entry->validate_steps = trial->state.batch;
    return LS_CALL(trial, on_end_validation);
}

/* Validates in evaluation mode, and restores the modes. */
static ls_status validate(ls_trial *trial, ls_history_entry *entry) {
    ls_modes modes;
    LS_TRY(ls_modes_take(&modes, trial->state.model));
    ls_module_train(trial->state.model, false);
    const ls_status status = validate_model(trial, entry);
    ls_modes_put(&modes, trial->state.model);
    return status;
}

/* Runs the validation and the hooks after the training of an epoch. */
static ls_status end_epoch(ls_trial *trial, ls_history_entry *entry) {
    if (trial->options.validate != NULL) {
        LS_TRY(validate(trial, entry));
    }
    ls_trial_enter(trial, LS_PHASE_NONE, NULL);
    LS_TRY(ls_history_append(&trial->history, entry));
    trial->epochs_run++;
    ls_progress_epoch(trial);
    LS_TRY(LS_CALL(trial, on_end_epoch));
    return LS_CALL(trial, on_checkpoint);
}

/* If training stops within an epoch, the epoch has no validation and is not in the history, as in torchbearer. */
static ls_status run_epoch(ls_trial *trial) {
    ls_history_entry entry = {.count = 0};
    LS_TRY(begin_epoch(trial));
    LS_TRY(train(trial, &entry));
    LS_TRY(ls_trial_agree(trial, LS_OK)); /* a hook on one rank may have stopped the run after the last step */
    const bool whole = !trial->state.stop;
    LS_TRY(whole ? end_epoch(trial, &entry) : LS_OK);
    LS_TRY(ls_trial_watch_epoch(trial));
    LS_TRY(ls_trial_check_replicas(trial));
    return whole ? ls_trial_end_of_step(trial, true) : LS_OK;
}

/* A trial that resumes after its last step, within an epoch, must still finish this epoch. */
static bool has_more(const ls_trial *trial) {
    return trial->continues || !ls_trial_has_ended(trial);
}

/* Checks that the borrowed objects have not been freed. */
static ls_status check_borrowed(const ls_trial *trial) {
    const char *const call = "ls_trial_run";
    const ls_trial_options *options = &trial->options;
    const bool here = ls_module_is_here(options->model) && ls_loader_is_here(call, options->train) &&
                      (options->validate == NULL || ls_loader_is_here(call, options->validate));
    LS_TRY(here ? LS_OK : LS_ERR_STATE);
    LS_TRY(options->outer != NULL ? ls_outer_check_here(call, options->outer) : LS_OK);
    LS_TRY(options->grad_scaler != NULL ? ls_grad_scaler_check_here(call, options->grad_scaler) : LS_OK);
    return options->optimizer != NULL ? ls_optimizer_check_here(call, options->optimizer) : LS_OK;
}

static ls_status run_epochs(ls_trial *trial, int64_t epochs) {
    LS_TRY(ls_trial_begin_agreeing(trial));
    LS_TRY(check_borrowed(trial));
    if (!trial->continues) { /* drop results of an interrupted epoch: an older checkpoint may be loaded */
        ls_metrics_begin(trial, NULL, false);
    }
    LS_TRY(ls_trial_check_alike(trial));
    LS_TRY(ls_trial_check_setup(trial));
    LS_TRY(ls_trial_check_memory(trial));
    LS_TRY(ls_checkpoints_begin(trial));
    if (!ls_module_is_training(trial->state.model)) { /* otherwise layers in evaluation mode keep their mode */
        ls_module_train(trial->state.model, true);
    }
    trial->started = true;
    LS_TRY(LS_CALL(trial, on_start));
    LS_TRY(ls_trial_agree(trial, LS_OK));
    LS_TRY(ls_trial_check_replicas(trial));
    LS_TRY(ls_checkpoints_overwrite(trial));
    ls_progress_begin_run(trial);
    while (trial->epochs_run < epochs && has_more(trial)) {
        trial->state.epoch = trial->epochs_run;
        LS_TRY(run_epoch(trial));
    }
    ls_progress_end_run(trial);
    LS_TRY(ls_checkpoints_finish(trial));
    ls_trial_enter(trial, LS_PHASE_NONE, NULL); /* a run that stopped in training is still in this phase */
    return LS_CALL(trial, on_end);
}

void ls_trial_note_end(ls_trial *trial, ls_run_end *end) {
    *end = (ls_run_end){.next = trial->ends};
    trial->ends = end;
}

/* Tells callbacks when the run has ended, because a failed run does not call on_end. */
static void note_ends(ls_trial *trial) {
    while (trial->ends != NULL) {
        ls_run_end *end = trial->ends;
        trial->ends = end->next;
        *end = (ls_run_end){.time = ls_clock_ns(), .communication = ls_comm_metered.nanoseconds};
    }
}

ls_status ls_trial_run(ls_trial *trial, int64_t epochs) {
    if (trial == NULL) {
        return ls_fail_missing("ls_trial_run: the trial");
    }
    LS_TRY(ls_trial_check_here("ls_trial_run", trial));
    if (trial->options.train == NULL) {
        return ls_fail_missing("ls_trial_run: the loader of training data (.train)");
    }
    if (trial->options.optimizer == NULL && trial->options.step == NULL) {
        return ls_fail_missing("ls_trial_run: the trial has no user step (.step), and its .optimizer");
    }
    if (ls_trial_is_busy(trial)) {
        return ls_fail(LS_ERR_STATE, "ls_trial_run: the trial is %s: a hook or a user step cannot start another run",
                       trial->in_on_init ? "being created"
                       : trial->running  ? "in a run"
                                         : "in an evaluation or prediction");
    }
    if (epochs < 0) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_run: epochs is %lld, but must not be negative", (long long)epochs);
    }
    LS_TRY(ls_memory_watch_begin("ls_trial_run", &trial->memory));
    trial->state.epochs = epochs;
    trial->state.stop = trial->stopped;
    trial->stopped = false;
    trial->state.save = false;
    trial->running = true;
    trial->memory_checked = false;
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_TRIAL_RUN);
    const ls_status status = ls_public_end(outer, ls_trial_agree_at_end(trial, run_epochs(trial, epochs)));
    ls_memory_watch_end(&trial->memory);
    trial->running = false;
    if (trial->started) {
        trial->started = false;
        note_ends(trial);
    }
    ls_trial_watch_end(trial);
    ls_checkpoints_end(trial);
    ls_trial_enter(trial, LS_PHASE_NONE, NULL);
    return status;
}
