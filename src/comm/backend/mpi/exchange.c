/*
 * The calls that move data. What a rank sends another goes out with its header (agree.c) and comes to its place when
 * all call the same. Calls where the user gives counts on both sides have a step between, in which all ranks learn
 * whether they fit.
 */
#include <string.h>

#include "base/status.h"
#include "comm/backend/mpi/mpi.h"
#include "comm/pieces.h"

/* ---- data ---------------------------------------------------------------------------------------------------------
 */

static ls_mpi_block sent(const ls_mpi *mpi, int to) {
    const ls_call *call = &mpi->call;
    const ls_piece piece = ls_piece_sent(call, mpi->rank, to);
    const size_t bytes = piece.count * call->width;
    return (ls_mpi_block){.data = bytes != 0 ? (const unsigned char *)call->send + piece.at * call->width : NULL,
                          .count = piece.count,
                          .bytes = bytes};
}

static void copy(unsigned char *to, const unsigned char *from, size_t bytes) {
    if (bytes != 0 && to != from) {
        memcpy(to, from, bytes);
    }
}

static ls_mpi_place received(const ls_mpi *mpi, int from) {
    const ls_call *call = &mpi->call;
    const ls_piece piece = ls_piece_received(call, mpi->rank, from);
    const size_t bytes = piece.count * call->width;
    return (ls_mpi_place){.to = bytes != 0 ? (unsigned char *)call->receive + piece.at * call->width : NULL,
                          .bytes = bytes};
}

static ls_status deliver(ls_mpi *mpi, bool *finished) {
    LS_TRY(ls_mpi_collect(mpi));
    for (int from = 0; from < mpi->size; from++) {
        const ls_mpi_place place = received(mpi, from);
        const unsigned char *data = from == mpi->rank ? sent(mpi, from).data : ls_mpi_opened(mpi, from);
        if (data != NULL) {
            copy(place.to, data, place.bytes);
        }
    }
    return ls_mpi_settle(mpi, ls_mpi_end, finished);
}

/* ---- counts --------------------------------------------------------------------------------------------------------
 */

static ls_status accept(const ls_mpi *mpi) {
    for (int rank = 0; rank < mpi->size; rank++) {
        LS_TRY(ls_agreement_accept(&mpi->call, rank, &mpi->found[rank]));
    }
    return LS_OK;
}

static ls_status fail_misfit(ls_mpi *mpi, bool *finished) {
    (void)finished;
    return accept(mpi);
}

static ls_status read_verdicts(ls_mpi *mpi, bool *finished) {
    return accept(mpi) == LS_OK ? deliver(mpi, finished) : ls_mpi_disagree(mpi, fail_misfit, finished);
}

static ls_status exchange_verdicts(ls_mpi *mpi) {
    const size_t bytes = sizeof *mpi->found;
    mpi->stage = read_verdicts;
    for (int rank = 0; rank < mpi->size; rank++) {
        if (rank != mpi->rank) {
            LS_TRY(ls_mpi_take(mpi, rank, LS_MPI_VERDICTS, &mpi->found[rank], bytes, &mpi->open));
            LS_TRY(ls_mpi_give(mpi, rank, LS_MPI_VERDICTS, &mpi->found[mpi->rank], bytes, &mpi->open));
        }
    }
    return LS_OK;
}

static ls_status agreed(ls_mpi *mpi, bool *finished) {
    if (mpi->number >= 0) { /* as when it became known */
        return deliver(mpi, finished);
    }
    const ls_call_verdict verdict = ls_agreement_judge(&mpi->call, mpi->rank, mpi->headers, mpi->size);
    mpi->found[mpi->rank] = verdict;
    if (ls_agreement_varies(mpi->call.operation)) {
        return exchange_verdicts(mpi);
    }
    if (verdict.from >= 0) { /* all else was compared, so only a broken library does this */
        (void)ls_agreement_accept(&mpi->call, mpi->rank, &verdict);
        return ls_mpi_give_up(mpi, ls_fail(LS_ERR_INTERNAL, "%s", ls_error_message()));
    }
    return deliver(mpi, finished);
}

ls_status ls_mpi_exchange(void *state, const ls_call *call) {
    static const ls_mpi_opening opening = {.sent = sent, .received = received};
    return ls_mpi_begin(state, call, &opening, agreed);
}
