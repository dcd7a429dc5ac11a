#include "parallel/meeting.h"

#include <stdio.h>
#include <string.h>

#include "autograd/ops/ops.h"
#include "comm/hold.h"
#include "comm/reduce.h"
#include "parallel/buffers.h"
#include "parallel/cause.h"
#include "parallel/move.h"
#include "tensor/capture.h"

static const char *const names[LS_MEET_KINDS] = {
    [LS_MEET_ALLREDUCE] = "ls_allreduce",
    [LS_MEET_REDUCE] = "ls_reduce",
    [LS_MEET_REDUCE_SCATTER] = "ls_reduce_scatter",
    [LS_MEET_BROADCAST] = "ls_broadcast",
    [LS_MEET_GATHER] = "ls_gather",
    [LS_MEET_ALLGATHER] = "ls_allgather",
    [LS_MEET_SCATTER] = "ls_scatter",
    [LS_MEET_ALLTOALL] = "ls_alltoall",
    [LS_MEET_SHARING] = "ls_nn_column_parallel",
    [LS_MEET_ADDING] = "ls_nn_row_parallel",
    [LS_MEET_JOINING] = "ls_nn_gather_parallel",
};

_Static_assert(sizeof(ls_offer) == 80, "an offer is meant to travel in one piece");

static const char *name_of(const ls_offer *offer) {
    return offer->kind > 0 && offer->kind < LS_MEET_KINDS ? names[offer->kind] : "something unknown";
}

/* ---- this rank's offer ------------------------------------------------------------------------------------------- */

static bool has_gradient(const ls_collective *what, ls_reduction reduction) {
    return what->op.backward != NULL && (!what->reduces || reduction <= LS_MAX);
}

ls_status ls_check_tensor_reduction(const char *call, ls_reduction reduction) {
    return reduction < LS_MINLOC
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: %s cannot reduce tensors", call, ls_reduction_name(reduction));
}

static ls_status check_arguments(const ls_meeting *meeting, const ls_proposal *proposal) {
    const ls_collective *what = meeting->what;
    const char *name = what->op.name;
    const ls_tensor *tensor = proposal->tensor;
    if (what->rooted && (proposal->root < 0 || proposal->root >= meeting->size)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: root %d is not a rank of this communicator; its ranks are 0 to %d", name,
                       proposal->root, meeting->size - 1);
    }
    const bool brings = what->bringers != LS_BRING_ROOT || proposal->root == meeting->rank;
    if (brings && tensor == NULL) {
        return ls_scope_fail_null("%s: the tensor", name);
    }
    if (brings && !ls_tensor_is_here(name, tensor)) {
        return ls_error_status();
    }
    if (what->reduces && tensor != NULL) {
        LS_TRY(ls_check_tensor_reduction(name, proposal->reduction));
        LS_TRY(ls_reduce_check(name, (ls_dtype)tensor->dtype, proposal->reduction));
    }
    for (int i = 0; i < what->axes && brings; i++) {
        if (ls_axis_index(proposal->axis[i], tensor->ndim) < 0) {
            return ls_fail(LS_ERR_SHAPE, "%s: axis %d does not exist in %s, which has %d axes", name, proposal->axis[i],
                           LS_SHAPE_TEXT(tensor), tensor->ndim);
        }
    }
    return proposal->count >= 0 ? LS_OK
                                : ls_fail(LS_ERR_ARGUMENT, "%s: the count is %lld, but must be 0 or more", name,
                                          (long long)proposal->count);
}

const ls_device *ls_meeting_device(const ls_meeting *meeting, const ls_tensor *tensor, ls_reduction reduction) {
    const ls_device *device = ls_tensor_device(tensor);
    const ls_dtype dtype = (ls_dtype)tensor->dtype;
    if (meeting->carried) {
        return NULL;
    }
    return meeting->what->reduces ? ls_reducing_device(meeting->comm, device, dtype, reduction)
                                  : ls_moving_device(meeting->comm, device, dtype);
}

