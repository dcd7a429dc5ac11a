/*
 * How a state ends. MPI cannot take back what was sent and not received yet, nor what has begun to come: it reads and
 * writes the caller's buffers until the other side has done its part. So a rank that ends in the midst of a call tells
 * the others, withdraws what it can, and waits for the rest; meanwhile it takes in, and drops, what others sent it, for
 * their MPI waits for that.
 */
#include <stdio.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/mpi/mpi.h"

#define FAILED_NS UINT64_C(200000000)  /* that a call which fails waits for MPI to be done with its buffers */
#define LINGER_NS UINT64_C(1000000000) /* to take in what others sent, and for those who have left to take in this */

void ls_mpi_hear_left(ls_mpi *mpi, const ls_call_header *header, unsigned char where) {
    if (header->root >= 0 && header->root < mpi->size) {
        mpi->left[header->root] |= where;
        mpi->reasons[header->root] = (unsigned char)header->reduction;
    }
}

void ls_mpi_leave(ls_mpi *mpi, ls_leave_reason reason) {
    static const ls_mpi_kind kinds[] = {LS_MPI_HEADERS, LS_MPI_MESSAGES, LS_MPI_ENDS};
    enum { KINDS = sizeof kinds / sizeof kinds[0] };
    for (int i = 0; i < KINDS * mpi->size && !mpi->ended; i++) {
        const int rank = i / KINDS;
        ls_call_header *leave_notice = &mpi->rows[rank].leave_notice;
        MPI_Request request;
        int ended = 0;
        if (i % KINDS == 0) {
            *leave_notice = (ls_call_header){.operation = LS_MPI_LEFT,
                                             .reduction = (int32_t)reason,
                                             .root = mpi->rank,
                                             .agreed = ls_mpi_last_repeats(mpi, rank)};
        }
        if (rank == mpi->rank ||
            MPI_Isend(leave_notice, (int)sizeof *leave_notice, MPI_BYTE, mpi->ranks[rank],
                      mpi->tags + (int)kinds[i % KINDS], mpi->comm, &request) != MPI_SUCCESS ||
            MPI_Test(&request, &ended, MPI_STATUS_IGNORE) != MPI_SUCCESS || ended != 0) {
            continue;
        }
        mpi->lent = true;
        (void)MPI_Request_free(&request);
    }
    mpi->reason = mpi->ended ? mpi->reason : reason;
    mpi->ended = true;
}

/* ---- what MPI still uses -------------------------------------------------------------------------------------------
 */

/* Whether MPI uses memory of the caller for the transfer, and not only an envelope of ours, which stays. */
static bool uses_memory(const ls_mpi *mpi, const ls_mpi_transfer *transfer) {
    return transfer->open != &mpi->rows[transfer->peer].unheard;
}

static bool is_under_way(const ls_mpi *mpi) {
    return mpi->silent + mpi->awaited != 0 || mpi->open + mpi->early != 0 || mpi->requests != NULL ||
           mpi->transfer_count != 0;
}

