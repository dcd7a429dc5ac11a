/*
 * A training step in slices. The program's function runs for one slice after another, or, if the slices synchronize,
 * for all slices, taking turns (slice_meetings.h). In the first step, all forward passes are run once before the step,
 * so that the slices can agree on scaling factors. If a loss is not one mean over samples, slices that synchronize
 * agree before each backward pass, and other slices run their forward passes twice in each step.
 */
#include <string.h>

#include "autograd/tape.h"
#include "base/memory.h"
#include "base/share.h"
#include "comm/hold.h"
#include "comm/meter.h"
#include "comm/public_call.h"
#include "parallel/slice_meetings.h"
#include "tensor/scope.h"

static const char call[] = "ls_data_parallel_step";

/* ---- a step ------------------------------------------------------------------------------------------------------ */

typedef struct slice_step {
    ls_data_parallel_state *state;
    ls_batch batch; /* without samples if this rank's batch is NULL */
    ls_loss_function function;
    void *user;
    ls_random_state before, after;  /* the generator's state before and after every slice */
    ls_tensor *kept[LS_FLAT_LIMIT]; /* the gradients of earlier passes */
    bool *had;                      /* for each parameter: whether it has a gradient of earlier passes */
    ls_tail *tails;                 /* tails of this rank's slices, if they run together */
    struct slice_note *notes;       /* notes about the parameters, then about the buffers, before the step */
    bool *counted;                  /* for each slice of this rank: the function has already run for a backward pass */
    bool begun;                     /* the buckets contain the gradients of an earlier slice */
    ls_saved_error cause;           /* cause of a slice's failure */
} slice_step;

static bool has_failed(const slice_step *s) {
    return s->cause.status != LS_OK;
}

static void fail(slice_step *s, ls_status status) {
    ls_error_save_first(&s->cause, status);
}

/* Sends the cause of a slice's failure to all ranks. Never returns LS_OK. */
static ls_status share_cause(slice_step *s) {
    if (has_failed(s)) {
        (void)ls_error_put_back(&s->cause);
    }
    return ls_averaging_share_cause(s->state, has_failed(s));
}

static int64_t samples_of(const slice_step *s, int slice) {
    return ls_share_of(s->batch.global_count, s->state->slices->total, slice).count;
}

/* The properties of a parameter or buffer that a call of the function must leave unchanged. */
typedef struct slice_note {
    uint32_t version;
    bool needs_grad;
} slice_note;

static const ls_named_tensor *noted(const ls_data_parallel_state *state, int i) {
    const int parameters = state->parameter_count;
    return i < parameters ? &state->model->parameters.items[i] : &state->model->buffers.items[i - parameters];
}

static ls_status note_model(slice_step *s) {
    const ls_data_parallel_state *state = s->state;
    const int count = state->parameter_count + state->buffers.count;
    s->notes = ls_allocate_zeroed((size_t)count, sizeof *s->notes);
    for (int i = 0; i < count && s->notes != NULL; i++) {
        const ls_tensor *tensor = noted(state, i)->tensor;
        s->notes[i] = (slice_note){tensor->storage->version, tensor->needs_grad};
    }
    return s->notes != NULL ? LS_OK : ls_fail_memory(call, (size_t)count * sizeof *s->notes);
}

/* Checks that a slice has not changed the model: the change would be missing in the slices of other ranks. Only one
 * slice of a rank may update running statistics. */
static ls_status check_model(const slice_step *s) {
    const ls_data_parallel_state *state = s->state;
    LS_TRY(ls_gradients_check(state));
    for (int i = 0; i < state->parameter_count + state->buffers.count; i++) {
        const ls_named_tensor *named = noted(state, i);
        const ls_storage *storage = named->tensor->storage;
        const char *kind = i < state->parameter_count ? "parameter" : "buffer";
        if (storage->version != s->notes[i].version && strcmp(storage->changed_by, "ls_batch_norm") != 0) {
            return ls_fail(LS_ERR_UNSUPPORTED,
                           "%s: the function has changed %s \"%s\" (%s), but with .shards it runs once per slice: "
                           "change it before or after the step, or omit .shards",
                           call, kind, named->name, storage->changed_by);
        }
        if (named->tensor->needs_grad != s->notes[i].needs_grad) {
            return ls_fail(
                LS_ERR_UNSUPPORTED,
                "%s: the function has called ls_set_requires_grad for %s \"%s\": call it before or after the "
                "step",
                call, kind, named->name);
        }
    }
    return LS_OK;
}

