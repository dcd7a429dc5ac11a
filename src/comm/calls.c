/* The public calls. Each creates an ls_call, which check.c checks and completes by the table of operations. */
#include "comm/calls.h"

#include "base/trace.h"
#include "comm/check.h"
#include "comm/complete.h"
#include "comm/meter.h"
#include "comm/progress.h"
#include "comm/record.h"
#include "comm/threads.h"
#include "comm/work.h"

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

/* Returns the size in bytes of the elements that `count` refers to: this rank's part, or all parts that this rank
 * sends in an all-to-all. */
static inline size_t bytes_of(const ls_comm *comm, const ls_call *call) {
    size_t count = call->operation == LS_OP_ALLTOALL ? call->count * (size_t)comm->size : call->count;
    for (int rank = 0; call->operation == LS_OP_ALLTOALLV && rank < comm->size; rank++) {
        count += call->send_counts[rank];
    }
    return count * call->width;
}

ls_status ls_comm_call(ls_comm *comm, ls_call *call, ls_work **work) {
    if (work != NULL) {
        *work = NULL;
    }
    LS_TRY(ls_call_check(comm, call));
    LS_TRY(ls_comm_begin_call(comm, call->operation));
    const uint64_t began = ls_trace_now(), metered = ls_comm_meter_begin();
    const size_t bytes = bytes_of(comm, call);
    ls_comm_metered.calls++;
    ls_comm_metered.bytes += bytes;
    call->stream = comm->stream;
    call->public_call = (uint8_t)ls_public_present;
    call->contested = (const bool *)&comm->contested;
    const ls_status status = ls_comm_end_call(comm, call->operation, carry_out(comm, call, work));
    ls_comm_meter_end(metered);
    ls_trace_add(LS_TRACE_COMM, began, (int64_t)bytes, "%s", ls_operation_name(call->operation));
    return status;
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

/* Sets the fields one by one: clearing all fields at once would take as long as the rest of a small call. */
static inline void fill(ls_call *call, ls_operation operation, ls_dtype dtype, size_t count, const void *send,
                        void *receive) {
    call->operation = operation;
    call->dtype = dtype;
    call->reduction = (ls_reduction)0;
    call->root = 0;
    call->tag = 0;
    call->source = NULL;
    call->count = count;
    call->width = 0;
    call->send = send;
    call->receive = receive;
    call->sequence = 0;
    call->send_counts = NULL;
    call->send_displacements = NULL;
    call->receive_counts = NULL;
    call->receive_displacements = NULL;
    call->waits = false;
    call->untimed = false;
    call->any_order = false;
    call->stream = NULL;
    call->total = 0;
    call->layout = 0;
}

ls_status ls_comm_barrier(ls_comm *comm, ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_BARRIER, (ls_dtype)0, 0, NULL, NULL);
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_broadcast(ls_comm *comm, void *buffer, size_t count, ls_dtype dtype, int root, ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_BROADCAST, dtype, count, buffer, buffer);
    call.root = root;
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_allreduce(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                            ls_reduction reduction, ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_ALLREDUCE, dtype, count, send, receive);
    call.reduction = reduction;
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_reduce(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                         ls_reduction reduction, int root, ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_REDUCE, dtype, count, send, receive);
    call.reduction = reduction;
    call.root = root;
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_gather(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype, int root,
                         ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_GATHER, dtype, count, send, receive);
    call.root = root;
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_allgather(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                            ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_ALLGATHER, dtype, count, send, receive);
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_scatter(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype, int root,
                          ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_SCATTER, dtype, count, send, receive);
    call.root = root;
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_reduce_scatter(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                                 ls_reduction reduction, ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_REDUCE_SCATTER, dtype, count, send, receive);
    call.reduction = reduction;
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_alltoall(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                           ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_ALLTOALL, dtype, count, send, receive);
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_gatherv(ls_comm *comm, const void *send, size_t count, void *receive, const size_t *counts,
                          const size_t *displacements, ls_dtype dtype, int root, ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_GATHERV, dtype, count, send, receive);
    call.root = root;
    call.receive_counts = counts;
    call.receive_displacements = displacements;
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_allgatherv(ls_comm *comm, const void *send, void *receive, const size_t *counts,
                             const size_t *displacements, ls_dtype dtype, ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_ALLGATHERV, dtype, 0, send, receive);
    call.receive_counts = counts;
    call.receive_displacements = displacements;
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_scatterv(ls_comm *comm, const void *send, const size_t *counts, const size_t *displacements,
                           void *receive, size_t count, ls_dtype dtype, int root, ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_SCATTERV, dtype, count, send, receive);
    call.root = root;
    call.send_counts = counts;
    call.send_displacements = displacements;
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_reduce_scatterv(ls_comm *comm, const void *send, void *receive, const size_t *counts, ls_dtype dtype,
                                  ls_reduction reduction, ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_REDUCE_SCATTERV, dtype, 0, send, receive);
    call.reduction = reduction;
    call.send_counts = counts;
    return ls_comm_call(comm, &call, work);
}

ls_status ls_comm_alltoallv(ls_comm *comm, const void *send, const size_t *send_counts,
                            const size_t *send_displacements, void *receive, const size_t *receive_counts,
                            const size_t *receive_displacements, ls_dtype dtype, ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_ALLTOALLV, dtype, 0, send, receive);
    call.send_counts = send_counts;
    call.send_displacements = send_displacements;
    call.receive_counts = receive_counts;
    call.receive_displacements = receive_displacements;
    return ls_comm_call(comm, &call, work);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static ls_status post_message(ls_comm *comm, ls_call *call, const void *buffer, ls_work **work) {
    if (work != NULL) {
        *work = NULL;
    }
    LS_TRY(ls_message_check(comm, call, buffer));
    return ls_work_post(comm, call, work);
}

ls_status ls_comm_send(ls_comm *comm, const void *buffer, size_t count, ls_dtype dtype, int dest, int tag,
                       ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_SEND, dtype, count, buffer, NULL);
    call.root = dest;
    call.tag = tag;
    return post_message(comm, &call, buffer, work);
}

ls_status ls_comm_recv(ls_comm *comm, void *buffer, size_t count, ls_dtype dtype, int source, int tag, ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_RECV, dtype, count, NULL, buffer);
    call.root = source;
    call.tag = tag;
    return post_message(comm, &call, buffer, work);
}

ls_status ls_comm_recv_any(ls_comm *comm, void *buffer, size_t count, ls_dtype dtype, int tag, int *source,
                           ls_work **work) {
    ls_call call;
    fill(&call, LS_OP_RECV_ANY, dtype, count, NULL, buffer);
    call.root = LS_ANY_RANK;
    call.tag = tag;
    call.source = source;
    if (source != NULL) {
        *source = -1;
    }
    return post_message(comm, &call, buffer, work);
}
