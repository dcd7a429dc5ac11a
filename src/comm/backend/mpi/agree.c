/*
 * How every collective begins and ends. Each rank tells each other rank what it calls and, behind that, what it sends
 * if that is little; more follows at once, without waiting for the answer. Nothing of it is written where the user
 * would see it before all headers are here and say the same. Where they do not, what was sent too early is taken and
 * dropped, so that the ranks are in step again.
 *
 * More data of a call that all ranks have made before (known.c) comes without that: its tag says what is called and
 * it is awaited from the beginning, so nothing else is written there. Who waits long tells all others what it calls
 * after all, and so does who is told of another call; so ranks that disagree have told everybody in the end, as above.
 * Packets carry the turn of their call, since one that was sent for nothing is seen only in a later call.
 */
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/mpi/mpi.h"

#define LOOKS_PER_ENVELOPE 16 /* a rank that waits takes in messages too */
#define LOOKS_AHEAD        20 /* about 2 us */
#define LOOKS_PER_PACKET   16 /* where data is awaited, not a packet */
#define LOOKS_UNTOLD       1000
#define MIDWAY_NS          UINT64_C(200000000)

/* Names the call in progress: "ls_comm_allreduce #17". */
static const char *call_name(const ls_mpi *mpi, char text[64]) {
    return ls_call_describe(mpi->call.operation, mpi->call.sequence, text, 64);
}

/* What a rank told of its call; NULL: its data came, or it is this rank. */
static const ls_call_header *told(const ls_mpi *mpi, int rank) {
    return mpi->headers[rank] != &mpi->own ? mpi->headers[rank] : NULL;
}

const unsigned char *ls_mpi_opened(const ls_mpi *mpi, int from) {
    const ls_call_header *header = told(mpi, from);
    return header != NULL && header->bytes <= mpi->limit ? mpi->boxes[from].packet.data : NULL;
}

/* ---- agreement -----------------------------------------------------------------------------------------------------
 */

static ls_status compare_calls(ls_mpi *mpi, bool *finished) {
    (void)finished;
    return ls_agreement_check(&mpi->call, mpi->headers, mpi->size);
}

/* Whether all that told of the call send what belongs to it, where their counts follow from what was agreed. */
static ls_status check_counts(ls_mpi *mpi) {
    for (int rank = 0; rank < mpi->size && !ls_agreement_varies(mpi->call.operation); rank++) {
        const ls_call_header *header = told(mpi, rank);
        const size_t wanted = mpi->opening->received(mpi, rank).bytes;
        const bool packed = wanted <= mpi->limit;
        if (header != NULL && (header->bytes != wanted || mpi->boxes[rank].data != (packed ? wanted : 0))) {
            char name[64];
            return ls_mpi_give_up(mpi, ls_fail(LS_ERR_PEER, "%s: rank %d sent %llu bytes where %zu belong",
                                               call_name(mpi, name), rank, (unsigned long long)header->bytes, wanted));
        }
    }
    return LS_OK;
}

/* Everybody has been heard of. */
static ls_status read_headers(ls_mpi *mpi, bool *finished) {
    if (compare_calls(mpi, finished) != LS_OK) {
        return ls_mpi_disagree(mpi, compare_calls, finished);
    }
    LS_TRY(check_counts(mpi));
    if (mpi->number < 0) {
        ls_mpi_learn(mpi);
    }
    return mpi->agreed(mpi, finished);
}

static bool is_quiet(const ls_mpi *mpi) {
    return mpi->silent == 0 && mpi->awaited == 0 && mpi->open == 0 && (mpi->early == 0 || !mpi->settled);
}

ls_status ls_mpi_settle(ls_mpi *mpi, ls_mpi_stage *stage, bool *finished) {
    mpi->stage = stage;
    mpi->settled = true;
    return is_quiet(mpi) ? stage(mpi, finished) : LS_OK;
}

