/*
 * How every collective begins and ends. Each rank tells each other rank what it calls and, behind that, what it sends
 * if that is little; more follows at once, without waiting for the answer. Nothing of it is written where the user
 * would see it before all headers are here and say the same. Where they do not, what was sent too early is taken and
 * dropped, so that the ranks are in step again.
 */
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/mpi/mpi.h"

#define LOOKS_PER_LETTER 16 /* a rank that waits takes in messages too */
#define LOOKS_AHEAD      20 /* about 2 us */

const char *ls_mpi_name(const ls_mpi *mpi, char text[64]) {
    return ls_call_describe(mpi->call.operation, mpi->call.sequence, text, 64);
}

const unsigned char *ls_mpi_opened(const ls_mpi *mpi, int from) {
    const ls_mpi_packet *packet = &mpi->boxes[from].packet;
    return packet->header.bytes <= mpi->room ? packet->data : NULL;
}

/* ---- agreement -----------------------------------------------------------------------------------------------------
 */

static ls_status compare_calls(ls_mpi *mpi, bool *finished) {
    (void)finished;
    return ls_agreement_check(&mpi->call, mpi->headers, mpi->size);
}

/* A rank that left among those whose headers are here. */
static ls_status check_left(ls_mpi *mpi) {
    for (int rank = 0; rank < mpi->size; rank++) {
        const ls_mpi_mailbox *box = &mpi->boxes[rank];
        if (rank != mpi->rank && !box->asked && box->packet.header.operation == LS_MPI_LEFT) {
            char name[64];
            mpi->left[rank] |= LS_MPI_HEARD_CALLS;
            return ls_mpi_give_up(
                mpi, ls_fail(LS_ERR_PEER, "%s: rank %d left without making this call", ls_mpi_name(mpi, name), rank));
        }
    }
    return LS_OK;
}

/* Everybody's headers are here. */
static ls_status read_headers(ls_mpi *mpi, bool *finished) {
    for (int rank = 0; rank < mpi->size; rank++) {
        if (mpi->headers[rank]->operation == LS_MPI_LEFT) {
            return check_left(mpi);
        }
    }
    return compare_calls(mpi, finished) == LS_OK ? mpi->agreed(mpi, finished)
                                                 : ls_mpi_disagree(mpi, compare_calls, finished);
}

static bool is_quiet(const ls_mpi *mpi) {
    return mpi->silent == 0 && mpi->open == 0 && (mpi->early == 0 || !mpi->settled);
}

ls_status ls_mpi_settle(ls_mpi *mpi, ls_mpi_stage *stage, bool *finished) {
    mpi->stage = stage;
    mpi->settled = true;
    return is_quiet(mpi) ? stage(mpi, finished) : LS_OK;
}

ls_status ls_mpi_disagree(ls_mpi *mpi, ls_mpi_stage *stage, bool *finished) {
    size_t total = 0;
    for (int rank = 0; rank < mpi->size; rank++) {
        total += rank == mpi->rank || ls_mpi_opened(mpi, rank) != NULL ? 0 : mpi->boxes[rank].packet.header.bytes;
    }
    unsigned char *into = NULL;
    LS_TRY(ls_mpi_reserve(mpi, total, &into));
    for (int rank = 0; rank < mpi->size; rank++) {
        const size_t bytes = mpi->boxes[rank].packet.header.bytes;
        if (rank != mpi->rank && ls_mpi_opened(mpi, rank) == NULL) {
            LS_TRY(ls_mpi_take(mpi, rank, LS_MPI_PIECES, into, bytes, &mpi->open));
            into += bytes;
        }
    }
    return ls_mpi_settle(mpi, stage, finished);
}

/* ---- a call --------------------------------------------------------------------------------------------------------
 */

ls_status ls_mpi_reserve(ls_mpi *mpi, size_t bytes, unsigned char **memory) {
    if (bytes > mpi->scratch_bytes) {
        char name[64];
        ls_free(mpi->scratch);
        mpi->scratch = ls_allocate_aligned(bytes, 64);
        mpi->scratch_bytes = mpi->scratch != NULL ? bytes : 0;
        if (mpi->scratch == NULL) { /* which the others cannot be told, so this ends the communicator */
            return ls_mpi_give_up(mpi, ls_fail_memory(ls_mpi_name(mpi, name), bytes));
        }
    }
    *memory = mpi->scratch;
    return LS_OK;
}

static bool fits(const ls_mpi *mpi, ls_mpi_block block) {
    return block.bytes <= mpi->room;
}

/* Tells a rank of the call; `*more` becomes the bytes that are to follow, if it was less. */
static ls_status tell(ls_mpi *mpi, int to, ls_mpi_opening *opening, size_t *more) {
    const ls_mpi_block block = opening(mpi, to);
    const size_t data = fits(mpi, block) ? block.bytes : 0;
    ls_mpi_packet *packet = &mpi->sent[to];
    packet->header = mpi->own;
    packet->header.count = block.count;
    packet->header.bytes = block.bytes;
    if (data != 0) {
        memcpy(packet->data, block.data, data);
    }
    *more = fits(mpi, block) || block.bytes < *more ? *more : block.bytes;
    return ls_mpi_give(mpi, to, LS_MPI_HEADERS, packet, sizeof packet->header + data, &mpi->early);
}

static ls_status give_data(ls_mpi *mpi, ls_mpi_opening *opening) {
    for (int i = 1; i < mpi->size; i++) {
        const int to = (mpi->rank + i) % mpi->size;
        const ls_mpi_block block = opening(mpi, to);
        if (!fits(mpi, block)) {
            LS_TRY(ls_mpi_give(mpi, to, LS_MPI_PIECES, block.data, block.bytes, &mpi->early));
        }
    }
    return LS_OK;
}

