/*
 * Reductions over ranks and their gradients. Let y = op(x_0, ..., x_n-1) on every rank, and let g_r be the gradient of
 * rank r's loss with respect to its y. The gradient of the sum of all losses with respect to x_r is (g_0 + ... + g_n-1)
 * dy/dx_r. The derivative dy/dx_r is 1 for a sum and 1/n for a mean. For a product, it is the product of the other
 * ranks' numbers, computed without division, so that zeros are handled correctly. For a minimum or maximum, it is 1 on
 * a single rank that holds the extreme, and 0 on the other ranks.
 */
#include "parallel/reductions.h"

#include <string.h>

#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "base/share.h"
#include "comm/public_call.h"
#include "parallel/buffers.h"
#include "parallel/handle.h"
#include "parallel/move.h"
#include "parallel/parallel.h"

/* ---- forwards ---------------------------------------------------------------------------------------------------- */

/* Returns whether the gradient is independent of values, as for a sum or a mean. */
static bool is_sum(ls_reduction reduction) {
    return reduction == LS_SUM || reduction == LS_AVG;
}

ls_status ls_allreduce_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    call->records = ls_meeting_of(call)->wanted;
    call->depends = !is_sum(ls_call_agreement(call)->reduction);
    call->output = ls_tensor_like(call->op->name, x, (ls_dtype)x->dtype);
    return ls_made(call->output);
}

/*
 * Computes the reduction from the offers, which contain the elements of all ranks. The result is bit-identical to the
 * result of ls_comm_allreduce.
 */
static void reduce_carried(const ls_meeting *meeting, const ls_tensor *y, void *result) {
    const void *sources[LS_FEW_RANKS];
    for (int rank = 0; rank < meeting->size; rank++) {
        sources[rank] = ls_offer_elements(&meeting->offers[rank]);
    }
    ls_reduce_to(result, (ls_dtype)y->dtype, (ls_reduction)meeting->own.reduction, sources, meeting->size,
                 (size_t)y->count);
}

ls_status ls_allreduce_forward(ls_op_call *call) {
    const ls_meeting *meeting = ls_meeting_of(call);
    const ls_tensor *y = call->output;
    const ls_reduction reduction = (ls_reduction)meeting->own.reduction;
    const ls_device *on = ls_meeting_device(meeting, y, reduction);
    ls_flight *flight = meeting->flight;
    LS_TRY(ls_buffer_begin(&flight->result, y, LS_HOST_WRITE, on));
    ls_status status = LS_OK;
    if (meeting->carried) {
        reduce_carried(meeting, y, flight->result.memory);
    } else {
        status =
            LS_ON_DEVICE(meeting->comm, on,
                         ls_comm_allreduce(meeting->comm, ls_buffer_data(meeting->dense), flight->result.memory,
                                           (size_t)y->count, (ls_dtype)y->dtype, reduction, ls_flight_work(flight)));
    }
    return ls_flight_begun(call, status);
}

/* ---- the derivative of a product or an extreme ------------------------------------------------------------------- */

/* Index in saved[], for the node of an all-reduce during a backward pass: the reduced gradient, or NULL. */
enum { TOTAL };

/* Number of elements of each rank that are processed together. */
#define PRODUCT_PIECE 16384

static ls_tensor *new_like(const ls_node *node, const ls_tensor *x, ls_dtype dtype) {
    return ls_tensor_like(node->op->name, x, dtype);
}

/* Computes others = the product of the `count` elements at x over all other ranks. */
static ls_status multiply_piece(ls_comm *comm, ls_dtype dtype, int64_t count, const char *x, char *others, char *pieces,
                                const void **sources) {
    const size_t bytes = (size_t)count * ls_dtype_size(dtype);
    LS_TRY(ls_comm_allgather(comm, x, pieces, (size_t)count, dtype, NULL));
    int used = 0;
    for (int rank = 0; rank < ls_comm_size(comm); rank++) {
        if (rank != ls_comm_rank(comm)) {
            sources[used++] = pieces + (size_t)rank * bytes;
        }
    }
    ls_reduce_to(others, dtype, LS_PROD, sources, used, (size_t)count);
    return LS_OK;
}

