#include "parallel/slices.h"

#include <string.h>

#include "autograd/tape.h"
#include "base/memory.h"
#include "base/share.h"
#include "comm/hold.h"
#include "comm/meter.h"
#include "tensor/scope.h"

static const char call[] = "ls_data_parallel_step";

/* ---- the slices of a rank ---------------------------------------------------------------------------------------- */

ls_status ls_slices_open(ls_data_parallel_state *state, int shards) {
    ls_slices *slices = state->slices = ls_allocate_zeroed(1, sizeof *slices);
    if (slices == NULL) {
        return ls_fail_memory("ls_data_parallel", sizeof *slices);
    }
    const ls_share own = ls_share_of(shards, ls_comm_size(state->comm), ls_comm_rank(state->comm));
    slices->running = -1;
    slices->total = shards;
    slices->first = (int)own.start;
    slices->count = (int)own.count;
    slices->own = ls_allocate_zeroed((size_t)slices->count, sizeof *slices->own);
    slices->losses = ls_allocate_zeroed((size_t)slices->count, sizeof *slices->losses);
    return slices->own != NULL && slices->losses != NULL
               ? LS_OK
               : ls_fail_memory("ls_data_parallel", (size_t)slices->count * sizeof *slices->own);
}

void ls_slices_close(ls_slices *slices) {
    if (slices == NULL) {
        return;
    }
    if (slices->room != NULL) {
        ls_storage_drop(slices->room);
    }
    ls_free(slices->own);
    ls_free(slices->losses);
    ls_free(slices);
}

/* ---- the passes of a slice --------------------------------------------------------------------------------------- */

ls_status ls_slice_begin_forward(ls_data_parallel_state *state) {
    if (state->slices->running < 0) {
        return ls_fail(LS_ERR_STATE,
                       "ls_forward: the data-parallel module has .shards = %d, and a rank has several slices of the "
                       "batch: call ls_forward in the function of ls_data_parallel_step",
                       state->slices->total);
    }
    state->part.first = state->slices->first_sample;
    state->located = true;
    return LS_OK;
}

/* Records what the other slices need to know about the loss of slice `index` of this rank. */
static void record(const ls_data_parallel_state *state, int index, const ls_batch_loss *loss) {
    ls_slice_record *own = &state->slices->own[index];
    *own = (ls_slice_record){.divisor = ls_batch_loss_divisor(loss, state->samples), .irregular = loss->irregular};
    for (int i = 0; i < LS_FACTOR_BLOCKS && (i == 0 || i * LS_DIVISORS < loss->sums); i++) {
        own->blocks[i] = ls_divisor_sums_of(state, loss, i * LS_DIVISORS, false);
    }
}

ls_status ls_slice_begin_backward(ls_data_parallel_state *state, ls_batch_loss *loss) {
    ls_slices *slices = state->slices;
    state->agreed = state->agrees;
    if (!state->agrees) {
        slices->irregular |= loss->irregular || loss->weighed;
        return LS_OK;
    }
    for (int i = 0; i < LS_FACTOR_BLOCKS && (i == 0 || i * LS_DIVISORS < loss->sums); i++) {
        const ls_divisor_sums own = ls_divisor_sums_of(state, loss, i * LS_DIVISORS, false);
        LS_TRY(ls_divisor_sums_check(&own, &slices->sum.blocks[0]));
        ls_divisor_sums_weigh(state, loss, i * LS_DIVISORS, &own, &slices->sum.blocks[i]);
    }
    loss->weighed = true;
    return LS_OK;
}

/* ---- the slices of a batch --------------------------------------------------------------------------------------- */

/* Checks that this rank has the samples of its slices. */
static ls_status check_batch(const ls_slices *slices, const ls_batch *batch) {
    const int64_t begin = ls_share_of(batch->global_count, slices->total, slices->first).start;
    const ls_share last = ls_share_of(batch->global_count, slices->total, slices->first + slices->count - 1);
    const int64_t count = last.start + last.count - begin;
    return batch->first == begin && batch->count == count
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT,
                         "%s: the batch has %lld samples from %lld on, but the slices of this rank have %lld from %lld "
                         "on: set .shards = %d and .comm of ls_loader_options",
                         call, (long long)batch->count, (long long)batch->first, (long long)count, (long long)begin,
                         slices->total);
}