/* What of a rank is on its way that this one will not use; `*kind` becomes its kind. */
static size_t follows(const ls_mpi *mpi, int rank, int *kind) {
    const ls_call_header *header = told(mpi, rank);
    const int number = header != NULL ? ls_mpi_number_of(mpi, header) : -1;
    *kind = ls_mpi_tag_of(mpi, number);
    return header == NULL || header->bytes <= ls_mpi_room_of(mpi, number) ? 0 : header->bytes;
}

ls_status ls_mpi_disagree(ls_mpi *mpi, ls_mpi_stage *stage, bool *finished) {
    size_t total = 0;
    int kind = 0;
    for (int rank = 0; rank < mpi->size; rank++) {
        const size_t bytes = follows(mpi, rank, &kind);
        total = bytes < SIZE_MAX - total ? total + bytes : SIZE_MAX; /* more than there is: who says so is no rank */
    }
    unsigned char *into = NULL;
    LS_TRY(ls_mpi_reserve(mpi, total, &into));
    for (int rank = 0; rank < mpi->size; rank++) {
        const size_t bytes = follows(mpi, rank, &kind);
        LS_TRY(ls_mpi_take(mpi, rank, kind, into, bytes, &mpi->open));
        into += bytes;
    }
    return ls_mpi_settle(mpi, stage, finished);
}

ls_status ls_mpi_collect(ls_mpi *mpi) {
    for (int i = 1; i < mpi->size; i++) {
        const int from = (mpi->rank + i) % mpi->size;
        const ls_mpi_place place = mpi->opening->received(mpi, from);
        if (told(mpi, from) != NULL && place.bytes > mpi->limit) {
            LS_TRY(ls_mpi_take(mpi, from, LS_MPI_PIECES, place.to, place.bytes, &mpi->open));
        }
    }
    return LS_OK;
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
            return ls_mpi_give_up(mpi, ls_fail_memory(call_name(mpi, name), bytes));
        }
    }
    *memory = mpi->scratch;
    return LS_OK;
}

static bool fits(const ls_mpi *mpi, ls_mpi_block block) {
    return block.bytes <= mpi->limit;
}

/* Tells a rank of the call, with what it is sent if that is little. */
static ls_status tell(ls_mpi *mpi, int to) {
    const ls_mpi_block block = mpi->opening->sent(mpi, to);
    const size_t data = fits(mpi, block) ? block.bytes : 0;
    ls_mpi_packet *packet = &mpi->sent[to];
    packet->header = mpi->own;
    packet->header.count = block.count;
    packet->header.bytes = block.bytes;
    if (data != 0) {
        memcpy(packet->data, block.data, data);
    }
    return ls_mpi_give(mpi, to, LS_MPI_HEADERS, packet, sizeof packet->header + data, &mpi->early);
}

/* Tells those of the call who have not been told. */
static ls_status tell_all(ls_mpi *mpi) {
    mpi->untold = false;
    for (int to = 0; to < mpi->size; to++) {
        if (to != mpi->rank && !fits(mpi, mpi->opening->sent(mpi, to))) {
            LS_TRY(tell(mpi, to));
        }
    }
    return LS_OK;
}

static ls_status give_data(ls_mpi *mpi) {
    for (int i = 1; i < mpi->size; i++) {
        const int to = (mpi->rank + i) % mpi->size;
        const ls_mpi_block block = mpi->opening->sent(mpi, to);
        if (!fits(mpi, block)) {
            LS_TRY(ls_mpi_give(mpi, to, ls_mpi_tag_of(mpi, mpi->number), block.data, block.bytes, &mpi->early));
        }
    }
    return LS_OK;
}

