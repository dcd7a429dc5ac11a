#include "parallel/overlap.h"

#include "autograd/captured_step.h"
#include "base/memory.h"
#include "base/wait.h"
#include "comm/hold.h"
#include "comm/meter.h"
#include "parallel/averaging.h"

/* ---- buckets ----------------------------------------------------------------------------------------------------- */

static int count_leaves(const ls_data_parallel_state *state, const ls_bucket *bucket) {
    int count = 0;
    for (int k = 0; k < bucket->span_count; k++) {
        for (int i = bucket->spans[k].first; i <= bucket->spans[k].last; i++) {
            const ls_leaf *leaf = ls_data_parallel_leaf(state, i);
            count += leaf != NULL && ls_gradient_reducer_flat_of(&state->reducer, leaf) == bucket->flat;
        }
    }
    return count;
}

static void prepare_buckets(ls_data_parallel_state *state) {
    ls_overlap *overlap = &state->overlap;
    const ls_gradient_reducer *reducer = &state->reducer;
    if (state->slices == NULL) { /* ls_slices_step has created them before its first slice */
        ls_gradients_cut(state);
    }
    if (overlap->leaves[0] < 0) {
        for (int i = 0; i < reducer->bucket_count; i++) {
            overlap->leaves[i] = count_leaves(state, &reducer->buckets[i]);
            overlap->order[i] = i;
        }
        overlap->ordered = false;
    }
    for (int i = 0; i < reducer->bucket_count; i++) {
        overlap->missing[i] = overlap->leaves[i];
    }
}

static void launch(ls_data_parallel_state *state) {
    ls_overlap *overlap = &state->overlap;
    const int number = overlap->launched++;
    ls_bucket *bucket = &state->reducer.buckets[overlap->order[number]];
    ls_error_save_first(&overlap->error, ls_bucket_prepare(&state->reducer, bucket, overlap->factor));
    ls_error_save_first(&overlap->error, ls_packet_encode(&bucket->packet, state->comm));
    if (overlap->add_earlier != NULL) {
        overlap->add_earlier(state, bucket);
    }
    const uint64_t calls = ls_comm_metered.calls;
    ls_error_save_first(&overlap->error,
                        ls_packet_send(&bucket->packet, overlap->bucket_comms[(number + 1) % LS_BUCKET_COMMS], false));
    overlap->calls += ls_comm_metered.calls - calls;
}

/* Launches the next buckets while they are complete. With `all`, launches all remaining buckets. */
static void launch_next(ls_data_parallel_state *state, bool all) {
    const ls_overlap *overlap = &state->overlap;
    while (overlap->launched < state->reducer.bucket_count &&
           (all || (overlap->ready && overlap->missing[overlap->order[overlap->launched]] == 0))) {
        launch(state);
    }
}

static void wait_for_weights(ls_data_parallel_state *state) {
    ls_overlap *overlap = &state->overlap;
    const bool exchanged = overlap->weights != NULL;
    ls_error_save_first(&overlap->error, ls_work_finish(&overlap->weights));
    if (exchanged && !overlap->ready) {
        overlap->factor /= ls_weight_read(state);
        overlap->ready = overlap->error.status == LS_OK;
    }
}

/* Waits for all calls in flight. Returns the first error of the pass. */
static ls_status wait_for_all(ls_data_parallel_state *state) {
    ls_overlap *overlap = &state->overlap;
    wait_for_weights(state);
    for (int i = 0; i < overlap->launched; i++) {
        ls_error_save_first(&overlap->error, ls_work_finish(&state->reducer.buckets[overlap->order[i]].packet.work));
    }
    return ls_error_put_back_first(&overlap->error);
}

/* ---- during the pass --------------------------------------------------------------------------------------------- */

static void count_leaf(ls_data_parallel_state *state, const ls_leaf *leaf) {
    ls_overlap *overlap = &state->overlap;
    const int i = overlap->begun ? ls_gradient_reducer_bucket_of(&state->reducer, leaf) : -1;
    if (i >= 0 && overlap->missing[i] > 0 && --overlap->missing[i] == 0) {
        overlap->completed[overlap->completed_count++] = i;
        if (overlap->weights != NULL && ls_work_done(overlap->weights)) {
            wait_for_weights(state);
        }
        launch_next(state, false);
    }
}

/* A call of a captured step: the gradient of a leaf is complete. */
typedef struct captured_leaf {
    ls_data_parallel_state *state;
    ls_leaf *leaf;
} captured_leaf;

