/*
 * Reductions over ranks and their gradients. With y = op(x_0, ..., x_n-1) on every rank and g_r the gradient of rank
 * r's loss by its y, the sum of all losses has the gradient (g_0 + ... + g_n-1) dy/dx_r by x_r. The derivative is 1 for
 * a sum, 1/n for a mean, the product of the other ranks' numbers for a product (computed as such, so that zeros are
 * right), and 1 on the one rank that holds the extreme for a minimum or maximum.
 */
#include "parallel/reductions.h"
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "comm/reduce.h"
#include "parallel/move.h"

/* ---- forwards ---------------------------------------------------------------------------------------------------- */

ls_status ls_allreduce_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    call->records = ls_meeting_of(call)->wanted;
    call->output = ls_tensor_new(call->op->name, x->ndim, x->size, (ls_dtype)x->dtype);
    return ls_made(call->output);
}

/* The elements of all ranks are here: the same reduction as ls_comm_allreduce's, with the same bits. */
static void reduce_carried(const ls_meeting *meeting, ls_tensor *y) {
    const void *sources[LS_FEW_RANKS];
    for (int rank = 0; rank < meeting->size; rank++) {
        sources[rank] = ls_offer_elements(&meeting->offers[rank]);
    }
    ls_reduce_buffers(&(ls_reduce_task){.dtype = (ls_dtype)y->dtype,
                                        .reduction = (ls_reduction)meeting->own.reduction,
                                        .ranks = meeting->size,
                                        .sources = sources,
                                        .copies = 1,
                                        .destinations = (void *[]){y->data},
                                        .count = (size_t)y->count});
}

ls_status ls_allreduce_forward(ls_op_call *call) {
    const ls_meeting *meeting = ls_meeting_of(call);
    ls_tensor *y = call->output;
    if (meeting->carried) {
        reduce_carried(meeting, y);
        return LS_OK;
    }
    return ls_comm_allreduce(meeting->comm, meeting->dense->data, y->data, (size_t)y->count, (ls_dtype)y->dtype,
                             (ls_reduction)meeting->own.reduction, NULL);
}

/* ---- the derivative of a product or an extreme ------------------------------------------------------------------- */

/* Elements of each rank that are looked at together. */
#define PRODUCT_PIECE 16384

static ls_tensor *new_like(const ls_node *node, const ls_tensor *x, ls_dtype dtype) {
    return ls_tensor_new(node->op->name, x->ndim, x->size, dtype);
}

static const char *at_element(const ls_tensor *x, int64_t index) {
    return (const char *)x->data + index * (int64_t)ls_dtype_size((ls_dtype)x->dtype);
}

/* others[done ...] = the product of the `count` elements from `done` on over all ranks but this. */
static ls_status multiply_others(ls_comm *comm, const ls_tensor *x, ls_tensor *others, int64_t done, int64_t count,
                                 char *pieces, const void **sources) {
    const ls_dtype dtype = (ls_dtype)x->dtype;
    const size_t bytes = (size_t)count * ls_dtype_size(dtype);
    LS_TRY(ls_comm_allgather(comm, at_element(x, done), pieces, (size_t)count, dtype, NULL));
    int used = 0;
    for (int rank = 0; rank < ls_comm_size(comm); rank++) {
        if (rank != ls_comm_rank(comm)) {
            sources[used++] = pieces + (size_t)rank * bytes;
        }
    }
    ls_reduce_buffers(&(ls_reduce_task){
        .dtype = dtype,
        .reduction = LS_PROD,
        .ranks = used,
        .sources = sources,
        .copies = 1,
        .destinations = (void *[]){(char *)others->data + (at_element(x, done) - (const char *)x->data)},
        .count = (size_t)count});
    return LS_OK;
}

/* The product of x over all ranks but this, element by element. A collective call. */
static ls_tensor *product_of_others(const ls_node *node, ls_comm *comm, const ls_tensor *x) {
    const int64_t size = ls_comm_size(comm);
    ls_tensor *others = new_like(node, x, (ls_dtype)x->dtype);
    if (others == NULL || size == 1) {
        return others == NULL || ls_kernels_of(x)->fill(ls_stream_of(x), others, 1) == LS_OK ? others : NULL;
    }
    const int64_t piece = x->count < PRODUCT_PIECE ? x->count : PRODUCT_PIECE;
    ls_tensor *pieces = ls_tensor_new(node->op->name, 2, (const int64_t[]){size, piece}, (ls_dtype)x->dtype);
    ls_tensor *sources = ls_tensor_new(node->op->name, 1, &size, LS_I64); /* room for a pointer per rank */
    if (pieces == NULL || sources == NULL) {
        return NULL;
    }
    for (int64_t done = 0; done < x->count; done += piece) {
        const int64_t left = x->count - done;
        if (multiply_others(comm, x, others, done, left < piece ? left : piece, pieces->data, sources->data) != LS_OK) {
            return NULL;
        }
    }
    return others;
}