/* Begins to receive data of a known call. */
static ls_status expect_data(ls_mpi *mpi) {
    for (int from = 0; from < mpi->size; from++) {
        ls_mpi_mailbox *box = &mpi->boxes[from];
        const ls_mpi_place place = mpi->opening->received(mpi, from);
        if (from != mpi->rank && place.bytes > mpi->limit) {
            box->expected = true;
            mpi->awaited++;
            LS_TRY(ls_mpi_take(mpi, from, ls_mpi_tag_of(mpi, mpi->number), place.to, place.bytes, &box->coming));
        }
    }
    return LS_OK;
}

/* Looks which data of a known call has come. */
static void note_data(ls_mpi *mpi) {
    for (int from = 0; from < mpi->size && mpi->awaited != 0; from++) {
        ls_mpi_mailbox *box = &mpi->boxes[from];
        if (box->expected && box->coming == 0) {
            mpi->silent -= !box->heard;
            mpi->awaited--;
            mpi->headers[from] = &mpi->own;
            box->heard = true;
            box->expected = false;
        }
    }
}

/* A packet of `rank` is here. */
static ls_status hear(ls_mpi *mpi, int rank) {
    ls_mpi_mailbox *box = &mpi->boxes[rank];
    const ls_call_header *header = &box->packet.header;
    if (header->operation == LS_MPI_LEFT) {
        ls_mpi_hear_left(mpi, header, LS_MPI_HEARD_CALLS);
        return LS_OK;
    }
    if (header->tag == (int32_t)(mpi->turn + 1)) {
        return LS_OK; /* the packet stays for the next call */
    }
    if (header->tag != (int32_t)mpi->turn || box->heard) {
        return ls_mpi_box_ask(mpi, box);
    }
    box->heard = true;
    mpi->silent--;
    mpi->headers[rank] = header;
    if (ls_agreement_same(header, &mpi->own)) {
        return LS_OK;
    }
    if (box->expected) {
        box->expected = false;
        mpi->awaited--;
        LS_TRY(ls_mpi_withdraw(mpi, &box->coming));
    }
    return mpi->untold ? tell_all(mpi) : LS_OK;
}

/* Looks for packets: of all ranks, or of those from which nothing else is to come. */
static ls_status poll_headers(ls_mpi *mpi, bool all, bool *moved) {
    for (int rank = 0; rank < mpi->size; rank++) {
        ls_mpi_mailbox *box = &mpi->boxes[rank];
        bool here = box->asked && (all || (!box->heard && !box->expected));
        while (here) {
            LS_TRY(ls_mpi_box_look(mpi, box, &here));
            if (here) {
                *moved = true;
                LS_TRY(ls_mpi_box_check(mpi, box, rank));
                LS_TRY(hear(mpi, rank));
                here = box->asked;
            }
        }
    }
    return LS_OK;
}

/* Where all send data to each other, without asking, they look for the headers first, for a moment: then most of it
 * comes straight to where it belongs, and is not kept by MPI meanwhile. */
static ls_status look_ahead(ls_mpi *mpi) {
    bool seen = false;
    for (int looks = 0; mpi->silent != 0 && looks < LOOKS_AHEAD; looks++) {
        LS_TRY(poll_headers(mpi, false, &seen));
    }
    return mpi->silent == 0 ? mpi->stage(mpi, &seen) : LS_OK;
}

/* A rank that left instead of making the call. */
static ls_status check_left(ls_mpi *mpi) {
    for (int rank = 0; rank < mpi->size; rank++) {
        if ((mpi->left[rank] & LS_MPI_HEARD_CALLS) != 0 && !mpi->boxes[rank].heard) {
            char name[64];
            mpi->deserted = true;
            return ls_mpi_give_up(mpi, ls_fail(LS_ERR_PEER, "%s: rank %d %s", call_name(mpi, name), rank,
                                               ls_leave_describe((ls_leave_reason)mpi->reasons[rank])));
        }
    }
    return LS_OK;
}

static bool has_root(ls_operation operation) {
    return operation == LS_OP_BROADCAST || operation == LS_OP_REDUCE || operation == LS_OP_GATHER ||
           operation == LS_OP_GATHERV || operation == LS_OP_SCATTER || operation == LS_OP_SCATTERV;
}

