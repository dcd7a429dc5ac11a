/* Averages the flat buffers of gradients, and the tail, over the ranks. */
#include "autograd/tape.h"
#include "parallel/averaging.h"
#include "parallel/cause.h"

/* Views a span of a flat buffer, or of a buffer with as many elements of another dtype, as a tensor on the stack. */
static ls_tensor view_span(ls_storage *storage, ls_dtype dtype, int64_t offset, int64_t count) {
    ls_tensor view = ls_flat_view(storage, dtype, count);
    view.data = (char *)view.data + (size_t)offset * ls_dtype_size(dtype);
    return view;
}

static ls_status scale_gradients(const ls_data_parallel_state *state, double factor) {
    for (int i = 0; i < state->flat_count; i++) {
        const ls_flat *flat = &state->flats[i];
        const ls_device *device = flat->gradients->device;
        for (int k = 0; k < state->spans_of[i].count; k++) {
            const ls_gradient_span *span = &state->spans_of[i].items[k];
            const ls_tensor view = view_span(flat->gradients, flat->dtype, span->offset, span->count);
            LS_TRY(device->kernels->scale(ls_device_stream(device), flat->dtype, view.count, factor, view.data));
        }
    }
    return LS_OK;
}

void ls_data_parallel_forget_gradients(const ls_data_parallel_state *state) {
    for (int i = 0; i < state->parameter_count && i < state->model->parameters.count; i++) {
        ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        if (leaf != NULL && leaf->has_gradient) {
            leaf->has_gradient = false;
            ls_leaf_changed(leaf, "ls_data_parallel");
        }
    }
}

/* Ends a call in which a rank has reported that the pass failed there. */
ls_status ls_averaging_share_cause(ls_data_parallel_state *state, bool failed) {
    state->told = true;
    if (ls_module_list(state->model)) {
        ls_data_parallel_forget_gradients(state);
    }
    return ls_cause_share(state->comm, "ls_backward", failed);
}

/* Returns whether the present pass has given the model a gradient on this rank. */
bool ls_gradients_were_given(const ls_data_parallel_state *state) {
    const uint64_t pass = ls_thread_present->pass;
    for (int i = 0; i < state->parameter_count; i++) {
        const ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        if (leaf != NULL && leaf->given == pass) {
            return true;
        }
    }
    return false;
}

/* Zeroes the gradients of parameters without a gradient in this pass, so that they add nothing. */
static ls_status zero_missing(const ls_data_parallel_state *state) {
    for (int i = 0; i < state->parameter_count; i++) {
        const ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        if (leaf != NULL && !leaf->has_gradient && ls_gradient_travels(state, leaf)) {
            LS_TRY(ls_kernels_of(leaf->gradient)->fill(ls_stream_of(leaf->gradient), leaf->gradient, 0));
        }
    }
    return LS_OK;
}

/* Returns whether the gradient of every parameter lies in the memory where it is averaged. */
static bool gradients_are_home(const ls_data_parallel_state *state) {
    for (int i = 0; i < state->parameter_count; i++) {
        const ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        bool home = leaf == NULL;
        for (int k = 0; !home && leaf->gradient != NULL && k < state->flat_count; k++) {
            home = leaf->gradient->storage->whole == state->shared[k];
        }
        if (!home) {
            return false;
        }
    }
    return true;
}

/* Moves the gradients back to their memory, if the model was laid out again, as part of a larger model or in parts. */
static ls_status reclaim_gradients(ls_data_parallel_state *state) {
    const ls_device *device = NULL;
    LS_TRY(ls_module_device(state->model, "ls_data_parallel", &device));
    for (int i = 0; i < state->flat_count; i++) {
        if (state->shared[i]->device != device) {
            return ls_fail(LS_ERR_STATE, "ls_data_parallel: the model has moved to %s: move it before ls_data_parallel",
                           device->name);
        }
        LS_TRY(ls_module_move_gradients(state->model, state->flats[i].dtype, state->shared[i]));
    }
    return LS_OK;
}