static ls_status replay_leaf(void *object) {
    const captured_leaf *complete = object;
    const ls_overlap *overlap = &complete->state->overlap;
    if (overlap->begun && !overlap->abandoned) { /* otherwise, the end of the pass averages */
        complete->leaf->has_gradient = true;
        count_leaf(complete->state, complete->leaf);
    }
    return LS_OK;
}

/* In a captured pass, also records the leaf, even if this pass averages at its end. */
static void leaf_complete(void *user, const ls_leaf *leaf) {
    ls_data_parallel_state *state = user;
    ls_capture *capture = ls_thread_present->capture;
    if (capture == NULL) {
        count_leaf(state, leaf);
    } else if (ls_gradient_reducer_flat_of(&state->reducer, leaf) >= 0) {
        captured_leaf *complete = ls_capture_allocate(capture, sizeof *complete);
        captured_leaf now = {.state = state, .leaf = leaf->tensor->leaf};
        ls_capture_pause(capture);
        (void)replay_leaf(&now);
        ls_capture_early_end(capture, LS_OK, replay_leaf, complete);
        if (complete != NULL) {
            *complete = now;
        }
    }
}

static void observe(ls_data_parallel_state *state) {
    ls_overlap *overlap = &state->overlap;
    overlap->observer.leaf_complete = leaf_complete;
    overlap->observer.user = state;
    ls_pass_observe(&overlap->observer);
}

/* Returns whether all buckets of a failed pass have arrived. Waits at most one second, because a rank may never send
 * them. */
static bool have_arrived(const ls_data_parallel_state *state) {
    const ls_overlap *overlap = &state->overlap;
    ls_wait wait = {.longest_ns = 100 * 1000};
    bool arrived = false;
    while (!arrived && wait.awake.ns < UINT64_C(1000000000)) {
        arrived = ls_work_done(overlap->weights);
        for (int i = 0; i < overlap->launched && arrived; i++) {
            arrived = ls_work_done(state->reducer.buckets[overlap->order[i]].packet.work);
        }
        if (!arrived) {
            (void)ls_wait_pause(&wait);
        }
    }
    return arrived;
}

/* Records whether buckets of a failed pass may still change the model's gradients (ls_leaf.in_flight). */
static void mark_in_flight(const ls_data_parallel_state *state, bool in_flight) {
    for (int i = 0; ls_module_list(state->model) && i < state->model->parameters.count; i++) {
        ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        if (leaf != NULL) {
            leaf->in_flight = in_flight;
        }
    }
}

static ls_status begin_pass(ls_data_parallel_state *state, double weight) {
    ls_overlap *overlap = &state->overlap;
    prepare_buckets(state);
    overlap->completed_count = overlap->launched = 0;
    overlap->error.status = LS_OK;
    overlap->factor = weight;
    overlap->ready = !state->reducer.format->converts;
    overlap->begun = true;
    LS_TRY(overlap->ready ? LS_OK : ls_weight_start(state, weight, &overlap->weights));
    if (ls_thread_present->walking != NULL) {
        observe(state);
    }
    return LS_OK;
}

void ls_overlap_capture(ls_data_parallel_state *state) {
    if (state->overlap.on) {
        observe(state);
    }
}

ls_status ls_overlap_begin(ls_data_parallel_state *state, double weight) {
    ls_overlap *overlap = &state->overlap;
    if (!overlap->on || (overlap->begun && !overlap->stale && !overlap->abandoned)) {
        return LS_OK;
    }
    if (overlap->begun) {
        overlap->dirty = !have_arrived(state) || (overlap->stale && overlap->dirty);
        overlap->stale = true;
        mark_in_flight(state, false); /* the ranks fail together if the buckets have not arrived */
        return LS_OK;
    }
    LS_TRY(ls_gradients_check(state));
    if (ls_gradient_reducer_is_shared(&state->reducer) || !ls_gradient_reducer_is_home(&state->reducer)) {
        overlap->on = false;
        return LS_OK;
    }
    return begin_pass(state, weight);
}

/* ---- the end of the pass ----------------------------------------------------------------------------------------- */

/* After a failed pass, only some ranks may have created new buckets. So all ranks return to the initial order. */
static void forget_order(ls_data_parallel_state *state) {
    state->overlap.leaves[0] = -1;
}