static void start_turn(ls_mpi *mpi) {
    mpi->own.tag = (int32_t)++mpi->turn;
    mpi->stage = read_headers;
    mpi->settled = false;
    mpi->silent = mpi->size - 1;
    mpi->awaited = 0;
    mpi->untold = false;
    mpi->looks = 0;
    mpi->waited_ns = 0;
    for (int rank = 0; rank < mpi->size; rank++) {
        mpi->boxes[rank].heard = false;
    }
}

/* Reads the packets that came during the last call. */
static ls_status hear_first(ls_mpi *mpi) {
    for (int rank = 0; rank < mpi->size; rank++) {
        LS_TRY(rank == mpi->rank || mpi->boxes[rank].asked ? LS_OK : hear(mpi, rank));
    }
    return LS_OK;
}

/* Tells the ranks of the call that need it; returns the bytes that are to follow at most. */
static ls_status tell_at_first(ls_mpi *mpi, size_t *more) {
    *more = 0;
    for (int i = 1; i < mpi->size; i++) {
        const int to = (mpi->rank + i) % mpi->size;
        const ls_mpi_block block = mpi->opening->sent(mpi, to);
        if (fits(mpi, block) || mpi->number < 0) {
            LS_TRY(tell(mpi, to));
        }
        *more = fits(mpi, block) || block.bytes < *more ? *more : block.bytes;
    }
    return LS_OK;
}

ls_status ls_mpi_begin(ls_mpi *mpi, const ls_call *call, const ls_mpi_opening *opening, ls_mpi_stage *agreed) {
    mpi->call = *call;
    if (mpi->ended) {
        char name[64];
        return ls_fail(LS_ERR_STATE, "%s: an earlier call has ended this communicator", call_name(mpi, name));
    }
    size_t more = 0;
    mpi->before = (ls_operation)mpi->own.operation;
    mpi->before_sequence = mpi->own.sequence;
    mpi->own = ls_call_header_of(call);
    mpi->own.count = opening->sent(mpi, mpi->rank).count;
    mpi->number = call->count * call->width > ls_mpi_room_of(mpi, 0) ? ls_mpi_number_of(mpi, &mpi->own) : -1;
    mpi->limit = ls_mpi_room_of(mpi, mpi->number);
    mpi->opening = opening;
    mpi->agreed = agreed;
    ls_mpi_reset_idle(mpi);
    start_turn(mpi);
    LS_TRY(mpi->number >= 0 ? expect_data(mpi) : LS_OK);
    LS_TRY(tell_at_first(mpi, &more));
    mpi->untold = mpi->number >= 0 && more != 0;
    LS_TRY(hear_first(mpi));
    if (more != 0) { /* what is sent to a rank that has left stays with MPI */
        bool seen = false;
        LS_TRY(poll_headers(mpi, true, &seen));
        LS_TRY(check_left(mpi));
        mpi->early++; /* nothing is over before the data has gone */
        LS_TRY(mpi->number >= 0 || has_root(call->operation) || more > mpi->wire->unasked ? LS_OK : look_ahead(mpi));
        LS_TRY(give_data(mpi));
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
        ls_mpi_mailbox *box = &mpi->boxes[rank];
        const bool read = box->packet.header.operation != LS_MPI_LEFT && box->packet.header.tag == (int32_t)mpi->turn;
        if (rank != mpi->rank && !box->asked && read) {
            LS_TRY(ls_mpi_box_ask(mpi, box));
        }
    }
    return LS_OK;
}

