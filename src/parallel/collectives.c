/*
 * Collectives that move tensors. The gradient of a move is the reverse move: the gradient of a tensor that is sent to
 * several ranks is the sum of their gradients, and the gradient of a concatenated tensor is split. Each collective is
 * one table row. The shape rule plans the part of the whole for each rank, the forward rule executes this plan, and the
 * backward rule executes its reverse.
 */
#include <string.h>

#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "comm/public_call.h"
#include "parallel/buffers.h"
#include "parallel/handle.h"
#include "parallel/move.h"
#include "parallel/reductions.h"

/* ---- shared by the rules ----------------------------------------------------------------------------------------- */

static ls_move forward_move(const ls_op_call *call, ls_move_kind kind) {
    return ls_move_of(call->op->name, ls_call_agreement(call), kind, call->inputs[0], call->output);
}

static ls_status start_move(const ls_op_call *call, const ls_move *move) {
    return ls_flight_begun(call, ls_move_start(move, ls_meeting_of(call)->flight));
}

static ls_status start(const ls_op_call *call, ls_move_kind kind) {
    const ls_move move = forward_move(call, kind);
    return start_move(call, &move);
}

static ls_move backward_move(const ls_node *node, ls_move_kind kind, const ls_tensor *gradient, ls_tensor *share) {
    return ls_move_of(node->op->name, ls_node_agreement(node), kind, gradient, share);
}

static bool is_root(const ls_node *node) {
    const ls_agreement *agreement = ls_node_agreement(node);
    return ls_comm_rank(agreement->comm) == agreement->root;
}

static ls_tensor *new_like_input(const ls_node *node) {
    const ls_tensor *x = node->inputs[0];
    return ls_tensor_like(node->op->name, x, (ls_dtype)x->dtype);
}

/* Executes the move that returns this rank's gradient, and accumulates this gradient. */
static ls_status accumulate_moved(ls_node *node, const ls_move *move) {
    LS_TRY(ls_move_carry_out(move));
    return move->to != NULL ? ls_accumulate(node, 0, move->to) : LS_OK;
}

/* Creates the output: the shape of the offer, with `length` along `axis`. */
static ls_status new_output(ls_op_call *call, const ls_offer *offer, int axis, int64_t length) {
    int64_t size[LS_MAX_DIMS];
    memcpy(size, offer->size, (size_t)offer->ndim * sizeof *size);
    if (axis >= 0) {
        size[axis] = length;
    }
    const ls_device *device = ls_call_device(call);
    LS_TRY(ls_made(device));
    call->output = ls_tensor_new(call->op->name, device, offer->ndim, size, (ls_dtype)offer->dtype);
    return ls_made(call->output);
}

/* ---- gather and allgather ---------------------------------------------------------------------------------------- */

/* Plans each rank's part of the whole. Returns the length of the whole. */
static int64_t plan_gathering(ls_op_call *call) {
    const ls_meeting *meeting = ls_meeting_of(call);
    const ls_agreement *agreement = ls_call_agreement(call);
    call->records = meeting->wanted;
    for (int rank = 0; rank < meeting->size; rank++) {
        agreement->gathered.length[rank] = meeting->offers[rank].size[agreement->axis[0]];
    }
    return ls_parts_lay_out(agreement->gathered, meeting->size);
}

static int64_t plan_scattering(ls_op_call *call) {
    const ls_meeting *meeting = ls_meeting_of(call);
    const ls_agreement *agreement = ls_call_agreement(call);
    call->records = meeting->wanted;
    for (int rank = 0; rank < meeting->size; rank++) {
        agreement->scattered.length[rank] = meeting->offers[rank].count;
    }
    return ls_parts_lay_out(agreement->scattered, meeting->size);
}

static ls_status gather_shape(ls_op_call *call) {
    const ls_meeting *meeting = ls_meeting_of(call);
    const int64_t whole = plan_gathering(call);
    return new_output(call, &meeting->own, ls_call_agreement(call)->axis[0],
                      meeting->rank == meeting->root ? whole : 0);
}

