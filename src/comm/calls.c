/* The public calls: they check what they are given and hand an ls_call to the frame. */
#include "base/trace.h"
#include "comm/frame.h"
#include "comm/meter.h"
#include "comm/pieces.h"
#include "comm/reduce.h"

static inline ls_status carry_out(ls_comm *comm, ls_call *call, ls_work **work) {
    ls_comm_use(comm);
    LS_TRY(ls_comm_check_call(comm, call->operation));
    call->sequence = comm->sequence + 1;
    if (work != NULL) {
        LS_TRY(ls_work_queue(comm, call, work));
        comm->sequence = call->sequence;
        return LS_OK;
    }
    if (comm->first_queued != NULL) {
        ls_comm_drain(comm);
        LS_TRY(ls_comm_check(comm));
    }
    comm->sequence = call->sequence;
    ls_status status = LS_OK;
    if (comm->backend->try_fast_path != NULL && !ls_comm_has_others(comm) &&
        comm->backend->try_fast_path(comm->state, call, &status)) {
        return status == LS_OK ? LS_OK : ls_comm_note(comm, status);
    }
    LS_TRY(ls_comm_begin(comm, call));
    return ls_comm_finish(comm);
}

ls_status ls_comm_call(ls_comm *comm, ls_call *call, ls_work **work) {
    if (work != NULL) {
        *work = NULL;
    }
    LS_TRY(ls_comm_begin_call(comm, call->operation));
    const uint64_t began = ls_trace_now(), metered = ls_comm_meter_begin();
    call->stream = comm->stream;
    const ls_status status = ls_comm_end_call(comm, call->operation, carry_out(comm, call, work));
    ls_comm_meter_end(metered);
    ls_trace_add(LS_TRACE_COMM, began, (int64_t)(call->count * call->width), "%s", ls_operation_name(call->operation));
    return status;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static ls_status check_comm(const char *name, const ls_comm *comm) {
    return comm != NULL ? LS_OK : ls_fail(LS_ERR_ARGUMENT, "%s: the communicator is NULL", name);
}

static ls_status check_rank(const char *name, const ls_comm *comm, const char *what, int rank) {
    if (rank < 0 || rank >= comm->size) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %s %d is no rank of %d", name, what, rank, comm->size);
    }
    return LS_OK;
}

static ls_status check_dtype(const char *name, ls_dtype dtype, size_t *width) {
    *width = ls_dtype_size(dtype);
    return *width != 0 ? LS_OK : ls_fail(LS_ERR_ARGUMENT, "%s: %d is not a dtype", name, (int)dtype);
}

/* A communicator, a dtype and, of a reduction, what it means there. */
static ls_status check_reduction(const char *name, const ls_comm *comm, ls_dtype dtype, ls_reduction reduction,
                                 size_t *width) {
    LS_TRY(check_comm(name, comm));
    LS_TRY(ls_reduce_check(name, dtype, reduction));
    *width = ls_reduce_width(dtype, reduction);
    return LS_OK;
}

static ls_status check_typed(const char *name, const ls_comm *comm, ls_dtype dtype, size_t *width) {
    LS_TRY(check_comm(name, comm));
    return check_dtype(name, dtype, width);
}

static ls_status check_buffer(const char *name, size_t parts, size_t count, size_t width, const void *buffer) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(count, width, &bytes) || __builtin_mul_overflow(bytes, parts, &bytes) ||
        bytes > SIZE_MAX / 2) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %zu times %zu elements of %zu bytes are more than memory can hold", name,
                       parts, count, width);
    }
    if (buffer == NULL && bytes != 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the buffer for %zu elements is NULL", name, parts * count);
    }
    return LS_OK;
}

/* Buffers that overlap must be in place: what is received begins `offset` bytes into what is sent (or the reverse). */
static ls_status check_overlap(const char *name, const void *send, size_t sent, const void *receive, size_t received,
                               const void *in_place) {
    const uintptr_t from = (uintptr_t)send;
    const uintptr_t to = (uintptr_t)receive;
    if (in_place != receive && sent != 0 && received != 0 && from < to + received && to < from + sent) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: send and receive overlap without being in place", name);
    }
    return LS_OK;
}

static const void *part_of(const void *buffer, size_t index, size_t bytes) {
    return (const unsigned char *)buffer + index * bytes;
}

/* Counts of all ranks with their displacements; `*end` becomes the elements that the buffer must have. */
static ls_status check_counts(const char *name, const ls_comm *comm, const size_t *counts, const size_t *displacements,
                              size_t width, size_t *end) {
    size_t total = 0;
    *end = 0;
    if (counts == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the counts are NULL", name);
    }
    for (int rank = 0; rank < comm->size; rank++) {
        size_t last = 0;
        if (__builtin_add_overflow(displacements != NULL ? displacements[rank] : total, counts[rank], &last) ||
            last > SIZE_MAX / 2 / width) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: %zu elements of %zu bytes for rank %d are more than memory can hold",
                           name, counts[rank], width, rank);
        }
        total += counts[rank];
        *end = last > *end && counts[rank] != 0 ? last : *end;
    }
    return LS_OK;
}

