/*
 * Calls that a backend does not have, made of exchanges (alltoallv): see backend.h. A composed call is one or two
 * exchanges with a reduction after the first; comm->then is what comes when the exchange under way has finished.
 */
#include <string.h>

#include "base/memory.h"
#include "base/share.h"
#include "comm/frame.h"
#include "comm/pieces.h"
#include "comm/reduce.h"

/* Scratch memory of the communicator. Its lack ends it: the others have begun the call, or are about to. */
static ls_status scratch(ls_comm *comm, size_t bytes, unsigned char **memory) {
    if (bytes > comm->scratch_bytes) {
        unsigned char *grown = ls_allocate_aligned(bytes, 64);
        if (grown == NULL) {
            char name[64];
            ls_call_describe(comm->call.operation, comm->call.sequence, name, sizeof name);
            return ls_comm_give_up(comm, ls_fail_memory(name, bytes));
        }
        ls_free(comm->scratch);
        comm->scratch = grown;
        comm->scratch_bytes = bytes;
    }
    *memory = comm->scratch;
    return LS_OK;
}

static ls_status exchange(ls_comm *comm, const void *send, void *receive) {
    ls_call call = comm->call;
    call.send = send;
    call.receive = receive;
    call.send_counts = comm->parts[LS_SEND_COUNTS];
    call.send_displacements = comm->parts[LS_SEND_PLACES];
    call.receive_counts = comm->parts[LS_RECEIVE_COUNTS];
    call.receive_displacements = comm->parts[LS_RECEIVE_PLACES];
    return comm->backend->begin[LS_OP_ALLTOALLV](comm->state, &call);
}

static void set_parts(const ls_comm *comm, int rank, ls_piece sent, ls_piece received) {
    comm->parts[LS_SEND_COUNTS][rank] = sent.count;
    comm->parts[LS_SEND_PLACES][rank] = sent.at;
    comm->parts[LS_RECEIVE_COUNTS][rank] = received.count;
    comm->parts[LS_RECEIVE_PLACES][rank] = received.at;
}

static ls_status compose_moves(ls_comm *comm) {
    for (int rank = 0; rank < comm->size; rank++) {
        set_parts(comm, rank, ls_piece_sent(&comm->call, comm->rank, rank),
                  ls_piece_received(&comm->call, comm->rank, rank));
    }
    return exchange(comm, comm->call.send, comm->call.receive);
}

/* The part of the send buffer that `rank` reduces. */
static ls_piece reduced_by(const ls_comm *comm, int rank) {
    const ls_call *call = &comm->call;
    if (call->operation == LS_OP_REDUCE_SCATTER || call->operation == LS_OP_REDUCE_SCATTERV) {
        return ls_piece_part(call->send_counts, call->send_displacements, call->count, rank);
    }
    const ls_share share = ls_share_of((int64_t)call->count, comm->size, rank);
    return (ls_piece){(size_t)share.count, (size_t)share.start};
}

/* After the reduction of an allreduce or reduce: what each rank reduced goes to all, or to the root. */
static ls_status collect(ls_comm *comm, const void *own, size_t count) {
    const ls_call *call = &comm->call;
    const bool all = call->operation == LS_OP_ALLREDUCE;
    for (int rank = 0; rank < comm->size; rank++) {
        const bool wanted = all || rank == call->root;
        const bool wants = all || comm->rank == call->root;
        set_parts(comm, rank, (ls_piece){wanted ? count : 0, 0}, wants ? reduced_by(comm, rank) : (ls_piece){0, 0});
    }
    return exchange(comm, own, call->receive);
}

static ls_status reduce_parts(ls_comm *comm, bool *begun) {
    const ls_call *call = &comm->call;
    const ls_piece own = reduced_by(comm, comm->rank);
    const size_t bytes = own.count * call->width;
    const bool scatters = call->operation != LS_OP_ALLREDUCE && call->operation != LS_OP_REDUCE;
    void *result = call->receive;
    if (call->operation == LS_OP_ALLREDUCE && bytes != 0) {
        result = (unsigned char *)call->receive + own.at * call->width;
    } else if (!scatters) {
        result = comm->scratch + (size_t)comm->size * bytes;
    }
    for (int rank = 0; rank < comm->size; rank++) {
        comm->sources[rank] = comm->scratch + (size_t)rank * bytes;
    }
    if (own.count != 0) {
        ls_reduce_buffers(&(ls_reduce_task){.dtype = call->dtype,
                                            .reduction = call->reduction,
                                            .ranks = comm->size,
                                            .sources = comm->sources,
                                            .copies = 1,
                                            .destinations = &result,
                                            .count = own.count});
    }
    *begun = !scatters;
    return scatters ? LS_OK : collect(comm, result, own.count);
}

static ls_status compose_reduction(ls_comm *comm) {
    const size_t count = reduced_by(comm, comm->rank).count;
    unsigned char *memory = NULL;
    LS_TRY(scratch(comm, count * comm->call.width * ((size_t)comm->size + 1), &memory));
    for (int rank = 0; rank < comm->size; rank++) {
        set_parts(comm, rank, reduced_by(comm, rank), (ls_piece){count, count * (size_t)rank});
    }
    comm->then = reduce_parts;
    return exchange(comm, comm->call.send, memory);
}

/* Where a call leaves displacements out, its parts follow each other. */
static const size_t *complete(const size_t *counts, const size_t *displacements, size_t *places, int size) {
    if (counts == NULL || displacements != NULL) {
        return displacements;
    }
    size_t at = 0;
    for (int rank = 0; rank < size; rank++) {
        places[rank] = at;
        at += counts[rank];
    }
    return places;
}

static bool is_native(const ls_comm *comm, const ls_call *call) {
    const ls_backend *backend = comm->backend;
    return backend->begin[call->operation] != NULL && (ls_flows[call->operation].moves || backend->reduces == NULL ||
                                                       backend->reduces(call->dtype, call->reduction));
}

/* An alltoall in place: what is sent is copied, so that no backend need care. */
static ls_status copy_sent(ls_comm *comm) {
    ls_call *call = &comm->call;
    const size_t bytes = call->count * call->width * (size_t)comm->size;
    unsigned char *memory = NULL;
    LS_TRY(scratch(comm, bytes, &memory));
    memcpy(memory, call->send, bytes);
    call->send = memory;
    return LS_OK;
}

ls_status ls_comm_compose(ls_comm *comm, const ls_call *given) {
    comm->call = *given;
    ls_call *call = &comm->call;
    call->send_displacements =
        complete(call->send_counts, call->send_displacements, comm->parts[LS_GIVEN_SEND_PLACES], comm->size);
    call->receive_displacements =
        complete(call->receive_counts, call->receive_displacements, comm->parts[LS_GIVEN_RECEIVE_PLACES], comm->size);
    if (call->operation == LS_OP_ALLTOALL && call->send == call->receive && call->count != 0) {
        LS_TRY(copy_sent(comm));
    }
    if (is_native(comm, call)) {
        return comm->backend->begin[call->operation](comm->state, call);
    }
    if (ls_flows[call->operation].moves) {
        return compose_moves(comm);
    }
    return compose_reduction(comm);
}

bool ls_comm_composes(const ls_comm *comm, const ls_call *call) {
    return call->send_counts != NULL || call->receive_counts != NULL || call->operation == LS_OP_ALLTOALL ||
           !is_native(comm, call);
}
