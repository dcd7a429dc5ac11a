/*
 * Data-parallel training. The gradients of each dtype lie in one flat buffer, in memory that all ranks of the machine
 * can access. Averaging them (averaging.c) is therefore one all-reduce per dtype without copies.
 */
#include "comm/public_call.h"
#include "parallel/averaging.h"
#include "parallel/cause.h"

#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "comm/hold.h"
#include "parallel/powersgd.h"
#include "parallel/slice_meetings.h"
#include "parallel/units.h"
#include "tensor/capture.h"

typedef ls_data_parallel_state data_parallel_state;

/* ---- the global batch -------------------------------------------------------------------------------------------- */

/* Finds the position of this rank's samples in the global batch, which contains the samples in rank order. */
static ls_status locate(ls_batch_part *part) {
    data_parallel_state *state = (data_parallel_state *)(void *)part;
    if (state->located) {
        return LS_OK;
    }
    const size_t bytes = ls_data_parallel_share_bytes(state);
    ls_rank_inputs *own = ls_record_allocate(bytes);
    if (own == NULL) {
        (void)ls_fail_memory("ls_data_parallel", bytes);
        return ls_data_parallel_refuse_share(state);
    }
    ls_data_parallel_describe(state, own);
    const ls_status status = ls_data_parallel_exchange(state, own, bytes);
    ls_record_release(own, bytes);
    return status;
}

static ls_status add_over_batch(ls_batch_part *part, double *numbers, int64_t count) {
    data_parallel_state *state = (data_parallel_state *)(void *)part;
    if (state->slices != NULL) {
        return ls_slice_meet(state, numbers, count);
    }
    return ls_comm_allreduce(state->comm, numbers, numbers, (size_t)count, LS_F64, LS_SUM, NULL);
}

static void keep_equal(ls_batch_part *part, const ls_tensor *changed) {
    ls_buffers_keep_equal(&((data_parallel_state *)(void *)part)->buffers, changed);
}

static ls_status share_cause(ls_batch_part *part, bool failed) {
    data_parallel_state *state = (data_parallel_state *)(void *)part;
    if (state->slices != NULL) {
        return failed ? ls_error_status() : ls_fail(LS_ERR_MISMATCH, "ls_data_parallel_step: another slice has failed");
    }
    return ls_averaging_share_cause(state, failed);
}

static void hold_part(ls_batch_part *part, bool hold) {
    ls_data_parallel_hold(part, hold); /* the first member of the state */
}

/* Returns the first non-NULL input, or NULL if there is none. The input's first axis is the sample axis. */
static ls_tensor *first_input(ls_tensor *const *inputs, int count) {
    for (int i = 0; i < count; i++) {
        if (inputs[i] != NULL) {
            return inputs[i];
        }
    }
    return NULL;
}

static int64_t count_samples(const ls_tensor *input) {
    return input == NULL ? 0 : input->ndim > 0 ? input->size[0] : 1;
}

static bool needs_all_ranks(const data_parallel_state *state) {
    return state->slices == NULL && (ls_data_parallel_has_units(state) ||
                                     (state->whole_batch && ls_module_of_whole_batch(state->model, false) != NULL));
}

/* Begins a forward pass on this rank's part of the batch. If there are no inputs, the rank has no samples. */
static ls_status begin_forward(data_parallel_state *state, ls_tensor *const *inputs, int input_count,
                               int output_count) {
    ls_data_parallel_begin_part(state, count_samples(first_input(inputs, input_count)));
    state->inputs = inputs;
    state->input_count = input_count;
    state->output_count = output_count;
    state->located = false;
    if (state->slices != NULL) {
        return ls_slice_begin_forward(state);
    }
    ls_capture *capture = ls_thread_present->capture;
    if (!needs_all_ranks(state)) {
        return LS_OK;
    }
    return capture != NULL ? ls_data_parallel_capture_shares(state, capture) : locate(&state->part);
}

