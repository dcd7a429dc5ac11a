#include "parallel/slice_meetings.h"

#include "base/memory.h"
#include "base/share.h"
#include "tensor/scope.h"

static const char call[] = "ls_data_parallel_step";

/* ---- the slices of a rank ---------------------------------------------------------------------------------------- */

ls_status ls_slices_open(ls_data_parallel_state *state, int shards) {
    ls_slices *slices = state->slices = ls_allocate_for("ls_data_parallel", 1, sizeof *slices);
    LS_TRY(ls_made(slices));
    const ls_share own = ls_share_of(shards, ls_comm_size(state->comm), ls_comm_rank(state->comm));
    slices->running = -1;
    slices->loss_factor = 1;
    slices->total = shards;
    slices->first = (int)own.start;
    slices->count = (int)own.count;
    slices->own = ls_allocate_zeroed((size_t)slices->count, sizeof *slices->own);
    slices->losses = ls_allocate_zeroed((size_t)slices->count, sizeof *slices->losses);
    return slices->own != NULL && slices->losses != NULL
               ? ls_slice_sums_open(state)
               : ls_fail_memory("ls_data_parallel", (size_t)slices->count * sizeof *slices->own);
}

void ls_slices_close(ls_slices *slices, int parameter_count) {
    if (slices == NULL) {
        return;
    }
    ls_slice_runs_free(slices->runs, slices->count, parameter_count);
    ls_slice_sums_close(slices->sums);
    ls_free(slices->own);
    ls_free(slices->losses);
    ls_free(slices);
}

/* ---- the passes of a slice --------------------------------------------------------------------------------------- */

ls_status ls_slice_begin_forward(ls_data_parallel_state *state) {
    if (state->slices->running < 0) {
        return ls_fail(
            LS_ERR_STATE,
            "ls_forward: the data-parallel module has .shards = %d, and a rank has several slices of the "
            "batch: call ls_forward inside the function that you pass to this module's ls_data_parallel_step",
            state->slices->total);
    }
    state->slices->begins = true;
    state->part.first = state->slices->first_sample;
    state->located = true;
    return LS_OK;
}

/* Sets the scaling factors of a block of sums. Slices that synchronize add up their divisors here; for other slices,
 * the step has added them up before. */
static ls_status weigh_block(ls_data_parallel_state *state, ls_batch_loss *loss, int block) {
    ls_slices *slices = state->slices;
    const ls_divisor_sums own = ls_divisor_sums_of(state, loss, block * LS_DIVISORS, false);
    ls_divisor_sums *all = &slices->sum.blocks[block];
    if (slices->meets) {
        ls_divisor_sums sum = own;
        LS_TRY(ls_slice_meet(state, (double *)(void *)&sum, sizeof sum / sizeof(double)));
        *all = sum;
    }
    LS_TRY(ls_divisor_sums_check(&own, &slices->sum.blocks[0]));
    ls_divisor_sums_weigh(state, loss, block * LS_DIVISORS, &own, all);
    return LS_OK;
}

static ls_status weigh(ls_data_parallel_state *state, ls_batch_loss *loss) {
    ls_slices *slices = state->slices;
    state->agreed = state->agrees;
    if (!state->agrees) {
        slices->irregular |= loss->irregular || loss->weighed;
        return LS_OK;
    }
    for (int i = 0; i < LS_FACTOR_BLOCKS && (i == 0 || i * LS_DIVISORS < loss->sums); i++) {
        LS_TRY(weigh_block(state, loss, i));
    }
    loss->weighed = true;
    return LS_OK;
}

ls_status ls_slice_begin_backward(ls_data_parallel_state *state, ls_batch_loss *loss) {
    const ls_slices *slices = state->slices;
    if (slices->running >= 0) {
        return ls_fail(LS_ERR_STATE,
                       "ls_backward: ls_data_parallel_step calls ls_backward for the loss that its function "
                       "returns: return the loss, without ls_backward");
    }
    LS_TRY(weigh(state, loss));
    const bool scales = !state->agrees && !slices->irregular;
    return slices->sends ? ls_overlap_begin_slice(state, scales ? ls_divisor_weight(state, state->divisor) : 1) : LS_OK;
}