static ls_status show_tensor(ls_meeting *meeting, const ls_proposal *proposal) {
    ls_tensor *tensor = proposal->tensor;
    ls_offer *own = &meeting->own;
    const size_t place = (size_t)tensor->ndim * sizeof *own->size;
    const size_t bytes = (size_t)tensor->count * ls_dtype_size((ls_dtype)tensor->dtype);
    const bool carries = bytes <= LS_OFFER_ROOM - place && meeting->size <= LS_FEW_RANKS;
    meeting->dense = ls_buffer_dense(meeting->what->op.name, tensor,
                                     carries ? NULL : ls_meeting_device(meeting, tensor, proposal->reduction));
    LS_TRY(ls_made(meeting->dense));
    own->state = 0;
    own->dtype = tensor->dtype;
    own->ndim = tensor->ndim;
    memcpy(own->size, tensor->size, (size_t)tensor->ndim * sizeof *own->size);
    for (int i = 0; i < meeting->what->axes; i++) {
        own->axes |= (uint8_t)(ls_axis_index(proposal->axis[i], tensor->ndim) << (4 * i));
    }
    if (carries) {
        own->state |= LS_OFFER_CARRIES;
        if (bytes != 0) {
            memcpy(own->room + place, ls_host_data(meeting->dense), bytes);
        }
    }
    if (tensor->needs_grad && !ls_thread()->no_grad && has_gradient(meeting->what, proposal->reduction)) {
        own->state |= LS_OFFER_WANTS;
    }
    return LS_OK;
}

/* Adds the fingerprint of a tensor that must be equal on all ranks. */
static ls_status show_replica(ls_meeting *meeting, const ls_proposal *proposal) {
    if (proposal->replica == NULL || meeting->size == 1) {
        return LS_OK;
    }
    const ls_tensor *dense = proposal->replica == proposal->tensor ? meeting->dense : proposal->replica;
    meeting->own.state |= LS_OFFER_CHECKS;
    return ls_fingerprint_of(meeting->what->op.name, dense, &meeting->own.fingerprint);
}

static ls_status make_offer(ls_meeting *meeting, const ls_proposal *proposal) {
    const ls_collective *what = meeting->what;
    meeting->own = (ls_offer){.kind = (uint8_t)what->kind,
                              .state = LS_OFFER_EMPTY,
                              .reduction = (uint8_t)proposal->reduction,
                              .root = (uint16_t)proposal->root,
                              .count = proposal->count};
    ls_status status = check_arguments(meeting, proposal);
    if (status == LS_OK && (what->bringers != LS_BRING_ROOT || proposal->root == meeting->rank)) {
        status = show_tensor(meeting, proposal);
        status = status == LS_OK ? show_replica(meeting, proposal) : status;
    }
    if (status != LS_OK) {
        meeting->own.state = LS_OFFER_EMPTY | LS_OFFER_FAILED;
    }
    return status;
}

/* ---- all offers -------------------------------------------------------------------------------------------------- */

/* Compares shapes, which may differ only along the axes of the call. */
static bool shapes_fit(const ls_collective *what, const ls_offer *a, const ls_offer *b) {
    bool fit = a->ndim == b->ndim;
    for (int axis = 0; fit && axis < a->ndim; axis++) {
        const bool free = axis == ls_offer_axis(a, 0);
        fit = a->size[axis] == b->size[axis] || (what->bringers == LS_BRING_ALL && free);
    }
    return fit;
}

static ls_status refuse_shapes(const ls_meeting *meeting, int first, int other) {
    const ls_offer *a = &meeting->offers[first];
    const ls_offer *b = &meeting->offers[other];
    const char *remedy = meeting->proposal->remedy;
    return ls_fail(LS_ERR_MISMATCH, "%s: rank %d passes %s of %s, but rank %d passes %s of %s%s%s",
                   meeting->what->op.name, first, ls_shape_describe(a->ndim, a->size).text,
                   ls_dtype_name((ls_dtype)a->dtype), other, ls_shape_describe(b->ndim, b->size).text,
                   ls_dtype_name((ls_dtype)b->dtype), remedy != NULL ? ": " : "", remedy != NULL ? remedy : "");
}