/* Does the same for any number of elements `count` at x, all on the host. */
static ls_status multiply_others(ls_comm *comm, ls_dtype dtype, int64_t count, const char *x, char *others) {
    const size_t ranks = (size_t)ls_comm_size(comm);
    const int64_t piece = count < PRODUCT_PIECE ? count : PRODUCT_PIECE;
    const size_t width = ls_dtype_size(dtype);
    const size_t bytes = ranks * ((size_t)piece * width + sizeof(void *)) + sizeof(void *);
    char *room = ls_record_allocate(bytes);
    if (room == NULL) {
        return ls_fail_memory("ls_allreduce: the gradient of a product", bytes);
    }
    const void **sources = (const void **)(void *)room;
    ls_status status = LS_OK;
    for (int64_t done = 0; done < count && status == LS_OK; done += piece) {
        const int64_t left = count - done;
        status = multiply_piece(comm, dtype, left < piece ? left : piece, x + (size_t)done * width,
                                others + (size_t)done * width, (char *)(sources + ranks), sources);
    }
    ls_record_release(room, bytes);
    return status;
}

static ls_tensor *product_of_others(const ls_node *node, ls_comm *comm, const ls_tensor *x) {
    const int64_t size = ls_comm_size(comm);
    ls_tensor *others = new_like(node, x, (ls_dtype)x->dtype);
    if (others == NULL || size == 1) {
        return others == NULL || ls_kernels_of(x)->fill(ls_stream_of(x), others, 1) == LS_OK ? others : NULL;
    }
    ls_host_view from, to;
    if (ls_host_view_begin(&from, x, LS_HOST_READ) != LS_OK) {
        return NULL;
    }
    ls_status status = ls_host_view_begin(&to, others, LS_HOST_WRITE);
    if (status == LS_OK) {
        status = ls_host_view_end(&to, multiply_others(comm, (ls_dtype)x->dtype, x->count, from.memory, to.memory));
    }
    return ls_host_view_end(&from, status) == LS_OK ? others : NULL;
}

/*
 * Returns a bool tensor that is true where this rank is the lowest rank that holds the extreme y. NaN counts as equal
 * to NaN. Collective.
 */
static ls_tensor *where_held(const ls_node *node, ls_comm *comm, ls_tensor *x, ls_tensor *y) {
    ls_tensor *own = new_like(node, x, LS_I32), *none = new_like(node, x, LS_I32);
    if (own == NULL || none == NULL || ls_kernels_of(x)->fill(ls_stream_of(x), own, ls_comm_rank(comm)) != LS_OK ||
        ls_kernels_of(x)->fill(ls_stream_of(x), none, ls_comm_size(comm)) != LS_OK) {
        return NULL;
    }
    ls_tensor *holder = ls_where(ls_maximum_tensor(ls_eq_tensor(x, y), ls_ne_tensor(x, x)), own, none);
    ls_host_view lowest;
    if (holder == NULL || ls_host_view_begin(&lowest, holder, LS_HOST_READ | LS_HOST_WRITE) != LS_OK) {
        return NULL;
    }
    const ls_status status =
        ls_comm_allreduce(comm, lowest.memory, lowest.memory, (size_t)holder->count, LS_I32, LS_MIN, NULL);
    return ls_host_view_end(&lowest, status) == LS_OK ? ls_eq_tensor(holder, own) : NULL;
}

/*
 * Returns `total`, the gradient with respect to the reduced value y, times the derivative with respect to this rank's
 * x. Collective for products and extremes: all ranks call it, whether or not their x requires a gradient.
 */
static ls_tensor *share_of(const ls_node *node, ls_tensor *total, ls_tensor *y) {
    ls_comm *comm = ls_node_agreement(node)->comm;
    const ls_reduction reduction = ls_node_agreement(node)->reduction;
    if (is_sum(reduction)) {
        return total;
    }
    ls_tensor *x = ls_tensor_give(ls_tensor_dense(node->op->name, node->inputs[0], (ls_dtype)node->inputs[0]->dtype));
    if (x == NULL || total == NULL) {
        return NULL;
    }
    if (reduction == LS_PROD) {
        return ls_mul_tensor(total, product_of_others(node, comm, x));
    }
    ls_tensor *zeros = new_like(node, x, (ls_dtype)x->dtype);
    return zeros != NULL && ls_kernels_of(x)->fill(ls_stream_of(x), zeros, 0) == LS_OK
               ? ls_where(where_held(node, comm, x, y), total, zeros)
               : NULL;
}

/* ---- backwards --------------------------------------------------------------------------------------------------- */

static bool is_extreme(const ls_node *node) {
    return ls_node_agreement(node)->reduction == LS_MIN || ls_node_agreement(node)->reduction == LS_MAX;
}

