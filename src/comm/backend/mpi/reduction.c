/*
 * The calls that reduce. Each rank reduces a part, in the order of the balanced tree, so all have the bits of shared
 * memory: of reduce_scatter its own; of a small allreduce the whole, on every rank; of a larger one, and of a larger
 * reduce, an equal share, which then goes to those that want it. Parts are reduced chunk by chunk, while the next chunk
 * is on its way, so that what arrived is still in the cache.
 *
 *     rank 0   a0 b0 ──┐      ┌── a0+a1 ────▶ a0+a1  b0+b1
 *                      ├ pieces          results
 *     rank 1   a1 b1 ──┘      └── b0+b1 ────▶ a0+a1  b0+b1
 */
#include <string.h>

#include "base/share.h"
#include "base/status.h"
#include "comm/backend/mpi/mpi.h"
#include "comm/pieces.h"
#include "comm/reduce.h"

#define WHOLE_BYTES ((size_t)32 << 10)  /* that a rank takes in at most to reduce the whole by itself */
#define CHUNK_BYTES ((size_t)512 << 10) /* of one rank's data */

/* ---- parts ---------------------------------------------------------------------------------------------------------
 */

/* The part of the send buffer that `rank` reduces. */
static ls_piece part_of(const ls_mpi *mpi, int rank) {
    const ls_call *call = &mpi->call;
    if (call->operation == LS_OP_REDUCE_SCATTER || call->operation == LS_OP_REDUCE_SCATTERV) {
        return ls_piece_part(call->send_counts, call->send_displacements, call->count, rank);
    }
    if (!mpi->plan.shares) {
        return (ls_piece){call->operation == LS_OP_ALLREDUCE || rank == call->root ? call->count : 0, 0};
    }
    const ls_share share = ls_share_of((int64_t)call->count, mpi->size, rank);
    return (ls_piece){(size_t)share.count, (size_t)share.start};
}

/* Its chunk of that number. */
static ls_piece chunk_of(const ls_mpi *mpi, int rank, size_t number) {
    const ls_piece part = part_of(mpi, rank);
    const size_t before = number * mpi->plan.chunk;
    const size_t left = part.count > before ? part.count - before : 0;
    return (ls_piece){left < mpi->plan.chunk ? left : mpi->plan.chunk, part.at + before};
}

/* Whether each rank reduces a share only: where the receiver is asked before the whole is sent, but not before a share
 * is, and where there is much. */
static bool shares(const ls_mpi *mpi, size_t bytes) {
    const size_t size = (size_t)mpi->size;
    const size_t unasked = mpi->wire->unasked;
    return size > 1 && ((bytes > unasked && bytes / size <= unasked) || bytes > WHOLE_BYTES / (size - 1));
}

static void plan(ls_mpi *mpi) {
    const ls_call *call = &mpi->call;
    const bool scatters = call->operation != LS_OP_ALLREDUCE && call->operation != LS_OP_REDUCE;
    size_t most = 0;
    mpi->plan = (ls_mpi_plan){.shares = !scatters && shares(mpi, call->count * call->width),
                              .chunk = CHUNK_BYTES / call->width};
    for (int rank = 0; rank < mpi->size; rank++) {
        const size_t count = part_of(mpi, rank).count;
        most = count > most ? count : most;
    }
    mpi->plan.chunks = (most + mpi->plan.chunk - 1) / mpi->plan.chunk;
    mpi->plan.chunk = most < mpi->plan.chunk ? most : mpi->plan.chunk;
}

/* ---- chunks --------------------------------------------------------------------------------------------------------
 */

static ls_mpi_block block_of(const ls_mpi *mpi, int to, size_t number) {
    const ls_piece piece = chunk_of(mpi, to, number);
    return (ls_mpi_block){.data = piece.count != 0 ? (const unsigned char *)mpi->call.send + piece.at * mpi->call.width
                                                   : NULL,
                          .count = piece.count,
                          .bytes = piece.count * mpi->call.width};
}

static ls_mpi_block sent(const ls_mpi *mpi, int to) {
    return block_of(mpi, to, 0);
}

/* Where a chunk of a rank arrives, of those that have an even number and those that have an odd one. */
static unsigned char *place_of(const ls_mpi *mpi, int rank, size_t number) {
    const size_t row = number % 2 * (size_t)mpi->size + (size_t)rank;
    return mpi->scratch + row * mpi->plan.chunk * mpi->call.width;
}

/* Where a result is put that has no place in the user's memory, or not yet. */
static unsigned char *spare(const ls_mpi *mpi) {
    return mpi->scratch + 2 * (size_t)mpi->size * mpi->plan.chunk * mpi->call.width;
}

static ls_mpi_place received(const ls_mpi *mpi, int from) {
    return (ls_mpi_place){.to = place_of(mpi, from, 0), .bytes = chunk_of(mpi, mpi->rank, 0).count * mpi->call.width};
}

static ls_status take_chunk(ls_mpi *mpi, size_t number) {
    const size_t bytes = chunk_of(mpi, mpi->rank, number).count * mpi->call.width;
    for (int rank = 0; rank < mpi->size; rank++) {
        if (rank != mpi->rank) {
            LS_TRY(ls_mpi_take(mpi, rank, LS_MPI_PIECES, place_of(mpi, rank, number), bytes, &mpi->open));
        }
    }
    return LS_OK;
}