/* Returns the number of communicator calls outside the synchronization of slices and the averaging of buckets. */
static uint64_t count_calls(const ls_data_parallel_state *state) {
    return ls_comm_metered.calls - state->slices->calls - state->overlap.calls;
}

static ls_status check_calls(const ls_data_parallel_state *state, uint64_t before) {
    return count_calls(state) == before
               ? LS_OK
               : ls_fail(
                     LS_ERR_UNSUPPORTED,
                     "%s: the function, or the backward pass of its loss, communicates, but with .shards it runs once "
                     "per slice, and ranks have different numbers of slices: communicate before or after the step",
                     call);
}

static ls_status check_function(const slice_step *s, uint64_t calls) {
    const ls_slices *slices = s->state->slices;
    LS_TRY(check_calls(s->state, calls));
    if (!slices->begins) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the function has not called ls_forward with the module", call);
    }
    if (!ls_tape_is_closed(ls_thread()->scope)) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "%s: the loss of the function depends on a tensor with gradients that was computed before the "
                       "step: compute it in the function",
                       call);
    }
    return check_model(s);
}

/* Calls the program's function for a slice, and stores its loss in *loss. */
static ls_status call_function(slice_step *s, int slice, ls_tensor **loss) {
    ls_slices *slices = s->state->slices;
    bool *counted = &s->counted[slice - slices->first];
    ls_batch part;
    LS_TRY(ls_slice_cut(slices, &s->batch, slice, &part));
    ls_random_set_state(s->before);
    ls_slice_enter(slices, slice, &part);
    slices->counts = !slices->measures && !*counted;
    const uint64_t calls = count_calls(s->state);
    const uint32_t errors = ls_error_count;
    const ls_public_call own = ls_public_begin(LS_PUBLIC_NONE);
    *loss = s->function(&part, s->user);
    (void)ls_public_end(own, LS_OK);
    ls_slice_leave(slices);
    s->after = ls_random_get_state();
    if (*loss == NULL) {
        return ls_error_count != errors
                   ? ls_error_status()
                   : ls_fail(LS_ERR_ARGUMENT, "%s: the function returned NULL without an error", call);
    }
    *counted = *counted || !slices->measures;
    return check_function(s, calls);
}

/* Records the properties of the loss of this rank's slice `index` that the other slices need. */
static void record(const ls_data_parallel_state *state, int index, const ls_batch_loss *loss) {
    ls_slice_record *own = &state->slices->own[index];
    *own = (ls_slice_record){.divisor = ls_batch_loss_divisor(loss, state->samples), .irregular = loss->irregular};
    for (int i = 0; i < LS_FACTOR_BLOCKS && (i == 0 || i * LS_DIVISORS < loss->sums); i++) {
        own->blocks[i] = ls_divisor_sums_of(state, loss, i * LS_DIVISORS, false);
    }
}

/* Runs the forward pass of a slice to fill in its record. */
static ls_status measure_in(slice_step *s, int slice) {
    ls_data_parallel_state *state = s->state;
    ls_tensor *loss = NULL;
    LS_TRY(call_function(s, slice, &loss));
    ls_batch_loss traced;
    ls_samples_trace(&traced, ls_thread()->scope, loss, false);
    LS_TRY(ls_batch_loss_check(&traced));
    record(state, slice - state->slices->first, &traced);
    return LS_OK;
}