/*
 * Before anything is sent, checks that the tensors read by share_of are unchanged; if `has_y`, also this rank's output.
 */
static ls_status check_share(const ls_node *node, bool has_y) {
    const bool extreme = is_extreme(node);
    return ls_check_unchanged(node, extreme || ls_node_agreement(node)->reduction == LS_PROD ? 1U : 0U,
                              extreme && has_y);
}

static ls_reduction gradient_reduction(const ls_node *node) {
    return ls_node_agreement(node)->reduction == LS_AVG ? LS_AVG : LS_SUM;
}

/* A small gradient is sent together with the reach of its node. It is zero if there is no gradient. */
typedef struct small_gradient {
    int64_t reach;
    unsigned char elements[LS_OFFER_ROOM];
} small_gradient;

static size_t gradient_bytes(const ls_node *node) {
    return (size_t)node->output->count * ls_dtype_size((ls_dtype)node->output->dtype);
}

static ls_status fill_small(const ls_node *node, small_gradient *own) {
    if (node->gradient == NULL) {
        return LS_OK;
    }
    ls_tensor *dense = ls_tensor_dense_on_host(node->op->name, node->gradient, (ls_dtype)node->gradient->dtype);
    LS_TRY(ls_made(dense));
    memcpy(own->elements, ls_host_data(dense), gradient_bytes(node));
    ls_tensor_drop(dense);
    return LS_OK;
}

/* Computes results that are bit-identical to ls_comm_allreduce's results. */
static ls_status reduce_small(ls_node *node, const small_gradient *all, int ranks) {
    const ls_tensor *y = node->output;
    const void *sources[LS_FEW_RANKS];
    for (int rank = 0; rank < ranks; rank++) {
        sources[rank] = all[rank].elements;
    }
    ls_tensor *total = ls_tensor_new_owned(node->op->name, &ls_cpu, y->ndim, y->size, (ls_dtype)y->dtype);
    LS_TRY(ls_made(total));
    ls_reduce_to(ls_host_data(total), (ls_dtype)y->dtype, gradient_reduction(node), sources, ranks, (size_t)y->count);
    node->saved[TOTAL] = ls_tensor_on_device(node->op->name, total, ls_tensor_device(y));
    ls_tensor_drop(total);
    return ls_made(node->saved[TOTAL]);
}

ls_status ls_allreduce_agree(ls_node *node, ls_reach *reach) {
    ls_comm *comm = ls_node_agreement(node)->comm;
    const int ranks = ls_comm_size(comm);
    ls_tensor_drop(node->saved[TOTAL]);
    node->saved[TOTAL] = NULL;
    if (ranks > LS_FEW_RANKS || gradient_bytes(node) == 0 || gradient_bytes(node) > LS_OFFER_ROOM) {
        return ls_node_agree(node, reach);
    }
    small_gradient own = {.reach = *reach}, all[LS_FEW_RANKS];
    if (fill_small(node, &own) != LS_OK) {
        own.reach = *reach = LS_REACH_FAILED; /* the other ranks wait for this rank */
    }
    LS_TRY(ls_comm_allgather(comm, &own, all, sizeof own, LS_U8, NULL));
    int64_t most = own.reach;
    for (int rank = 0; rank < ranks; rank++) {
        most = all[rank].reach > most ? all[rank].reach : most;
    }
    LS_TRY(ls_node_agreed(node, reach, (ls_reach)most));
    return *reach == LS_REACH_NOW ? reduce_small(node, all, ranks) : LS_OK;
}

/* Returns the gradients of all ranks, reduced. */
static ls_tensor *total_of(ls_node *node, const ls_tensor *gradient) {
    if (node->saved[TOTAL] != NULL) {
        ls_tensor *total = node->saved[TOTAL];
        node->saved[TOTAL] = NULL;
        return ls_tensor_give(total);
    }
    const ls_dtype dtype = (ls_dtype)gradient->dtype;
    ls_comm *comm = ls_node_agreement(node)->comm;
    const ls_device *on = ls_reducing_device(comm, ls_tensor_device(gradient), dtype, gradient_reduction(node));
    ls_tensor *dense = ls_buffer_dense(node->op->name, gradient, on);
    ls_tensor *total = dense != NULL ? new_like(node, gradient, dtype) : NULL;
    ls_host_view result;
    ls_status status = ls_made(total);
    status = status == LS_OK ? ls_buffer_begin(&result, total, LS_HOST_WRITE, on) : status;
    if (status == LS_OK) {
        const ls_status reduced =
            LS_ON_DEVICE(comm, on,
                         ls_comm_allreduce(comm, ls_buffer_data(dense), result.memory, (size_t)total->count, dtype,
                                           gradient_reduction(node), NULL));
        status = ls_host_view_end(&result, reduced);
    }
    ls_tensor_drop(dense);
    return status == LS_OK ? total : NULL;
}

