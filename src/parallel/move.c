#include "parallel/move.h"

#include "autograd/ops/ops.h"
#include "parallel/buffers.h"
#include "tensor/scope.h"

ls_move ls_move_of(const char *name, const ls_agreement *agreement, ls_move_kind kind, const ls_tensor *from,
                   ls_tensor *to) {
    return (ls_move){.name = name,
                     .comm = agreement->comm,
                     .kind = kind,
                     .root = agreement->root,
                     .from = from,
                     .from_axis = agreement->axis[0],
                     .to = to,
                     .to_axis = agreement->axis[0],
                     .gathered = agreement->gathered,
                     .scattered = agreement->scattered};
}

int64_t ls_parts_lay_out(ls_parts parts, int ranks) {
    int64_t end = 0;
    for (int rank = 0; rank < ranks; rank++) {
        parts.start[rank] = end;
        if (__builtin_add_overflow(end, parts.length[rank], &end)) { /* the counts come from the user */
            end = INT64_MAX;
        }
    }
    return end;
}

/* ---- parts of the move ------------------------------------------------------------------------------------------- */

typedef struct interval {
    int64_t start;
    int64_t length;
} interval;

static const interval nothing = {0, 0};

static interval part_of(ls_parts parts, int rank) {
    return (interval){parts.start[rank], parts.length[rank]};
}

/* Returns the intersection of two ranges of the whole, relative to `origin`. */
static interval common(interval a, interval b, int64_t origin) {
    const int64_t start = a.start > b.start ? a.start : b.start;
    const int64_t a_end = a.start + a.length;
    const int64_t b_end = b.start + b.length;
    const int64_t end = a_end < b_end ? a_end : b_end;
    return end > start ? (interval){start - origin, end - start} : nothing;
}

static interval sent_to(const ls_move *move, int rank) {
    const int own = ls_comm_rank(move->comm);
    const interval whole = {0, move->gathered.length[own]};
    switch (move->kind) {
    case LS_MOVE_GATHER:
        return rank == move->root ? whole : nothing;
    case LS_MOVE_ALLGATHER:
        return whole;
    case LS_MOVE_SCATTER:
        return own == move->root ? part_of(move->scattered, rank) : nothing;
    case LS_MOVE_EXCHANGE:
        if (move->from_axis == move->to_axis) {
            return common(part_of(move->gathered, own), part_of(move->scattered, rank), move->gathered.start[own]);
        }
        return part_of(move->scattered, rank);
    default:
        return part_of(move->scattered, rank);
    }
}

static interval got_from(const ls_move *move, int rank) {
    const int own = ls_comm_rank(move->comm);
    const interval whole = {0, move->scattered.length[own]};
    switch (move->kind) {
    case LS_MOVE_GATHER:
        return own == move->root ? part_of(move->gathered, rank) : nothing;
    case LS_MOVE_SCATTER:
        return rank == move->root ? whole : nothing;
    case LS_MOVE_EXCHANGE:
        if (move->from_axis == move->to_axis) {
            return common(part_of(move->gathered, rank), part_of(move->scattered, own), move->scattered.start[own]);
        }
        return part_of(move->gathered, rank);
    default:
        return part_of(move->gathered, rank);
    }
}

/* ---- one side of a move ------------------------------------------------------------------------------------------ */

static int64_t product(const int64_t *size, int first, int last) {
    int64_t count = 1;
    for (int axis = first; axis < last; axis++) {
        count *= size[axis];
    }
    return count;
}

/* Returns whether the whole tensor is a single part that is the same for every rank. */
static bool is_whole(const ls_move *move, bool sends) {
    return sends ? move->kind == LS_MOVE_GATHER || move->kind == LS_MOVE_ALLGATHER
                 : move->kind == LS_MOVE_SCATTER || move->kind == LS_MOVE_REDUCE;
}

/* Returns whether the parts are laid out in memory as the communicator needs them. */
static bool lies_well(const ls_tensor *tensor, int axis, bool whole) {
    return tensor->contiguous && (whole || product(tensor->size, 0, axis) == 1);
}

