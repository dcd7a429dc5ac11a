/*
 * Every collective: each rank tells each other rank what it calls and, behind that, what it sends if that is little;
 * where all call the same, larger pieces follow. Calls where the user gives counts on both sides have a step between,
 * in which all ranks learn whether they fit. Nothing is written before. The frame makes reductions of exchanges
 * (compose.c), each rank adding up its share in the order of the tree.
 */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "comm/backend/mpi/mpi.h"
#include "comm/pieces.h"

/* ---- agreement ---------------------------------------------------------------------------------------------------
 */

static ls_mpi_header describe(const ls_call *call) {
    return (ls_mpi_header){.operation = (uint32_t)call->operation,
                           .dtype = (int32_t)call->dtype,
                           .reduction = (int32_t)call->reduction,
                           .root = call->root,
                           .layout = call->layout,
                           .agreed = ls_call_agreed(call),
                           .sequence = call->sequence};
}

static bool same_call(const ls_mpi_header *a, const ls_mpi_header *b) {
    return a->operation == b->operation && a->dtype == b->dtype && a->reduction == b->reduction && a->root == b->root &&
           a->layout == b->layout && a->agreed == b->agreed && a->sequence == b->sequence;
}

static void detail_of(const ls_mpi_header *header, char *text, size_t capacity) {
    const ls_call call = {.operation = (ls_operation)header->operation,
                          .dtype = (ls_dtype)header->dtype,
                          .reduction = (ls_reduction)header->reduction,
                          .root = header->root,
                          .count = (size_t)header->agreed,
                          .total = (size_t)header->agreed,
                          .layout = header->layout};
    ls_call_detail(&call, text, capacity);
}