static ls_status accumulate_share(ls_node *node, ls_tensor *total, ls_tensor *y) {
    ls_tensor *share = total != NULL && y != NULL ? share_of(node, total, y) : NULL;
    return share != NULL ? ls_accumulate(node, 0, share) : ls_error_status();
}

ls_status ls_allreduce_backward(ls_node *node, ls_tensor *gradient) {
    LS_TRY(check_share(node, true));
    return accumulate_share(node, total_of(node, gradient), node->output);
}

/* On all ranks except the root, writes zeros, so that results computed from them are defined. */
static ls_status reduce_forward(ls_op_call *call) {
    const ls_meeting *meeting = ls_meeting_of(call);
    ls_tensor *y = call->output;
    const int root = meeting->root;
    const bool is_root = meeting->rank == root;
    if (!is_root) {
        LS_TRY(ls_kernels_of(y)->fill(ls_stream_of(y), y, 0));
    }
    if (meeting->carried && !is_root) {
        return LS_OK;
    }
    const ls_reduction reduction = (ls_reduction)meeting->own.reduction;
    const ls_device *on = ls_meeting_device(meeting, y, reduction);
    ls_host_view result;
    LS_TRY(ls_buffer_begin(&result, y, is_root ? LS_HOST_WRITE : 0, on));
    ls_status status = LS_OK;
    if (meeting->carried) {
        reduce_carried(meeting, y, result.memory);
    } else {
        status =
            LS_ON_DEVICE(meeting->comm, on,
                         ls_comm_reduce(meeting->comm, ls_buffer_data(meeting->dense), is_root ? result.memory : NULL,
                                        (size_t)y->count, (ls_dtype)y->dtype, reduction, root, NULL));
    }
    return ls_host_view_end(&result, status);
}

static ls_tensor *from_root(const ls_node *node, const ls_tensor *tensor) {
    ls_comm *comm = ls_node_agreement(node)->comm;
    ls_tensor *all = new_like(node, tensor, (ls_dtype)tensor->dtype);
    if (all == NULL || ls_kernels_of(all)->copy(ls_stream_of(all), all, tensor) != LS_OK) {
        return NULL;
    }
    return ls_broadcast_in_place(comm, all, ls_node_agreement(node)->root) == LS_OK ? all : NULL;
}

static ls_tensor *averaged(const ls_node *node, ls_tensor *total) {
    return ls_node_agreement(node)->reduction == LS_AVG
               ? ls_div_number(total, ls_comm_size(ls_node_agreement(node)->comm))
               : total;
}

/* Only the gradient of the root's output counts. */
static ls_status reduce_backward(ls_node *node, ls_tensor *gradient) {
    LS_TRY(check_share(node, ls_comm_rank(ls_node_agreement(node)->comm) == ls_node_agreement(node)->root));
    ls_tensor *total = averaged(node, from_root(node, gradient));
    ls_tensor *y = total != NULL && is_extreme(node) ? from_root(node, node->output) : node->output;
    return accumulate_share(node, total, y);
}

/* ---- reduce_scatter ---------------------------------------------------------------------------------------------- */

static ls_status reduce_scatter_shape(ls_op_call *call) {
    const ls_meeting *meeting = ls_meeting_of(call);
    const ls_agreement *agreement = ls_call_agreement(call);
    const ls_tensor *x = call->inputs[0];
    const int axis = agreement->axis[0];
    int64_t *lengths = agreement->scattered.length;
    call->records = meeting->wanted;
    call->depends = !is_sum(agreement->reduction);
    for (int rank = 0; rank < meeting->size; rank++) {
        lengths[rank] = ls_share_of(x->size[axis], meeting->size, rank).count;
    }
    (void)ls_parts_lay_out(agreement->scattered, meeting->size);
    int64_t size[LS_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++) {
        size[i] = i == axis ? lengths[meeting->rank] : x->size[i];
    }
    call->output = ls_tensor_new(call->op->name, ls_tensor_device(x), x->ndim, size, (ls_dtype)x->dtype);
    return ls_made(call->output);
}

