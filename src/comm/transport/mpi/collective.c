/* Collectives of MPI: see mpi.h. All of them are nonblocking, so that a wait for them can be given up. */
#include <limits.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/pieces.h"
#include "comm/transport/mpi/inside.h"

/* ---- counts, which are of type int in MPI ------------------------------------------------------------------------ */

static bool fits(size_t count, size_t width, size_t parts) {
    return width == 0 || parts == 0 || count <= (size_t)INT_MAX / width / parts;
}

/* Returns true if the end of each rank's part, as a byte offset, fits into an int. */
static bool parts_fit(const ls_call *call, const size_t *counts, const size_t *displacements, int size) {
    for (int rank = 0; counts != NULL && rank < size; rank++) {
        if (!fits(counts[rank], call->width, 1) ||
            !fits(counts[rank] + (displacements != NULL ? displacements[rank] : 0), call->width, 1)) {
            return false;
        }
    }
    return true;
}

static bool is_correct(const ls_mpi *mpi, const ls_call *call) {
    return (mpi->options.reductions.correct[call->dtype] & 1U << call->reduction) != 0;
}

static bool is_for_mpi(const ls_mpi *mpi, const ls_call *call) {
    switch (call->operation) {
    case LS_OP_ALLREDUCE:
    case LS_OP_REDUCE:
    case LS_OP_REDUCE_SCATTER:
    case LS_OP_REDUCE_SCATTERV:
        return call->any_order && is_correct(mpi, call) && fits(call->total, call->width, 1);
    case LS_OP_BROADCAST:
    case LS_OP_GATHER:
    case LS_OP_GATHERV:
    case LS_OP_ALLGATHER:
    case LS_OP_ALLGATHERV:
    case LS_OP_SCATTER:
    case LS_OP_SCATTERV:
    case LS_OP_ALLTOALL:
    case LS_OP_ALLTOALLV:
        return true;
    default:
        return false;
    }
}

/* Returns true if `count` is the count per rank, so that a buffer has `count` elements for each rank. */
static bool divides(ls_operation operation) {
    return (ls_flows[operation].cuts || ls_flows[operation].assembles) && operation != LS_OP_REDUCE_SCATTERV;
}

bool ls_mpi_can_make(const ls_endpoint *endpoint, const ls_call *call) {
    const int size = endpoint->size;
    return is_for_mpi((const ls_mpi *)endpoint, call) &&
           fits(call->count, call->width, divides(call->operation) ? (size_t)size : 1) &&
           parts_fit(call, call->send_counts, call->send_displacements, size) &&
           parts_fit(call, call->receive_counts, call->receive_displacements, size);
}

/* The arrays of per-rank arguments for MPI, which must stay unchanged until the collective has ended. */
enum { SENT = 0, SENT_AT, RECEIVED, RECEIVED_AT, NUMBERS };

static ls_status make_numbers(ls_mpi *mpi) {
    if (mpi->numbers == NULL) {
        const size_t count = NUMBERS * (size_t)mpi->endpoint.size;
        mpi->numbers = ls_allocate(count * sizeof *mpi->numbers);
        LS_TRY(mpi->numbers != NULL ? LS_OK : ls_fail_memory("counts for MPI", count * sizeof *mpi->numbers));
    }
    return LS_OK;
}

static int *numbers_of(const ls_mpi *mpi, int which) {
    return mpi->numbers + (size_t)which * (size_t)mpi->endpoint.size;
}

/* Converts numbers of elements of `width` bytes to bytes, in array `which`. Returns the array, or NULL if the call
 * has no such numbers. */
