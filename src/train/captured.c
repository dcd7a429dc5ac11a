/*
 * The captured step of a trial. The first batch is copied into tensors of the trial, and the step on these tensors is
 * captured. For each further batch of these shapes, its elements are copied into the same tensors, and the step is
 * replayed. A batch of other shapes runs the step as usual.
 *
 * - If the checks of a replay fail, for example because a hook has changed the mode of a layer, the step is captured
 *   again. A capture is a complete step, so each batch trains exactly once.
 * - If a batch has more samples than the captured batch, the step is captured again, because the first batch may be the
 *   smaller last batch of an epoch.
 * - If the step cannot be captured, all steps run as usual from then on.
 */
#include "train/captured.h"

#include <stdio.h>

#include "autograd/captured_step.h"
#include "tensor/tensor.h"

enum { CAPTURES = 3 }; /* captures in a row, without a replay between them, after which the trial stops capturing */

/* Logs why rank 0 cannot capture the step. The other ranks log nothing, because usually all ranks have the same
 * reason. */
static void log_once(const ls_trial *trial, const char *what, const char *why) {
    if (ls_trial_rank(&trial->state) == 0) {
        ls_log_write(LS_LOG_WARNING, "ls_trial_run: %s: %s", what, why);
    }
}

static void stop_capturing(ls_trial *trial, const char *why) {
    trial->capture.stopped = true;
    log_once(trial, "trains without .capture", why);
}

void ls_trial_refuse_capture(ls_trial *trial, const char *why) {
    if (!trial->capture.stopped) {
        stop_capturing(trial, why);
    }
}

void ls_trial_forget_capture(ls_trial *trial) {
    ls_trial_capture *capture = &trial->capture;
    ls_step_free(capture->step);
    capture->step = NULL;
    ls_tensor **const owned[] = {&capture->input, &capture->target, &capture->output, &capture->divisor};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        ls_tensor_drop(*owned[i]);
        *owned[i] = NULL;
    }
}

/* ---- obstacles --------------------------------------------------------------------------------------------------- */

const char *ls_callback_hook_within_step(const ls_callback *callback) {
    const ls_callback_hooks *hooks = &callback->hooks;
    return callback->captured            ? NULL
           : hooks->on_forward != NULL   ? "on_forward"
           : hooks->on_criterion != NULL ? "on_criterion"
           : hooks->on_backward != NULL  ? "on_backward"
                                         : NULL;
}

/* Returns whether a batch can be copied into tensors of the trial, and gives the same bits and gradients there. */
static bool can_be_copied(const ls_tensor *tensor) {
    return tensor == NULL || (tensor->contiguous && !tensor->needs_grad);
}

/* Writes into `why` why the step cannot be captured. Returns false if nothing is known. */
static bool find_obstacle(const ls_trial *trial, char why[LS_ERROR_CAPACITY]) {
    const ls_trial_state *state = &trial->state;
    for (int i = 0; i < trial->options.callback_count; i++) {
        const char *hook = ls_callback_hook_within_step(trial->callbacks[i]);
        if (hook != NULL) {
            char number[24];
            snprintf(why, LS_ERROR_CAPACITY, "the hook %s of %s needs the tensors of the step", hook,
                     ls_trial_callback_name(trial->callbacks[i], i, number));
            return true;
        }
    }
    if (state->input == NULL || !can_be_copied(state->input) || !can_be_copied(state->target)) {
        snprintf(why, LS_ERROR_CAPACITY, "the input or the target requires a gradient, or is not contiguous");
        return true;
    }
    return false;
}

/* ---- the tensors of the captured step ---------------------------------------------------------------------------- */

static bool has_shape_of(const ls_tensor *own, const ls_tensor *tensor) {
    return own == NULL || tensor == NULL ? own == tensor
                                         : own->dtype == tensor->dtype && ls_tensor_same_shape(own, tensor);
}

/* Copies a tensor of the batch. *copy is an owned tensor, or NULL before the first copy. */
static ls_status copy_batch(ls_tensor **copy, const ls_tensor *tensor) {
    if (tensor == NULL) {
        return LS_OK;
    }
    if (*copy == NULL) {
        *copy = ls_tensor_like_owned("ls_trial_run", tensor, (ls_dtype)tensor->dtype);
        LS_TRY(ls_made(*copy));
        (*copy)->scope = &ls_nowhere;
    }
    return ls_copy_into(*copy, tensor);
}

/* Keeps the memory of a tensor of the step, which every replay writes again. */
static ls_status keep(ls_tensor **kept, const ls_tensor *tensor) {
    if (tensor == NULL) {
        return LS_OK;
    }
    *kept = ls_step_view(tensor);
    return ls_made(*kept);
}