/* Sends rank 0's order to all ranks, if rank 0 has run the pass. */
static ls_status agree_on_order(ls_data_parallel_state *state) {
    ls_overlap *overlap = &state->overlap;
    const int count = state->reducer.bucket_count;
    if (overlap->ordered || count < 2) {
        return LS_OK;
    }
    int32_t *order = overlap->completed;
    int used = overlap->completed_count;
    for (int i = 0; i < count && used > 0; i++) {
        if (overlap->missing[i] > 0 || overlap->leaves[i] == 0) {
            order[used++] = i;
        }
    }
    order[0] = used > 0 ? order[0] : -1;
    LS_TRY(ls_comm_broadcast(state->comm, order, (size_t)count, LS_I32, 0, NULL));
    for (int i = 0; i < count && order[0] >= 0; i++) {
        overlap->order[i] = order[i];
    }
    overlap->ordered = order[0] >= 0;
    return LS_OK;
}

void ls_overlap_stop(ls_data_parallel_state *state) {
    ls_overlap *overlap = &state->overlap;
    ls_saved_error cause;
    ls_error_save(&cause);
    for (int i = 0; i < LS_BUCKET_COMMS; i++) {
        ls_comm_free(overlap->bucket_comms[i]);
        overlap->bucket_comms[i] = NULL;
    }
    if (wait_for_all(state) != LS_OK) {
        (void)ls_error_put_back(&cause);
    }
    if (overlap->abandoned) {
        mark_in_flight(state, false);
    }
    overlap->begun = overlap->abandoned = overlap->on = false;
}

ls_status ls_overlap_refuse_stale(void) {
    return ls_fail(LS_ERR_MISMATCH, "ls_data_parallel: an earlier backward pass failed on some ranks, and other "
                                    "ranks did not take part in it; the next pass can succeed");
}

void ls_overlap_abandon(ls_data_parallel_state *state) {
    ls_overlap *overlap = &state->overlap;
    if (overlap->begun && !overlap->abandoned) {
        launch_next(state, true);
        overlap->abandoned = true;
        ls_data_parallel_forget_gradients(state);
    }
    if (overlap->begun) { /* a pass without the module must not write gradients that a bucket still changes */
        mark_in_flight(state, !have_arrived(state));
    }
}

ls_status ls_overlap_recover(ls_data_parallel_state *state, const ls_tail *own) {
    ls_overlap *overlap = &state->overlap;
    ls_saved_error cause; /* set if this rank has failed */
    ls_error_save(&cause);
    ls_tail with_stale = *own;
    with_stale.stale = overlap->dirty ? 0.5 : 1;
    ls_tail_write(state, &with_stale);
    LS_TRY(ls_tail_reduce(state));
    const ls_tail mean = ls_tail_read(state);
    (void)wait_for_all(state); /* ignores errors of the failed pass; after this, all ranks have sent their buckets */
    mark_in_flight(state, false);
    overlap->stale = overlap->begun = overlap->abandoned = false;
    forget_order(state);
    state->told |= mean.stale != 1; /* all ranks fail here: no rank may notify the others again */
    return mean.stale == 1 ? LS_OK : own->failed > 0 ? ls_error_put_back(&cause) : ls_overlap_refuse_stale();
}

static ls_status decode_buckets(const ls_data_parallel_state *state) {
    const ls_gradient_reducer *reducer = &state->reducer;
    LS_TRY(ls_tail_read_marks(state));
    for (int i = 0; i < reducer->bucket_count; i++) {
        LS_TRY(ls_bucket_decode(reducer, &reducer->buckets[i]));
    }
    return LS_OK;
}

/* Ends a pass whose buckets and tail have arrived with result `status`. */
static ls_status finish(ls_data_parallel_state *state, ls_tensor *const *kept, const ls_tail *mean, ls_status status) {
    const ls_gradient_reducer *reducer = &state->reducer;
    const bool given = ls_tail_is_given(state, mean);
    const ls_status agreed =
        ls_gradients_agree(state, status == LS_OK && given ? decode_buckets(state) : status, given);
    /* Forgets the order only if all ranks fail, so that all ranks keep the same order. If a user-defined format has
     * failed on this rank alone, `agreed` is the format's status. */
    if (agreed == LS_ERR_MISMATCH || (agreed != LS_OK && state->told)) {
        forget_order(state);
    }
    LS_TRY(agreed);
    if (!given) {
        return ls_gradients_restore(state, kept);
    }
    LS_TRY(reducer->format->converts ? LS_OK : ls_gradient_reducer_scale(reducer, 1 / mean->weight));
    return agree_on_order(state);
}