static const int *put_numbers(const ls_mpi *mpi, int which, const size_t *from, size_t width) {
    int *numbers = numbers_of(mpi, which);
    for (int rank = 0; from != NULL && rank < mpi->endpoint.size; rank++) {
        numbers[rank] = (int)(from[rank] * width);
    }
    return from != NULL ? numbers : NULL;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Copies this rank's own part to its destination first. Then the call is in place for MPI on all ranks that must
 * agree on this, whether or not the caller's buffers are the same. */
static void keep_own(const ls_mpi *mpi, const ls_call *call) {
    const int rank = mpi->endpoint.rank;
    const ls_piece from = ls_piece_sent(call, rank, rank);
    const ls_piece to = ls_piece_received(call, rank, rank);
    if (from.count != 0 && from.count == to.count) {
        memmove((unsigned char *)call->receive + to.at * call->width,
                (const unsigned char *)call->send + from.at * call->width, from.count * call->width);
    }
}

static int begin_reduction(ls_mpi *mpi, const ls_call *call, MPI_Request *request) {
    const MPI_Datatype type = ls_mpi_type_of(call->dtype, call->reduction);
    const MPI_Op op = ls_mpi_op_of(call->reduction);
    const int count = (int)call->count;
    switch (call->operation) {
    case LS_OP_ALLREDUCE:
        return MPI_Iallreduce(call->send, call->receive, count, type, op, mpi->comm, request);
    case LS_OP_REDUCE:
        return MPI_Ireduce(call->send, call->receive, count, type, op, call->root, mpi->comm, request);
    case LS_OP_REDUCE_SCATTER:
        return MPI_Ireduce_scatter_block(call->send, call->receive, count, type, op, mpi->comm, request);
    default:
        return MPI_Ireduce_scatter(call->send, call->receive, put_numbers(mpi, SENT, call->send_counts, 1), type, op,
                                   mpi->comm, request);
    }
}

static int begin_gather(ls_mpi *mpi, const ls_call *call, MPI_Request *request) {
    const bool root = mpi->endpoint.rank == call->root;
    const void *send = root ? MPI_IN_PLACE : call->send;
    const int bytes = (int)(call->count * call->width);
    if (root) {
        keep_own(mpi, call);
    }
    if (call->operation == LS_OP_GATHER) {
        return MPI_Igather(send, bytes, MPI_BYTE, call->receive, bytes, MPI_BYTE, call->root, mpi->comm, request);
    }
    return MPI_Igatherv(send, bytes, MPI_BYTE, call->receive,
                        put_numbers(mpi, RECEIVED, call->receive_counts, call->width),
                        put_numbers(mpi, RECEIVED_AT, call->receive_displacements, call->width), MPI_BYTE, call->root,
                        mpi->comm, request);
}

static int begin_scatter(ls_mpi *mpi, const ls_call *call, MPI_Request *request) {
    const bool root = mpi->endpoint.rank == call->root;
    void *receive = root ? MPI_IN_PLACE : call->receive;
    const int bytes = (int)(call->count * call->width);
    if (root) {
        keep_own(mpi, call);
    }
    if (call->operation == LS_OP_SCATTER) {
        return MPI_Iscatter(call->send, bytes, MPI_BYTE, receive, bytes, MPI_BYTE, call->root, mpi->comm, request);
    }
    return MPI_Iscatterv(call->send, put_numbers(mpi, SENT, call->send_counts, call->width),
                         put_numbers(mpi, SENT_AT, call->send_displacements, call->width), MPI_BYTE, receive, bytes,
                         MPI_BYTE, call->root, mpi->comm, request);
}

static int begin_move(ls_mpi *mpi, const ls_call *call, MPI_Request *request) {
    const size_t width = call->width;
    const int bytes = (int)(call->count * width);
    switch (call->operation) {
    case LS_OP_BROADCAST:
        return MPI_Ibcast(call->receive, bytes, MPI_BYTE, call->root, mpi->comm, request);
    case LS_OP_GATHER:
    case LS_OP_GATHERV:
        return begin_gather(mpi, call, request);
    case LS_OP_SCATTER:
    case LS_OP_SCATTERV:
        return begin_scatter(mpi, call, request);
    case LS_OP_ALLGATHER:
        keep_own(mpi, call);
        return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, call->receive, bytes, MPI_BYTE, mpi->comm, request);
    case LS_OP_ALLGATHERV:
        keep_own(mpi, call);
        return MPI_Iallgatherv(
            MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, call->receive, put_numbers(mpi, RECEIVED, call->receive_counts, width),
            put_numbers(mpi, RECEIVED_AT, call->receive_displacements, width), MPI_BYTE, mpi->comm, request);
    case LS_OP_ALLTOALL:
        return MPI_Ialltoall(call->send, bytes, MPI_BYTE, call->receive, bytes, MPI_BYTE, mpi->comm, request);
    default:
        return MPI_Ialltoallv(call->send, put_numbers(mpi, SENT, call->send_counts, width),
                              put_numbers(mpi, SENT_AT, call->send_displacements, width), MPI_BYTE, call->receive,
                              put_numbers(mpi, RECEIVED, call->receive_counts, width),
                              put_numbers(mpi, RECEIVED_AT, call->receive_displacements, width), MPI_BYTE, mpi->comm,
                              request);
    }
}

ls_status ls_mpi_collective(ls_endpoint *endpoint, const ls_call *call, ls_transfer *transfer) {
    ls_mpi *mpi = (ls_mpi *)endpoint;
    const bool moves = ls_flows[call->operation].moves;
    MPI_Request request = MPI_REQUEST_NULL;
    *transfer = (ls_transfer){.peer = -1, .of_user = true, .number = 1};
    LS_TRY(ls_mpi_check_runs());
    LS_TRY(make_numbers(mpi));
    LS_TRY(ls_mpi_list_room(&mpi->named));
    const int code = moves ? begin_move(mpi, call, &request) : begin_reduction(mpi, call, &request);
    if (code != MPI_SUCCESS) {
        return ls_mpi_fail("a collective of MPI", code);
    }
    ls_mpi_list_add(&mpi->named, request, transfer);
    return LS_OK;
}