/* ---- the slices of a batch --------------------------------------------------------------------------------------- */

bool ls_step_lacks_count(const ls_batch *batch) {
    return batch->count == 0 && batch->input != NULL && ls_size(batch->input, 0) > 0;
}

ls_status ls_step_check_arguments(const ls_batch *batch, ls_loss_function function) {
    const char *missing = batch == NULL                               ? "batch"
                          : function == NULL                          ? "function"
                          : batch->input == NULL && batch->count != 0 ? "input of the batch"
                                                                      : NULL;
    if (missing != NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the %s is NULL", call, missing);
    }
    return !ls_step_lacks_count(batch) ? LS_OK
                                       : ls_fail(LS_ERR_ARGUMENT,
                                                 "%s: the batch has .count = 0, but its input is %s: set .count to the "
                                                 "number of samples",
                                                 call, LS_SHAPE_TEXT(batch->input));
}

ls_status ls_slices_check_batch(const ls_slices *slices, const ls_batch *batch) {
    const int64_t begin = ls_share_of(batch->global_count, slices->total, slices->first).start;
    const ls_share last = ls_share_of(batch->global_count, slices->total, slices->first + slices->count - 1);
    const int64_t count = last.start + last.count - begin;
    return batch->first == begin && batch->count == count
               ? LS_OK
               : ls_fail(
                     LS_ERR_ARGUMENT,
                     "%s: the batch has %lld samples starting at %lld, but the slices of this rank have %lld samples "
                     "starting at %lld: set .shards = %d and .comm of ls_loader_options",
                     call, (long long)batch->count, (long long)batch->first, (long long)count, (long long)begin,
                     slices->total);
}

static bool has_rows(const ls_tensor *tensor, int64_t rows) {
    return ls_ndim(tensor) > 0 && ls_size(tensor, 0) == rows;
}

ls_status ls_slice_cut(const ls_slices *slices, const ls_batch *batch, int slice, ls_batch *part) {
    const ls_share own = ls_share_of(batch->global_count, slices->total, slice);
    *part = *batch;
    part->first = own.start;
    part->count = own.count;
    if (batch->input == NULL) { /* the rank has no samples */
        return LS_OK;
    }
    if (!has_rows(batch->input, batch->count) || (batch->target != NULL && !has_rows(batch->target, batch->count))) {
        return ls_fail(LS_ERR_SHAPE, "%s: the number of rows of the batch's input or target differs from .count, %lld",
                       call, (long long)batch->count);
    }
    part->input = ls_narrow(batch->input, 0, own.start - batch->first, own.count);
    part->target = batch->target != NULL ? ls_narrow(batch->target, 0, own.start - batch->first, own.count) : NULL;
    return part->input != NULL && (batch->target == NULL || part->target != NULL) ? LS_OK : ls_error_status();
}

void ls_slice_enter(ls_slices *slices, int slice, const ls_batch *part) {
    slices->running = slice - slices->first;
    slices->begins = false;
    slices->first_sample = part->first;
}

void ls_slice_leave(ls_slices *slices) {
    slices->running = -1;
}

ls_status ls_slices_visit(ls_slices *slices, const ls_batch *batch,
                          ls_status (*function)(const ls_batch *slice, void *user), void *user) {
    ls_status status = ls_slices_check_batch(slices, batch);
    for (int i = 0; i < slices->count && status == LS_OK; i++) {
        ls_scope *scope = ls_scope_open();
        ls_batch part = *batch;
        status = scope != NULL ? ls_slice_cut(slices, batch, slices->first + i, &part) : ls_error_status();
        if (status == LS_OK) {
            ls_slice_enter(slices, slices->first + i, &part);
            status = function(&part, user);
            ls_slice_leave(slices);
        }
        status = scope != NULL ? ls_scope_end_after(scope, status) : status;
    }
    return status;
}
