/*
 * Waits until all ranks are present, before they share a communicator or after it has closed. The wait has a time
 * limit, and its error names the missing ranks. The exchange is a nonblocking all-to-all, because messages could be
 * confused with the program's own messages on its communicator. In the supported MPI libraries, each rank sends
 * directly to every other rank in this exchange, so a rank is present if its greeting has arrived.
 */
#include <stdio.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "base/wait.h"
#include "comm/backend/mpi/mpi.h"
#include "comm/store_roster.h"

#define WARN_NS  UINT64_C(5000000000)
#define YIELDS   2000
#define SLEEP_NS 50000

/* Starts a wait. MPI provides no event on which a rank could sleep. */
static ls_wait wait_for(double timeout) {
    return (ls_wait){.limit_ns = (uint64_t)(timeout * 1e9), .longest_ns = SLEEP_NS, .yields = YIELDS};
}

static ls_status look(MPI_Request *request, const char *function, bool *ended) {
    int done = 0;
    const int code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
    *ended = done != 0;
    return code == MPI_SUCCESS ? LS_OK : ls_mpi_fail(function, code);
}

/* ---- greetings --------------------------------------------------------------------------------------------------- */

/* An exchange of greetings in progress. MPI writes to it until the request completes, which may never happen. */
typedef struct meeting {
    ls_mpi_greeting own;
    ls_mpi_greeting *all;
    int *numbers; /* arguments of the MPI call: bytes per rank, send offsets, receive offsets */
    ls_roster roster;
} meeting;

static void discard(meeting *here) {
    if (here != NULL) {
        ls_roster_free(&here->roster);
        ls_free(here->numbers);
        ls_free(here->all);
        ls_free(here);
    }
}

static meeting *prepare(int size) {
    const int bytes = (int)sizeof(ls_mpi_greeting);
    meeting *here = ls_allocate_zeroed(1, sizeof *here);
    if (here == NULL) {
        return NULL;
    }
    here->all = ls_allocate_zeroed((size_t)size, sizeof *here->all);
    here->numbers = ls_allocate_zeroed(3 * (size_t)size, sizeof *here->numbers);
    if (here->all == NULL || here->numbers == NULL || ls_roster_make(&here->roster, size) != LS_OK) {
        discard(here);
        return NULL;
    }
    for (int rank = 0; rank < size; rank++) {
        here->numbers[rank] = bytes;
        here->numbers[2 * size + rank] = rank * bytes;
    }
    return here;
}

/* Lists the ranks that are present. MPI may write to the greetings concurrently: at worst, the list lacks a rank
 * whose greeting is just arriving. */
static const ls_roster *list_arrived(meeting *here, int rank) {
    for (int other = 0; other < here->roster.size; other++) {
        const volatile ls_mpi_greeting *greeting = &here->all[other];
        if (other == rank || greeting->here != 0) {
            ls_peer_info *peer_info = &here->roster.peer_infos[other];
            here->roster.states[other] = LS_RANK_HERE;
            snprintf(peer_info->host, sizeof peer_info->host, "%s",
                     other == rank ? here->own.host : here->all[other].host);
        }
    }
    return &here->roster;
}

static ls_status await(meeting *here, MPI_Request *request, int rank, double timeout) {
    ls_wait wait = wait_for(timeout);
    uint64_t warned_ns = 0;
    for (;;) {
        bool ended = false;
        LS_TRY(look(request, "MPI_Ialltoallv", &ended));
        if (ended) {
            return LS_OK;
        }
        if (!ls_wait_pause(&wait)) {
            return ls_roster_fail_missing(list_arrived(here, rank), timeout);
        }
        if (wait.awake.ns - warned_ns >= WARN_NS) {
            warned_ns = wait.awake.ns;
            ls_roster_report_missing(list_arrived(here, rank));
        }
    }
}

ls_status ls_mpi_meet(MPI_Comm comm, const ls_mpi_greeting *own, double timeout, ls_mpi_greeting **all) {
    int rank = 0;
    int size = 1;
    MPI_Request request = MPI_REQUEST_NULL;
    *all = NULL;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    meeting *here = prepare(size);
    if (here == NULL) {
        return ls_fail_memory("ls_comm_open", (size_t)size * sizeof *own);
    }
    here->own = *own;
    here->own.here = 1;
    (void)gethostname(here->own.host, sizeof here->own.host - 1);
    const int code = MPI_Ialltoallv(&here->own, here->numbers, here->numbers + size, MPI_BYTE, here->all, here->numbers,
                                    here->numbers + (size_t)2 * (size_t)size, MPI_BYTE, comm, &request);
    const ls_status status =
        code == MPI_SUCCESS ? await(here, &request, rank, timeout) : ls_mpi_fail("MPI_Ialltoallv", code);
    if (status != LS_OK) { /* MPI may still write to this memory, so it is not freed */
        ls_mpi_note_failure();
        return status;
    }
    *all = here->all;
    here->all = NULL;
    discard(here);
    return LS_OK;
}

/* ---- duplicates -------------------------------------------------------------------------------------------------- */

static ls_status duplicate_by(MPI_Comm comm, double timeout, MPI_Comm *duplicate) {
    MPI_Request request = MPI_REQUEST_NULL;
    ls_wait wait = wait_for(timeout);
    bool ended = false;
    const int code = MPI_Comm_idup(comm, duplicate, &request);
    if (code != MPI_SUCCESS) {
        return ls_mpi_fail("MPI_Comm_idup", code);
    }
    LS_TRY(look(&request, "MPI_Comm_idup", &ended));
    while (!ended) {
        if (!ls_wait_pause(&wait)) {
            return ls_fail(LS_ERR_TIMEOUT,
                           "all ranks joined, but MPI_Comm_idup did not finish within %g s: a rank was stopped or lost "
                           "since then; MPI does not report which",
                           timeout);
        }
        LS_TRY(look(&request, "MPI_Comm_idup", &ended));
    }
    return LS_OK;
}

ls_status ls_mpi_duplicate(MPI_Comm comm, double timeout, MPI_Comm *duplicate) {
    const ls_status status = duplicate_by(comm, timeout, duplicate);
    if (status != LS_OK) {
        ls_mpi_note_failure();
    }
    return status;
}