/* "rank 0 called barrier (#3); ranks 1, 2 called ..." into `text`. */
static void tell_calls(const ls_mpi *mpi, char *text, size_t capacity) {
    size_t length = 0;
    for (int rank = 0; rank < mpi->size && length < capacity - 1; rank++) {
        const ls_mpi_header *header = &mpi->got[rank].header;
        int first = 0;
        while (!same_call(&mpi->got[first].header, header)) {
            first++;
        }
        if (first != rank) {
            continue; /* told with the first that called the same */
        }
        char ranks[256] = "";
        char detail[192];
        size_t used = 0;
        int callers = 0;
        for (int other = rank; other < mpi->size && used < sizeof ranks - 24; other++) {
            if (same_call(&mpi->got[other].header, header)) {
                used += (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%d", callers == 0 ? "" : ", ", other);
                callers++;
            }
        }
        detail_of(header, detail, sizeof detail);
        length +=
            (size_t)snprintf(text + length, capacity - length, "%srank%s %s called %s (#%llu)", length == 0 ? "" : "; ",
                             callers == 1 ? "" : "s", ranks, detail, (unsigned long long)header->sequence);
    }
}

/* Names the call: "ls_comm_allreduce #17". */
static const char *name_call(const ls_mpi *mpi, char text[64]) {
    return ls_call_describe(mpi->call.operation, mpi->call.sequence, text, 64);
}

static ls_status check_left(ls_mpi *mpi) {
    for (int rank = 0; rank < mpi->size; rank++) {
        if (rank != mpi->rank && mpi->got[rank].header.operation == LS_MPI_LEFT) {
            char name[64];
            return ls_mpi_give_up(
                mpi, ls_fail(LS_ERR_PEER, "%s: rank %d left without making this call", name_call(mpi, name), rank));
        }
    }
    return LS_OK;
}

static ls_status agree(ls_mpi *mpi) {
    LS_TRY(check_left(mpi));
    for (int rank = 0; rank < mpi->size; rank++) {
        if (!same_call(&mpi->got[rank].header, &mpi->got[mpi->rank].header)) {
            char calls[768];
            char name[64];
            tell_calls(mpi, calls, sizeof calls);
            return ls_fail(LS_ERR_MISMATCH, "%s: ranks called different things: %s", name_call(mpi, name), calls);
        }
    }
    return LS_OK;
}

/* ---- data ---------------------------------------------------------------------------------------------------------
 */

static size_t wanted_from(const ls_mpi *mpi, int rank) {
    return ls_piece_received(&mpi->call, mpi->rank, rank).count;
}

static void copy(unsigned char *to, const unsigned char *from, size_t bytes) {
    if (bytes != 0 && to != from) {
        memcpy(to, from, bytes);
    }
}

static ls_status take_pieces(ls_mpi *mpi) {
    const ls_call *call = &mpi->call;
    for (int i = 0; i < mpi->size; i++) {
        const int from = (mpi->rank + i) % mpi->size;
        const ls_piece piece = ls_piece_received(call, mpi->rank, from);
        const size_t bytes = piece.count * call->width;
        unsigned char *to = bytes != 0 ? (unsigned char *)call->receive + piece.at * call->width : NULL;
        if (from == mpi->rank) {
            const size_t at = ls_piece_sent(call, from, from).at * call->width;
            copy(to, bytes != 0 ? (const unsigned char *)call->send + at : NULL, bytes);
        } else if (bytes <= LS_MPI_ROOM) {
            copy(to, mpi->got[from].data, bytes);
        } else {
            LS_TRY(ls_mpi_take(mpi, from, LS_MPI_PIECES, to, bytes, &mpi->open));
        }
    }
    return LS_OK;
}

static ls_status give_pieces(ls_mpi *mpi) {
    const ls_call *call = &mpi->call;
    for (int i = 1; i < mpi->size; i++) {
        const int to = (mpi->rank + i) % mpi->size;
        const ls_piece piece = ls_piece_sent(call, mpi->rank, to);
        const size_t bytes = piece.count * call->width;
        if (bytes > LS_MPI_ROOM) {
            LS_TRY(ls_mpi_give(mpi, to, LS_MPI_PIECES, (const unsigned char *)call->send + piece.at * call->width,
                               bytes, &mpi->open));
        }
    }
    return LS_OK;
}

static ls_status end(ls_mpi *mpi, bool *finished) {
    (void)mpi;
    *finished = true;
    return LS_OK;
}

static ls_status deliver(ls_mpi *mpi, bool *finished) {
    *finished = false;
    mpi->stage = end;
    LS_TRY(take_pieces(mpi));
    return give_pieces(mpi);
}

/* ---- stages --------------------------------------------------------------------------------------------------------
 */

static bool counts_on_both_sides(ls_operation operation) {
    return operation == LS_OP_GATHERV || operation == LS_OP_SCATTERV || operation == LS_OP_ALLTOALLV;
}

static ls_mpi_verdict judge(const ls_mpi *mpi) {
    for (int from = 0; from < mpi->size; from++) {
        const size_t wanted = wanted_from(mpi, from);
        const uint64_t sent = mpi->got[from].header.count;
        if (sent != wanted) {
            return (ls_mpi_verdict){.sent = sent, .wanted = wanted, .from = from};
        }
    }
    return (ls_mpi_verdict){.from = -1};
}

static ls_status deliver_judged(ls_mpi *mpi, bool *finished) {
    for (int rank = 0; rank < mpi->size; rank++) {
        const ls_mpi_verdict *found = &mpi->found[rank];
        if (found->from >= 0) {
            char name[64];
            return ls_fail(LS_ERR_MISMATCH, "%s: rank %d sends %llu %s to rank %d, which wants %llu",
                           name_call(mpi, name), (int)found->from, (unsigned long long)found->sent,
                           ls_dtype_name(mpi->call.dtype), rank, (unsigned long long)found->wanted);
        }
    }
    return deliver(mpi, finished);
}

static ls_status exchange_verdicts(ls_mpi *mpi) {
    mpi->stage = deliver_judged;
    for (int rank = 0; rank < mpi->size; rank++) {
        if (rank != mpi->rank) {
            const size_t bytes = sizeof *mpi->found;
            LS_TRY(ls_mpi_take(mpi, rank, LS_MPI_VERDICTS, &mpi->found[rank], bytes, &mpi->open));
            LS_TRY(ls_mpi_give(mpi, rank, LS_MPI_VERDICTS, &mpi->found[mpi->rank], bytes, &mpi->open));
        }
    }
    return LS_OK;
}

static ls_status read_headers(ls_mpi *mpi, bool *finished) {
    LS_TRY(agree(mpi));
    const ls_mpi_verdict verdict = judge(mpi);
    if (counts_on_both_sides(mpi->call.operation)) {
        mpi->found[mpi->rank] = verdict;
        return exchange_verdicts(mpi);
    }
    if (verdict.from >= 0) { /* all else was compared, so only a broken library does this */
        char name[64];
        return ls_mpi_give_up(mpi, ls_fail(LS_ERR_INTERNAL, "%s: rank %d sends %llu elements where %llu are wanted",
                                           name_call(mpi, name), (int)verdict.from, (unsigned long long)verdict.sent,
                                           (unsigned long long)verdict.wanted));
    }
    return deliver(mpi, finished);
}

static ls_status send_header(ls_mpi *mpi, int to) {
    const ls_call *call = &mpi->call;
    const ls_piece piece = ls_piece_sent(call, mpi->rank, to);
    const size_t bytes = piece.count * call->width;
    const size_t data = bytes <= LS_MPI_ROOM ? bytes : 0;
    ls_mpi_packet *packet = to == mpi->rank ? &mpi->got[to] : &mpi->sent[to];
    packet->header = describe(call);
    packet->header.count = piece.count;
    packet->header.bytes = bytes;
    if (to == mpi->rank) {
        return LS_OK;
    }
    if (data != 0) {
        memcpy(packet->data, (const unsigned char *)call->send + piece.at * call->width, data);
    }
    return ls_mpi_give(mpi, to, LS_MPI_HEADERS, packet, sizeof packet->header + data, &mpi->open);
}

ls_status ls_mpi_exchange(void *state, const ls_call *call) {
    ls_mpi *mpi = state;
    mpi->call = *call;
    if (mpi->ended) {
        char name[64];
        return ls_fail(LS_ERR_STATE, "%s: an earlier call has ended this communicator", name_call(mpi, name));
    }
    mpi->stage = read_headers;
    mpi->waited_ns = 0;
    for (int rank = 0; rank < mpi->size; rank++) {
        mpi->got[rank].header.operation = 0;
        if (rank != mpi->rank) {
            LS_TRY(ls_mpi_take(mpi, rank, LS_MPI_HEADERS, &mpi->got[rank], sizeof mpi->got[rank], &mpi->open));
        }
    }
    for (int i = 0; i < mpi->size; i++) {
        LS_TRY(send_header(mpi, (mpi->rank + i) % mpi->size));
    }
    return LS_OK;
}

/* Looks for reasons to give up the call. */
static ls_status look(ls_mpi *mpi) {
    if (mpi->stage == read_headers) {
        LS_TRY(check_left(mpi));
    }
    if (mpi->waited_ns <= mpi->timeout_ns) {
        return LS_OK;
    }
    char name[64];
    int silent = mpi->rank;
    for (size_t i = mpi->transfer_count; i-- > 0;) {
        const ls_mpi_transfer *transfer = &mpi->transfers[i];
        silent = transfer->open == &mpi->open && (transfer->receives || silent == mpi->rank) ? transfer->peer : silent;
    }
    const char *what = mpi->stage == read_headers ? "did not make this call" : "did not go on with this call";
    return ls_mpi_give_up(mpi, ls_fail(LS_ERR_TIMEOUT, "%s: rank %d %s within %g s", name_call(mpi, name), silent, what,
                                       (double)mpi->timeout_ns * 1e-9));
}

ls_status ls_mpi_progress(void *state, bool wait, bool *finished) {
    ls_mpi *mpi = state;
    *finished = false;
    for (;;) {
        bool moved = false;
        const size_t open = mpi->open;
        LS_TRY(ls_mpi_poll(mpi, &moved));
        mpi->waited_ns = mpi->open < open ? 0 : mpi->waited_ns;
        if (mpi->open == 0) {
            LS_TRY(mpi->stage(mpi, finished));
            if (*finished) {
                return LS_OK;
            }
            continue;
        }
        if (!moved) {
            ls_mpi_pause(mpi, &mpi->waited_ns);
            LS_TRY(look(mpi));
        }
        if (!wait) {
            return LS_OK;
        }
    }
}