static ls_status gather_forward(ls_op_call *call) {
    return start(call, LS_MOVE_GATHER);
}

/* Splits the root's gradient like the whole tensor. Ignores the gradients of the other ranks' empty results. */
static ls_status gather_backward(ls_node *node, ls_tensor *gradient) {
    ls_tensor *share = new_like_input(node);
    LS_TRY(ls_made(share));
    ls_move move = backward_move(node, LS_MOVE_SCATTER, is_root(node) ? gradient : NULL, share);
    move.scattered = move.gathered;
    return accumulate_moved(node, &move);
}

ls_status ls_allgather_shape(ls_op_call *call) {
    const int64_t whole = plan_gathering(call);
    return new_output(call, &ls_meeting_of(call)->own, ls_call_agreement(call)->axis[0], whole);
}

ls_status ls_allgather_forward(ls_op_call *call) {
    return start(call, LS_MOVE_ALLGATHER);
}

/* Every rank used this rank's part, so its gradient is the sum of all ranks' gradients with respect to it. */
static ls_status allgather_backward(ls_node *node, ls_tensor *gradient) {
    ls_tensor *share = new_like_input(node);
    LS_TRY(ls_made(share));
    ls_move move = backward_move(node, LS_MOVE_REDUCE, gradient, share);
    move.scattered = move.gathered;
    return accumulate_moved(node, &move);
}

static const ls_collective gather = {.op = {.name = "ls_gather",
                                            .public_call = LS_PUBLIC_GATHER,
                                            .root_result = true,
                                            .shape = gather_shape,
                                            .forward = gather_forward,
                                            .backward = gather_backward,
                                            LS_HOLDS_COMM},
                                     .kind = LS_MEET_GATHER,
                                     .bringers = LS_BRING_ALL,
                                     .axes = 1,
                                     .rooted = true};

static const ls_collective allgather = {.op = {.name = "ls_allgather",
                                               .public_call = LS_PUBLIC_ALLGATHER,
                                               .equal_results = true,
                                               .shape = ls_allgather_shape,
                                               .forward = ls_allgather_forward,
                                               .backward = allgather_backward,
                                               LS_HOLDS_COMM},
                                        .kind = LS_MEET_ALLGATHER,
                                        .bringers = LS_BRING_ALL,
                                        .axes = 1};

ls_tensor *ls_gather(ls_comm *comm, ls_tensor *tensor, int axis, int root) {
    return ls_meet(&gather, &(ls_proposal){.comm = comm, .tensor = tensor, .axis = {axis}, .root = root});
}

ls_tensor *ls_allgather(ls_comm *comm, ls_tensor *tensor, int axis) {
    return ls_meet(&allgather, &(ls_proposal){.comm = comm, .tensor = tensor, .axis = {axis}});
}

ls_handle *ls_allgather_begin(ls_comm *comm, ls_tensor *tensor, int axis) {
    return ls_meet_begin(&allgather, &(ls_proposal){.comm = comm, .tensor = tensor, .axis = {axis}});
}

/* ---- broadcast and scatter: only the root's tensor matters ------------------------------------------------------- */

static ls_status broadcast_shape(ls_op_call *call) {
    const ls_meeting *meeting = ls_meeting_of(call);
    call->records = meeting->wanted;
    return new_output(call, &meeting->offers[meeting->root], -1, 0);
}