/* Averages the tail. On failure, ends or abandons the pass. `failed` means that this rank has failed. */
static ls_status average_tail(ls_data_parallel_state *state, bool failed) {
    const ls_status status = ls_tail_reduce(state);
    if (status == LS_ERR_MISMATCH) { /* another rank has failed; if this rank has failed too, the caller tries again */
        launch_next(state, true);
        state->overlap.abandoned = !failed;
    } else if (status != LS_OK) { /* a rank is dead or silent, so the calls for the buckets must end too */
        ls_overlap_stop(state);
    }
    return status;
}

ls_status ls_overlap_end(ls_data_parallel_state *state, ls_tail own, ls_tensor **kept, ls_tail *mean) {
    ls_overlap *overlap = &state->overlap;
    ls_saved_error cause; /* set if this rank has failed */
    if (own.given < 1 && own.failed == 0) {
        ls_error_save_first(&overlap->error, ls_gradients_keep(state, kept));
    }
    ls_error_save(&cause);
    launch_next(state, overlap->ready || own.failed > 0);
    if (own.failed == 0 && overlap->error.status != LS_OK && overlap->error.status != LS_ERR_MISMATCH) {
        cause = overlap->error;
        own.failed = 1;
    }
    ls_tail_write(state, &own);
    LS_TRY(average_tail(state, own.failed > 0));
    *mean = ls_tail_read(state);
    if (!overlap->ready) {
        overlap->factor /= mean->weight;
        overlap->ready = true;
    }
    launch_next(state, true);
    if (mean->stale == 0 && ls_tail_is_mixed(state, mean)) { /* the other ranks have not sent their buckets */
        overlap->abandoned = true;
        (void)(own.failed > 0 ? ls_error_put_back(&cause) : LS_OK);
        return ls_tail_check(state, mean, own.failed > 0);
    }
    const ls_status averaged = wait_for_all(state);
    overlap->begun = false;
    if (mean->stale > 0) {
        forget_order(state);
        state->told = true;
        return own.failed > 0 ? ls_error_put_back(&cause) : ls_overlap_refuse_stale();
    }
    if (own.failed > 0) {
        (void)ls_error_put_back(&cause);
    }
    if (mean->failed > 0) {
        forget_order(state);
        return ls_averaging_share_cause(state, own.failed > 0);
    }
    return finish(state, kept, mean, ls_gradients_explain(state->reducer.format, averaged));
}

/* ---- slices ------------------------------------------------------------------------------------------------------ */

ls_status ls_overlap_begin_slice(ls_data_parallel_state *state, double weight) {
    return state->overlap.begun ? LS_OK : begin_pass(state, weight);
}

ls_status ls_overlap_send_slice(ls_data_parallel_state *state, double weight) {
    ls_overlap *overlap = &state->overlap;
    LS_TRY(ls_overlap_begin_slice(state, weight));
    launch_next(state, true);
    const ls_status status = ls_error_put_back_first(&overlap->error);
    overlap->error.status = LS_OK; /* the tail reports the error */
    return status;
}

ls_status ls_overlap_end_slices(ls_data_parallel_state *state) {
    LS_TRY(average_tail(state, false));
    const ls_status status = wait_for_all(state);
    state->overlap.begun = state->overlap.abandoned = false;
    const bool failed = ls_tail_read(state).failed > 0; /* then the caller fails on all ranks */
    if (!failed && status == LS_OK) {
        return agree_on_order(state);
    }
    if (failed || status == LS_ERR_MISMATCH) { /* as on all ranks */
        forget_order(state);
    }
    return failed ? LS_OK : ls_gradients_explain(state->reducer.format, status);
}

/* ---- creation and destruction ------------------------------------------------------------------------------------ */

ls_status ls_overlap_open(ls_data_parallel_state *state) {
    ls_overlap *overlap = &state->overlap;
    const size_t count = (size_t)state->parameter_count;
    int *arrays = ls_allocate_for("ls_data_parallel", 4 * count, sizeof *arrays);
    LS_TRY(ls_made(arrays));
    overlap->leaves = arrays;
    forget_order(state);
    overlap->order = arrays + count;
    overlap->missing = arrays + 2 * count;
    overlap->completed = arrays + 3 * count;
    for (int i = 0; i < LS_BUCKET_COMMS; i++) {
        LS_TRY(ls_comm_split(state->comm, 0, ls_comm_rank(state->comm), &overlap->bucket_comms[i]));
        ls_comm_set_internal(overlap->bucket_comms[i]);
    }
    overlap->on = true;
    return LS_OK;
}

void ls_overlap_close(ls_data_parallel_state *state) {
    ls_overlap_stop(state);
    ls_free(state->overlap.leaves);
}
