/* One step of training or validation in its own scope, and the agreement of the ranks at its end. */
#include "train/step.h"

#include "base/share.h"
#include "comm/meter.h"
#include "comm/public_call.h"
#include "optim/optimizer.h"
#include "parallel/slices.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"
#include "train/agree.h"
#include "train/budget.h"
#include "train/captured.h"
#include "train/checkpoint/checkpoint.h"
#include "train/metrics/metric.h"
#include "train/replicas.h"

/* Calls the training hook, or the corresponding validation hook. */
#define CALL(trial, hook)                                                                                              \
    ((trial)->state.phase == LS_PHASE_TRAINING ? LS_CALL(trial, hook) : LS_CALL(trial, hook##_validation))

/* ---- modes ------------------------------------------------------------------------------------------------------- */

/* The modes of the thread before it runs the program's code: the model, the criterion or the user step. */
typedef struct thread_modes {
    ls_dtype autocast;
    ls_loss_divisor *divisor;
    ls_public_call public_call;
    uint64_t communication; /* communication time of the thread, in nanoseconds */
    uint32_t errors;        /* number of errors so far */
} thread_modes;

/*
 * Sets the modes from the trial's options. Losses store their divisors in `divisor`. If the option autocast is not set,
 * autocast stays unchanged. The communication of the program's code belongs to no public function.
 */
static thread_modes begin_modes(const ls_trial *trial, ls_loss_divisor *divisor) {
    ls_thread_state *thread = ls_thread_present;
    const thread_modes before = {.autocast = thread->autocast,
                                 .divisor = thread->divisor,
                                 .public_call = ls_public_begin(LS_PUBLIC_NONE),
                                 .communication = ls_comm_metered.nanoseconds,
                                 .errors = ls_error_count};
    thread->divisor = divisor;
    if (trial->options.autocast != LS_F32) {
        (void)ls_autocast(trial->options.autocast);
    }
    return before;
}

/* Restores the modes, and records for setup.c whether the program's code communicated. */
static void end_modes(ls_trial *trial, thread_modes before) {
    ls_thread_state *thread = ls_thread_present;
    thread->autocast = before.autocast;
    thread->divisor = before.divisor;
    (void)ls_public_end(before.public_call, LS_OK);
    trial->watch.model_communicates |= ls_comm_metered.nanoseconds != before.communication;
}

/*
 * Returns the error from the program's code if `made` is NULL. If the error count is still `errors`, the code set no
 * error, so this function sets one.
 */
static ls_status check_made(const char *what, const ls_tensor *made, uint32_t errors) {
    if (made != NULL) {
        return LS_OK;
    }
    return ls_error_count != errors ? ls_error_status()
                                    : ls_fail(LS_ERR_ARGUMENT, "ls_trial: %s returned NULL without an error", what);
}

/* ---- the default step -------------------------------------------------------------------------------------------- */

/* Computes state->output after on_sample. */
static ls_status run_model(ls_trial *trial) {
    ls_trial_state *state = &trial->state;
    ls_loss_divisor *outer = ls_thread_present->divisor; /* a loss inside the model is not the loss of the trial */
    const thread_modes before = begin_modes(trial, outer);
    state->output = ls_forward(state->model, state->input);
    end_modes(trial, before);
    LS_TRY(check_made("the model", state->output, before.errors));
    return CALL(trial, on_forward);
}

ls_status ls_trial_forward(ls_trial *trial) {
    const ls_trial_state *state = &trial->state;
    if (state->count == 0) {
        return state->phase == LS_PHASE_TRAINING ? LS_OK : ls_data_parallel_join_forward(state->model);
    }
    LS_TRY(CALL(trial, on_sample));
    return run_model(trial);
}

static ls_status compute_loss(ls_trial *trial) {
    ls_trial_state *state = &trial->state;
    if (state->count == 0) {
        return LS_OK;
    }
    const thread_modes before = begin_modes(trial, &trial->divisor);
    state->loss = state->criterion(state->output, state->target, state->criterion_user);
    end_modes(trial, before);
    LS_TRY(check_made("the criterion", state->loss, before.errors));
    return CALL(trial, on_criterion);
}

static ls_status backward_from_loss(ls_trial *trial) {
    const ls_grad_scaler *scaler = trial->options.grad_scaler;
    ls_tensor *loss = trial->state.loss;
    const uint64_t communication = ls_comm_metered.nanoseconds;
    const ls_status status = ls_backward(scaler != NULL ? ls_grad_scaler_scale(scaler, loss) : loss);
    trial->watch.model_communicates |= ls_comm_metered.nanoseconds != communication;
    return status;
}

/* On a rank with an empty share, takes part in the averaging of gradients. */
static ls_status backward_without_samples(const ls_trial *trial) {
    ls_module *model = trial->state.model;
    return ls_data_parallel_comm(model) != NULL ? ls_data_parallel_skip(model) : LS_OK;
}

/* An earlier step may have failed after its gradients were unscaled. */
static ls_status unscale(const ls_trial *trial) {
    ls_grad_scaler *scaler = trial->options.grad_scaler;
    if (scaler == NULL) {
        return LS_OK;
    }
    ls_grad_scaler_forget(scaler, trial->state.optimizer);
    return ls_grad_scaler_unscale(scaler, trial->state.optimizer);
}

static ls_status backward(ls_trial *trial) {
    LS_TRY(trial->state.count > 0 ? backward_from_loss(trial) : backward_without_samples(trial));
    LS_TRY(unscale(trial));
    return LS_CALL(trial, on_backward);
}

/*
 * Each rank has checked for overflows before a hook averaged the gradients. If one rank skips the step, all ranks skip
 * it.
 */
static ls_status agree_on_skipping(const ls_trial *trial) {
    const ls_trial_state *state = &trial->state;
    bool *skips = ls_grad_scaler_skips(trial->options.grad_scaler, state->optimizer);
    if (skips == NULL || ls_comm_size(state->comm) <= 1 || ls_data_parallel_comm(state->model) != NULL ||
        trial->options.outer != NULL) {
        return LS_OK;
    }
    uint8_t any = *skips;
    LS_TRY(ls_comm_allreduce(state->comm, &any, &any, 1, LS_U8, LS_MAX, NULL));
    *skips = any != 0;
    return LS_OK;
}

static ls_status update_parameters(const ls_trial *trial) {
    ls_optimizer *optimizer = trial->state.optimizer;
    ls_grad_scaler *scaler = trial->options.grad_scaler;
    if (scaler == NULL) {
        return ls_optimizer_step(optimizer);
    }
    LS_TRY(agree_on_skipping(trial));
    LS_TRY(ls_grad_scaler_step(scaler, optimizer));
    return ls_grad_scaler_update(scaler);
}

/* The default step after on_sample. A captured step repeats it. */
static ls_status compute_step(ls_trial *trial) {
    LS_TRY(trial->state.count > 0 ? run_model(trial) : LS_OK);
    LS_TRY(compute_loss(trial));
    LS_TRY(backward(trial));
    return update_parameters(trial);
}

static ls_status default_step(ls_trial *trial) {
    ls_optimizer_zero_grad(trial->state.optimizer);
    if (trial->state.count == 0) {
        return compute_step(trial);
    }
    LS_TRY(CALL(trial, on_sample));
    return trial->options.capture ? ls_trial_captured_step(trial, compute_step) : compute_step(trial);
}

/* ---- slices (.shards of ls_data_parallel_options) ---------------------------------------------------------------- */

static void take_batch(ls_trial_state *state, const ls_batch *batch) {
    state->input = batch->input;
    state->target = batch->target;
    state->output = NULL;
    state->loss = NULL;
    state->first = batch->first;
    state->count = batch->count;
    state->global_count = batch->global_count;
}

/* Removes the tensors of a batch or slice from the state. They are freed at the end of the scope. */
static void forget_batch(ls_trial *trial) {
    ls_trial_state *state = &trial->state;
    state->input = state->target = state->output = state->loss = NULL;
    ls_tensor_drop(trial->divisor.least);
    trial->divisor = (ls_loss_divisor){.least = NULL};
}

/* Runs a step for a slice of this rank, with the metrics of the slice. Stores the loss in *loss, unless `loss` is
 * NULL. */
static ls_status run_slice(ls_trial *trial, const ls_batch *slice, int index, ls_trial_step_function *step,
                           ls_tensor **loss) {
    take_batch(&trial->state, slice);
    struct ls_metric_set *whole = ls_metrics_enter(trial, index);
    const ls_status status = step(trial);
    ls_metrics_leave(trial, whole);
    if (loss != NULL) {
        *loss = trial->state.loss;
    }
    trial->slices_sum |= trial->divisor.is_sum;
    forget_batch(trial);
    return status;
}

static ls_status compute_slice(ls_trial *trial) {
    LS_TRY(ls_trial_forward(trial));
    return compute_loss(trial);
}

static ls_status compute_and_count_slice(ls_trial *trial) {
    LS_TRY(compute_slice(trial));
    return ls_metrics_add(trial);
}

static ls_tensor *loss_of_slice(const ls_batch *slice, void *user) {
    ls_trial *trial = user;
    const ls_slices *slices = ls_data_parallel_slices(trial->state.model);
    ls_grad_scaler *scaler = trial->options.grad_scaler;
    ls_tensor *loss = NULL;
    const ls_status status =
        run_slice(trial, slice, slices->running, slices->counts ? compute_and_count_slice : compute_slice, &loss);
    if (status != LS_OK) {
        trial->slice_status = trial->slice_status != LS_OK ? trial->slice_status : status;
        return NULL;
    }
    return scaler != NULL ? ls_grad_scaler_scale(scaler, loss) : loss;
}

/* Slices without samples count in the metrics, like ranks without samples. */
static ls_status count_empty_slices(ls_trial *trial, const ls_batch *batch) {
    const ls_slices *slices = ls_data_parallel_slices(trial->state.model);
    ls_status status = LS_OK;
    for (int i = 0; i < slices->count && status == LS_OK; i++) {
        ls_batch part = *batch;
        part.count = ls_share_of(batch->global_count, slices->total, slices->first + i).count;
        status = part.count == 0 ? run_slice(trial, &part, i, ls_metrics_add, NULL) : LS_OK;
    }
    return status;
}

/* Slices that synchronize (parallel/slice_meetings.h) take turns, so each slice has its own part of the trial's
 * state. */
static void share_pieces(ls_trial *trial, ls_slices *slices) {
    ls_trial_state *state = &trial->state;
    slices->piece_count = 0;
    slices->pieces[slices->piece_count++] =
        (ls_slice_piece){&state->first, offsetof(ls_trial_state, stop) - offsetof(ls_trial_state, first)};
    slices->pieces[slices->piece_count++] = (ls_slice_piece){&trial->divisor, sizeof trial->divisor};
    slices->pieces[slices->piece_count++] = (ls_slice_piece){&trial->metrics->set, sizeof trial->metrics->set};
}

/* The default step with slices. */
static ls_status train_slices(ls_trial *trial) {
    ls_slices *slices = ls_data_parallel_slices(trial->state.model);
    ls_grad_scaler *scaler = trial->options.grad_scaler;
    const ls_batch batch = *trial->batch;
    const uint64_t communication = ls_comm_metered.nanoseconds;
    ls_optimizer_zero_grad(trial->state.optimizer);
    share_pieces(trial, slices);
    slices->loss_factor = scaler != NULL ? 1 / ls_grad_scaler_get_scale(scaler) : 1;
    trial->slice_status = LS_OK;
    trial->slices_sum = false;
    const ls_status status = ls_data_parallel_step(trial->state.model, &batch, loss_of_slice, trial);
    slices->loss_factor = 1;
    slices->piece_count = 0;
    trial->watch.model_communicates |= ls_comm_metered.nanoseconds != communication;
    LS_TRY(status == LS_OK ? count_empty_slices(trial, &batch) : LS_OK);
    take_batch(&trial->state, &batch);
    LS_TRY(status != LS_OK && trial->slice_status != LS_OK ? trial->slice_status : status);
    LS_TRY(unscale(trial));
    LS_TRY(LS_CALL(trial, on_backward));
    return update_parameters(trial);
}

typedef struct visit {
    ls_trial *trial;
    ls_trial_step_function *step;
} visit;

static ls_status visit_slice(const ls_batch *slice, void *user) {
    const visit *v = user;
    return run_slice(v->trial, slice, ls_data_parallel_slices(v->trial->state.model)->running, v->step, NULL);
}

/* ---- the user step ----------------------------------------------------------------------------------------------- */

/* Fails if a scope of the user step has freed the tensor. The metrics need this tensor. */
static ls_status check_not_freed(const char *what, const ls_tensor *tensor) {
    return tensor == NULL || ls_tensor_is_here(what, tensor) ? LS_OK : ls_error_status();
}

/* Runs even on a rank with an empty share, because only the user step knows which communication it performs. */
static ls_status user_step(ls_trial *trial) {
    ls_trial_state *state = &trial->state;
    LS_TRY(state->count > 0 ? LS_CALL(trial, on_sample) : LS_OK);
    const thread_modes before = begin_modes(trial, &trial->divisor);
    const ls_status status = trial->options.step(state, trial->options.step_user);
    end_modes(trial, before);
    if (status != LS_OK) {
        return ls_trial_fail_in(trial, status, ls_error_count != before.errors, "the step");
    }
    LS_TRY(check_not_freed("ls_trial: the step's output", state->output));
    return check_not_freed("ls_trial: the step's loss", state->loss);
}

/* Only the default step is captured. */
static void refuse_capture(ls_trial *trial, bool slices) {
    if (trial->options.step != NULL) {
        ls_trial_refuse_capture(trial, "the step is a user function: use ls_step_capture in it");
    } else if (slices) {
        ls_trial_refuse_capture(trial, "steps of a model with .shards are not captured");
    }
}

/* ---- training and validation ------------------------------------------------------------------------------------- */

ls_status ls_trial_training_step(ls_trial *trial) {
    const bool slices = ls_data_parallel_slices(trial->state.model) != NULL;
    if (trial->options.capture) {
        refuse_capture(trial, slices);
    }
    LS_TRY(trial->options.step != NULL ? user_step(trial) : slices ? train_slices(trial) : default_step(trial));
    LS_TRY(ls_trial_outer_step(trial));
    trial->state.step++;
    LS_TRY(slices ? LS_OK : ls_metrics_add(trial)); /* the slices have already added their numbers */
    LS_TRY(ls_trial_check_first_step(trial));
    return LS_CALL(trial, on_step_training);
}

ls_status ls_trial_validation_step(ls_trial *trial) {
    LS_TRY(ls_trial_forward(trial));
    LS_TRY(compute_loss(trial));
    LS_TRY(ls_metrics_add(trial));
    return LS_CALL(trial, on_step_validation);
}

ls_status ls_trial_step(ls_trial *trial, const ls_batch *batch, ls_trial_step_function *step) {
    ls_scope *scope = ls_scope_open();
    LS_TRY(ls_made(scope));
    ls_slices *slices = ls_data_parallel_slices(trial->state.model);
    take_batch(&trial->state, batch);
    trial->batch = batch;
    const ls_status status = slices != NULL && trial->state.phase != LS_PHASE_TRAINING
                                 ? ls_slices_visit(slices, batch, visit_slice, &(visit){trial, step})
                                 : step(trial);
    trial->batch = NULL;
    forget_batch(trial);
    ls_saved_error first = {.status = LS_OK};
    ls_error_save_first(&first, status);
    ls_error_save_first(&first, ls_scope_end(scope));
    return ls_error_put_back_first(&first);
}

ls_status ls_trial_end_of_step(ls_trial *trial, bool epoch) {
    LS_TRY(ls_trial_agree(trial, ls_checkpoints_vote(trial, epoch)));
    LS_TRY(trial->state.stop ? ls_trial_outer_sync(trial) : LS_OK); /* the last checkpoint needs this step now */
    return ls_checkpoints_act(trial, epoch);
}