static ls_status broadcast_forward(ls_op_call *call) {
    const ls_meeting *meeting = ls_meeting_of(call);
    ls_tensor *y = call->output;
    const int root = meeting->root;
    const bool carried = meeting->carried;
    const ls_device *on = ls_meeting_device(meeting, y, (ls_reduction)0);
    ls_flight *flight = meeting->flight;
    LS_TRY(ls_buffer_begin(&flight->result, y, LS_HOST_WRITE, on));
    void *memory = flight->result.memory;
    ls_status status = LS_OK;
    if (on != NULL && meeting->rank == root) {
        const ls_tensor from = ls_stack_view_dense(meeting->dense, y->ndim, y->size);
        status = ls_kernels_of(y)->copy(ls_stream_of(y), y, &from);
    } else if ((carried || meeting->rank == root) && y->count != 0) {
        const void *elements =
            meeting->rank == root ? ls_host_data(meeting->dense) : ls_offer_elements(&meeting->offers[root]);
        memcpy(memory, elements, (size_t)y->count * ls_dtype_size((ls_dtype)y->dtype));
    }
    if (status == LS_OK && !carried) {
        status = LS_ON_DEVICE(meeting->comm, on,
                              ls_comm_broadcast(meeting->comm, memory, (size_t)y->count, (ls_dtype)y->dtype, root,
                                                ls_flight_work(flight)));
    }
    return ls_flight_begun(call, status);
}

/* Every rank used the root's tensor, so its gradient is the sum of all ranks' gradients. */
static ls_status broadcast_backward(ls_node *node, ls_tensor *gradient) {
    const ls_agreement *agreement = ls_node_agreement(node);
    const ls_dtype dtype = (ls_dtype)gradient->dtype;
    const bool root = is_root(node);
    ls_tensor *total = root ? new_like_input(node) : NULL;
    const ls_device *on = ls_reducing_device(agreement->comm, ls_tensor_device(gradient), dtype, LS_SUM);
    ls_tensor *dense = ls_buffer_dense(node->op->name, gradient, on);
    ls_status status = ls_made(dense);
    status = status == LS_OK && root ? ls_made(total) : status;
    ls_host_view result = {0};
    status = status == LS_OK && root ? ls_buffer_begin(&result, total, LS_HOST_WRITE, on) : status;
    if (status == LS_OK) {
        status = LS_ON_DEVICE(agreement->comm, on,
                              ls_comm_reduce(agreement->comm, ls_buffer_data(dense), result.memory,
                                             (size_t)dense->count, dtype, LS_SUM, agreement->root, NULL));
        status = ls_host_view_end(&result, status);
    }
    ls_tensor_drop(dense);
    return status == LS_OK && root ? ls_accumulate(node, 0, total) : status;
}

static ls_status scatter_shape(ls_op_call *call) {
    const ls_meeting *meeting = ls_meeting_of(call);
    const ls_offer *whole = &meeting->offers[meeting->root];
    const int axis = ls_call_agreement(call)->axis[0];
    const int64_t total = plan_scattering(call);
    if (total != whole->size[axis]) {
        return ls_fail(LS_ERR_SHAPE,
                       "%s: the ranks' counts add up to %lld, but axis %d of rank %d's tensor %s has %lld",
                       call->op->name, (long long)total, axis, meeting->root,
                       ls_shape_describe(whole->ndim, whole->size).text, (long long)whole->size[axis]);
    }
    return new_output(call, whole, axis, meeting->own.count);
}

static ls_status scatter_forward(ls_op_call *call) {
    return start(call, LS_MOVE_SCATTER);
}

/* Concatenates the gradients of all parts on the root. */
static ls_status scatter_backward(ls_node *node, ls_tensor *gradient) {
    ls_tensor *share = is_root(node) ? new_like_input(node) : NULL;
    LS_TRY(is_root(node) ? ls_made(share) : LS_OK);
    ls_move move = backward_move(node, LS_MOVE_GATHER, gradient, share);
    move.gathered = move.scattered;
    return accumulate_moved(node, &move);
}

static const ls_collective broadcast = {.op = {.name = "ls_broadcast",
                                               .public_call = LS_PUBLIC_BROADCAST,
                                               .shape = broadcast_shape,
                                               .forward = broadcast_forward,
                                               .backward = broadcast_backward,
                                               LS_HOLDS_COMM,
                                               .optional = 1},
                                        .kind = LS_MEET_BROADCAST,
                                        .bringers = LS_BRING_ROOT,
                                        .rooted = true};