static ls_status run_model(data_parallel_state *state, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                           int output_count) {
    ls_thread_state *thread = ls_thread();
    ls_batch_part *before = thread->batch;
    ls_tensor *input = first_input(inputs, input_count);
    thread->batch = &state->part;
    state->follows = input != NULL && (state->runs < LS_DATA_PARALLEL_CHECKS ||
                                       state->runs % LS_DATA_PARALLEL_EVERY == 0 || ls_thread_present->capture != NULL);
    state->runs++;
    const uint32_t noted = state->follows ? ls_mixing_begin(input, state->samples) : 0;
    const ls_status status = ls_forward_many(state->model, inputs, input_count, outputs, output_count);
    if (state->follows) {
        ls_mixing_end(input, noted);
    }
    thread->batch = before;
    return status;
}

/*
 * The input is NULL because of a failure, so the model fails too. The other ranks learn of the failure in the exchange
 * of shares, or in the backward pass.
 */
static ls_status forward_without_input(data_parallel_state *state, ls_tensor *const *inputs, int input_count,
                                       ls_tensor **outputs, int output_count) {
    ls_data_parallel_begin_part(state, 0);
    const ls_status status = run_model(state, inputs, input_count, outputs, output_count);
    if (status == LS_OK || !needs_all_ranks(state)) {
        return status;
    }
    ls_saved_error cause = {.status = LS_OK};
    ls_error_save_first(&cause, status);
    state->part.samples = LS_SHARE_FAILED;
    state->input_count = state->output_count = 0;
    state->located = false;
    (void)locate(&state->part);
    return ls_error_put_back_first(&cause);
}

/*
 * Watches a forward pass that failed in a scope, so that ls_backward(NULL) notifies the other ranks unless they already
 * know the cause. Returns `status`.
 */
static ls_status watch_failure(data_parallel_state *state, ls_status status) {
    const ls_thread_state *thread = ls_thread();
    if (state->told || state->slices != NULL || thread->no_grad || thread->scope->outer == NULL) {
        return status;
    }
    ls_saved_error cause = {.status = LS_OK};
    ls_error_save_first(&cause, status);
    (void)ls_watch_pass(&ls_data_parallel_watch, state, (uint64_t)state->number);
    return ls_error_put_back_first(&cause);
}

static ls_status forward(data_parallel_state *state, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                         int output_count) {
    const bool alone = state->slices != NULL ? ls_thread_present->no_grad && state->slices->running < 0
                                             : ls_comm_size(state->comm) == 1;
    if (alone && state->slices != NULL && ls_module_of_whole_batch(state->model, false) != NULL) {
        return ls_fail(
            LS_ERR_STATE,
            "ls_forward: the data-parallel module has .shards, and a layer in training mode needs the global "
            "batch: call ls_module_train(module, false) before a pass without gradients");
    }
    if (alone) {
        state->has_no_loss &= state->slices != NULL; /* slices keep the loss of the step */
        return ls_forward_many(state->model, inputs, input_count, outputs, output_count);
    }
    ls_status status = LS_OK;
    const int64_t samples = state->samples;
    state->told = false;
    state->overlap.abandoned = state->overlap.begun; /* of an earlier pass */
    ls_capture *capture = ls_thread_present->capture;
    if (capture != NULL) {
        ls_data_parallel_capture(state, capture);
    }
    if (first_input(inputs, input_count) != NULL || !ls_scope_explains_null(ls_thread())) {
        status = begin_forward(state, inputs, input_count, output_count);
        status = status != LS_OK ? status : run_model(state, inputs, input_count, outputs, output_count);
    } else {
        status = forward_without_input(state, inputs, input_count, outputs, output_count);
    }
    bool wanted = false;
    for (int i = 0; i < output_count && status == LS_OK; i++) {
        if (outputs[i]->needs_grad) {
            status = state->follows ? ls_mixing_check(outputs[i]) : LS_OK;
            ls_samples_begin(outputs[i], state);
            wanted = true;
        }
    }
    if (status != LS_OK) {
        return watch_failure(state, status);
    }
    if (!wanted) {
        state->samples = samples; /* the outputs of an earlier forward pass may still need a backward pass */
        return LS_OK;
    }
    return ls_watch_pass(&ls_data_parallel_watch, state, (uint64_t)state->number);
}

static ls_status data_parallel_forward(ls_module *self, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                                       int output_count) {
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_FORWARD);
    return ls_public_end(outer, forward(self->state, inputs, input_count, outputs, output_count));
}