static ls_status train_in(slice_step *s, int slice) {
    ls_data_parallel_state *state = s->state;
    ls_tensor *loss = NULL;
    LS_TRY(call_function(s, slice, &loss));
    const uint64_t calls = count_calls(state);
    LS_TRY(ls_backward(loss));
    s->after = ls_random_get_state();
    LS_TRY(check_calls(state, calls));
    ls_step_loss *own = &state->slices->losses[slice - state->slices->first];
    *own = ls_step_loss_of(state, loss);
    own->loss *= state->slices->loss_factor;
    return LS_OK;
}

typedef ls_status pass_of_slice(slice_step *s, int slice);

/*
 * Runs the passes of a slice in their own scope. If they need the statistics of all slices, the step is repeated with
 * slices that synchronize.
 */
static ls_status run_in_scope(slice_step *s, int slice, pass_of_slice *passes) {
    ls_scope *scope = ls_scope_open();
    ls_status status = scope != NULL ? passes(s, slice) : ls_error_status();
    if (scope != NULL) {
        ls_scope_end_inner(scope);
        ls_tape_clear(scope); /* the tape of a forward pass without a backward pass */
        status = ls_scope_end_after(scope, status);
    }
    if (status != LS_OK && !s->state->slices->must_meet) {
        fail(s, status);
    }
    return status;
}

/* Returns whether the remaining slices of this rank need not run. */
static bool is_over(const slice_step *s) {
    return has_failed(s) || s->state->slices->must_meet;
}

static bool is_first(const slice_step *s, int slice) {
    int first = s->state->slices->first;
    while (first < slice && samples_of(s, first) == 0) {
        first++;
    }
    return first == slice;
}

static ls_tail tail_of(const slice_step *s, int slice) {
    const ls_data_parallel_state *state = s->state;
    if (samples_of(s, slice) == 0) {
        return (ls_tail){.given = SKIPPED, .weight = state->agrees ? 1 : ls_divisor_weight(state, 0)};
    }
    return (ls_tail){.samples = (double)state->samples,
                     .given = ls_gradients_were_given(state),
                     .weight = state->agrees ? 1 : ls_divisor_weight(state, state->divisor)};
}

/* Of the slices that run together, only one updates the running statistics of the model. */
static ls_status measure_together(void *user, int slice) {
    ls_thread_present->recomputes = true;
    return run_in_scope(user, slice, measure_in);
}

static ls_status train_together(void *user, int slice) {
    slice_step *s = user;
    ls_thread_present->recomputes |= !is_first(s, slice) || s->counted[slice - s->state->slices->first];
    s->state->samples = 0;
    s->state->divisor = 0;
    const ls_status status = run_in_scope(s, slice, train_in);
    s->tails[slice - s->state->slices->first] = tail_of(s, slice);
    return status;
}

static int64_t samples_of_user(const void *user, int slice) {
    return samples_of(user, slice);
}

/* ---- agreement before the passes --------------------------------------------------------------------------------- */

static ls_status add_records(slice_step *s, double *failed) {
    ls_data_parallel_state *state = s->state;
    ls_slices *slices = state->slices;
    for (int i = 0; i < slices->count; i++) {
        slices->own[i].blocks[0].failed = has_failed(s);
    }
    LS_TRY(ls_slices_add(state, (const double *)(const void *)slices->own, sizeof *slices->own / sizeof(double),
                         (double *)(void *)&slices->sum));
    *failed = slices->sum.blocks[0].failed;
    return LS_OK;
}

/* Returns the largest divisor among the slices of this rank: the loss of a slice is a sum divided by its divisor. */
static double largest_divisor(const ls_slices *slices) {
    double largest = 0;
    for (int i = 0; i < slices->count; i++) {
        largest = slices->own[i].divisor > largest ? slices->own[i].divisor : largest;
    }
    return largest;
}