/* Looks once at what the call waits for: at its headers, and after them at the rest. */
static ls_status poll(ls_mpi *mpi, bool *moved) {
    mpi->looks++;
    if (mpi->silent + mpi->awaited != 0) {
        LS_TRY(poll_headers(mpi, mpi->all_looks++ % LOOKS_PER_PACKET == 0, moved));
        if (mpi->silent + mpi->awaited == 0) {
            return LS_OK; /* the next stage is begun without delay */
        }
    }
    LS_TRY(ls_mpi_poll(mpi, moved));
    note_data(mpi);
    return mpi->requests != NULL || mpi->idle % LOOKS_PER_ENVELOPE == LOOKS_PER_ENVELOPE - 1
               ? ls_mpi_poll_messages(mpi, moved)
               : LS_OK;
}

/* With whom data of the call are still to be exchanged, if possible one that is to send some; this rank: none. */
static int pending_with(const ls_mpi *mpi) {
    int rank = mpi->rank;
    for (size_t i = mpi->transfer_count; i-- > 0;) {
        const ls_mpi_transfer *transfer = &mpi->transfers[i];
        const bool ours = transfer->open == &mpi->open || transfer->open == &mpi->early ||
                          transfer->open == &mpi->boxes[transfer->peer].coming;
        rank = ours && (transfer->receives || rank == mpi->rank) ? transfer->peer : rank;
    }
    return rank;
}

/* A rank that left in the midst of the call: what it had sent before has come by now. */
static ls_status check_left_midway(ls_mpi *mpi, int rank) {
    char name[64];
    bool left = false;
    LS_TRY(rank != mpi->rank && mpi->waited_ns > MIDWAY_NS ? ls_mpi_probe(mpi, rank, LS_MPI_ENDS, &left) : LS_OK);
    if (!left) {
        return LS_OK;
    }
    mpi->deserted = true;
    return ls_mpi_give_up(
        mpi, ls_fail(LS_ERR_PEER, "%s: rank %d left in the midst of this call", call_name(mpi, name), rank));
}

/* Tells the log whom this rank waits for: who has not called, or else who has not sent its data. */
static void tell_log(ls_mpi *mpi) {
    ls_rank_list awaited = {.count = 0};
    for (int rank = 0; mpi->waited_ns >= LS_MPI_LEAST_TOLD_NS && rank < mpi->size; rank++) { /* asked at every look */
        if (rank != mpi->rank && !mpi->boxes[rank].heard) {
            ls_rank_list_add(&awaited, rank);
        }
    }
    for (size_t i = 0; mpi->waited_ns >= LS_MPI_LEAST_TOLD_NS && mpi->silent == 0 && i < mpi->transfer_count; i++) {
        if (awaited.count == 0 && mpi->transfers[i].open == &mpi->open) {
            ls_rank_list_add(&awaited, mpi->transfers[i].peer);
        }
    }
    if (awaited.count != 0) {
        const bool began = mpi->silent == 0;
        ls_comm_tell_waiting(&(ls_waiting){.call = &mpi->call,
                                           .awaited = &awaited,
                                           .waited_ns = mpi->waited_ns,
                                           .told_ns = &mpi->told_ns,
                                           .more = "",
                                           .knows_latest = began || mpi->before_sequence != 0,
                                           .latest = began ? mpi->call.operation : mpi->before,
                                           .latest_sequence = began ? mpi->call.sequence : mpi->before_sequence});
    }
}

/* Looks for reasons to give up the call. */
static ls_status look(ls_mpi *mpi) {
    if (mpi->silent != 0) {
        LS_TRY(check_left(mpi));
    }
    if (mpi->untold && mpi->looks >= LOOKS_UNTOLD) {
        LS_TRY(tell_all(mpi));
    }
    int rank = pending_with(mpi);
    LS_TRY(check_left_midway(mpi, rank));
    if (mpi->waited_ns <= mpi->timeout_ns) {
        tell_log(mpi);
        return LS_OK;
    }
    char name[64];
    for (int other = mpi->size; mpi->silent != 0 && other-- > 0;) {
        rank = other == mpi->rank || mpi->boxes[other].heard ? rank : other;
    }
    const char *what = mpi->silent == 0            ? "did not go on with this call"
                       : mpi->boxes[rank].expected ? "did not make this call, or not go on with it,"
                                                   : "did not make this call";
    return ls_mpi_give_up(mpi, ls_fail(LS_ERR_TIMEOUT, "%s: rank %d %s within %g s", call_name(mpi, name), rank, what,
                                       (double)mpi->timeout_ns * 1e-9));
}