/* ---- a rank without samples -------------------------------------------------------------------------------------- */

/* Returns whether the first axis of input i counts the samples on every rank that has samples. */
static bool counts_samples(const data_parallel_state *state, int i) {
    bool counts = true;
    for (int rank = 0; rank < ls_comm_size(state->comm) && counts; rank++) {
        const ls_rank_inputs *share = ls_data_parallel_share(state, rank);
        if (share->samples > 0 && i < share->inputs && share->kind[i].there) {
            const ls_input_kind *kind = &share->kind[i];
            counts = kind->ndim > 0 && kind->size[0] == share->samples;
        }
    }
    return counts;
}

/* Creates empty inputs like the inputs of `rank`, which has samples. Inputs whose first axis does not count samples
 * are filled with zeros. */
static ls_status make_inputs(const data_parallel_state *state, int rank, ls_tensor **inputs) {
    const ls_device *device = NULL;
    LS_TRY(ls_module_device(state->model, "ls_data_parallel_skip", &device));
    for (int i = 0; i < (int)ls_data_parallel_share(state, rank)->inputs; i++) {
        const ls_input_kind *kind = &ls_data_parallel_share(state, rank)->kind[i];
        if (!kind->there) {
            continue;
        }
        ls_shape shape = {.ndim = (int)kind->ndim};
        memcpy(shape.size, kind->size, (size_t)kind->ndim * sizeof *shape.size);
        if (counts_samples(state, i)) {
            shape.size[0] = 0;
        }
        inputs[i] = ls_tensor_new("ls_data_parallel_skip", device, shape.ndim, shape.size, (ls_dtype)kind->dtype);
        LS_TRY(inputs[i] != NULL ? ls_kernels_of(inputs[i])->fill(ls_stream_of(inputs[i]), inputs[i], 0)
                                 : ls_error_status());
    }
    return LS_OK;
}

/* Returns an output for the backward pass: any output with a floating-point dtype. */
static ls_tensor *floating_one(ls_tensor *const *outputs, int count) {
    int i = 0;
    while (i < count && !ls_dtype_is_floating((ls_dtype)outputs[i]->dtype)) {
        i++;
    }
    return i < count ? outputs[i] : NULL;
}

/* Runs the model on an empty batch that is like the batch of `rank`. Sets *output to an output for the backward
   pass, or to NULL. */
static ls_status run_like(data_parallel_state *state, int rank, ls_tensor **output) {
    const ls_rank_inputs *share = ls_data_parallel_share(state, rank);
    const size_t count = (size_t)(share->inputs + share->outputs);
    ls_tensor **tensors = ls_allocate_for("ls_data_parallel_skip", count, sizeof *tensors);
    LS_TRY(ls_made(tensors));
    const int inputs = (int)share->inputs;
    const int outputs = (int)share->outputs;
    ls_status status = make_inputs(state, rank, tensors);
    status = status == LS_OK ? run_model(state, tensors, inputs, tensors + inputs, outputs) : status;
    *output = status == LS_OK ? floating_one(tensors + inputs, outputs) : NULL;
    ls_free(tensors);
    return status;
}

/* Runs the model on an empty batch, so that its communication and random numbers stay in step with the other ranks. */
static ls_status run_empty(data_parallel_state *state, ls_tensor **output) {
    *output = NULL;
    LS_TRY(begin_forward(state, NULL, 0, 0));
    int rank = 0; /* the first rank that has samples */
    while (state->located && rank < ls_comm_size(state->comm) && ls_data_parallel_share(state, rank)->samples == 0) {
        rank++;
    }
    return state->located && rank < ls_comm_size(state->comm) ? run_like(state, rank, output) : LS_OK;
}

static ls_status run_without_samples(data_parallel_state *state) {
    ls_tensor *output = NULL;
    LS_TRY(run_empty(state, &output));
    return ls_thread()->no_grad ? LS_OK : ls_data_parallel_pass_without_samples(state, output);
}

/* ---- runs of the model outside of the module --------------------------------------------------------------------- */