/* Copies the parts, one after another, between the tensor and the packed memory. */
static ls_status copy_parts(const ls_move *move, const ls_tensor *tensor, int axis, bool sends,
                            const ls_packed_side *s) {
    for (int rank = 0; rank < ls_comm_size(move->comm); rank++) {
        const interval part = sends ? sent_to(move, rank) : got_from(move, rank);
        if (s->counts[rank] == 0) {
            continue;
        }
        ls_tensor in_tensor = ls_stack_view_slice(tensor, axis, part.start, part.length, 1);
        ls_tensor in_packed = *s->packed;
        in_packed.data = (char *)s->packed->data + s->places[rank] * ls_dtype_size((ls_dtype)tensor->dtype);
        in_packed = ls_stack_view_dense(&in_packed, in_tensor.ndim, in_tensor.size);
        LS_TRY(ls_kernels_of(tensor)->copy(ls_stream_of(tensor), sends ? &in_packed : &in_tensor,
                                           sends ? &in_tensor : &in_packed));
    }
    return LS_OK;
}

static void free_side(ls_packed_side *s) {
    ls_tensor_drop(s->packed);
    if (s->counts != NULL) {
        ls_record_release(s->counts, s->bytes);
    }
}

/* Allocates memory for `total` elements. When sending, packs the elements. */
static ls_status pack(const ls_move *move, const ls_tensor *tensor, int axis, bool sends, int64_t total,
                      ls_packed_side *s) {
    s->packed = is_whole(move, sends)
                    ? ls_tensor_dense(move->name, tensor, (ls_dtype)tensor->dtype)
                    : ls_tensor_new_owned(move->name, ls_tensor_device(tensor), 1, &total, (ls_dtype)tensor->dtype);
    LS_TRY(ls_made(s->packed));
    return sends && !is_whole(move, sends) ? copy_parts(move, tensor, axis, true, s) : LS_OK;
}

/* Prepares counts and memory, and packs the elements to send. On failure, the caller need not call close_side. */
static ls_status open_side(const ls_move *move, bool sends, const ls_device *on, ls_packed_side *s) {
    const ls_tensor *tensor = sends ? move->from : move->to;
    const int axis = sends ? move->from_axis : move->to_axis;
    const int ranks = ls_comm_size(move->comm);
    *s = (ls_packed_side){.bytes = 2 * (size_t)ranks * sizeof *s->counts};
    s->counts = ls_record_allocate(s->bytes);
    if (s->counts == NULL) {
        return ls_fail_memory(move->name, s->bytes);
    }
    s->places = s->counts + ranks;
    const int64_t others =
        tensor == NULL ? 0 : product(tensor->size, 0, axis) * product(tensor->size, axis + 1, tensor->ndim);
    const bool whole = is_whole(move, sends);
    const bool well = tensor == NULL || lies_well(tensor, axis, whole);
    int64_t total = 0;
    for (int rank = 0; rank < ranks; rank++) {
        const interval part = sends ? sent_to(move, rank) : got_from(move, rank);
        s->counts[rank] = (size_t)(part.length * others);
        s->places[rank] = whole ? 0 : (size_t)(well ? part.start * others : total);
        total += part.length * others;
    }
    ls_status status = well ? LS_OK : pack(move, tensor, axis, sends, total, s);
    if (status == LS_OK && tensor != NULL) {
        status =
            ls_buffer_begin(&s->view, s->packed != NULL ? s->packed : tensor, sends ? LS_HOST_READ : LS_HOST_WRITE, on);
    }
    if (status != LS_OK) {
        free_side(s);
    }
    return status;
}

/* If `status` is LS_OK, copies the received elements to the tensor. Otherwise returns `status`. */
static ls_status close_side(const ls_move *move, bool sends, ls_packed_side *s, ls_status status) {
    status = ls_host_view_end(&s->view, status);
    if (!sends && status == LS_OK && s->packed != NULL) {
        status = copy_parts(move, move->to, move->to_axis, false, s);
    }
    free_side(s);
    return status;
}

/* ---- execution --------------------------------------------------------------------------------------------------- */

static bool all_equal(ls_parts parts, int ranks) {
    bool equal = true;
    for (int rank = 1; rank < ranks; rank++) {
        equal = equal && parts.length[rank] == parts.length[0];
    }
    return equal;
}

static ls_dtype dtype_of(const ls_move *move) {
    return (ls_dtype)(move->from != NULL ? move->from->dtype : move->to->dtype);
}