/* Converts the exchanged gradients to 16-bit floats, packed, or back. */
static ls_status cast_halves(const ls_data_parallel_state *state, bool back) {
    const ls_flat *flat = &state->flats[0];
    const ls_device *device = flat->gradients->device;
    int64_t packed = 0;
    for (int k = 0; k < state->spans_of[0].count; k++) {
        const ls_gradient_span *span = &state->spans_of[0].items[k];
        ls_tensor gradients = view_span(flat->gradients, LS_F32, span->offset, span->count);
        ls_tensor halves = view_span(state->halves, state->reduce_dtype, packed, span->count);
        LS_TRY(
            device->kernels->cast(ls_device_stream(device), back ? &gradients : &halves, back ? &halves : &gradients));
        packed += span->count;
    }
    return LS_OK;
}

/* Averages the gradients as 16-bit floats. On the CPU, these lie in the communicator's memory. */
static ls_status average_halves(const ls_data_parallel_state *state) {
    const ls_device *device = state->flats[0].gradients->device;
    const int64_t count = state->spans_of[0].total;
    LS_TRY(cast_halves(state, false));
    if (state->in_place) {
        const ls_tensor halves = ls_flat_view(state->halves, state->reduce_dtype, count);
        LS_TRY(ls_allreduce_in_place(state->comm, &halves, LS_AVG));
        return cast_halves(state, true);
    }
    void *memory = state->host_halves->memory;
    const size_t bytes = (size_t)count * ls_dtype_size(state->reduce_dtype);
    LS_TRY(device->is_host ? LS_OK : ls_device_fetch(device, memory, state->halves->memory, bytes));
    LS_TRY(ls_comm_allreduce(state->comm, memory, memory, (size_t)count, state->reduce_dtype, LS_AVG, NULL));
    LS_TRY(device->is_host ? LS_OK : ls_device_store(device, state->halves->memory, memory, bytes));
    return cast_halves(state, true);
}

static ls_status average_in_place(const ls_data_parallel_state *state, int i) {
    const ls_flat *flat = &state->flats[i];
    for (int k = 0; k < state->spans_of[i].count; k++) {
        const ls_gradient_span *span = &state->spans_of[i].items[k];
        const ls_tensor gradients = view_span(flat->gradients, flat->dtype, span->offset, span->count);
        LS_TRY(ls_allreduce_in_place(state->comm, &gradients, LS_AVG));
    }
    return LS_OK;
}

/* Explains an error of ranks that have different numbers of gradients. */
static ls_status explain_counts(ls_status status) {
    if (status != LS_ERR_MISMATCH) {
        return status;
    }
    return ls_fail(status,
                   "ls_data_parallel: %s. If the numbers of elements differ: a parameter must be frozen "
                   "(ls_set_requires_grad) on all ranks or on none",
                   ls_error_message());
}

/* Averages on the host, with the tail after the gradients. */
static ls_status average_on_host(const ls_data_parallel_state *state, int i) {
    const size_t count = (size_t)(state->spans_of[i].total + ls_data_parallel_tail(state, i));
    void *memory = ls_gradient_spans_begin(state, i);
    LS_TRY(ls_gradient_spans_pack(state, i));
    const ls_status status =
        count > 0 ? ls_comm_allreduce(state->comm, memory, memory, count, state->flats[i].dtype, LS_AVG, NULL) : LS_OK;
    const ls_status unpacked = ls_gradient_spans_unpack(state, i);
    return status != LS_OK ? explain_counts(status) : unpacked;
}

/* Checks that the tail has as many marks as the model has parameters and buffers. */
static ls_status check_counts(const ls_data_parallel_state *state) {
    const int parameters = state->model->parameters.count, buffers = state->model->buffers.count;
    return parameters == state->parameter_count && buffers == state->buffer_count
               ? LS_OK
               : ls_fail(LS_ERR_STATE,
                         "ls_data_parallel: the model has %d parameters and %d buffers, but had %d and %d at "
                         "ls_data_parallel: add parameters first",
                         parameters, buffers, state->parameter_count, state->buffer_count);
}

/* Copies the existing gradients: kept[i] for flat buffer i. */
static ls_status keep_gradients(const ls_data_parallel_state *state, ls_tensor **kept) {
    bool any = false;
    for (int i = 0; i < state->parameter_count && !any; i++) {
        const ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        any = leaf != NULL && leaf->has_gradient;
    }
    for (int i = 0; i < state->flat_count && any; i++) {
        const ls_flat *flat = &state->flats[i];
        const ls_tensor gradients = ls_flat_view(flat->gradients, flat->dtype, flat->count);
        kept[i] = ls_tensor_like_owned("ls_data_parallel", &gradients, flat->dtype);
        LS_TRY(kept[i] != NULL ? ls_kernels_of(kept[i])->copy(ls_stream_of(kept[i]), kept[i], &gradients)
                               : ls_error_status());
    }
    return LS_OK;
}