/* Where this rank is the lowest that holds the extreme y: a tensor of bool. A collective call. NaN is its own equal. */
static ls_tensor *where_held(const ls_node *node, ls_comm *comm, ls_tensor *x, ls_tensor *y) {
    const int32_t rank = ls_comm_rank(comm);
    const int32_t size = ls_comm_size(comm);
    ls_tensor *equal = ls_eq_tensor(x, y);
    const ls_tensor *undefined = ls_ne_tensor(x, x);
    const ls_tensor *holder = new_like(node, x, LS_I32);
    if (equal == NULL || undefined == NULL || holder == NULL) {
        return NULL;
    }
    bool *held = equal->data;
    const bool *is_nan = undefined->data;
    int32_t *lowest = holder->data;
    for (int64_t i = 0; i < x->count; i++) {
        lowest[i] = held[i] || is_nan[i] ? rank : size;
    }
    if (ls_comm_allreduce(comm, lowest, lowest, (size_t)x->count, LS_I32, LS_MIN, NULL) != LS_OK) {
        return NULL;
    }
    for (int64_t i = 0; i < x->count; i++) {
        held[i] = lowest[i] == rank;
    }
    return equal;
}

/*
 * `total`, the gradient by the reduced value y, times the derivative by this rank's x. For products and extremes a
 * collective call, which all ranks make whether their x wants a gradient or not.
 */