/* Sets *part to a slice, numbered over all ranks, of the batch. Its tensors are in the innermost scope. */
static ls_status cut(const ls_slices *slices, const ls_batch *batch, int slice, ls_batch *part) {
    const ls_share own = ls_share_of(batch->global_count, slices->total, slice);
    *part = *batch;
    part->first = own.start;
    part->count = own.count;
    part->input = ls_narrow(batch->input, 0, own.start - batch->first, own.count);
    part->target = batch->target != NULL ? ls_narrow(batch->target, 0, own.start - batch->first, own.count) : NULL;
    return part->input != NULL && (batch->target == NULL || part->target != NULL) ? LS_OK : ls_error_status();
}

static void enter(ls_slices *slices, int slice, const ls_batch *part) {
    slices->running = slice - slices->first;
    slices->first_sample = part->first;
}

static void leave(ls_slices *slices) {
    slices->running = -1;
}

ls_status ls_slices_visit(ls_slices *slices, const ls_batch *batch,
                          ls_status (*function)(const ls_batch *slice, void *user), void *user) {
    ls_status status = check_batch(slices, batch);
    for (int i = 0; i < slices->count && status == LS_OK; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_batch part;
        status = scope != NULL ? cut(slices, batch, slices->first + i, &part) : ls_error_status();
        if (status == LS_OK) {
            enter(slices, slices->first + i, &part);
            status = function(&part, user);
            leave(slices);
        }
        status = scope != NULL ? ls_scope_end_after(scope, status) : status;
    }
    return status;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

typedef struct slice_step {
    ls_data_parallel_state *state;
    const ls_batch *batch;
    ls_loss_function function;
    void *user;
    ls_random_state before, after;  /* the generator, of every slice */
    ls_tensor *kept[LS_FLAT_LIMIT]; /* the gradients of earlier passes */
    bool *had;                      /* by the index of a parameter: it has such a gradient */
    bool begun;                     /* the buckets have the gradients of an earlier slice */
    ls_saved_error cause;           /* of the failure of a slice */
} slice_step;

static bool has_failed(const slice_step *s) {
    return s->cause.status != LS_OK;
}

static void fail(slice_step *s, ls_status status) {
    if (!has_failed(s)) {
        ls_error_save(&s->cause);
        s->cause.status = status;
    }
}

/* Gives all ranks the cause of the failure of a slice. Never returns LS_OK. */
static ls_status share_cause(slice_step *s) {
    if (has_failed(s)) {
        (void)ls_error_put_back(&s->cause);
    }
    return ls_averaging_share_cause(s->state, has_failed(s));
}

static int64_t samples_of(const slice_step *s, int slice) {
    return ls_share_of(s->batch->global_count, s->state->slices->total, slice).count;
}

/* A buffer that changes would have another value in each slice of a rank. */
static ls_status check_buffers(const ls_data_parallel_state *state) {
    LS_TRY(ls_gradients_check(state));
    for (int i = 0; i < state->buffers.count; i++) {
        if (ls_buffer_has_changed(&state->buffers, i)) {
            return ls_fail(
                LS_ERR_UNSUPPORTED,
                "%s: the forward pass has changed buffer \"%s\", which .shards does not support: use a layer "
                "without such buffers (ls_group_norm instead of batch normalization), or omit .shards",
                call, state->model->buffers.items[i].name);
        }
    }
    return LS_OK;
}

/* Calls the program's function for a slice, and returns its loss in *loss. */
static ls_status call_function(slice_step *s, int slice, ls_tensor **loss) {
    ls_data_parallel_state *state = s->state;
    ls_slices *slices = state->slices;
    ls_batch part;
    LS_TRY(cut(slices, s->batch, slice, &part));
    ls_random_set_state(s->before);
    enter(slices, slice, &part);
    const uint64_t calls = ls_comm_metered.calls;
    const uint32_t errors = ls_error_count;
    *loss = s->function(&part, s->user);
    leave(slices);
    s->after = ls_random_get_state();
    if (*loss == NULL) {
        return ls_error_count != errors
                   ? ls_error_status()
                   : ls_fail(LS_ERR_ARGUMENT, "%s: the function returned NULL without an error", call);
    }
    if (ls_comm_metered.calls != calls) {
        return ls_fail(
            LS_ERR_UNSUPPORTED,
            "%s: the function communicates, but with .shards it runs once per slice, and ranks have different "
            "numbers of slices: communicate before or after the step",
            call);
    }
    return check_buffers(state);
}

/* Runs the forward pass of a slice for its record. */
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

/* Runs both passes of a slice. */
static ls_status train_in(slice_step *s, int slice) {
    ls_data_parallel_state *state = s->state;
    ls_tensor *loss = NULL;
    LS_TRY(call_function(s, slice, &loss));
    LS_TRY(ls_backward(loss));
    state->slices->losses[slice - state->slices->first] = ls_step_loss_of(state, loss);
    return LS_OK;
}

/* Runs the function in a scope of its own, unless a slice of this rank has failed before. */
static void run_in_scope(slice_step *s, int slice, ls_status (*function)(slice_step *s, int slice)) {
    if (has_failed(s)) {
        return;
    }
    ls_scope *scope = ls_scope_begin();
    const ls_status status = scope != NULL ? ls_scope_end_after(scope, function(s, slice)) : ls_error_status();
    if (status != LS_OK) {
        fail(s, status);
    }
}

/* ---- agreement before the passes --------------------------------------------------------------------------------- */

/* Adds up the records of all slices. */
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

/* The slices agree on the divisor with weight 1, as ranks do after their first pass. */
static ls_status agree_on_usual(ls_data_parallel_state *state, bool irregular) {
    double largest = 0;
    for (int i = 0; i < state->slices->count && !irregular; i++) {
        largest = state->slices->own[i].divisor > largest ? state->slices->own[i].divisor : largest;
    }
    LS_TRY(ls_comm_allreduce(state->comm, &largest, &largest, 1, LS_F64, LS_MAX, NULL));
    state->usual = largest > 0 ? largest : 1;
    return LS_OK;
}

/* Runs the forward passes of all slices, and agrees on the scaling factors. */
static ls_status agree(slice_step *s) {
    ls_data_parallel_state *state = s->state;
    ls_slices *slices = state->slices;
    slices->measures = true;
    for (int i = 0; i < slices->count; i++) {
        const int slice = slices->first + i;
        slices->own[i] = (ls_slice_record){.divisor = 0};
        state->factor = 0;
        if (samples_of(s, slice) > 0) {
            run_in_scope(s, slice, measure_in);
        }
    }
    slices->measures = false;
    double failed;
    LS_TRY(add_records(s, &failed));
    if (failed > 0) {
        return share_cause(s);
    }
    const bool irregular = slices->sum.irregular > 0;
    LS_TRY(state->usual == 0 ? agree_on_usual(state, irregular) : LS_OK);
    state->agrees |= irregular;
    return LS_OK;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* Copies the gradients of earlier passes, from which each slice starts. */
static ls_status keep_gradients(slice_step *s) {
    const ls_data_parallel_state *state = s->state;
    s->had = ls_allocate_zeroed((size_t)state->parameter_count, sizeof *s->had);
    if (s->had == NULL) {
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

/* Writes the gradients of a slice, scaled, and its tail. */
static void run_slice(void *user, int slice) {
    slice_step *s = user;
    ls_data_parallel_state *state = s->state;
    const bool empty = samples_of(s, slice) == 0;
    ls_tail own = {.given = SKIPPED, .weight = state->agrees ? 1 : ls_divisor_weight(state, 0)};
    state->slices->losses[slice - state->slices->first] = (ls_step_loss){.loss = 0};
    ls_status status = s->begun ? decode(state) : LS_OK;
    s->begun = true;
    status = status == LS_OK ? restore_gradients(s) : status;
    if (status != LS_OK) {
        fail(s, status);
    }
    if (!empty) {
        state->samples = 0;
        state->divisor = 0;
        run_in_scope(s, slice, train_in);
        own = (ls_tail){.samples = (double)state->samples,
                        .given = ls_gradients_were_given(state),
                        .weight = state->agrees ? 1 : ls_divisor_weight(state, state->divisor)};
    }
    if (state->slices->irregular) {
        own.agree = own.weight = 1;
    }
    own.failed = has_failed(s);
    ls_tail_write(state, &own);
    status = encode(state, has_failed(s) ? 1 : own.weight);
    if (status != LS_OK && !has_failed(s)) {
        fail(s, status);
        own.failed = 1;
        ls_tail_write(state, &own);
    }
}

/* Averages the gradients of all slices, unless they must agree on factors first: then sets *again. */
static ls_status average(slice_step *s, bool *again) {
    ls_data_parallel_state *state = s->state;
    state->slices->irregular = false;
    s->begun = false;
    const ls_status status = ls_slices_average(state, run_slice, s);
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
    return ls_gradient_reducer_scale(&state->reducer, 1 / mean.weight);
}

/* ---- the whole step ---------------------------------------------------------------------------------------------- */

static ls_status prepare(slice_step *s) {
    ls_data_parallel_state *state = s->state;
    LS_TRY(ls_gradients_check(state));
    LS_TRY(ls_gradient_reducer_is_home(&state->reducer) ? LS_OK : ls_gradient_reducer_reclaim(&state->reducer));
    (void)ls_gradients_cut(state);
    LS_TRY(check_batch(state->slices, s->batch));
    LS_TRY(check_buffers(state));
    if (ls_comm_has_any_order(state->comm)) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "%s: .shards gives the same bits at every world size, but "
                       "ls_comm_set_any_order is on: switch one of them off",
                       call);
    }
    return keep_gradients(s);
}

/* A rank without samples draws no random numbers, but its next ones must be those of the other ranks. */
static ls_status agree_on_random(const slice_step *s) {
    ls_random_state state = s->after;
    if (s->batch->global_count < s->state->slices->total) {
        int64_t stream = (int64_t)state.stream;
        LS_TRY(ls_comm_allreduce(s->state->comm, &stream, &stream, 1, LS_I64, LS_MAX, NULL));
        state.stream = (uint64_t)stream;
    }
    ls_random_set_state(state);
    return LS_OK;
}

static ls_status run(slice_step *s) {
    ls_data_parallel_state *state = s->state;
    bool again = false;
    state->all_samples = (double)s->batch->global_count;
    LS_TRY(state->usual == 0 || state->agrees ? agree(s) : LS_OK);
    LS_TRY(average(s, &again));
    if (again) {
        state->agrees = true;
        LS_TRY(agree(s));
        LS_TRY(average(s, &again));
    }
    LS_TRY(agree_on_random(s));
    return ls_comm_size(state->comm) > 1 ? ls_batches_compare(state) : LS_OK;
}

ls_status ls_slices_step(ls_data_parallel_state *state, const ls_batch *batch, ls_loss_function function, void *user) {
    slice_step s = {.state = state,
                    .batch = batch,
                    .function = function,
                    .user = user,
                    .before = ls_random_get_state(),
                    .after = ls_random_get_state()};
    const ls_status prepared = prepare(&s);
    if (prepared != LS_OK) {
        fail(&s, prepared);
    }
    const ls_status status = run(&s);
    for (int i = 0; i < state->reducer.flat_count; i++) {
        ls_tensor_drop(s.kept[i]);
    }
    ls_free(s.had);
    if (status != LS_OK && ls_module_list(state->model)) {
        ls_data_parallel_forget_gradients(state);
    }
    return status;
}

ls_status ls_slices_loss(const ls_data_parallel_state *state, ls_step_loss *sums) {
    return ls_slices_add(state, (const double *)(const void *)state->slices->losses, sizeof *sums / sizeof(double),
                         (double *)(void *)sums);
}