/* Restores the copied gradients. */
static ls_status restore_gradients(const ls_data_parallel_state *state, ls_tensor *const *kept) {
    for (int i = 0; i < state->flat_count; i++) {
        if (kept[i] != NULL) {
            const ls_flat *flat = &state->flats[i];
            ls_tensor gradients = ls_flat_view(flat->gradients, flat->dtype, flat->count);
            LS_TRY(ls_kernels_of(kept[i])->copy(ls_stream_of(kept[i]), &gradients, kept[i]));
        }
    }
    return LS_OK;
}

/* Averages the tail first, which shows whether there is anything to average and which gradients the ranks have. */
static ls_status average_after_tail(ls_data_parallel_state *state, const ls_tail *own, ls_tail *mean) {
    ls_tail_write(state, own);
    LS_TRY(ls_tail_average(state));
    *mean = ls_tail_read(state);
    if (mean->failed > 0) {
        return ls_averaging_share_cause(state, own->failed > 0);
    }
    if (!ls_tail_is_given(state, mean)) {
        return LS_OK;
    }
    LS_TRY(ls_tail_read_marks(state));
    if (own->weight != mean->weight) {
        LS_TRY(scale_gradients(state, own->weight / mean->weight));
    }
    if (state->reduce_dtype != LS_F32) {
        return average_halves(state);
    }
    for (int i = 0; i < state->flat_count; i++) {
        LS_TRY(average_in_place(state, i));
    }
    return LS_OK;
}

/* Prepares this rank's gradients for the exchange. `kept` receives copies that the caller frees. */
static ls_status prepare_gradients(const ls_data_parallel_state *state, const ls_tail *own, bool tail_first,
                                   ls_tensor **kept) {
    if (!tail_first) {
        LS_TRY(own->given < 1 ? keep_gradients(state, kept) : LS_OK);
        LS_TRY(own->weight != 1 ? scale_gradients(state, own->weight) : LS_OK);
    }
    return zero_missing(state);
}

/* Averages with the tail after the gradients, in one call per dtype. */
static ls_status average_with_tail(ls_data_parallel_state *state, const ls_tail *own, ls_tensor *const *kept,
                                   ls_tail *mean) {
    ls_tail_write(state, own);
    for (int i = 0; i < state->flat_count; i++) {
        LS_TRY(average_on_host(state, i));
    }
    *mean = ls_tail_read(state);
    if (mean->failed > 0) {
        return ls_averaging_share_cause(state, own->failed > 0);
    }
    if (!ls_tail_is_given(state, mean)) {
        return restore_gradients(state, kept);
    }
    LS_TRY(ls_tail_read_marks(state));
    return mean->weight != 1 ? scale_gradients(state, 1 / mean->weight) : LS_OK;
}

/*
 * Averages the gradients over the ranks, scaled by each rank's own.weight. Sets *mean to the mean of the tails. If the
 * pass gave the model a gradient on no rank, the gradients stay unchanged. After a failure, the model has no gradients.
 */
ls_status ls_gradients_average(ls_data_parallel_state *state, ls_tail own, ls_tail *mean) {
    if (!ls_module_list(state->model)) {
        return ls_error_status();
    }
    LS_TRY(check_counts(state));
    if (!gradients_are_home(state)) {
        LS_TRY(reclaim_gradients(state));
    }
    ls_gradient_spans_list(state);
    ls_tensor *kept[LS_FLAT_LIMIT] = {NULL};
    const bool tail_first = state->in_place || state->reduce_dtype != LS_F32;
    own.failed = own.failed > 0 || prepare_gradients(state, &own, tail_first, kept) != LS_OK;
    const ls_status status =
        tail_first ? average_after_tail(state, &own, mean) : average_with_tail(state, &own, kept, mean);
    for (int i = 0; i < state->flat_count; i++) {
        ls_tensor_drop(kept[i]);
    }
    if (status != LS_OK) {
        ls_data_parallel_forget_gradients(state);
    }
    return status;
}