static ls_status move(ls_mpi *mpi, bool wait, bool *finished) {
    for (;;) {
        bool moved = false;
        LS_TRY(poll(mpi, &moved));
        if (moved) {
            mpi->waited_ns = 0;
            ls_mpi_reset_idle(mpi);
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

/* ---- the end -------------------------------------------------------------------------------------------------------
 */

/* Reads what the rank sends until it says that it has left; what it calls concerns this rank no more. */
static ls_status read_until_left(ls_mpi *mpi, int rank) {
    ls_mpi_mailbox *box = &mpi->boxes[rank];
    bool here = true;
    while (here && (mpi->left[rank] & LS_MPI_HEARD_CALLS) == 0) {
        LS_TRY(box->asked ? LS_OK : ls_mpi_box_ask(mpi, box));
        LS_TRY(ls_mpi_box_look(mpi, box, &here));
        if (here && box->packet.header.operation == LS_MPI_LEFT) {
            ls_mpi_hear_left(mpi, &box->packet.header, LS_MPI_HEARD_CALLS);
        }
    }
    return LS_OK;
}

/* Lists the ranks that have not left; LS_ERR_PEER for one that left by another way than ls_finalize. */
static ls_status list_staying(ls_mpi *mpi, ls_rank_list *staying) {
    *staying = (ls_rank_list){.count = 0};
    for (int rank = 0; rank < mpi->size; rank++) {
        if (rank == mpi->rank) {
            continue;
        }
        LS_TRY(read_until_left(mpi, rank));
        const ls_leave_reason reason = (ls_leave_reason)mpi->reasons[rank];
        if ((mpi->left[rank] & LS_MPI_HEARD_CALLS) == 0) {
            ls_rank_list_add(staying, rank);
        } else if (reason != LS_LEAVE_FINALIZED) {
            return ls_fail(LS_ERR_PEER, "rank %d %s", rank,
                           reason == LS_LEAVE_FREED ? "left without calling ls_finalize" : ls_leave_describe(reason));
        }
    }
    return LS_OK;
}

static ls_status await_leaving(ls_mpi *mpi) {
    uint64_t waited_ns = 0;
    uint64_t told_ns = 0;
    ls_mpi_reset_idle(mpi);
    for (;;) {
        bool moved = false;
        ls_rank_list staying;
        LS_TRY(ls_mpi_poll(mpi, &moved));
        LS_TRY(list_staying(mpi, &staying));
        if (staying.count == 0) {
            return LS_OK;
        }
        if (waited_ns > mpi->timeout_ns) {
            return ls_fail(LS_ERR_TIMEOUT, "%s did not call ls_finalize within %g s", staying.text,
                           (double)mpi->timeout_ns * 1e-9);
        }
        ls_comm_tell_waiting(&(ls_waiting){.awaited = &staying,
                                           .waited_ns = waited_ns,
                                           .told_ns = &told_ns,
                                           .more = "",
                                           .knows_latest = mpi->call.sequence != 0,
                                           .latest = mpi->call.operation,
                                           .latest_sequence = mpi->call.sequence});
        ls_mpi_pause(mpi, &waited_ns);
    }
}

ls_status ls_mpi_meet_leaving(void *state) {
    ls_mpi *mpi = state;
    const ls_status status = await_leaving(mpi);
    if (status != LS_OK) { /* it ends now, and the launcher then ends who failed first */
        mpi->reason = LS_LEAVE_FAILED;
        ls_mpi_let_others_tell();
    }
    return status;
}
