/* Messages under way in MPI, and waiting for them. */
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/mpi/mpi.h"

#define CHUNK_BYTES ((size_t)1 << 30) /* MPI counts with int */
#define EAGER_LOOKS 100               /* then the core is offered to others */
#define LOOKS       20000             /* then this rank naps */
#define NAP_NS      50000
#define STOPPED_NS  UINT64_C(100000000) /* between two looks of a process that runs is less */

ls_status ls_mpi_fail(const char *call, const char *function, int code) {
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) {
        snprintf(text, sizeof text, "error %d", code);
    }
    return ls_fail(LS_ERR_IO, "%s: %s: %s", call, function, text);
}

/* Room for one more transfer; NULL and an error when there is no memory. */
static ls_mpi_transfer *next_transfer(ls_mpi *mpi) {
    if (mpi->transfer_count == mpi->transfer_capacity) {
        const size_t old = mpi->transfer_capacity * sizeof *mpi->transfers;
        const size_t bytes = old == 0 ? 16 * sizeof *mpi->transfers : 2 * old;
        ls_mpi_transfer *grown = ls_reallocate(mpi->transfers, old, bytes);
        if (grown == NULL) {
            (void)ls_fail_memory("ls_comm", bytes);
            return NULL;
        }
        mpi->transfers = grown;
        mpi->transfer_capacity = bytes / sizeof *grown;
    }
    return &mpi->transfers[mpi->transfer_count];
}

/* Room for one more transfer, or the end: after a failure in the midst of a call nobody is in step. */
static ls_status reserve(ls_mpi *mpi, ls_mpi_transfer **transfer) {
    *transfer = next_transfer(mpi);
    return *transfer != NULL ? LS_OK : ls_mpi_give_up(mpi, LS_ERR_MEMORY);
}

static ls_status begun(ls_mpi *mpi, ls_mpi_transfer *transfer, const char *function, int code, size_t *open) {
    if (code != MPI_SUCCESS) {
        return ls_mpi_give_up(mpi, ls_mpi_fail("ls_comm", function, code));
    }
    transfer->open = open;
    mpi->transfer_count++;
    ++*open;
    return LS_OK;
}

ls_status ls_mpi_give(ls_mpi *mpi, int peer, ls_mpi_kind kind, const void *data, size_t bytes, size_t *open) {
    for (size_t done = 0; done < bytes; done += CHUNK_BYTES) {
        const size_t chunk = bytes - done < CHUNK_BYTES ? bytes - done : CHUNK_BYTES;
        ls_mpi_transfer *next = NULL;
        LS_TRY(reserve(mpi, &next));
        next->peer = peer;
        next->receives = false;
        LS_TRY(begun(mpi, next, "MPI_Isend",
                     MPI_Isend((const unsigned char *)data + done, (int)chunk, MPI_BYTE, mpi->ranks[peer],
                               mpi->tags + (int)kind, mpi->comm, &next->request),
                     open));
    }
    return LS_OK;
}

ls_status ls_mpi_take(ls_mpi *mpi, int peer, ls_mpi_kind kind, void *data, size_t bytes, size_t *open) {
    for (size_t done = 0; done < bytes; done += CHUNK_BYTES) {
        const size_t chunk = bytes - done < CHUNK_BYTES ? bytes - done : CHUNK_BYTES;
        ls_mpi_transfer *next = NULL;
        LS_TRY(reserve(mpi, &next));
        next->peer = peer;
        next->receives = true;
        LS_TRY(begun(mpi, next, "MPI_Irecv",
                     MPI_Irecv((unsigned char *)data + done, (int)chunk, MPI_BYTE, mpi->ranks[peer],
                               mpi->tags + (int)kind, mpi->comm, &next->request),
                     open));
    }
    return LS_OK;
}

ls_status ls_mpi_poll(ls_mpi *mpi, bool *moved) {
    for (size_t i = 0; i < mpi->transfer_count;) {
        ls_mpi_transfer *transfer = &mpi->transfers[i];
        int ended = 0;
        const int code = MPI_Test(&transfer->request, &ended, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) {
            return ls_mpi_give_up(mpi, ls_mpi_fail("ls_comm", "MPI_Test", code));
        }
        if (ended == 0) {
            i++;
            continue;
        }
        --*transfer->open;
        *transfer = mpi->transfers[--mpi->transfer_count];
        *moved = true;
    }
    LS_TRY(ls_mpi_poll_messages(mpi, moved));
    if (*moved) {
        mpi->idle = 0;
        mpi->looked_ns = 0;
    }
    return LS_OK;
}

void ls_mpi_pause(ls_mpi *mpi, uint64_t *waited_ns) {
    const uint64_t now = ls_clock_ns();
    const uint64_t since = mpi->looked_ns != 0 ? now - mpi->looked_ns : 0;
    *waited_ns += since < STOPPED_NS ? since : STOPPED_NS;
    mpi->looked_ns = now;
    if (++mpi->idle > LOOKS) {
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    } else if (mpi->idle > EAGER_LOOKS) {
        sched_yield();
    }
}

ls_status ls_mpi_give_up(ls_mpi *mpi, ls_status status) {
    for (size_t i = 0; i < mpi->transfer_count; i++) {
        if (mpi->transfers[i].receives) {
            (void)MPI_Cancel(&mpi->transfers[i].request);
        }
        (void)MPI_Request_free(&mpi->transfers[i].request);
    }
    mpi->transfer_count = 0;
    ls_mpi_leave(mpi);
    return status;
}

void ls_mpi_leave(ls_mpi *mpi) {
    static const ls_mpi_header left = {.operation = LS_MPI_LEFT};
    static const ls_mpi_kind kinds[] = {LS_MPI_HEADERS, LS_MPI_MESSAGES};
    for (int i = 0; i < 2 * mpi->size && !mpi->ended; i++) {
        MPI_Request request;
        if (i / 2 != mpi->rank && MPI_Isend(&left, (int)sizeof left, MPI_BYTE, mpi->ranks[i / 2],
                                            mpi->tags + (int)kinds[i % 2], mpi->comm, &request) == MPI_SUCCESS) {
            (void)MPI_Request_free(&request);
        }
    }
    mpi->ended = true;
}