/* Compares the arguments that must be equal on all ranks, including ranks without a tensor. */
static ls_status compare_arguments(const ls_meeting *meeting, int other) {
    const ls_offer *a = &meeting->offers[0];
    const ls_offer *b = &meeting->offers[other];
    const char *name = meeting->what->op.name;
    if (a->kind != b->kind) {
        return ls_fail(LS_ERR_MISMATCH, "%s: rank 0 called %s, but rank %d called %s", name, name_of(a), other,
                       name_of(b));
    }
    if (meeting->what->rooted && a->root != b->root) {
        return ls_fail(LS_ERR_MISMATCH, "%s: rank 0 passes root %d, but rank %d passes root %d", name, a->root, other,
                       b->root);
    }
    if (meeting->what->reduces && a->reduction != b->reduction) {
        return ls_fail(LS_ERR_MISMATCH, "%s: rank 0 reduces with %s, but rank %d reduces with %s", name,
                       ls_reduction_name((ls_reduction)a->reduction), other,
                       ls_reduction_name((ls_reduction)b->reduction));
    }
    return LS_OK;
}

static ls_status compare_replicas(const ls_meeting *meeting, int first, int other) {
    const ls_offer *a = &meeting->offers[first];
    const ls_offer *b = &meeting->offers[other];
    const bool compares = (a->state & b->state & LS_OFFER_CHECKS) != 0;
    return compares && ls_fingerprints_differ(a->fingerprint, b->fingerprint, (ls_dtype)a->dtype)
               ? ls_fail(LS_ERR_MISMATCH, "%s differs between ranks %d and %d: %s", meeting->proposal->replica_name,
                         first, other, meeting->proposal->remedy)
               : LS_OK;
}

static ls_status compare_tensors(const ls_meeting *meeting, int first, int other) {
    const ls_offer *a = &meeting->offers[first];
    const ls_offer *b = &meeting->offers[other];
    if (a->dtype != b->dtype || !shapes_fit(meeting->what, a, b)) {
        return refuse_shapes(meeting, first, other);
    }
    for (int i = 0; i < meeting->what->axes; i++) {
        if (ls_offer_axis(a, i) != ls_offer_axis(b, i)) {
            return ls_fail(LS_ERR_MISMATCH, "%s: rank %d passes axis %d, but rank %d passes axis %d",
                           meeting->what->op.name, first, ls_offer_axis(a, i), other, ls_offer_axis(b, i));
        }
    }
    return compare_replicas(meeting, first, other);
}

/* Checks the offers. All ranks get the same result. */
static ls_status examine(ls_meeting *meeting) {
    for (int rank = 0; rank < meeting->size; rank++) {
        LS_TRY(compare_arguments(meeting, rank));
    }
    int first = -1;
    meeting->carried = meeting->size <= LS_FEW_RANKS;
    for (int rank = 0; rank < meeting->size; rank++) {
        const ls_offer *offer = &meeting->offers[rank];
        if ((offer->state & LS_OFFER_EMPTY) != 0) {
            continue;
        }
        first = first < 0 ? rank : first;
        LS_TRY(compare_tensors(meeting, first, rank));
        meeting->wanted = meeting->wanted || (offer->state & LS_OFFER_WANTS) != 0;
        meeting->carried = meeting->carried && (offer->state & LS_OFFER_CARRIES) != 0;
    }
    return LS_OK;
}