/* Takes in, and drops, a message of this kind that nobody here will receive; whether there was one. */
static bool drop_one(ls_mpi *mpi, int kind) {
    MPI_Status found;
    MPI_Request request;
    int there = 0;
    int bytes = 0;
    if (MPI_Iprobe(MPI_ANY_SOURCE, mpi->tags + kind, mpi->comm, &there, &found) != MPI_SUCCESS || there == 0 ||
        MPI_Get_count(&found, MPI_BYTE, &bytes) != MPI_SUCCESS) {
        return false;
    }
    void *memory = ls_allocate((size_t)bytes + 1);
    if (memory == NULL ||
        MPI_Irecv(memory, bytes, MPI_BYTE, found.MPI_SOURCE, found.MPI_TAG, mpi->comm, &request) != MPI_SUCCESS) {
        ls_free(memory);
        return false;
    }
    int ended = 0;
    for (uint64_t waited_ns = 0; ended == 0 && waited_ns <= LINGER_NS; ls_mpi_pause(mpi, &waited_ns)) {
        if (MPI_Test(&request, &ended, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            break;
        }
    }
    if (ended == 0) { /* whoever sends it was stopped: the memory is MPI's */
        (void)MPI_Request_free(&request);
        return false;
    }
    ls_free(memory);
    return true;
}

/* Looks once at the transfers that have not ended; whether MPI is done with all memory but envelopes. */
static bool is_over(ls_mpi *mpi, bool *moved) {
    bool over = true;
    for (size_t i = 0; i < mpi->transfer_count;) {
        ls_mpi_transfer *transfer = &mpi->transfers[i];
        int ended = 0;
        if (MPI_Test(&transfer->request, &ended, MPI_STATUS_IGNORE) == MPI_SUCCESS && ended != 0) {
            *transfer = mpi->transfers[--mpi->transfer_count];
            *moved = true;
            continue;
        }
        over = over && !uses_memory(mpi, transfer);
        i++;
    }
    return over;
}

/* Whether all others have left, too. */
static bool all_left(ls_mpi *mpi) {
    bool left = true;
    for (int rank = 0; rank < mpi->size && left; rank++) {
        left = rank == mpi->rank || (ls_mpi_probe(mpi, rank, LS_MPI_ENDS, &left) == LS_OK && left);
    }
    return left;
}

/* Whatever there is of the data of calls and messages. */
static bool drop_all(ls_mpi *mpi) {
    bool dropped = false;
    for (int kind = 0; kind < LS_MPI_KINDS; kind++) {
        while (kind != LS_MPI_HEADERS && kind != LS_MPI_MESSAGES && kind != LS_MPI_ENDS && drop_one(mpi, kind)) {
            dropped = true;
        }
    }
    return dropped;
}

/* Waits until MPI is done with the buffers of this rank, and others' MPI with theirs, as far as that depends on this
 * one: until all have left, or for a while. */
static void settle(ls_mpi *mpi, uint64_t longest_ns) {
    uint64_t waited_ns = 0;
    uint64_t left_ns = 0; /* of that, since all have left */
    ls_mpi_reset_idle(mpi);
    for (;;) {
        bool moved = false;
        const bool left = all_left(mpi);
        const bool dropped = drop_all(mpi); /* what a rank sent before it left is here with that */
        const bool over = is_over(mpi, &moved);
        const uint64_t before_ns = waited_ns;
        if ((over && left) || waited_ns > longest_ns || (over && waited_ns > LINGER_NS) || left_ns > LINGER_NS) {
            return;
        }
        if (moved || dropped) {
            ls_mpi_reset_idle(mpi);
        }
        ls_mpi_pause(mpi, &waited_ns);
        left_ns += left ? waited_ns - before_ns : 0;
    }
}

/* What MPI is not done with is its own until the end of the process. */
static void abandon(ls_mpi *mpi) {
    for (size_t i = 0; i < mpi->transfer_count; i++) {
        ls_mpi_transfer *transfer = &mpi->transfers[i];
        const bool uses = uses_memory(mpi, transfer);
        mpi->lent = mpi->lent || !uses;
        mpi->abandoned = mpi->abandoned || uses;
        (void)MPI_Request_free(&transfer->request);
    }
    mpi->transfer_count = 0;
}

/* Leaves, if the others were not told yet, withdraws what can be withdrawn and waits for the rest. */
static void end(ls_mpi *mpi, ls_leave_reason reason, uint64_t longest_ns) {
    const bool waits = is_under_way(mpi);
    for (size_t i = 0; i < mpi->transfer_count; i++) {
        if (mpi->transfers[i].receives) {
            (void)MPI_Cancel(&mpi->transfers[i].request); /* which ends what has not begun to come */
        }
    }
    ls_mpi_leave(mpi, reason);
    if (waits) {
        settle(mpi, longest_ns);
    }
}

ls_status ls_mpi_give_up(ls_mpi *mpi, ls_status status) {
    if (!mpi->ended) {
        end(mpi, status == LS_OK ? LS_LEAVE_FREED : LS_LEAVE_FAILED, status == LS_OK ? mpi->timeout_ns : FAILED_NS);
    }
    return status;
}

void ls_mpi_end_state(ls_mpi *mpi) {
    const bool failed = mpi->ended && mpi->reason == LS_LEAVE_FAILED;
    if (!failed) {
        end(mpi, LS_LEAVE_FREED, mpi->timeout_ns);
    } else if (mpi->deserted || mpi->transfer_count != 0) {
        settle(mpi, mpi->deserted ? LINGER_NS : FAILED_NS);
    }
    abandon(mpi);
    if (mpi->abandoned && !failed) {
        ls_log_write(LS_LOG_WARNING,
                     "ls_comm_free: MPI still uses buffers of a call that not all ranks made: keep them until the "
                     "process ends");
    }
}
