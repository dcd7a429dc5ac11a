/* Replays the history through callbacks. */
#include <string.h>

#include "train/pass.h"

/*
 * Restores the results of a pass: the entries in the epoch whose names consist of `prefix` and the name of a metric. An
 * epoch may also contain results of evaluations.
 */
static void recall(ls_trial *trial, const ls_history_entry *entry, const char *prefix) {
    const size_t length = strlen(prefix);
    trial->latest.count = 0;
    for (int i = 0; i < entry->count; i++) {
        const char *name = entry->values[i].name;
        if (strncmp(name, prefix, length) == 0 && ls_metrics_has(trial, name + length)) {
            trial->latest.values[trial->latest.count++] = entry->values[i];
        }
    }
}

static void expect(ls_trial *trial, int64_t batches) {
    trial->state.batch = 0;
    trial->state.batches = batches;
}

static ls_status replay_training(ls_trial *trial, int64_t batches) {
    ls_trial_state *state = &trial->state;
    LS_TRY(LS_CALL(trial, on_start_training));
    for (state->batch = 0; state->batch < batches && !state->stop; state->batch++) {
        LS_TRY(LS_CALL(trial, on_sample));
        LS_TRY(LS_CALL(trial, on_forward));
        LS_TRY(LS_CALL(trial, on_criterion));
        LS_TRY(LS_CALL(trial, on_backward));
        state->step++;
        LS_TRY(LS_CALL(trial, on_step_training));
    }
    return LS_CALL(trial, on_end_training);
}

static ls_status replay_validation(ls_trial *trial, int64_t batches) {
    ls_trial_state *state = &trial->state;
    expect(trial, batches);
    LS_TRY(LS_CALL(trial, on_start_validation));
    for (state->batch = 0; state->batch < batches && !state->stop; state->batch++) {
        LS_TRY(LS_CALL(trial, on_sample_validation));
        LS_TRY(LS_CALL(trial, on_forward_validation));
        LS_TRY(LS_CALL(trial, on_criterion_validation));
        LS_TRY(LS_CALL(trial, on_step_validation));
    }
    return LS_CALL(trial, on_end_validation);
}

static ls_status replay_epoch(ls_trial *trial, const ls_history_entry *entry, bool one_batch) {
    const int64_t batches = one_batch && entry->train_steps > 1 ? 1 : entry->train_steps;
    expect(trial, batches);
    LS_TRY(LS_CALL(trial, on_start_epoch));
    recall(trial, entry, "");
    LS_TRY(replay_training(trial, batches));
    if (entry->validate_steps > 0 && !trial->state.stop) {
        recall(trial, entry, "val_");
        LS_TRY(replay_validation(trial, one_batch ? 1 : entry->validate_steps));
    }
    trial->latest = *entry;
    return LS_CALL(trial, on_end_epoch);
}

static ls_status replay(ls_trial *trial, bool one_batch) {
    ls_trial_state *state = &trial->state;
    LS_TRY(LS_CALL(trial, on_start));
    for (int64_t i = 0; i < trial->history.count && !state->stop; i++) {
        ls_history_entry entry;
        ls_history_entry_of(&trial->history, i, &entry);
        state->epoch = i;
        LS_TRY(replay_epoch(trial, &entry, one_batch));
    }
    return LS_CALL(trial, on_end);
}

static ls_status check(const ls_trial *trial, ls_callback *const *callbacks, int count) {
    const char *const call = "ls_trial_replay";
    if (trial == NULL) {
        return ls_fail_missing("%s: the trial", call);
    }
    LS_TRY(ls_trial_check_here(call, trial));
    if (ls_trial_is_busy(trial)) {
        return ls_fail(LS_ERR_STATE, "%s: called by a hook or a user step of the trial: call it between runs", call);
    }
    LS_TRY(ls_callbacks_check_list(call, callbacks, count));
    for (int i = 0; i < count; i++) {
        LS_TRY(callbacks[i] != NULL ? ls_callback_check_here(call, callbacks[i], i)
                                    : ls_fail_missing("%s: callback %d", call, i));
    }
    return LS_OK;
}

ls_status ls_trial_replay(ls_trial *trial, ls_callback *const *callbacks, int count, bool one_batch) {
    LS_TRY(check(trial, callbacks, count));
    const ls_trial_state state = trial->state;
    const ls_history_entry latest = trial->latest;
    ls_callback *const *own = trial->callbacks;
    const int own_count = trial->options.callback_count;
    trial->callbacks = callbacks;
    trial->options.callback_count = count;
    trial->running = true;
    trial->state.stop = false;
    trial->state.epochs = trial->history.count;
    trial->state.step = 0;
    trial->state.first = trial->state.count = trial->state.global_count = 0;
    ls_trial_enter(trial, LS_PHASE_REPLAY, NULL);
    const ls_status status = replay(trial, one_batch);
    trial->callbacks = own;
    trial->options.callback_count = own_count;
    trial->running = false;
    trial->latest = latest;
    trial->state = state;
    return status;
}