/* Runs the forward passes of the slices to fill in their records. */
static ls_status measure(slice_step *s) {
    ls_slices *slices = s->state->slices;
    memset(slices->own, 0, (size_t)slices->count * sizeof *slices->own);
    s->state->factor = 0;
    if (slices->meets) {
        return ls_slices_run_together(s->state, s->cause.status, measure_together, s, samples_of_user);
    }
    for (int i = slices->first; i < slices->first + slices->count && !is_over(s); i++) {
        if (samples_of(s, i) > 0) {
            (void)run_in_scope(s, i, measure_in);
        }
    }
    return LS_OK;
}

/* Measures the slices. Agrees on the scaling factors, and on whether the slices must synchronize. */
static ls_status agree(slice_step *s) {
    ls_data_parallel_state *state = s->state;
    ls_slices *slices = state->slices;
    slices->must_meet = false;
    slices->measures = true;
    const ls_status measured = measure(s);
    slices->measures = false;
    if (measured != LS_OK) {
        fail(s, measured);
        return share_cause(s);
    }
    double failed;
    slices->own[0].meets = slices->must_meet;
    LS_TRY(add_records(s, &failed));
    if (failed > 0) {
        return share_cause(s);
    }
    if (slices->sum.meets > 0) {
        slices->meets = true;
        return agree(s);
    }
    const bool irregular = slices->sum.irregular > 0;
    LS_TRY(state->usual == 0 ? ls_agree_on_usual(state, irregular ? 0 : largest_divisor(slices)) : LS_OK);
    state->agrees |= irregular;
    return LS_OK;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* Copies the gradients of earlier passes. Each slice starts from these gradients. */
static ls_status keep_gradients(slice_step *s) {
    const ls_data_parallel_state *state = s->state;
    s->had = ls_allocate_zeroed((size_t)state->parameter_count, sizeof *s->had);
    s->tails = ls_allocate_zeroed((size_t)state->slices->count, sizeof *s->tails);
    s->counted = ls_allocate_zeroed((size_t)state->slices->count, sizeof *s->counted);
    if (s->had == NULL || s->tails == NULL || s->counted == NULL) {
        return ls_fail_memory(call, (size_t)state->parameter_count);
    }
    for (int i = 0; i < state->parameter_count; i++) {
        const ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        s->had[i] = leaf != NULL && leaf->has_gradient;
    }
    return ls_gradients_keep(state, s->kept);
}

static ls_status restore_gradients(const slice_step *s) {
    const ls_data_parallel_state *state = s->state;
    for (int i = 0; i < state->parameter_count && s->had != NULL; i++) {
        ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        if (leaf != NULL) {
            leaf->has_gradient = s->had[i];
        }
    }
    return ls_gradients_restore(state, s->kept);
}

static ls_status decode(const ls_data_parallel_state *state) {
    for (int i = 0; i < state->reducer.bucket_count; i++) {
        LS_TRY(ls_bucket_decode(&state->reducer, &state->reducer.buckets[i]));
    }
    return LS_OK;
}

static ls_status encode(const ls_data_parallel_state *state, double weight) {
    for (int i = 0; i < state->reducer.bucket_count; i++) {
        ls_bucket *bucket = &state->reducer.buckets[i];
        LS_TRY(ls_bucket_prepare(&state->reducer, bucket, weight));
        LS_TRY(bucket->packet.format->encode(&bucket->packet));
    }
    return LS_OK;
}

/* Runs the passes of a slice, or fetches their results if the slices have run together. Sets *own to the slice's
 * tail. */
static ls_status pass(slice_step *s, int slice, ls_tail *own) {
    ls_data_parallel_state *state = s->state;
    const int index = slice - state->slices->first;
    LS_TRY(s->begun ? decode(state) : LS_OK);
    s->begun = true;
    state->samples = 0;
    state->divisor = 0;
    const bool runs = samples_of(s, slice) > 0;
    if (runs && state->slices->meets) {
        ls_slice_run_fetch(state, index);
        *own = s->tails[index];
        return LS_OK;
    }
    LS_TRY(restore_gradients(s));
    if (runs && !is_over(s)) {
        (void)run_in_scope(s, slice, train_in);
    }
    *own = tail_of(s, slice);
    return LS_OK;
}

/* Writes the scaled gradients of a slice, and its tail. */
static void run_slice(void *user, int slice) {
    slice_step *s = user;
    ls_data_parallel_state *state = s->state;
    ls_tail own = {.weight = 1};
    ls_status status = pass(s, slice, &own);
    if (status != LS_OK) {
        fail(s, status);
    }
    if (state->slices->irregular || state->slices->must_meet) {
        own.agree = own.weight = 1;
    }
    own.failed = has_failed(s);
    ls_tail_write(state, &own);
    const double weight = has_failed(s) ? 1 : own.weight;
    status = state->slices->sends ? ls_overlap_send_slice(state, weight) : encode(state, weight);
    if (status != LS_OK && !has_failed(s)) {
        fail(s, status);
        own.failed = 1;
        ls_tail_write(state, &own);
    }
}

/* Runs the passes of slices that synchronize. Their gradients stay in the slices' memory. */
static ls_status run_together(slice_step *s) {
    const ls_status status = ls_slices_run_together(s->state, s->cause.status, train_together, s, samples_of_user);
    if (status != LS_OK) {
        fail(s, status);
        return share_cause(s);
    }
    return LS_OK;
}

/* Moves gradients back to their flat buffers, and creates the buckets. */
static ls_status make_buckets(ls_data_parallel_state *state) {
    LS_TRY(ls_gradient_reducer_is_home(&state->reducer) ? LS_OK : ls_gradient_reducer_reclaim(&state->reducer));
    ls_gradients_cut(state);
    return LS_OK;
}

/* Ends a step in which buckets of an earlier step are in flight. No slice runs on this rank, and all ranks fail. */
static ls_status end_stale(slice_step *s) {
    ls_data_parallel_state *state = s->state;
    fail(s, ls_overlap_refuse_stale());
    ls_tail_write(state, &(ls_tail){.weight = 1, .failed = 1});
    LS_TRY(ls_overlap_end_slices(state));
    LS_TRY(decode(state));
    return share_cause(s);
}

/*
 * Ends the overlap of an earlier step whose buckets are in flight, because no rank will send buckets again. From then
 * on, this rank averages like the other ranks. This step fails on all ranks. Its status is LS_ERR_STATE, because the
 * causes of a failure exclude LS_ERR_MISMATCH, which the synchronizing slices of the other ranks get (cause.c).
 */
static void stop_stale(slice_step *s) {
    (void)ls_overlap_refuse_stale();
    fail(s, LS_ERR_STATE);
    ls_overlap_stop(s->state);
    (void)decode(s->state);
    (void)make_buckets(s->state);
}

/* Averages the gradients of all slices. If the slices must first agree on factors, sets *again instead. */
static ls_status average(slice_step *s, bool *again) {
    ls_data_parallel_state *state = s->state;
    state->slices->irregular = state->slices->must_meet = false;
    memset(state->slices->losses, 0, (size_t)state->slices->count * sizeof *state->slices->losses);
    s->begun = false;
    if (state->overlap.begun && ls_slices_overlap(state)) {
        return end_stale(s);
    }
    if (state->overlap.begun) {
        stop_stale(s);
    }
    LS_TRY(state->slices->meets ? run_together(s) : LS_OK);
    const ls_status status = ls_slices_average(state, run_slice, s);
    if (state->overlap.begun) {
        return status; /* the buckets are still in flight */
    }
    const ls_status decoded = decode(state);
    LS_TRY(status);
    LS_TRY(decoded);
    const ls_tail mean = ls_tail_read(state);
    if (mean.failed > 0) {
        return share_cause(s);
    }
    *again = mean.agree > 0;
    if (*again || !ls_tail_is_given(state, &mean)) {
        return restore_gradients(s);
    }
    LS_TRY(ls_tail_read_marks(state));
    LS_TRY(ls_gradient_reducer_scale(&state->reducer, 1 / mean.weight));
    return mean.samples > 0 ? ls_buffers_average(&state->buffers, (double)s->batch.count) : LS_OK;
}

/* ---- the whole step ---------------------------------------------------------------------------------------------- */

static ls_status prepare(slice_step *s, const ls_batch *batch) {
    ls_data_parallel_state *state = s->state;
    LS_TRY(ls_gradients_check(state));
    LS_TRY(state->overlap.begun ? LS_OK : make_buckets(state)); /* like all ranks, even if the arguments are wrong */
    LS_TRY(ls_step_check_arguments(batch, s->function));
    LS_TRY(ls_slices_check_batch(state->slices, batch));
    LS_TRY(note_model(s));
    if (ls_comm_has_any_order(state->comm)) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "%s: .shards makes results bit-identical at every world size, but ls_comm_set_any_order is on: "
                       "switch one of them off",
                       call);
    }
    return keep_gradients(s);
}