static const ls_collective scatter = {.op = {.name = "ls_scatter",
                                             .public_call = LS_PUBLIC_SCATTER,
                                             .shape = scatter_shape,
                                             .forward = scatter_forward,
                                             .backward = scatter_backward,
                                             LS_HOLDS_COMM,
                                             .optional = 1},
                                      .kind = LS_MEET_SCATTER,
                                      .bringers = LS_BRING_ROOT,
                                      .axes = 1,
                                      .rooted = true};

ls_tensor *ls_broadcast(ls_comm *comm, ls_tensor *tensor, int root) {
    return ls_meet(&broadcast, &(ls_proposal){.comm = comm, .tensor = tensor, .root = root});
}

ls_handle *ls_broadcast_begin(ls_comm *comm, ls_tensor *tensor, int root) {
    return ls_meet_begin(&broadcast, &(ls_proposal){.comm = comm, .tensor = tensor, .root = root});
}

ls_tensor *ls_scatter(ls_comm *comm, ls_tensor *tensor, int axis, int64_t count, int root) {
    return ls_meet(&scatter,
                   &(ls_proposal){.comm = comm, .tensor = tensor, .axis = {axis}, .count = count, .root = root});
}

/* ---- alltoall ---------------------------------------------------------------------------------------------------- */

static ls_status alltoall_shape(ls_op_call *call) {
    const ls_offer *own = &ls_meeting_of(call)->own;
    const int gather_axis = ls_call_agreement(call)->axis[0];
    const int scatter_axis = ls_call_agreement(call)->axis[1];
    const int64_t whole = plan_gathering(call);
    const int64_t cut = gather_axis == scatter_axis ? whole : own->size[scatter_axis];
    const int64_t total = plan_scattering(call);
    if (total != cut) {
        return ls_fail(LS_ERR_SHAPE,
                       "%s: the ranks' counts add up to %lld, but there are %lld along axis %d to scatter",
                       call->op->name, (long long)total, (long long)cut, scatter_axis);
    }
    ls_offer result = *own;
    result.size[gather_axis] = whole;
    return new_output(call, &result, scatter_axis, own->count);
}

static ls_status alltoall_forward(ls_op_call *call) {
    ls_move move = forward_move(call, LS_MOVE_EXCHANGE);
    move.from_axis = ls_call_agreement(call)->axis[1];
    return start_move(call, &move);
}

/* Gathers the scattered axis, and scatters the gathered axis. */
static ls_status alltoall_backward(ls_node *node, ls_tensor *gradient) {
    ls_tensor *share = new_like_input(node);
    LS_TRY(ls_made(share));
    ls_move move = backward_move(node, LS_MOVE_EXCHANGE, gradient, share);
    const ls_parts gathered = move.gathered;
    move.to_axis = ls_node_agreement(node)->axis[1];
    move.gathered = move.scattered;
    move.scattered = gathered;
    return accumulate_moved(node, &move);
}

static const ls_collective alltoall = {.op = {.name = "ls_alltoall",
                                              .public_call = LS_PUBLIC_ALLTOALL,
                                              .shape = alltoall_shape,
                                              .forward = alltoall_forward,
                                              .backward = alltoall_backward,
                                              LS_HOLDS_COMM},
                                       .kind = LS_MEET_ALLTOALL,
                                       .bringers = LS_BRING_ALL,
                                       .axes = 2};

ls_tensor *ls_alltoall(ls_comm *comm, ls_tensor *tensor, int gather_axis, int scatter_axis, int64_t count) {
    return ls_meet(&alltoall,
                   &(ls_proposal){.comm = comm, .tensor = tensor, .axis = {gather_axis, scatter_axis}, .count = count});
}

ls_handle *ls_alltoall_begin(ls_comm *comm, ls_tensor *tensor, int gather_axis, int scatter_axis, int64_t count) {
    const ls_proposal proposal = {.comm = comm, .tensor = tensor, .axis = {gather_axis, scatter_axis}, .count = count};
    return ls_meet_begin(&alltoall, &proposal);
}
