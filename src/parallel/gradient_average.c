/* Averages the flat buffers of gradients, and the tail, over the ranks. */
#include "autograd/tape.h"
#include "base/hash.h"
#include "parallel/averaging.h"
#include "parallel/cause.h"
#include "parallel/powersgd.h"

void ls_gradients_cut(ls_data_parallel_state *state) {
    uint64_t sent = 1; /* a hash */
    for (int i = 0; i < state->parameter_count; i++) {
        const ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        sent = (sent + (leaf != NULL && ls_gradient_is_sent(state, leaf))) * UINT64_C(0x9e3779b97f4a7c15);
    }
    if (sent != state->sent) {
        ls_gradient_reducer_cut(&state->reducer, ls_gradient_is_sent, state);
        state->sent = sent;
        if (state->overlap.on) {
            state->overlap.leaves[0] = -1;
        }
    }
}

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

ls_status ls_gradients_check(const ls_data_parallel_state *state) {
    if (!ls_module_list(state->model)) {
        return ls_error_status();
    }
    return !ls_module_has_grown(state->model)
               ? LS_OK
               : ls_fail(LS_ERR_STATE, "ls_data_parallel: a layer was added to the model after ls_data_parallel was "
                                       "called, and its gradients would not be averaged: add all layers first");
}

/* Returns the number of gradients of a flat buffer to copy: all gradients or, if some are sharded, the gradients in
 * buckets. */
static int64_t count_kept(const ls_gradient_reducer *reducer, int flat) {
    int64_t count = reducer->keeps_memory ? 0 : reducer->flats[flat].count;
    for (int i = 0; i < reducer->bucket_count && reducer->keeps_memory; i++) {
        count += reducer->buckets[i].flat == flat ? reducer->buckets[i].packet.total : 0;
    }
    return count;
}

/* Copies `count` gradients of a flat buffer to `kept`, or back, and advances `kept`. */
static ls_status copy_span(const ls_flat *flat, int64_t offset, int64_t count, char **kept, bool back) {
    const ls_device *device = flat->gradients->device;
    const size_t width = ls_dtype_size(flat->dtype), bytes = (size_t)count * width;
    char *own = (char *)flat->gradients->memory + (size_t)offset * width, *copy = *kept;
    *kept += bytes;
    return device->copy(ls_device_stream(device), back ? own : copy, back ? copy : own, bytes);
}

static ls_status copy_kept(const ls_gradient_reducer *reducer, int flat, const ls_tensor *tensor, bool back) {
    char *kept = tensor->storage->memory;
    if (!reducer->keeps_memory) {
        return copy_span(&reducer->flats[flat], 0, reducer->flats[flat].count, &kept, back);
    }
    for (int i = 0; i < reducer->bucket_count; i++) {
        const ls_bucket *bucket = &reducer->buckets[i];
        for (int k = 0; k < bucket->span_count && bucket->flat == flat; k++) {
            const ls_span *span = &bucket->spans[k];
            LS_TRY(copy_span(&reducer->flats[flat], span->offset, span->count, &kept, back));
        }
    }
    return LS_OK;
}

ls_status ls_gradients_keep(const ls_data_parallel_state *state, ls_tensor **kept) {
    const ls_gradient_reducer *reducer = &state->reducer;
    bool any = false;
    for (int i = 0; i < state->parameter_count && !any; i++) {
        const ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        any = leaf != NULL && leaf->has_gradient;
    }
    for (int i = 0; i < reducer->flat_count && any; i++) {
        const ls_flat *flat = &reducer->flats[i];
        const int64_t count = count_kept(reducer, i);
        kept[i] = ls_tensor_new_owned("ls_data_parallel", flat->gradients->device, 1, &count, flat->dtype);
        LS_TRY(ls_made(kept[i]));
        ls_storage_set_kind(kept[i]->storage, LS_MEMORY_BUCKETS);
        LS_TRY(copy_kept(reducer, i, kept[i], false));
    }
    return LS_OK;
}

ls_status ls_gradients_restore(const ls_data_parallel_state *state, ls_tensor *const *kept) {
    for (int i = 0; i < state->reducer.flat_count; i++) {
        LS_TRY(kept[i] != NULL ? copy_kept(&state->reducer, i, kept[i], true) : LS_OK);
    }
    return LS_OK;
}

/* Returns a nonnegative hash of the decoded gradients. User-defined formats decode to host memory. */
static int64_t hash_decoded(const ls_gradient_reducer *reducer) {
    uint64_t hash = LS_HASH_START;
    for (int i = 0; i < reducer->bucket_count; i++) {
        const ls_wire_packet *packet = &reducer->buckets[i].packet;
        const size_t width = ls_dtype_size(packet->dtype);
        for (int k = 0; k < packet->piece_count; k++) {
            const ls_wire_piece *piece = &packet->pieces[k];
            hash = ls_hash_long(hash, (const char *)piece->storage->memory + (size_t)piece->offset * width,
                                (size_t)piece->count * width);
        }
    }
    return (int64_t)(hash >> 1);
}

static ls_status refuse_different_bits(ls_data_parallel_state *state) {
    state->told = true;
    return ls_fail(
        LS_ERR_MISMATCH,
        "ls_data_parallel: `decode` of the wire format \"%s\" has given the ranks different gradients: compute "
        "them from the encoded numbers alone, with the same bits on all ranks",
        state->reducer.format->name);
}