static ls_status exchange(ls_meeting *meeting) {
    if (meeting->size == 1) {
        meeting->offers[0] = meeting->own;
        return LS_OK;
    }
    const ls_status status =
        ls_comm_allgather(meeting->comm, &meeting->own, meeting->offers, sizeof meeting->own, LS_U8, NULL);
    return status == LS_OK ? LS_OK : ls_fail(status, "%s: %s", meeting->what->op.name, ls_error_message());
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static ls_agreement *agree(const ls_meeting *meeting, const ls_proposal *proposal) {
    const size_t ranks = meeting->what->axes > 0 ? (size_t)meeting->size : 0;
    const size_t bytes = sizeof(ls_agreement) + 4 * ranks * sizeof(int64_t);
    ls_agreement *a = ls_record_allocate(bytes);
    if (a == NULL) {
        (void)ls_fail_memory(meeting->what->op.name, bytes);
        return NULL;
    }
    memset(a, 0, bytes);
    a->references = 1;
    a->bytes = bytes;
    a->comm = ls_comm_hold(proposal->comm);
    a->reduction = proposal->reduction;
    a->root = proposal->root;
    if (ranks > 0) {
        a->gathered = (ls_parts){a->rows, a->rows + ranks};
        a->scattered = (ls_parts){a->rows + 2 * ranks, a->rows + 3 * ranks};
    }
    for (int rank = 0; rank < meeting->size; rank++) {
        if ((meeting->offers[rank].state & LS_OFFER_EMPTY) == 0) {
            a->axis[0] = ls_offer_axis(&meeting->offers[rank], 0);
            a->axis[1] = ls_offer_axis(&meeting->offers[rank], 1);
            break;
        }
    }
    return a;
}

void ls_agreement_hold(void *agreement, bool hold) {
    ls_agreement *a = agreement;
    if (hold) {
        a->references++;
    } else if (--a->references == 0) {
        ls_comm_drop(a->comm);
        ls_record_release(a, a->bytes);
    }
}

ls_status ls_check_backward_comm(const char *name, const ls_comm *comm) {
    char call[64];
    snprintf(call, sizeof call, "ls_backward: the gradient of %s", name);
    return ls_comm_check_open(call, comm);
}

ls_status ls_node_check_comm(ls_node *node) {
    const ls_agreement *agreement = ls_node_agreement(node);
    LS_TRY(ls_check_backward_comm(node->op->name, agreement->comm));
    if (agreement->flight == NULL || agreement->flight->failed) {
        return LS_OK;
    }
    const ls_status status = ls_flight_end(agreement->flight, LS_OK);
    agreement->flight->failed = status != LS_OK;
    return status;
}

ls_status ls_node_agreed(const ls_node *node, ls_reach *reach, ls_reach most) {
    const bool failed = *reach == LS_REACH_FAILED;
    *reach = most;
    return most != LS_REACH_FAILED ? LS_OK : ls_cause_share(ls_node_agreement(node)->comm, "ls_backward", failed);
}

ls_status ls_node_agree(ls_node *node, ls_reach *reach) {
    int32_t most = (int32_t)*reach;
    LS_TRY(ls_comm_allreduce(ls_node_agreement(node)->comm, &most, &most, 1, LS_I32, LS_MAX, NULL));
    return ls_node_agreed(node, reach, (ls_reach)most);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

ls_tensor *ls_as_seen(ls_tensor *result) {
    if (result == NULL || !result->needs_grad || !ls_thread()->no_grad) {
        return result;
    }
    ls_tensor *seen = ls_alias(result);
    ls_release(result);
    return seen;
}

/*
 * Runs ls_apply for operations that other ranks may record while ls_no_grad is on here. The node's input then requires
 * no gradient, and the result has no history. `input` may be NULL if the operation allows NULL.
 */
static ls_tensor *apply_unseen(const ls_op *op, ls_tensor *input, const ls_op_parameters *parameters) {
    if (!ls_thread()->no_grad) {
        return ls_apply(op, &input, 1, parameters);
    }
    ls_tensor *cut_off = ls_alias(input);
    ls_tensor *result = ls_apply(op, &cut_off, 1, parameters);
    ls_release(cut_off);
    return ls_as_seen(result);
}

static bool has_failed(const ls_meeting *meeting) {
    bool failed = false;
    for (int rank = 0; rank < meeting->size; rank++) {
        failed = failed || (meeting->offers[rank].state & LS_OFFER_FAILED) != 0;
    }
    return failed;
}

/* Exchanges the offers. `status` is the result of this rank's make_offer. */
static ls_status meet_others(ls_meeting *meeting, ls_status status) {
    ls_saved_error cause;
    if (status != LS_OK) {
        ls_error_save(&cause);
    }
    const ls_status met = exchange(meeting);
    if (status != LS_OK) {
        (void)ls_error_put_back(&cause);
    }
    if (met == LS_OK && meeting->size > 1 && has_failed(meeting)) {
        return ls_cause_share(meeting->comm, meeting->what->op.name, status != LS_OK);
    }
    return status != LS_OK ? status : met != LS_OK ? met : examine(meeting);
}

static ls_tensor *meet(ls_meeting *meeting, const ls_proposal *proposal, ls_agreement **started) {
    if (meet_others(meeting, make_offer(meeting, proposal)) != LS_OK) {
        return ls_scope_failed();
    }
    ls_agreement *agreement = agree(meeting, proposal);
    if (agreement == NULL) {
        return ls_scope_failed();
    }
    meeting->parameters.context = agreement;
    ls_tensor *brought = (meeting->own.state & LS_OFFER_EMPTY) != 0 ? NULL : proposal->tensor;
    ls_tensor *result = apply_unseen(&meeting->what->op, brought, &meeting->parameters);
    if (result != NULL && !meeting->flight->waits) {
        agreement->flight = meeting->flight;
        *started = agreement;
        return result;
    }
    if (result == NULL) { /* the call may have begun, but its node was not recorded */
        ls_saved_error cause;
        ls_error_save(&cause);
        (void)ls_flight_end(meeting->flight, cause.status);
        (void)ls_error_put_back(&cause);
    }
    ls_agreement_hold(agreement, false);
    return result;
}

ls_tensor *ls_meet(const ls_collective *what, const ls_proposal *proposal) {
    ls_flight flight = {.waits = true};
    return ls_meet_by(what, proposal, &flight, NULL);
}

ls_tensor *ls_meet_by(const ls_collective *what, const ls_proposal *proposal, ls_flight *flight,
                      ls_agreement **agreement) {
    ls_capture_refuse_here(what->op.name, LS_CAPTURE_COMMUNICATES);
    ls_meeting meeting;
    if (proposal->comm == NULL || ls_thread() == NULL) {
        (void)ls_fail_missing("%s: the communicator", what->op.name);
        return ls_scope_failed();
    }
    if (ls_comm_check_open(what->op.name, proposal->comm) != LS_OK) {
        return ls_scope_failed();
    }
    meeting.what = what;
    meeting.proposal = proposal;
    meeting.comm = proposal->comm;
    meeting.rank = ls_comm_rank(proposal->comm);
    meeting.size = ls_comm_size(proposal->comm);
    meeting.root = proposal->root;
    meeting.flight = flight;
    meeting.dense = NULL;
    meeting.wanted = false;
    meeting.carried = false;
    meeting.parameters = (ls_op_parameters){0};
    meeting.offers = meeting.few;
    const size_t bytes = (size_t)meeting.size * sizeof *meeting.offers;
    if (meeting.size > LS_FEW_RANKS) {
        meeting.offers = ls_record_allocate(bytes);
        if (meeting.offers == NULL) {
            (void)ls_fail_memory(what->op.name, bytes);
            return ls_scope_failed();
        }
    }
    ls_tensor *result = meet(&meeting, proposal, agreement);
    ls_tensor_drop(meeting.dense);
    if (meeting.offers != meeting.few) {
        ls_record_release(meeting.offers, bytes);
    }
    return result;
}