static ls_status reduce_scatter_forward(ls_op_call *call) {
    const ls_agreement *agreement = ls_call_agreement(call);
    ls_move move = ls_move_of(call->op->name, agreement, LS_MOVE_REDUCE, call->inputs[0], call->output);
    move.reduction = agreement->reduction;
    return ls_flight_begun(call, ls_move_start(&move, ls_meeting_of(call)->flight));
}

/* Concatenates the parts of all ranks into a tensor like the input. */
static ls_tensor *together(const ls_node *node, const ls_tensor *part) {
    const ls_tensor *x = node->inputs[0];
    ls_tensor *whole = new_like(node, x, (ls_dtype)x->dtype);
    ls_move move = ls_move_of(node->op->name, ls_node_agreement(node), LS_MOVE_ALLGATHER, part, whole);
    move.gathered = move.scattered;
    return whole != NULL && ls_move_carry_out(&move) == LS_OK ? whole : NULL;
}

static ls_status reduce_scatter_backward(ls_node *node, ls_tensor *gradient) {
    LS_TRY(check_share(node, true));
    ls_tensor *total = averaged(node, together(node, gradient));
    ls_tensor *y = total != NULL && is_extreme(node) ? together(node, node->output) : node->output;
    return accumulate_share(node, total, y);
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

static const ls_collective allreduce = {.op = {.name = "ls_allreduce",
                                               .public_call = LS_PUBLIC_ALLREDUCE,
                                               .equal_results = true,
                                               .shape = ls_allreduce_shape,
                                               .forward = ls_allreduce_forward,
                                               .backward = ls_allreduce_backward,
                                               LS_HOLDS_COMM_AGREES(ls_allreduce_agree)},
                                        .kind = LS_MEET_ALLREDUCE,
                                        .bringers = LS_BRING_EQUAL,
                                        .reduces = true};

ls_tensor *ls_allreduce(ls_comm *comm, ls_tensor *tensor, ls_reduction reduction) {
    return ls_meet(&allreduce, &(ls_proposal){.comm = comm, .tensor = tensor, .reduction = reduction});
}

ls_handle *ls_allreduce_begin(ls_comm *comm, ls_tensor *tensor, ls_reduction reduction) {
    return ls_meet_begin(&allreduce, &(ls_proposal){.comm = comm, .tensor = tensor, .reduction = reduction});
}

static const ls_collective reduce = {.op = {.name = "ls_reduce",
                                            .public_call = LS_PUBLIC_REDUCE,
                                            .root_result = true,
                                            .shape = ls_allreduce_shape,
                                            .forward = reduce_forward,
                                            .backward = reduce_backward,
                                            LS_HOLDS_COMM},
                                     .kind = LS_MEET_REDUCE,
                                     .bringers = LS_BRING_EQUAL,
                                     .reduces = true,
                                     .rooted = true};

ls_tensor *ls_reduce(ls_comm *comm, ls_tensor *tensor, ls_reduction reduction, int root) {
    return ls_meet(&reduce, &(ls_proposal){.comm = comm, .tensor = tensor, .reduction = reduction, .root = root});
}

static const ls_collective reduce_scatter = {.op = {.name = "ls_reduce_scatter",
                                                    .public_call = LS_PUBLIC_REDUCE_SCATTER,
                                                    .shape = reduce_scatter_shape,
                                                    .forward = reduce_scatter_forward,
                                                    .backward = reduce_scatter_backward,
                                                    LS_HOLDS_COMM},
                                             .kind = LS_MEET_REDUCE_SCATTER,
                                             .bringers = LS_BRING_EQUAL,
                                             .reduces = true,
                                             .axes = 1};

ls_tensor *ls_reduce_scatter(ls_comm *comm, ls_tensor *tensor, int axis, ls_reduction reduction) {
    return ls_meet(&reduce_scatter,
                   &(ls_proposal){.comm = comm, .tensor = tensor, .axis = {axis}, .reduction = reduction});
}

ls_handle *ls_reduce_scatter_begin(ls_comm *comm, ls_tensor *tensor, int axis, ls_reduction reduction) {
    return ls_meet_begin(&reduce_scatter,
                         &(ls_proposal){.comm = comm, .tensor = tensor, .axis = {axis}, .reduction = reduction});
}