ls_status ls_gradients_agree(ls_data_parallel_state *state, ls_status status, bool decoded) {
    if (state->reducer.format->functions == NULL) {
        return status;
    }
    ls_saved_error cause;
    ls_error_save(&cause);
    const int64_t hash = decoded && status == LS_OK ? hash_decoded(&state->reducer) : 0;
    int64_t largest[] = {status != LS_OK, hash, -hash};
    const ls_status agreed = ls_comm_allreduce(state->comm, largest, largest, 3, LS_I64, LS_MAX, NULL);
    if (status != LS_OK) {
        (void)ls_error_put_back(&cause);
    }
    if (agreed != LS_OK) {
        return status != LS_OK ? status : agreed;
    }
    return largest[0] > 0              ? ls_averaging_share_cause(state, status != LS_OK)
           : largest[1] != -largest[2] ? refuse_different_bits(state)
                                       : LS_OK;
}

static ls_status average_bucket(const ls_data_parallel_state *state, ls_bucket *bucket) {
    const ls_status status = ls_packet_start(&bucket->packet, state->comm, true);
    const bool decodes = status == LS_OK || bucket->packet.format->functions == NULL;
    const ls_status decoded = decodes ? ls_bucket_decode(&state->reducer, bucket) : LS_OK;
    return status != LS_OK ? ls_gradients_explain(bucket->packet.format, status) : decoded;
}

/* Averages all buckets, even after a user-defined format has failed, because the other ranks wait for them. */
static ls_status average_buckets(ls_data_parallel_state *state) {
    ls_gradient_reducer *reducer = &state->reducer;
    ls_saved_error cause = {.status = LS_OK};
    for (int i = 0; i < reducer->bucket_count; i++) {
        ls_error_save_first(&cause, average_bucket(state, &reducer->buckets[i]));
    }
    return ls_gradients_agree(state, ls_error_put_back_first(&cause), true);
}

/* Averages the tail first. The tail shows whether there is anything to average, and which gradients the ranks have. */
static ls_status average_after_tail(ls_data_parallel_state *state, const ls_tail *own, ls_tail *mean) {
    ls_gradient_reducer *reducer = &state->reducer;
    ls_tail_write(state, own);
    LS_TRY(ls_tail_reduce(state));
    *mean = ls_tail_read(state);
    LS_TRY(ls_tail_check(state, mean, own->failed > 0));
    if (!ls_tail_is_given(state, mean)) {
        return LS_OK;
    }
    if (state->powersgd != NULL) {
        return ls_powersgd_average(state, own->weight / mean->weight);
    }
    for (int i = 0; i < reducer->bucket_count; i++) {
        LS_TRY(ls_bucket_prepare(reducer, &reducer->buckets[i], own->weight / mean->weight));
    }
    LS_TRY(ls_tail_read_marks(state));
    return average_buckets(state);
}

/* Prepares this rank's gradients. `kept` receives copies that the caller frees. */
static ls_status prepare_gradients(const ls_data_parallel_state *state, const ls_tail *own, ls_tensor **kept) {
    const ls_gradient_reducer *reducer = &state->reducer;
    LS_TRY(own->given < 1 ? ls_gradients_keep(state, kept) : LS_OK);
    for (int i = 0; i < reducer->bucket_count; i++) {
        LS_TRY(ls_bucket_prepare(reducer, &reducer->buckets[i], own->weight));
    }
    return LS_OK;
}

/* Averages with the tail after the gradients, in one call per dtype. */
static ls_status average_with_tail(ls_data_parallel_state *state, ls_tail own, ls_tensor **kept, ls_tail *mean) {
    ls_gradient_reducer *reducer = &state->reducer;
    own.failed = own.failed > 0 || prepare_gradients(state, &own, kept) != LS_OK;
    ls_tail_write(state, &own);
    ls_bucket *last = reducer->bucket_count > 0 ? &reducer->buckets[reducer->bucket_count - 1] : NULL;
    const bool attached = last != NULL && ls_bucket_has_extra(reducer, last);
    if (attached) {
        last->packet.extra = ls_tail_count(state);
    }
    for (int i = 0; i < reducer->bucket_count; i++) {
        const ls_status status = average_bucket(state, &reducer->buckets[i]);
        reducer->buckets[i].packet.extra = 0;
        LS_TRY(status);
    }
    LS_TRY(attached ? LS_OK : ls_tail_reduce(state));
    *mean = ls_tail_read(state);
    LS_TRY(ls_tail_check(state, mean, own.failed > 0));
    if (!ls_tail_is_given(state, mean)) {
        return ls_gradients_restore(state, kept);
    }
    LS_TRY(ls_tail_read_marks(state));
    return ls_gradient_reducer_scale(reducer, 1 / mean->weight);
}

ls_status ls_gradients_average_at_once(ls_data_parallel_state *state, ls_tail own, ls_tensor **kept, ls_tail *mean) {
    if (!ls_gradient_reducer_is_home(&state->reducer)) {
        LS_TRY(ls_gradient_reducer_reclaim(&state->reducer));
    }
    ls_gradients_cut(state);
    return ls_gradient_reducer_has_extra(&state->reducer) && state->powersgd == NULL
               ? average_with_tail(state, own, kept, mean)
               : average_after_tail(state, &own, mean);
}