/* Counts that all ranks must give alike: what they are compared by. */
static void sign_counts(const ls_comm *comm, const size_t *counts, ls_call *call) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int rank = 0; rank < comm->size; rank++) {
        hash = (hash ^ counts[rank]) * UINT64_C(0x100000001b3);
        hash ^= hash >> 29;
        call->total += counts[rank];
    }
    call->layout = (uint32_t)(hash >> 32 ^ hash) | 1U;
}

/* ---- calls without counts per rank --------------------------------------------------------------------------------
 */

/* Field by field: clearing all of it at once would take as long as the rest of a small call's way. */
static inline void fill(ls_call *call, ls_operation operation, ls_dtype dtype, size_t count, size_t width,
                        const void *send, void *receive) {
    call->operation = operation;
    call->dtype = dtype;
    call->reduction = (ls_reduction)0;
    call->root = 0;
    call->tag = 0;
    call->count = count;
    call->width = width;
    call->send = send;
    call->receive = receive;
    call->sequence = 0;
    call->send_counts = NULL;
    call->send_displacements = NULL;
    call->receive_counts = NULL;
    call->receive_displacements = NULL;
    call->waits = false;
    call->any_order = false;
    call->stream = NULL;
    call->total = 0;
    call->layout = 0;
}

ls_status ls_comm_barrier(ls_comm *comm, ls_work **work) {
    LS_TRY(check_comm("ls_comm_barrier", comm));
    ls_call call;
    fill(&call, LS_OP_BARRIER, (ls_dtype)0, 0, 0, NULL, NULL);
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_broadcast(ls_comm *comm, void *buffer, size_t count, ls_dtype dtype, int root, ls_work **work) {
    static const char name[] = "ls_comm_broadcast";
    size_t width = 0;
    LS_TRY(check_typed(name, comm, dtype, &width));
    LS_TRY(check_buffer(name, 1, count, width, buffer));
    LS_TRY(check_rank(name, comm, "root", root));
    ls_call call;
    fill(&call, LS_OP_BROADCAST, dtype, count, width, buffer, buffer);
    call.root = root;
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_allreduce(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                            ls_reduction reduction, ls_work **work) {
    static const char name[] = "ls_comm_allreduce";
    size_t width = 0;
    LS_TRY(check_reduction(name, comm, dtype, reduction, &width));
    LS_TRY(check_buffer(name, 1, count, width, send));
    LS_TRY(check_buffer(name, 1, count, width, receive));
    LS_TRY(check_overlap(name, send, count * width, receive, count * width, send));
    ls_call call;
    fill(&call, LS_OP_ALLREDUCE, dtype, count, width, send, receive);
    call.reduction = reduction;
    call.any_order = comm->any_order;
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_reduce(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                         ls_reduction reduction, int root, ls_work **work) {
    static const char name[] = "ls_comm_reduce";
    size_t width = 0;
    LS_TRY(check_reduction(name, comm, dtype, reduction, &width));
    LS_TRY(check_rank(name, comm, "root", root));
    LS_TRY(check_buffer(name, 1, count, width, send));
    if (comm->rank == root) {
        LS_TRY(check_buffer(name, 1, count, width, receive));
        LS_TRY(check_overlap(name, send, count * width, receive, count * width, send));
    }
    ls_call call;
    fill(&call, LS_OP_REDUCE, dtype, count, width, send, comm->rank == root ? receive : NULL);
    call.reduction = reduction;
    call.any_order = comm->any_order;
    call.root = root;
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_gather(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype, int root,
                         ls_work **work) {
    static const char name[] = "ls_comm_gather";
    size_t width = 0;
    LS_TRY(check_typed(name, comm, dtype, &width));
    LS_TRY(check_rank(name, comm, "root", root));
    LS_TRY(check_buffer(name, 1, count, width, send));
    const size_t size = (size_t)comm->size;
    const size_t bytes = count * width;
    if (comm->rank == root) {
        LS_TRY(check_buffer(name, size, count, width, receive));
        if (send != part_of(receive, (size_t)root, bytes)) {
            LS_TRY(check_overlap(name, send, bytes, receive, size * bytes, NULL));
        }
    }
    ls_call call;
    fill(&call, LS_OP_GATHER, dtype, count, width, send, receive);
    call.root = root;
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_allgather(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                            ls_work **work) {
    static const char name[] = "ls_comm_allgather";
    size_t width = 0;
    LS_TRY(check_typed(name, comm, dtype, &width));
    const size_t size = (size_t)comm->size;
    LS_TRY(check_buffer(name, 1, count, width, send));
    LS_TRY(check_buffer(name, size, count, width, receive));
    const size_t bytes = count * width;
    if (send != part_of(receive, (size_t)comm->rank, bytes)) {
        LS_TRY(check_overlap(name, send, bytes, receive, size * bytes, NULL));
    }
    ls_call call;
    fill(&call, LS_OP_ALLGATHER, dtype, count, width, send, receive);
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_scatter(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype, int root,
                          ls_work **work) {
    static const char name[] = "ls_comm_scatter";
    size_t width = 0;
    LS_TRY(check_typed(name, comm, dtype, &width));
    LS_TRY(check_rank(name, comm, "root", root));
    LS_TRY(check_buffer(name, 1, count, width, receive));
    const size_t size = (size_t)comm->size;
    const size_t bytes = count * width;
    if (comm->rank == root) {
        LS_TRY(check_buffer(name, size, count, width, send));
        LS_TRY(check_overlap(name, send, size * bytes, receive, bytes, part_of(send, (size_t)root, bytes)));
    }
    ls_call call;
    fill(&call, LS_OP_SCATTER, dtype, count, width, send, receive);
    call.root = root;
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_reduce_scatter(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                                 ls_reduction reduction, ls_work **work) {
    static const char name[] = "ls_comm_reduce_scatter";
    size_t width = 0;
    LS_TRY(check_reduction(name, comm, dtype, reduction, &width));
    const size_t size = (size_t)comm->size;
    LS_TRY(check_buffer(name, size, count, width, send));
    LS_TRY(check_buffer(name, 1, count, width, receive));
    const size_t bytes = count * width;
    if (receive != send) {
        LS_TRY(check_overlap(name, send, size * bytes, receive, bytes, part_of(send, (size_t)comm->rank, bytes)));
    }
    ls_call call;
    fill(&call, LS_OP_REDUCE_SCATTER, dtype, count, width, send, receive);
    call.reduction = reduction;
    call.any_order = comm->any_order;
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_alltoall(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                           ls_work **work) {
    static const char name[] = "ls_comm_alltoall";
    size_t width = 0;
    LS_TRY(check_typed(name, comm, dtype, &width));
    const size_t size = (size_t)comm->size;
    LS_TRY(check_buffer(name, size, count, width, send));
    LS_TRY(check_buffer(name, size, count, width, receive));
    LS_TRY(check_overlap(name, send, size * count * width, receive, size * count * width, send));
    ls_call call;
    fill(&call, LS_OP_ALLTOALL, dtype, count, width, send, receive);
    return ls_comm_call(comm, &call, work);
}

/* ---- calls with counts per rank ------------------------------------------------------------------------------------
 */

ls_status ls_comm_gatherv(ls_comm *comm, const void *send, size_t count, void *receive, const size_t *counts,
                          const size_t *displacements, ls_dtype dtype, int root, ls_work **work) {
    static const char name[] = "ls_comm_gatherv";
    size_t width = 0;
    LS_TRY(check_typed(name, comm, dtype, &width));
    LS_TRY(check_rank(name, comm, "root", root));
    LS_TRY(check_buffer(name, 1, count, width, send));
    ls_call call = {.operation = LS_OP_GATHERV,
                    .dtype = dtype,
                    .root = root,
                    .count = count,
                    .width = width,
                    .send = send,
                    .receive = receive};
    if (comm->rank == root) {
        size_t end = 0;
        LS_TRY(check_counts(name, comm, counts, displacements, width, &end));
        LS_TRY(check_buffer(name, 1, end, width, receive));
        call.receive_counts = counts;
        call.receive_displacements = displacements;
    }
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_allgatherv(ls_comm *comm, const void *send, void *receive, const size_t *counts,
                             const size_t *displacements, ls_dtype dtype, ls_work **work) {
    static const char name[] = "ls_comm_allgatherv";
    size_t width = 0;
    size_t end = 0;
    LS_TRY(check_typed(name, comm, dtype, &width));
    LS_TRY(check_counts(name, comm, counts, displacements, width, &end));
    LS_TRY(check_buffer(name, 1, counts[comm->rank], width, send));
    LS_TRY(check_buffer(name, 1, end, width, receive));
    ls_call call = {.operation = LS_OP_ALLGATHERV,
                    .dtype = dtype,
                    .count = counts[comm->rank],
                    .width = width,
                    .send = send,
                    .receive = receive,
                    .receive_counts = counts,
                    .receive_displacements = displacements};
    sign_counts(comm, counts, &call);
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_scatterv(ls_comm *comm, const void *send, const size_t *counts, const size_t *displacements,
                           void *receive, size_t count, ls_dtype dtype, int root, ls_work **work) {
    static const char name[] = "ls_comm_scatterv";
    size_t width = 0;
    LS_TRY(check_typed(name, comm, dtype, &width));
    LS_TRY(check_rank(name, comm, "root", root));
    LS_TRY(check_buffer(name, 1, count, width, receive));
    ls_call call = {.operation = LS_OP_SCATTERV,
                    .dtype = dtype,
                    .root = root,
                    .count = count,
                    .width = width,
                    .send = send,
                    .receive = receive};
    if (comm->rank == root) {
        size_t end = 0;
        LS_TRY(check_counts(name, comm, counts, displacements, width, &end));
        LS_TRY(check_buffer(name, 1, end, width, send));
        call.send_counts = counts;
        call.send_displacements = displacements;
    }
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_reduce_scatterv(ls_comm *comm, const void *send, void *receive, const size_t *counts, ls_dtype dtype,
                                  ls_reduction reduction, ls_work **work) {
    static const char name[] = "ls_comm_reduce_scatterv";
    size_t width = 0;
    size_t end = 0;
    LS_TRY(check_reduction(name, comm, dtype, reduction, &width));
    LS_TRY(check_counts(name, comm, counts, NULL, width, &end));
    LS_TRY(check_buffer(name, 1, end, width, send));
    LS_TRY(check_buffer(name, 1, counts[comm->rank], width, receive));
    size_t before = 0;
    for (int rank = 0; rank < comm->rank; rank++) {
        before += counts[rank];
    }
    if (receive != send) {
        LS_TRY(
            check_overlap(name, send, end * width, receive, counts[comm->rank] * width, part_of(send, before, width)));
    }
    ls_call call = {.operation = LS_OP_REDUCE_SCATTERV,
                    .dtype = dtype,
                    .reduction = reduction,
                    .any_order = comm->any_order,
                    .count = counts[comm->rank],
                    .width = width,
                    .send = send,
                    .receive = receive,
                    .send_counts = counts};
    sign_counts(comm, counts, &call);
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_alltoallv(ls_comm *comm, const void *send, const size_t *send_counts,
                            const size_t *send_displacements, void *receive, const size_t *receive_counts,
                            const size_t *receive_displacements, ls_dtype dtype, ls_work **work) {
    static const char name[] = "ls_comm_alltoallv";
    size_t width = 0;
    size_t sent = 0;
    size_t received = 0;
    LS_TRY(check_typed(name, comm, dtype, &width));
    LS_TRY(check_counts(name, comm, send_counts, send_displacements, width, &sent));
    LS_TRY(check_counts(name, comm, receive_counts, receive_displacements, width, &received));
    LS_TRY(check_buffer(name, 1, sent, width, send));
    LS_TRY(check_buffer(name, 1, received, width, receive));
    LS_TRY(check_overlap(name, send, sent * width, receive, received * width, NULL));
    ls_call call = {.operation = LS_OP_ALLTOALLV,
                    .dtype = dtype,
                    .width = width,
                    .send = send,
                    .receive = receive,
                    .send_counts = send_counts,
                    .send_displacements = send_displacements,
                    .receive_counts = receive_counts,
                    .receive_displacements = receive_displacements};
    return ls_comm_call(comm, &call, work);
}

/* ---- point to point ------------------------------------------------------------------------------------------------
 */

static ls_status check_message(const char *name, const ls_comm *comm, const void *buffer, int tag, ls_call *call) {
    LS_TRY(check_typed(name, comm, call->dtype, &call->width));
    LS_TRY(check_rank(name, comm, "partner", call->root));
    LS_TRY(check_buffer(name, 1, call->count, call->width, buffer));
    return tag >= 0 ? LS_OK : ls_fail(LS_ERR_ARGUMENT, "%s: tag %d is negative", name, tag);
}

ls_status ls_comm_send(ls_comm *comm, const void *buffer, size_t count, ls_dtype dtype, int dest, int tag,
                       ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_SEND, dtype, count, 0, buffer, NULL);
    call.root = dest;
    call.tag = tag;
    LS_TRY(check_message("ls_comm_send", comm, buffer, tag, &call));
    return ls_work_post(comm, &call, work);
}

ls_status ls_comm_recv(ls_comm *comm, void *buffer, size_t count, ls_dtype dtype, int source, int tag, ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_RECV, dtype, count, 0, NULL, buffer);
    call.root = source;
    call.tag = tag;
    LS_TRY(check_message("ls_comm_recv", comm, buffer, tag, &call));
    return ls_work_post(comm, &call, work);
}