/* A rank without samples draws no random numbers, but must continue with the same streams as the other ranks. */
static ls_status agree_on_random(const slice_step *s) {
    ls_random_state state = s->after;
    if (s->batch.global_count < s->state->slices->total) {
        int64_t stream = (int64_t)state.stream;
        LS_TRY(ls_comm_allreduce(s->state->comm, &stream, &stream, 1, LS_I64, LS_MAX, NULL));
        state.stream = (uint64_t)stream;
    }
    ls_random_set_state(state);
    return LS_OK;
}

/* A rank without samples has not updated the running statistics of its model. Rank 0 always has samples. */
static ls_status share_buffers(const slice_step *s) {
    ls_data_parallel_state *state = s->state;
    const bool shares = state->slices->meets && s->batch.global_count < state->slices->total;
    for (int i = 0; i < state->buffers.count && shares; i++) {
        ls_tensor *buffer = state->model->buffers.items[i].tensor;
        LS_TRY(ls_broadcast_in_place(state->comm, buffer, 0));
        ls_tensor_changed(buffer, call);
        ls_buffers_keep_equal(&state->buffers, buffer);
    }
    return LS_OK;
}

static ls_status run(slice_step *s) {
    ls_data_parallel_state *state = s->state;
    bool again = false;
    state->all_samples = (double)s->batch.global_count;
    LS_TRY(state->usual == 0 || (state->agrees && !state->slices->meets) ? agree(s) : LS_OK);
    LS_TRY(average(s, &again));
    if (again) {
        LS_TRY(agree(s));
        LS_TRY(average(s, &again));
    }
    LS_TRY(agree_on_random(s));
    LS_TRY(share_buffers(s));
    return ls_comm_size(state->comm) > 1 ? ls_batches_compare(state) : LS_OK;
}

