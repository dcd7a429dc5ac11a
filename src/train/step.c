/* One step of training, of validation or of prediction. */
#include <stdio.h>
#include <string.h>

#include "comm/meter.h"
#include "optim/optimizer.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"
#include "train/trial.h"

void ls_trial_take_batch(ls_trial *trial, const ls_batch *batch) {
    ls_trial_state *state = &trial->state;
    state->input = batch->input;
    state->target = batch->target;
    state->output = NULL;
    state->loss = NULL;
    state->first = batch->first;
    state->count = batch->count;
    state->global_count = batch->global_count;
}

/* A failure by returning NULL, told in its own words unless there were none since `errors` were counted. */
static ls_status nothing_made(const char *what, uint32_t errors) {
    return ls_error_count != errors ? ls_error_status()
                                    : ls_fail(LS_ERR_ARGUMENT, "ls_trial: %s returned NULL without an error", what);
}

/* What to give ls_autocast afterwards. A trial that does not ask for it leaves the thread as it is. */
static ls_dtype autocast_begin(const ls_trial *trial) {
    const ls_thread_state *thread = ls_thread();
    const ls_dtype before = thread != NULL ? thread->autocast : LS_F32;
    return trial->options.autocast != LS_F32 ? ls_autocast(trial->options.autocast) : before;
}

ls_tensor *ls_trial_loss_divisor(const ls_trial *trial) {
    return trial->divisor.least;
}

static void forget_divisor(ls_trial *trial) {
    ls_tensor_drop(trial->divisor.least);
    trial->divisor.least = NULL;
}

/* Where the thread's losses note what they divide by. Returns where they did before. */
static ls_loss_divisor *note_divisors(ls_loss_divisor *where) {
    ls_thread_state *thread = ls_thread_present;
    ls_loss_divisor *before = thread->divisor;
    thread->divisor = where;
    return before;
}

/* For setup.c: notes whether this thread has communicated since its meter showed `before`. */
static void note_communication(ls_trial *trial, uint64_t before) {
    trial->watch.model_communicates |= ls_comm_metered.nanoseconds != before;
}

/* From sample to output, with the hooks of training or of validation. */
static ls_status compute_output(ls_trial *trial, bool training) {
    ls_trial_state *state = &trial->state;
    const uint32_t errors = ls_error_count;
    LS_TRY(training ? LS_CALL(trial, on_sample) : LS_CALL(trial, on_sample_validation));
    const ls_dtype before = autocast_begin(trial);
    const uint64_t communication = ls_comm_metered.nanoseconds;
    state->output = ls_forward(state->model, state->input);
    note_communication(trial, communication);
    (void)ls_autocast(before);
    if (state->output == NULL) {
        return nothing_made("the model", errors);
    }
    return training ? LS_CALL(trial, on_forward) : LS_CALL(trial, on_forward_validation);
}

/* From sample to loss. */
static ls_status compute_loss(ls_trial *trial, bool training) {
    ls_trial_state *state = &trial->state;
    LS_TRY(compute_output(trial, training));
    const uint32_t errors = ls_error_count;
    const ls_dtype before = autocast_begin(trial);
    ls_loss_divisor *divisor = note_divisors(&trial->divisor);
    const uint64_t communication = ls_comm_metered.nanoseconds;
    state->loss = state->criterion(state->output, state->target, state->criterion_user);
    note_communication(trial, communication);
    (void)note_divisors(divisor);
    (void)ls_autocast(before);
    if (state->loss == NULL) {
        return nothing_made("the criterion", errors);
    }
    return training ? LS_CALL(trial, on_criterion) : LS_CALL(trial, on_criterion_validation);
}

/* A rank whose share of the batch is empty takes part in what the others do together. */
static ls_status backward(ls_trial *trial) {
    ls_trial_state *state = &trial->state;
    ls_optimizer_zero_grad(state->optimizer);
    if (state->count > 0) {
        LS_TRY(compute_loss(trial, true));
        const ls_grad_scaler *scaler = trial->options.grad_scaler;
        const uint64_t communication = ls_comm_metered.nanoseconds;
        const ls_status status = ls_backward(scaler != NULL ? ls_grad_scaler_scale(scaler, state->loss) : state->loss);
        note_communication(trial, communication);
        return status;
    }
    return ls_data_parallel_comm(state->model) != NULL ? ls_data_parallel_skip(state->model) : LS_OK;
}