/* Warns once, on rank 0, if a pass has given the model gradients, and the module took no part in the pass. */
static ls_status check_direct_run(void *user, const ls_pass_findings *findings) {
    data_parallel_state *state = user;
    (void)findings;
    if (state->pass != ls_thread_present->pass && !state->no_sync && state->model->replica_runs != NULL &&
        ls_module_list(state->model) && ls_gradients_were_given(state)) {
        state->model->replica_runs = NULL;
        ls_log_write(LS_LOG_WARNING,
                     "ls_backward: the gradients of %s are not averaged over the ranks, because ls_forward was called "
                     "for this model itself: call ls_forward for the module that ls_data_parallel returned, or call "
                     "ls_sync_gradients",
                     state->model->type->name);
    }
    return LS_OK;
}

static const ls_pass_watch direct_run_watch = {.end = check_direct_run, .hold = ls_data_parallel_hold};

/* Called before the model runs. There is nothing to watch inside the module, during a backward pass (ls_recompute), or
 * in a captured step. */
static void watch_direct_run(void *user) {
    const ls_thread_state *thread = ls_thread();
    if (thread != NULL && thread->batch == NULL && !thread->no_grad && thread->walking == NULL &&
        thread->capture == NULL) {
        (void)ls_watch_pass(&direct_run_watch, user, 0);
    }
}

/* ---- construction ------------------------------------------------------------------------------------------------ */

static void free_state(ls_module *self) {
    data_parallel_state *state = self->state;
    if (state->model != NULL) {
        state->model->replica_runs = NULL;
        state->model->replica = NULL;
    }
    ls_data_parallel_close(state);
}

static ls_comm *averaged_over(const ls_module *module) {
    return ls_data_parallel_averages(module) ? ls_data_parallel_comm(module) : NULL;
}

static const ls_module_type data_parallel_type = {.name = "DataParallel",
                                                  .state_size = sizeof(data_parallel_state),
                                                  .forward_many = data_parallel_forward,
                                                  .free_state = free_state};

ls_module *ls_data_parallel(ls_module *model, ls_comm *comm, const ls_data_parallel_options *options) {
    ls_module *module = ls_module_new(&data_parallel_type);
    if (module == NULL || comm == NULL || ls_comm_check_open("ls_data_parallel", comm) != LS_OK) {
        if (module != NULL && comm == NULL) {
            (void)ls_comm_fail_missing("ls_data_parallel");
        }
        ls_module_consume(model);
        ls_module_free(module);
        return NULL;
    }
    data_parallel_state *state = module->state;
    state->module = module;
    state->comm = ls_comm_hold(comm);
    state->mean_checks = LS_DATA_PARALLEL_CHECKS;
    state->part = (ls_batch_part){.locate = locate,
                                  .add = add_over_batch,
                                  .keep_equal = keep_equal,
                                  .share_cause = share_cause,
                                  .hold = hold_part};
    state->model = ls_module_add_child(module, "", model);
    state->whole_batch = state->model != NULL && ls_module_of_whole_batch(state->model, true) != NULL;
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_DATA_PARALLEL);
    module->failed |=
        state->model == NULL ||
        ls_data_parallel_prepare(state, options != NULL ? options : &(ls_data_parallel_options){0}) != LS_OK ||
        !ls_module_keep_lists(module);
    (void)ls_public_end(outer, LS_OK);
    if (state->shards != NULL) {
        state->shards->averages = ls_data_parallel_averages;
    }
    module->averaged_over = averaged_over;
    if (!module->failed && ls_comm_size(comm) > 1 && ls_comm_rank(comm) == 0) {
        state->model->replica_runs = watch_direct_run;
        state->model->replica = state;
    }
    return ls_module_finish(module);
}

ls_data_parallel_state *ls_data_parallel_state_of(const char *call, const ls_module *module) {
    if (module == NULL || module->type != &data_parallel_type) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: the module %s", call,
                            module == NULL ? "is NULL" : "was not created by ls_data_parallel");
    }
    return module->state;
}

ls_status ls_data_parallel_no_sync(ls_module *module, bool on) {
    data_parallel_state *state = ls_data_parallel_state_of("ls_data_parallel_no_sync", module);
    LS_TRY(ls_made(state));
    if (on && state->slices != NULL) {
        return ls_fail(
            LS_ERR_UNSUPPORTED,
            "ls_data_parallel_no_sync: .shards is set: accumulate with a call to ls_data_parallel_step per batch");
    }
    state->no_sync = on;
    return LS_OK;
}