static ls_tensor *share_of(const ls_node *node, ls_tensor *total, ls_tensor *y) {
    ls_comm *comm = ls_node_comm(node);
    const ls_reduction reduction = ls_node_reduction(node);
    if (reduction == LS_SUM || reduction == LS_AVG) {
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
    return ls_node_reduction(node) == LS_MIN || ls_node_reduction(node) == LS_MAX;
}

/* That what share_of reads is as it was: asked before anything is sent. `has_y`: of the output, this rank's counts. */
static ls_status check_share(const ls_node *node, bool has_y) {
    const bool extreme = is_extreme(node);
    return ls_check_unchanged(node, extreme || ls_node_reduction(node) == LS_PROD ? 1U : 0U, extreme && has_y);
}

ls_status ls_allreduce_backward(ls_node *node, ls_tensor *gradient) {
    LS_TRY(check_share(node, true));
    const ls_dtype dtype = (ls_dtype)gradient->dtype;
    const ls_reduction reduction = ls_node_reduction(node) == LS_AVG ? LS_AVG : LS_SUM;
    ls_tensor *dense = ls_tensor_dense(node->op->name, gradient, dtype);
    ls_tensor *total = dense != NULL ? new_like(node, gradient, dtype) : NULL;
    ls_status status = ls_made(total);
    if (status == LS_OK) {
        status = ls_comm_allreduce(ls_node_comm(node), dense->data, total->data, (size_t)total->count, dtype, reduction,
                                   NULL);
    }
    ls_tensor_drop(dense);
    LS_TRY(status);
    ls_tensor *share = share_of(node, total, node->output);
    return share != NULL ? ls_accumulate(node, 0, share) : ls_error_status();
}

/* Zeros on all ranks but the root, so that what they compute from it is defined. */
static ls_status reduce_forward(ls_op_call *call) {
    const ls_meeting *meeting = ls_meeting_of(call);
    ls_tensor *y = call->output;
    const int root = meeting->root;
    const bool is_root = meeting->rank == root;
    if (!is_root) {
        LS_TRY(ls_kernels_of(y)->fill(ls_stream_of(y), y, 0));
    }
    if (!meeting->carried) {
        return ls_comm_reduce(meeting->comm, meeting->dense->data, is_root ? y->data : NULL, (size_t)y->count,
                              (ls_dtype)y->dtype, (ls_reduction)meeting->own.reduction, root, NULL);
    }
    if (is_root) {
        reduce_carried(meeting, y);
    }
    return LS_OK;
}

/* The root's tensor on every rank. */
static ls_tensor *from_root(const ls_node *node, const ls_tensor *tensor) {
    ls_comm *comm = ls_node_comm(node);
    ls_tensor *all = new_like(node, tensor, (ls_dtype)tensor->dtype);
    if (all == NULL || ls_kernels_of(all)->copy(ls_stream_of(all), all, tensor) != LS_OK ||
        ls_comm_broadcast(comm, all->data, (size_t)all->count, (ls_dtype)all->dtype, ls_node_root(node), NULL) !=
            LS_OK) {
        return NULL;
    }
    return all;
}

static ls_tensor *averaged(const ls_node *node, ls_tensor *total) {
    return ls_node_reduction(node) == LS_AVG ? ls_div_number(total, ls_comm_size(ls_node_comm(node))) : total;
}

/* The gradient is the root's. */
static ls_status reduce_backward(ls_node *node, ls_tensor *gradient) {
    LS_TRY(check_share(node, ls_comm_rank(ls_node_comm(node)) == ls_node_root(node)));
    ls_tensor *total = averaged(node, from_root(node, gradient));
    ls_tensor *y = total != NULL && is_extreme(node) ? from_root(node, node->output) : node->output;
    ls_tensor *share = total != NULL && y != NULL ? share_of(node, total, y) : NULL;
    return share != NULL ? ls_accumulate(node, 0, share) : ls_error_status();
}

/* ---- reduce_scatter ---------------------------------------------------------------------------------------------- */

static ls_status reduce_scatter_shape(ls_op_call *call) {
    const ls_meeting *meeting = ls_meeting_of(call);
    const ls_tensor *x = call->inputs[0];
    const int axis = ls_offer_axis(&meeting->own, 0);
    call->records = meeting->wanted;
    call->saved[0] = ls_plan_new(call->op->name, meeting->size);
    LS_TRY(ls_made(call->saved[0]));
    int64_t *lengths = ls_plan_scattered(call->saved[0]);
    for (int rank = 0; rank < meeting->size; rank++) {
        lengths[rank] = x->size[axis] / meeting->size + (rank < x->size[axis] % meeting->size);
    }
    ls_plan_lay_out(call->saved[0]);
    int64_t size[LS_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++) {
        size[i] = i == axis ? lengths[meeting->rank] : x->size[i];
    }
    call->output = ls_tensor_new(call->op->name, x->ndim, size, (ls_dtype)x->dtype);
    return ls_made(call->output);
}

static ls_status reduce_scatter_forward(ls_op_call *call) {
    const ls_meeting *meeting = ls_meeting_of(call);
    const ls_move move = {.name = call->op->name,
                          .comm = meeting->comm,
                          .kind = LS_MOVE_REDUCE,
                          .reduction = (ls_reduction)meeting->own.reduction,
                          .from = call->inputs[0],
                          .from_axis = ls_offer_axis(&meeting->own, 0),
                          .to = call->output,
                          .to_axis = ls_offer_axis(&meeting->own, 0),
                          .gathered = ls_plan_gathered_parts(call->saved[0]),
                          .scattered = ls_plan_scattered_parts(call->saved[0])};
    return ls_move_carry_out(&move);
}

/* The parts of all ranks together: a tensor like the input. */
static ls_tensor *together(const ls_node *node, const ls_tensor *part) {
    const ls_tensor *x = node->inputs[0];
    const ls_parts parts = ls_plan_scattered_parts(node->saved[0]);
    ls_tensor *whole = new_like(node, x, (ls_dtype)x->dtype);
    const ls_move move = {.name = node->op->name,
                          .comm = ls_node_comm(node),
                          .kind = LS_MOVE_ALLGATHER,
                          .from = part,
                          .from_axis = ls_node_axis(node, 0),
                          .to = whole,
                          .to_axis = ls_node_axis(node, 0),
                          .gathered = parts,
                          .scattered = parts};
    return whole != NULL && ls_move_carry_out(&move) == LS_OK ? whole : NULL;
}

static ls_status reduce_scatter_backward(ls_node *node, ls_tensor *gradient) {
    LS_TRY(check_share(node, true));
    ls_tensor *total = averaged(node, together(node, gradient));
    ls_tensor *y = total != NULL && is_extreme(node) ? together(node, node->output) : node->output;
    ls_tensor *share = total != NULL && y != NULL ? share_of(node, total, y) : NULL;
    return share != NULL ? ls_accumulate(node, 0, share) : ls_error_status();
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

static const ls_collective allreduce = {.op = {.name = "ls_allreduce",
                                               .shape = ls_allreduce_shape,
                                               .forward = ls_allreduce_forward,
                                               .backward = ls_allreduce_backward,
                                               LS_HOLDS_COMM},
                                        .kind = LS_MEET_ALLREDUCE,
                                        .bringers = LS_BRING_EQUAL,
                                        .reduces = true};

ls_tensor *ls_allreduce(ls_comm *comm, ls_tensor *tensor, ls_reduction reduction) {
    return ls_meet(&allreduce, &(ls_proposal){.comm = comm, .tensor = tensor, .reduction = reduction});
}

static const ls_collective reduce = {.op = {.name = "ls_reduce",
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