/* Gradients that a hook averages over the ranks were looked at before, by each rank for itself. */
static ls_status agree_on_skipping(const ls_trial *trial) {
    const ls_trial_state *state = &trial->state;
    bool *skips = ls_grad_scaler_skips(trial->options.grad_scaler, state->optimizer);
    if (skips == NULL || ls_comm_size(state->comm) <= 1 || ls_data_parallel_comm(state->model) != NULL) {
        return LS_OK;
    }
    uint8_t any = *skips;
    LS_TRY(ls_comm_allreduce(state->comm, &any, &any, 1, LS_U8, LS_MAX, NULL));
    *skips = any != 0;
    return LS_OK;
}

static ls_status ready_made_step(ls_trial *trial) {
    ls_optimizer *optimizer = trial->state.optimizer;
    ls_grad_scaler *scaler = trial->options.grad_scaler;
    LS_TRY(backward(trial));
    LS_TRY(scaler != NULL ? ls_grad_scaler_unscale(scaler, optimizer) : LS_OK);
    LS_TRY(LS_CALL(trial, on_backward));
    if (scaler == NULL) {
        return ls_optimizer_step(optimizer);
    }
    LS_TRY(agree_on_skipping(trial));
    LS_TRY(ls_grad_scaler_step(scaler, optimizer));
    return ls_grad_scaler_update(scaler);
}

/* What a step leaves for the metrics must not have gone with a scope of its own. */
static ls_status is_left(const char *what, const ls_tensor *tensor) {
    return tensor == NULL || ls_tensor_is_here(what, tensor) ? LS_OK : ls_error_status();
}

/* Of a rank whose share is empty, too: only the step knows what the others do together. */
static ls_status own_step(ls_trial *trial) {
    ls_trial_state *state = &trial->state;
    LS_TRY(state->count > 0 ? LS_CALL(trial, on_sample) : LS_OK);
    const uint32_t errors = ls_error_count;
    const ls_dtype before = autocast_begin(trial);
    ls_loss_divisor *divisor = note_divisors(&trial->divisor);
    const uint64_t communication = ls_comm_metered.nanoseconds;
    const ls_status status = trial->options.step(state, trial->options.step_user);
    note_communication(trial, communication);
    (void)note_divisors(divisor);
    (void)ls_autocast(before);
    if (status != LS_OK) {
        return ls_trial_fail_in(trial, status, ls_error_count != errors, "the step");
    }
    LS_TRY(is_left("ls_trial: the step's output", state->output));
    return is_left("ls_trial: the step's loss", state->loss);
}

ls_status ls_trial_training_step(ls_trial *trial) {
    ls_trial_state *state = &trial->state;
    LS_TRY(trial->options.step != NULL ? own_step(trial) : ready_made_step(trial));
    state->step++;
    LS_TRY(ls_metrics_add(trial));
    return LS_CALL(trial, on_step_training);
}

ls_status ls_trial_validation_step(ls_trial *trial) {
    LS_TRY(trial->state.count > 0 ? compute_loss(trial, false) : LS_OK);
    LS_TRY(ls_metrics_add(trial));
    return LS_CALL(trial, on_step_validation);
}

ls_status ls_trial_prediction_step(ls_trial *trial) {
    if (trial->state.count > 0) {
        trial->state.target = NULL;
        LS_TRY(compute_output(trial, false));
        LS_TRY(ls_prediction_add(trial));
    }
    return LS_CALL(trial, on_step_validation);
}

/* Where the trial has a device, and the loader did not know of it. */
static ls_status bring(const ls_trial *trial, ls_tensor **tensor) {
    if (*tensor != NULL && trial->device != NULL && ls_tensor_device(*tensor) != trial->device) {
        *tensor = ls_tensor_to_device(*tensor, trial->device->name);
        return *tensor != NULL ? LS_OK : ls_error_status();
    }
    return LS_OK;
}

static ls_status bring_batch(ls_trial *trial) {
    LS_TRY(bring(trial, &trial->state.input));
    return bring(trial, &trial->state.target);
}

/* A failure keeps its message over the end of the scope. */
ls_status ls_trial_in_scope(ls_trial *trial, ls_status (*step)(ls_trial *trial)) {
    ls_scope *scope = ls_scope_begin();
    if (scope == NULL) {
        return ls_error_status();
    }
    ls_status status = bring_batch(trial);
    status = status == LS_OK ? step(trial) : status;
    trial->state.input = trial->state.target = trial->state.output = trial->state.loss = NULL;
    forget_divisor(trial);
    if (status == LS_OK) {
        return ls_scope_end(scope);
    }
    char message[LS_ERROR_CAPACITY];
    snprintf(message, sizeof message, "%s", ls_error_message());
    (void)ls_scope_end(scope);
    ls_error_restore(status, message);
    return status;
}