ls_status ls_slices_step(ls_data_parallel_state *state, const ls_batch *batch, ls_loss_function function, void *user) {
    if (state->slices->running >= 0) {
        return ls_fail(LS_ERR_STATE, "%s: called in the function of a step of the same module", call);
    }
    state->slices->meets |= state->whole_batch && ls_module_has_batch_statistics(state->model);
    slice_step s = {.state = state,
                    .batch = batch != NULL ? *batch : (ls_batch){0},
                    .function = function,
                    .user = user,
                    .before = ls_random_get_state(),
                    .after = ls_random_get_state()};
    const ls_status prepared = prepare(&s, batch);
    if (prepared != LS_OK) {
        fail(&s, prepared);
    }
    const ls_status status = run(&s);
    for (int i = 0; i < state->reducer.flat_count; i++) {
        ls_tensor_drop(s.kept[i]);
    }
    ls_free(s.had);
    ls_free(s.tails);
    ls_free(s.notes);
    ls_free(s.counted);
    if (status != LS_OK && ls_module_list(state->model)) {
        ls_data_parallel_forget_gradients(state);
    }
    return status;
}

ls_status ls_slices_loss(const ls_data_parallel_state *state, bool failed, ls_step_loss *sums) {
    state->slices->losses[0].failed = failed;
    return ls_slices_add(state, (const double *)(const void *)state->slices->losses, sizeof *sums / sizeof(double),
                         (double *)(void *)sums);
}
