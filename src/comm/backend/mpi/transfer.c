/* Messages under way in MPI, and waiting for them. */
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/mpi/mpi.h"

#define CHUNK_BYTES ((size_t)1 << 30) /* MPI counts with int */
#define SPLIT_BYTES ((size_t)8 << 10) /* up to here packets cost less than asking the receiver */
#define AT_ONCE     ((size_t)256)     /* Open MPI is done with so little when it has been called */
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

static ls_status fail(ls_mpi *mpi, const char *function, int code) {
    return ls_mpi_give_up(mpi, ls_mpi_fail("ls_comm", function, code));
}

/* ---- transfers -----------------------------------------------------------------------------------------------------
 */

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

/* How much of a message goes at a time: sender and receiver cut it alike. */
static size_t chunk_of(const ls_mpi *mpi, size_t bytes) {
    return bytes <= SPLIT_BYTES ? mpi->wire->packet : CHUNK_BYTES;
}

bool ls_mpi_is_whole(const ls_mpi *mpi, size_t bytes) {
    return bytes <= chunk_of(mpi, bytes);
}

/* Puts a transfer on the list. */
static void keep(ls_mpi *mpi, ls_mpi_transfer *next, int peer, bool receives, size_t *open) {
    next->peer = peer;
    next->receives = receives;
    next->open = open;
    mpi->transfer_count++;
    ++*open;
}

ls_status ls_mpi_give(ls_mpi *mpi, int peer, int kind, const void *data, size_t bytes, size_t *open) {
    const size_t most = chunk_of(mpi, bytes);
    for (size_t done = 0; done < bytes; done += most) {
        const size_t chunk = bytes - done < most ? bytes - done : most;
        ls_mpi_transfer *next = NULL;
        LS_TRY(reserve(mpi, &next));
        int ended = 0;
        int code = MPI_Isend((const unsigned char *)data + done, (int)chunk, MPI_BYTE, mpi->ranks[peer],
                             mpi->tags + kind, mpi->comm, &next->request);
        /* Little has gone by now, as a rule. A look at more may yield where ranks share cores, before all is sent. */
        if (code == MPI_SUCCESS && chunk <= (mpi->oversubscribed ? AT_ONCE : mpi->wire->unasked)) {
            code = MPI_Test(&next->request, &ended, MPI_STATUS_IGNORE);
        }
        if (code != MPI_SUCCESS) {
            return fail(mpi, "MPI_Isend", code);
        }
        if (ended == 0) {
            keep(mpi, next, peer, false, open);
        }
    }
    return LS_OK;
}

ls_status ls_mpi_announce(ls_mpi *mpi, int peer, const ls_call_header *envelope, size_t *open) {
    ls_mpi_transfer *next = NULL;
    LS_TRY(reserve(mpi, &next));
    const int code = MPI_Issend(envelope, (int)sizeof *envelope, MPI_BYTE, mpi->ranks[peer],
                                mpi->tags + (int)LS_MPI_MESSAGES, mpi->comm, &next->request);
    if (code != MPI_SUCCESS) {
        return fail(mpi, "MPI_Issend", code);
    }
    keep(mpi, next, peer, false, open);
    return LS_OK;
}

ls_status ls_mpi_probe(ls_mpi *mpi, int peer, int kind, bool *here) {
    int there = 0;
    const int code = MPI_Iprobe(mpi->ranks[peer], mpi->tags + kind, mpi->comm, &there, MPI_STATUS_IGNORE);
    *here = there != 0;
    return code == MPI_SUCCESS ? LS_OK : fail(mpi, "MPI_Iprobe", code);
}

ls_status ls_mpi_take(ls_mpi *mpi, int peer, int kind, void *data, size_t bytes, size_t *open) {
    const size_t most = chunk_of(mpi, bytes);
    for (size_t done = 0; done < bytes; done += most) {
        const size_t chunk = bytes - done < most ? bytes - done : most;
        ls_mpi_transfer *next = NULL;
        LS_TRY(reserve(mpi, &next));
        const int code = MPI_Irecv((unsigned char *)data + done, (int)chunk, MPI_BYTE, mpi->ranks[peer],
                                   mpi->tags + kind, mpi->comm, &next->request);
        if (code != MPI_SUCCESS) {
            return fail(mpi, "MPI_Irecv", code);
        }
        keep(mpi, next, peer, true, open);
    }
    return LS_OK;
}

ls_status ls_mpi_poll(ls_mpi *mpi, bool *moved) {
    for (size_t i = 0; i < mpi->transfer_count;) {
        ls_mpi_transfer *transfer = &mpi->transfers[i];
        int ended = 0;
        const int code = MPI_Test(&transfer->request, &ended, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) {
            return fail(mpi, "MPI_Test", code);
        }
        if (ended == 0) {
            i++;
            continue;
        }
        --*transfer->open;
        *transfer = mpi->transfers[--mpi->transfer_count];
        *moved = true;
    }
    return LS_OK;
}