/* If all ranks have the same number of elements, no counts are needed. All ranks make the same choice. */
static ls_status carry(const ls_move *move, ls_flight *flight) {
    const ls_packed_side *from = &flight->from, *to = &flight->to;
    ls_work **work = ls_flight_work(flight);
    ls_comm *comm = move->comm;
    const int own = ls_comm_rank(comm);
    const int ranks = ls_comm_size(comm);
    const bool equal_gathered = all_equal(move->gathered, ranks);
    const bool equal_scattered = all_equal(move->scattered, ranks);
    const ls_dtype dtype = dtype_of(move);
    switch (move->kind) {
    case LS_MOVE_GATHER:
        return equal_gathered ? ls_comm_gather(comm, from->view.memory, to->view.memory, from->counts[move->root],
                                               dtype, move->root, work)
                              : ls_comm_gatherv(comm, from->view.memory, from->counts[move->root], to->view.memory,
                                                to->counts, to->places, dtype, move->root, work);
    case LS_MOVE_SCATTER:
        return equal_scattered ? ls_comm_scatter(comm, from->view.memory, to->view.memory, to->counts[move->root],
                                                 dtype, move->root, work)
                               : ls_comm_scatterv(comm, from->view.memory, from->counts, from->places, to->view.memory,
                                                  to->counts[move->root], dtype, move->root, work);
    case LS_MOVE_ALLGATHER:
        return equal_gathered
                   ? ls_comm_allgather(comm, from->view.memory, to->view.memory, from->counts[own], dtype, work)
                   : ls_comm_allgatherv(comm, from->view.memory, to->view.memory, to->counts, to->places, dtype, work);
    case LS_MOVE_REDUCE:
        return equal_scattered ? ls_comm_reduce_scatter(comm, from->view.memory, to->view.memory, from->counts[own],
                                                        dtype, move->reduction, work)
                               : ls_comm_reduce_scatterv(comm, from->view.memory, to->view.memory, from->counts, dtype,
                                                         move->reduction, work);
    default:
        return move->from_axis != move->to_axis && equal_gathered && equal_scattered
                   ? ls_comm_alltoall(comm, from->view.memory, to->view.memory, from->counts[own], dtype, work)
                   : ls_comm_alltoallv(comm, from->view.memory, from->counts, from->places, to->view.memory, to->counts,
                                       to->places, dtype, work);
    }
}

/* Returns the device on which the parts are moved, or NULL to move them through host memory. */
static const ls_device *device_of(const ls_move *move) {
    const ls_device *device = ls_tensor_device(move->from != NULL ? move->from : move->to);
    return move->kind == LS_MOVE_REDUCE ? ls_reducing_device(move->comm, device, dtype_of(move), move->reduction)
                                        : ls_moving_device(move->comm, device, dtype_of(move));
}

ls_status ls_move_start(const ls_move *move, ls_flight *flight) {
    const ls_device *on = device_of(move);
    LS_TRY(open_side(move, true, on, &flight->from));
    const ls_status opened = open_side(move, false, on, &flight->to);
    if (opened != LS_OK) {
        return close_side(move, true, &flight->from, opened);
    }
    flight->move = *move;
    return LS_ON_DEVICE(move->comm, on, carry(move, flight));
}

ls_status ls_flight_end(ls_flight *flight, ls_status status) {
    if (flight->work != NULL) {
        status = ls_work_finish(&flight->work);
    }
    status = ls_host_view_end(&flight->result, status);
    if (flight->move.comm != NULL) {
        status = close_side(&flight->move, false, &flight->to, status);
        status = close_side(&flight->move, true, &flight->from, status);
        flight->move.comm = NULL;
    }
    const ls_tensor *input = flight->held[0];
    if (status == LS_OK && input != NULL && input->storage->version != flight->version) {
        status = ls_fail(LS_ERR_STATE,
                         "%s_begin: its tensor %s was changed in place (by %s) before ls_handle_wait: change it "
                         "afterwards, or pass a copy (ls_clone)",
                         flight->name, LS_SHAPE_TEXT(input), input->storage->changed_by);
    }
    for (int i = 0; i < 3; i++) {
        ls_tensor_drop(flight->held[i]);
        flight->held[i] = NULL;
    }
    return status;
}

ls_status ls_flight_begun(const ls_op_call *call, ls_status status) {
    const ls_meeting *meeting = ls_meeting_of(call);
    ls_flight *flight = meeting->flight;
    if (flight->waits || status != LS_OK) {
        return ls_flight_end(flight, status);
    }
    ls_tensor *const tensors[] = {call->inputs[0], call->output, meeting->dense};
    flight->name = call->op->name;
    flight->version = tensors[0] != NULL ? tensors[0]->storage->version : 0;
    for (int i = 0; i < 3; i++) {
        flight->held[i] = tensors[i] != NULL ? ls_tensor_hold(tensors[i]) : NULL;
    }
    return LS_OK;
}

ls_status ls_move_carry_out(const ls_move *move) {
    ls_flight flight = {.waits = true};
    return ls_flight_end(&flight, ls_move_start(move, &flight));
}