static ls_status poll_headers(ls_mpi *mpi, bool *moved) {
    for (int rank = 0; rank < mpi->size && mpi->silent != 0; rank++) {
        bool here = false;
        if (mpi->boxes[rank].asked) {
            LS_TRY(ls_mpi_box_look(mpi, &mpi->boxes[rank], &here));
        }
        mpi->silent -= here;
        *moved = *moved || here;
    }
    return LS_OK;
}

/* Where all send data to each other, without asking, they look for the headers first, for a moment: then most of it
 * comes straight to where it belongs, and is not kept by MPI meanwhile. */
static ls_status look_ahead(ls_mpi *mpi) {
    bool seen = false;
    for (int looks = 0; mpi->silent != 0 && looks < LOOKS_AHEAD; looks++) {
        LS_TRY(poll_headers(mpi, &seen));
    }
    return mpi->silent == 0 ? mpi->stage(mpi, &seen) : LS_OK;
}

static bool has_root(ls_operation operation) {
    return operation == LS_OP_BROADCAST || operation == LS_OP_REDUCE || operation == LS_OP_GATHER ||
           operation == LS_OP_GATHERV || operation == LS_OP_SCATTER || operation == LS_OP_SCATTERV;
}

ls_status ls_mpi_begin(ls_mpi *mpi, const ls_call *call, ls_mpi_opening *opening, ls_mpi_stage *agreed) {
    mpi->call = *call;
    if (mpi->ended) {
        char name[64];
        return ls_fail(LS_ERR_STATE, "%s: an earlier call has ended this communicator", ls_mpi_name(mpi, name));
    }
    size_t more = 0;
    mpi->own = ls_call_header_of(call);
    mpi->own.count = opening(mpi, mpi->rank).count;
    mpi->agreed = agreed;
    mpi->stage = read_headers;
    mpi->settled = false;
    mpi->silent = mpi->size - 1;
    mpi->waited_ns = 0;
    ls_mpi_stir(mpi);
    for (int i = 1; i < mpi->size; i++) {
        LS_TRY(tell(mpi, (mpi->rank + i) % mpi->size, opening, &more));
    }
    if (more != 0) {
        mpi->early++; /* nothing is over before the data has gone */
        LS_TRY(has_root(call->operation) || more > mpi->wire->unasked ? LS_OK : look_ahead(mpi));
        LS_TRY(give_data(mpi, opening));
        mpi->early--;
    }
    return LS_OK;
}

ls_status ls_mpi_end(ls_mpi *mpi, bool *finished) {
    (void)mpi;
    *finished = true;
    return LS_OK;
}

/* Asks for the headers of the next call. */
static ls_status ask_again(ls_mpi *mpi) {
    for (int rank = 0; rank < mpi->size; rank++) {
        if (rank != mpi->rank) {
            LS_TRY(ls_mpi_box_ask(mpi, &mpi->boxes[rank]));
        }
    }
    return LS_OK;
}

/* Looks once at what the call waits for: at its headers, and after them at the rest. */
static ls_status poll(ls_mpi *mpi, bool *moved) {
    if (mpi->silent != 0) {
        LS_TRY(poll_headers(mpi, moved));
        if (mpi->silent == 0) {
            return LS_OK; /* the next stage is begun without delay */
        }
    }
    LS_TRY(ls_mpi_poll(mpi, moved));
    return mpi->requests != NULL || mpi->idle % LOOKS_PER_LETTER == LOOKS_PER_LETTER - 1
               ? ls_mpi_poll_messages(mpi, moved)
               : LS_OK;
}

/* Looks for reasons to give up the call. */
static ls_status look(ls_mpi *mpi) {
    if (mpi->silent != 0) {
        LS_TRY(check_left(mpi));
    }
    if (mpi->waited_ns <= mpi->timeout_ns) {
        return LS_OK;
    }
    char name[64];
    int rank = mpi->rank;
    for (size_t i = mpi->transfer_count; i-- > 0;) {
        const ls_mpi_transfer *transfer = &mpi->transfers[i];
        const bool ours = transfer->open == &mpi->open || transfer->open == &mpi->early;
        rank = ours && (transfer->receives || rank == mpi->rank) ? transfer->peer : rank;
    }
    for (int other = mpi->size; mpi->silent != 0 && other-- > 0;) {
        rank = mpi->boxes[other].asked ? other : rank;
    }
    const char *what = mpi->silent != 0 ? "did not make this call" : "did not go on with this call";
    return ls_mpi_give_up(mpi, ls_fail(LS_ERR_TIMEOUT, "%s: rank %d %s within %g s", ls_mpi_name(mpi, name), rank, what,
                                       (double)mpi->timeout_ns * 1e-9));
}

static ls_status move(ls_mpi *mpi, bool wait, bool *finished) {
    for (;;) {
        bool moved = false;
        LS_TRY(poll(mpi, &moved));
        if (moved) {
            mpi->waited_ns = 0;
            ls_mpi_stir(mpi);
        }
        if (is_quiet(mpi)) {
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

ls_status ls_mpi_progress(void *state, bool wait, bool *finished) {
    ls_mpi *mpi = state;
    *finished = false;
    const ls_status status = move(mpi, wait, finished);
    if ((*finished || status == LS_ERR_MISMATCH) && !mpi->ended) {
        LS_TRY(ask_again(mpi));
    }
    return status;
}