bool ls_data_parallel_averages(const ls_module *module) {
    const data_parallel_state *state = module->type == &data_parallel_type ? module->state : NULL;
    return state == NULL || (!state->no_sync && !state->gathering);
}

/* Records that the program has no loss of a pass that has ended with `status`, which it returns. */
static ls_status end_without_loss(data_parallel_state *state, ls_status status) {
    state->has_no_loss = status == LS_OK;
    state->errors = ls_error_count;
    return status;
}

ls_status ls_data_parallel_skip(ls_module *module) {
    ls_capture_refuse_here("ls_data_parallel_skip", LS_CAPTURE_COMMUNICATES);
    data_parallel_state *state = ls_data_parallel_state_of("ls_data_parallel_skip", module);
    LS_TRY(ls_made(state));
    if (state->slices != NULL) {
        return ls_fail(
            LS_ERR_STATE,
            "ls_data_parallel_skip: .shards is set: call ls_data_parallel_step on every rank, even without samples");
    }
    if (ls_comm_size(state->comm) == 1) {
        state->last = (ls_step_loss){0};
        return end_without_loss(state, LS_OK);
    }
    LS_TRY(ls_comm_check_open("ls_data_parallel_skip", state->comm));
    ls_scope *scope = ls_scope_open();
    state->told = state->agreed = false;
    state->overlap.abandoned = state->overlap.begun;
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_DATA_PARALLEL_SKIP);
    ls_status status = run_without_samples(state);
    if (status != LS_OK && !state->told) {
        (void)ls_scope_failed();
        (void)ls_watch_tell(&ls_data_parallel_watch, state, state->agreed);
        status = ls_error_status();
    }
    (void)ls_public_end(outer, status);
    const ls_status ended = ls_scope_close(scope);
    return end_without_loss(state, status != LS_OK ? status : ended);
}

ls_slices *ls_data_parallel_slices(const ls_module *module) {
    return ls_data_parallel_comm(module) != NULL ? ((data_parallel_state *)module->state)->slices : NULL;
}

/* If a call in `scope` or in a scope inside it has failed, notes the error in the innermost scope, and returns true. */
static bool has_failed(const ls_scope *scope) {
    const ls_scope *inner = ls_thread()->scope;
    while (inner != scope && inner->status == LS_OK) {
        inner = inner->outer;
    }
    if (inner->status == LS_OK) {
        return false;
    }
    (void)ls_fail(inner->status, "%s", inner->message);
    (void)ls_scope_failed();
    return true;
}

/*
 * Notifies the other ranks of a failure, unless the exchange of shares has done so, or a backward pass of the module
 * that has begun since `watched`.
 */
static ls_status notify(data_parallel_state *state, ls_status status, uint64_t watched) {
    if (status != LS_OK && !state->told && state->watched == watched && ls_comm_size(state->comm) > 1) {
        (void)ls_watch_tell(&ls_data_parallel_watch, state, false);
    }
    return status;
}

/* Runs the forward and backward passes for this rank's samples in `scope`. */
static ls_status run_step(data_parallel_state *state, const ls_scope *scope, const ls_batch *batch,
                          ls_loss_function function, void *user) {
    uint64_t watched = state->watched;
    LS_TRY(notify(state, ls_step_check_arguments(batch, function), watched));
    const ls_public_call own = ls_public_begin(LS_PUBLIC_NONE);
    ls_tensor *loss = function(batch, user);
    (void)ls_public_end(own, LS_OK);
    if (has_failed(scope)) {
        loss = NULL; /* a failed call of the function is a failed step, even if the function returns a loss */
    }
    watched = state->watched;                          /* the function may have run passes itself */
    LS_TRY(notify(state, ls_backward(loss), watched)); /* even if the loss is NULL: notifies the other ranks */
    const bool alone = ls_comm_size(state->comm) == 1;
    state->last = alone ? (ls_step_loss){.loss = ls_item(loss), .divisor = 1} : ls_step_loss_of(state, loss);
    return LS_OK;
}