static ls_status give_chunk(ls_mpi *mpi, size_t number) {
    for (int i = 1; i < mpi->size; i++) {
        const int to = (mpi->rank + i) % mpi->size;
        const ls_mpi_block block = block_of(mpi, to, number);
        LS_TRY(ls_mpi_give(mpi, to, LS_MPI_PIECES, block.data, block.bytes, &mpi->open));
    }
    return LS_OK;
}

/* ---- reducing ------------------------------------------------------------------------------------------------------
 */

static bool wants_results(const ls_mpi *mpi, int rank) {
    return mpi->call.operation == LS_OP_ALLREDUCE || rank == mpi->call.root;
}

/* Where the result of a chunk belongs on this rank; NULL: it is for others alone. */
static unsigned char *goal_of(const ls_mpi *mpi, size_t number) {
    const ls_call *call = &mpi->call;
    const bool scatters = call->operation != LS_OP_ALLREDUCE && call->operation != LS_OP_REDUCE;
    if (!scatters && !wants_results(mpi, mpi->rank)) {
        return NULL;
    }
    const size_t at = scatters ? number * mpi->plan.chunk : chunk_of(mpi, mpi->rank, number).at;
    return (unsigned char *)call->receive + at * call->width;
}

/* Reduces a chunk of this rank's part; returns where the result is. */
static const unsigned char *reduce_chunk(ls_mpi *mpi, size_t number, ls_piece piece) {
    const ls_call *call = &mpi->call;
    const unsigned char *own = (const unsigned char *)call->send + piece.at * call->width;
    unsigned char *goal = goal_of(mpi, number);
    const size_t bytes = piece.count * call->width;
    /* A result at the start of what was sent may overlap this rank's share of it. */
    const bool overlaps = goal != NULL && goal != own && goal < own + bytes && own < goal + bytes;
    void *result = goal == NULL || overlaps ? spare(mpi) : goal;
    for (int rank = 0; rank < mpi->size; rank++) {
        const unsigned char *opened = number == 0 && rank != mpi->rank ? ls_mpi_opened(mpi, rank) : NULL;
        mpi->sources[rank] = rank == mpi->rank ? own : opened != NULL ? opened : place_of(mpi, rank, number);
    }
    ls_reduce_buffers(&(ls_reduce_task){.dtype = call->dtype,
                                        .reduction = call->reduction,
                                        .ranks = mpi->size,
                                        .sources = mpi->sources,
                                        .copies = 1,
                                        .destinations = &result,
                                        .count = piece.count});
    if (overlaps) {
        memcpy(goal, result, bytes);
    }
    return result;
}

static ls_status take_results(ls_mpi *mpi, size_t number) {
    for (int rank = 0; rank < mpi->size; rank++) {
        const ls_piece piece = chunk_of(mpi, rank, number);
        if (rank != mpi->rank && piece.count != 0) {
            unsigned char *to = (unsigned char *)mpi->call.receive + piece.at * mpi->call.width;
            LS_TRY(ls_mpi_take(mpi, rank, LS_MPI_RESULTS, to, piece.count * mpi->call.width, &mpi->open));
        }
    }
    return LS_OK;
}

static ls_status give_results(ls_mpi *mpi, const unsigned char *result, size_t bytes) {
    for (int i = 1; i < mpi->size; i++) {
        const int rank = (mpi->rank + i) % mpi->size;
        if (wants_results(mpi, rank)) {
            LS_TRY(ls_mpi_give(mpi, rank, LS_MPI_RESULTS, result, bytes, &mpi->open));
        }
    }
    return LS_OK;
}

/* ---- stages --------------------------------------------------------------------------------------------------------
 */

/* A chunk is here, and nothing else is under way: so results may be written over what was sent. */
static ls_status step(ls_mpi *mpi, bool *finished) {
    const size_t number = mpi->plan.done++;
    const ls_piece piece = chunk_of(mpi, mpi->rank, number);
    if (number + 1 < mpi->plan.chunks) {
        LS_TRY(take_chunk(mpi, number + 1));
        LS_TRY(give_chunk(mpi, number + 1));
    }
    if (mpi->plan.shares && wants_results(mpi, mpi->rank)) {
        LS_TRY(take_results(mpi, number)); /* before this rank adds up: what comes meanwhile finds its place */
    }
    const unsigned char *result = piece.count != 0 ? reduce_chunk(mpi, number, piece) : NULL;
    if (mpi->plan.shares) {
        LS_TRY(give_results(mpi, result, piece.count * mpi->call.width));
    }
    mpi->stage = mpi->plan.done < mpi->plan.chunks ? step : ls_mpi_end;
    *finished = mpi->stage == ls_mpi_end && mpi->open == 0;
    return LS_OK;
}

static ls_status agreed(ls_mpi *mpi, bool *finished) {
    LS_TRY(ls_mpi_collect(mpi));
    return ls_mpi_settle(mpi, mpi->plan.chunks != 0 ? step : ls_mpi_end, finished);
}

ls_status ls_mpi_reduce(void *state, const ls_call *call) {
    static const ls_mpi_opening opening = {.sent = sent, .received = received};
    ls_mpi *mpi = state;
    unsigned char *memory = NULL;
    mpi->call = *call;
    plan(mpi);
    LS_TRY(mpi->ended ? LS_OK
                      : ls_mpi_reserve(mpi, (2 * (size_t)mpi->size + 1) * mpi->plan.chunk * call->width, &memory));
    return ls_mpi_begin(mpi, call, &opening, agreed);
}