/* Gives the tensors of the latest run to the metrics and hooks after the step. */
static void show_results(ls_trial *trial) {
    const ls_trial_capture *capture = &trial->capture;
    trial->state.output = capture->output;
    trial->state.loss = (ls_tensor *)ls_step_result(capture->step);
    ls_tensor_drop(trial->divisor.least);
    trial->divisor.least = capture->divisor != NULL ? ls_tensor_hold(capture->divisor) : NULL;
    trial->divisor.is_sum = capture->is_sum;
}

/* ---- capture and replay ------------------------------------------------------------------------------------------ */

static ls_tensor *compute_step(void *user) {
    ls_trial *trial = user;
    ls_trial_capture *capture = &trial->capture;
    const bool computed = capture->compute(trial) == LS_OK && keep(&capture->output, trial->state.output) == LS_OK &&
                          keep(&capture->divisor, trial->divisor.least) == LS_OK;
    capture->is_sum = trial->divisor.is_sum;
    return computed ? trial->state.loss : NULL;
}

/* Captures the step on the batch. If that is impossible, the step has run nevertheless. */
static ls_status capture_step(ls_trial *trial) {
    ls_trial_capture *capture = &trial->capture;
    ls_trial_state *state = &trial->state;
    ls_tensor *const input = state->input, *const target = state->target;
    ls_trial_forget_capture(trial);
    LS_TRY(copy_batch(&capture->input, input));
    LS_TRY(copy_batch(&capture->target, target));
    capture->count = state->count;
    capture->model = state->model;
    capture->optimizer = state->optimizer;
    capture->criterion = state->criterion;
    capture->criterion_user = state->criterion_user;
    state->input = capture->input;
    state->target = capture->target;
    ls_saved_error refusal;
    capture->step = ls_step_capture_if_possible(compute_step, trial, &refusal);
    state->input = input;
    state->target = target;
    LS_TRY(ls_made(capture->step));
    if (!ls_step_is_captured(capture->step)) {
        stop_capturing(trial, refusal.message);
    }
    show_results(trial);
    return LS_OK;
}

static ls_status check_captured(const ls_trial *trial) {
    const ls_trial_capture *capture = &trial->capture;
    const ls_trial_state *state = &trial->state;
    const char *replaced = capture->model != state->model           ? "model"
                           : capture->optimizer != state->optimizer ? "optimizer"
                           : capture->criterion != state->criterion || capture->criterion_user != state->criterion_user
                               ? "criterion"
                               : NULL;
    return replaced == NULL ? ls_step_check(capture->step) : ls_fail(LS_ERR_STATE, "a hook replaces the %s", replaced);
}

static ls_status replay(ls_trial *trial) {
    ls_trial_capture *capture = &trial->capture;
    LS_TRY(copy_batch(&capture->input, trial->state.input));
    LS_TRY(copy_batch(&capture->target, trial->state.target));
    LS_TRY(ls_step_run(capture->step));
    capture->captures = 0;
    show_results(trial);
    return LS_OK;
}

/* Captures the step again because a check has failed, unless that happens in every step. */
static ls_status capture_again(ls_trial *trial) {
    if (++trial->capture.captures < CAPTURES) {
        return capture_step(trial);
    }
    char why[LS_ERROR_CAPACITY];
    snprintf(why, sizeof why, "every step changes what its replay checks: %s", ls_error_message());
    stop_capturing(trial, why);
    return trial->capture.compute(trial);
}

/* Replays the captured step, if it does what the step does now. */
static ls_status replay_or_capture(ls_trial *trial) {
    ls_saved_error before;
    ls_error_save(&before);
    if (check_captured(trial) == LS_OK) {
        return replay(trial);
    }
    LS_TRY(capture_again(trial));
    (void)ls_error_put_back(&before);
    return LS_OK;
}

/* Runs a batch whose shapes differ from the captured batch's shapes. */
static ls_status run_other_batch(ls_trial *trial) {
    ls_trial_capture *capture = &trial->capture;
    const ls_trial_state *state = &trial->state;
    if (state->count > capture->count) {
        return capture_step(trial);
    }
    if (state->count == capture->count && !capture->logged_shapes) {
        capture->logged_shapes = true;
        log_once(trial, ".capture replays only batches with the shapes and dtypes of the captured batch, with inputs",
                 LS_SHAPE_TEXT(capture->input));
    }
    return capture->compute(trial);
}

ls_status ls_trial_captured_step(ls_trial *trial, ls_status (*compute)(ls_trial *trial)) {
    ls_trial_capture *capture = &trial->capture;
    const ls_trial_state *state = &trial->state;
    capture->compute = compute;
    if (capture->stopped) {
        ls_trial_forget_capture(trial);
        return compute(trial);
    }
    char why[LS_ERROR_CAPACITY];
    if (find_obstacle(trial, why)) {
        stop_capturing(trial, why);
        return compute(trial);
    }
    if (capture->step == NULL) {
        return capture_step(trial);
    }
    return has_shape_of(capture->input, state->input) && has_shape_of(capture->target, state->target)
               ? replay_or_capture(trial)
               : run_other_batch(trial);
}