ls_status ls_mpi_withdraw(ls_mpi *mpi, size_t *open) {
    for (size_t i = mpi->transfer_count; *open != 0 && i-- > 0;) {
        ls_mpi_transfer *transfer = &mpi->transfers[i];
        if (transfer->open != open) {
            continue;
        }
        int code = MPI_Cancel(&transfer->request);
        if (code == MPI_SUCCESS) {
            code = MPI_Wait(&transfer->request, MPI_STATUS_IGNORE);
        }
        if (code != MPI_SUCCESS) {
            return fail(mpi, "MPI_Cancel", code);
        }
        --*open;
        *transfer = mpi->transfers[--mpi->transfer_count];
    }
    return LS_OK;
}

/* ---- mailboxes -----------------------------------------------------------------------------------------------------
 */

ls_status ls_mpi_box_open(ls_mpi *mpi, ls_mpi_mailbox *box, ls_mpi_kind kind, int peer) {
    const int source = peer < 0 ? MPI_ANY_SOURCE : mpi->ranks[peer];
    const int code = MPI_Recv_init(&box->packet, (int)sizeof box->packet, MPI_BYTE, source, mpi->tags + (int)kind,
                                   mpi->comm, &box->request);
    if (code != MPI_SUCCESS) {
        box->request = MPI_REQUEST_NULL;
        return ls_mpi_fail("ls_comm_open", "MPI_Recv_init", code);
    }
    return ls_mpi_box_ask(mpi, box);
}

ls_status ls_mpi_box_ask(ls_mpi *mpi, ls_mpi_mailbox *box) {
    const int code = MPI_Start(&box->request);
    box->asked = code == MPI_SUCCESS;
    return box->asked ? LS_OK : fail(mpi, "MPI_Start", code);
}

ls_status ls_mpi_box_look(ls_mpi *mpi, ls_mpi_mailbox *box, bool *here) {
    int ended = 0;
    int bytes = 0;
    MPI_Status status;
    const int code = MPI_Test(&box->request, &ended, &status);
    if (code != MPI_SUCCESS) {
        return fail(mpi, "MPI_Test", code);
    }
    box->asked = ended == 0;
    *here = ended != 0;
    if (*here) {
        const int least = (int)sizeof box->packet.header;
        const bool known = MPI_Get_count(&status, MPI_BYTE, &bytes) == MPI_SUCCESS && bytes >= least;
        box->data = known ? (size_t)(bytes - least) : SIZE_MAX;
    }
    return LS_OK;
}

ls_status ls_mpi_box_check(ls_mpi *mpi, const ls_mpi_mailbox *box, int peer) {
    const ls_mpi_reader reader = {.rank = mpi->rank, .size = mpi->size, .from = peer, .room = mpi->room};
    char why[LS_HEADER_WHY];
    if (ls_mpi_packet_is_sound(&box->packet, box->data, &reader, why)) {
        return LS_OK;
    }
    return ls_mpi_give_up(mpi, ls_fail(LS_ERR_PEER, "%s: rank %d sent a header that is not one: %s",
                                       peer >= 0 ? "ls_comm" : "ls_comm_recv",
                                       peer >= 0 ? peer : box->packet.header.root, why));
}

/* What came in the last moment is in the packet; else its operation is none. */
void ls_mpi_box_close(ls_mpi_mailbox *box) {
    if (box->request == MPI_REQUEST_NULL) {
        return;
    }
    MPI_Status status;
    int cancelled = 1;
    if (box->asked && MPI_Cancel(&box->request) == MPI_SUCCESS && MPI_Wait(&box->request, &status) == MPI_SUCCESS) {
        (void)MPI_Test_cancelled(&status, &cancelled);
    }
    if (cancelled != 0) {
        box->packet.header.operation = 0;
    }
    (void)MPI_Request_free(&box->request);
}

/* ---- waiting -------------------------------------------------------------------------------------------------------
 */

void ls_mpi_reset_idle(ls_mpi *mpi) {
    mpi->idle = 0;
    mpi->looked_ns = 0;
}

void ls_mpi_pause(ls_mpi *mpi, uint64_t *waited_ns) {
    if (++mpi->idle <= mpi->most_idle) {
        return;
    }
    const uint64_t now = ls_clock_ns();
    const uint64_t since = mpi->looked_ns != 0 ? now - mpi->looked_ns : 0;
    *waited_ns += since < STOPPED_NS ? since : STOPPED_NS;
    mpi->looked_ns = now;
    if (mpi->idle > LOOKS) {
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    } else {
        sched_yield();
    }
}