static ls_status run_step_in_scope(data_parallel_state *state, const ls_batch *batch, ls_loss_function function,
                                   void *user) {
    ls_scope *scope = ls_scope_open();
    state->told = false;
    return scope != NULL ? ls_scope_end_after(scope, run_step(state, scope, batch, function, user))
                         : notify(state, ls_error_status(), state->watched);
}

ls_status ls_data_parallel_step(ls_module *module, const ls_batch *batch, ls_loss_function function, void *user) {
    ls_capture_refuse_here("ls_data_parallel_step", LS_CAPTURE_COMMUNICATES);
    data_parallel_state *state = ls_data_parallel_state_of("ls_data_parallel_step", module);
    LS_TRY(ls_made(state));
    LS_TRY(ls_comm_check_open("ls_data_parallel_step", state->comm));
    ls_data_parallel_hold(state, true); /* the function may free the module */
    const bool skips = batch != NULL && batch->count == 0 && function != NULL && !ls_step_lacks_count(batch);
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_DATA_PARALLEL_STEP);
    const ls_status status = state->slices != NULL ? ls_slices_step(state, batch, function, user)
                             : skips               ? ls_data_parallel_skip(module)
                                                   : run_step_in_scope(state, batch, function, user);
    (void)end_without_loss(state, status);
    ls_data_parallel_hold(state, false);
    return ls_public_end(outer, status);
}

ls_comm *ls_data_parallel_comm(const ls_module *module) {
    return module != NULL && module->type == &data_parallel_type ? ((data_parallel_state *)module->state)->comm : NULL;
}

ls_status ls_data_parallel_join_forward(ls_module *module) {
    if (ls_data_parallel_comm(module) == NULL || !ls_data_parallel_has_units(module->state)) {
        return LS_OK;
    }
    ls_scope *scope = ls_scope_open();
    LS_TRY(ls_made(scope));
    (void)ls_no_grad(true);
    ls_tensor *output = NULL;
    const ls_status status = run_empty(module->state, &output);
    const ls_status ended = ls_scope_close(scope);
    return status != LS_OK ? status : ended;
}

bool ls_data_parallel_is_sharded(const ls_module *module) {
    return ls_data_parallel_comm(module) != NULL && ((const data_parallel_state *)module->state)->shards != NULL;
}

ls_status ls_data_parallel_gather_one(ls_module *module, const ls_tensor *parameter) {
    return ls_data_parallel_comm(module) != NULL
               ? ls_units_gather_one(((data_parallel_state *)module->state)->shards, parameter)
               : LS_OK;
}

ls_status ls_data_parallel_gather(ls_module *module, bool on) {
    const data_parallel_state *state = ls_data_parallel_state_of("ls_data_parallel_gather", module);
    LS_TRY(ls_made(state));
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_DATA_PARALLEL_GATHER);
    return ls_public_end(outer, ls_units_gather(state->shards, on));
}

ls_status ls_data_parallel_check(ls_module *module) {
    const data_parallel_state *state = ls_data_parallel_state_of("ls_data_parallel_check", module);
    LS_TRY(ls_made(state));
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_DATA_PARALLEL_CHECK);
    return ls_public_end(outer, ls_replicas_compare("ls_data_parallel", module, state->comm));
}

bool ls_data_parallel_memory(const ls_module *module, ls_averaging_memory *memory) {
    if (ls_data_parallel_comm(module) == NULL) {
        return false;
    }
    const data_parallel_state *state = module->state;
    *memory = (ls_averaging_memory){.usual = state->usual, .agrees = state->agrees};
    return true;
}

void ls_data_parallel_remember(ls_module *module, ls_averaging_memory memory) {
    data_parallel_state *state = module->state;
    state->usual = memory.usual;
    state->agrees = memory.agrees || ls_data_parallel_has_units(state);
}

float *ls_data_parallel_powersgd(const ls_module *module, int64_t *count) {
    const data_parallel_state *state = ls_data_parallel_comm(module) != NULL ? module->state : NULL;
    return state != NULL && state->powersgd != NULL ? ls_powersgd_numbers(state->powersgd, count) : NULL;
}

void ls_data_parallel_restart_powersgd(ls_module *module) {
    ls_powersgd_restart(((data_parallel_state *)module->state)->powersgd);
}
