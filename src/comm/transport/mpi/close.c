/* How an endpoint over MPI ends: see mpi.h. */
#include <pthread.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "comm/transport/mpi/inside.h"

#define MOST_WITHDRAWN_NS UINT64_C(200000000)  /* in which MPI should be done with what is withdrawn */
#define LINGER_NS         UINT64_C(1000000000) /* for those who have left to take in what was sent to them */

ls_transfer ls_mpi_large, ls_mpi_small, ls_mpi_bare;

bool ls_mpi_runs(void) {
    int started = 0;
    int finalized = 0;
    return MPI_Initialized(&started) == MPI_SUCCESS && started != 0 && MPI_Finalized(&finalized) == MPI_SUCCESS &&
           finalized == 0;
}

/* ---- what comes and nobody wants --------------------------------------------------------------------------------- */

/* Whether what is dropped at present has come. */
static bool has_dropped(ls_mpi *mpi) {
    int ended = 1;
    if (mpi->dropping != MPI_REQUEST_NULL &&
        (MPI_Test(&mpi->dropping, &ended, MPI_STATUS_IGNORE) != MPI_SUCCESS || ended == 0)) {
        return false;
    }
    ls_free(mpi->dropped);
    mpi->dropped = NULL;
    return true;
}

/* Begins to take in a message that was found, whole: Open MPI writes beyond a buffer that is too small for it. */
static bool drop(ls_mpi *mpi, const MPI_Status *found) {
    int bytes = 0;
    mpi->ends += found->MPI_TAG == LS_MPI_END;
    if (MPI_Get_count(found, MPI_BYTE, &bytes) != MPI_SUCCESS) {
        return false;
    }
    mpi->dropped = ls_allocate((size_t)bytes + 1);
    if (mpi->dropped == NULL || MPI_Irecv(mpi->dropped, bytes, MPI_BYTE, found->MPI_SOURCE, found->MPI_TAG, mpi->comm,
                                          &mpi->dropping) != MPI_SUCCESS) {
        mpi->dropping = MPI_REQUEST_NULL;
        return false;
    }
    return true;
}

/* Takes in what has come; `*moved` becomes true when there was something. */
static void drop_all(ls_mpi *mpi, bool *moved) {
    MPI_Status found;
    int there = 1;
    while (has_dropped(mpi) && MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi->comm, &there, &found) == MPI_SUCCESS &&
           there != 0 && drop(mpi, &found)) {
        *moved = true;
    }
}

/* ---- what is under way ------------------------------------------------------------------------------------------- */

/* Nobody owns the transfer of that request any more. */
static void orphan(ls_mpi *mpi, ls_mpi_list *list, int i) {
    const ls_transfer *transfer = list->transfers[i];
    if (transfer == &ls_mpi_large || transfer == &ls_mpi_small || transfer == &ls_mpi_bare) {
        return;
    }
    if (transfer->receives) {
        (void)MPI_Cancel(&list->requests[i]); /* which ends what has not begun to come */
    }
    const bool named_receive = transfer->receives && list == &mpi->named;
    list->transfers[i] = named_receive || transfer->bytes > mpi->endpoint.eager ? &ls_mpi_large : &ls_mpi_small;
}

static bool has(const ls_mpi *mpi, const ls_transfer *kind) {
    const ls_mpi_list *lists[] = {&mpi->named, &mpi->any};
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < lists[k]->count; i++) {
            if (lists[k]->transfers[i] == kind) {
                return true;
            }
        }
    }
    return false;
}

/* Looks once at all that is under way, and at what comes. */
static bool look(ls_mpi *mpi) {
    bool moved = false;
    const bool sound = ls_mpi_test(&mpi->named, &moved) == LS_OK && ls_mpi_test(&mpi->any, &moved) == LS_OK;
    drop_all(mpi, &moved);
    if (moved) {
        mpi->idle = 0;
        mpi->looked_ns = 0;
    } else {
        ls_mpi_pause(mpi);
    }
    return sound;
}

/* Waits until MPI is done with all of that kind, or others have had a while to take it; for so long at most. */
static void settle(ls_mpi *mpi, const ls_transfer *kind, uint64_t longest_ns) {
    const uint64_t begun_ns = mpi->awake_ns;
    uint64_t left_ns = 0; /* since when all others have left; 0: they have not */
    while (has(mpi, kind) && mpi->awake_ns - begun_ns < longest_ns && look(mpi)) {
        if (mpi->ends != mpi->endpoint.size - 1) {
            continue;
        }
        left_ns = left_ns != 0 ? left_ns : mpi->awake_ns + 1;
        if (mpi->awake_ns + 1 - left_ns > LINGER_NS) {
            return;
        }
    }
}

void ls_mpi_withdraw(ls_endpoint *endpoint, ls_transfer *transfer) {
    ls_mpi *mpi = (ls_mpi *)endpoint;
    ls_mpi_list *lists[] = {&mpi->named, &mpi->any};
    bool found = false;
    mpi->withdrew = true;
    for (int k = 0; k < 2 && !mpi->forsaken; k++) {
        for (int i = 0; i < lists[k]->count; i++) {
            if (lists[k]->transfers[i] == transfer) {
                orphan(mpi, lists[k], i);
                found = true;
            }
        }
    }
    if (found && mpi->withdrawn_ns < MOST_WITHDRAWN_NS) {
        const uint64_t begun_ns = mpi->awake_ns;
        settle(mpi, &ls_mpi_large, MOST_WITHDRAWN_NS - mpi->withdrawn_ns);
        mpi->withdrawn_ns += mpi->awake_ns - begun_ns;
    }
}

/* ---- retired endpoints ------------------------------------------------------------------------------------------- */

static pthread_mutex_t sweeping = PTHREAD_MUTEX_INITIALIZER;
static ls_mpi *retired;
_Atomic int ls_mpi_retired;

static void discard(ls_mpi *mpi) {
    ls_mpi_list_free(&mpi->named);
    ls_mpi_list_free(&mpi->any);
    ls_free(mpi->dropped);
    ls_free(mpi);
}

/* Whether MPI is done with it, and nothing more comes. */
static bool is_over(ls_mpi *mpi) {
    bool moved = false;
    const bool sound = ls_mpi_test(&mpi->named, &moved) == LS_OK && ls_mpi_test(&mpi->any, &moved) == LS_OK;
    drop_all(mpi, &moved);
    return sound && mpi->named.count + mpi->any.count == 0 && mpi->ends == mpi->endpoint.size - 1 &&
           mpi->dropping == MPI_REQUEST_NULL;
}

bool ls_mpi_sweep(void) {
    if (!ls_mpi_runs()) {
        return true;
    }
    pthread_mutex_lock(&sweeping);
    for (ls_mpi **link = &retired; *link != NULL;) {
        ls_mpi *mpi = *link;
        if (!is_over(mpi)) {
            link = &mpi->next;
            continue;
        }
        *link = mpi->next;
        ls_mpi_retired--;
        MPI_Comm_free(&mpi->comm);
        discard(mpi);
    }
    const bool swept = retired == NULL;
    pthread_mutex_unlock(&sweeping);
    return swept;
}

static void retire(ls_mpi *mpi) {
    pthread_mutex_lock(&sweeping);
    mpi->next = retired;
    retired = mpi;
    ls_mpi_retired++;
    pthread_mutex_unlock(&sweeping);
    (void)ls_mpi_sweep();
}

/* ---- closing ----------------------------------------------------------------------------------------------------- */

/* Tells the others that nothing more comes. */
static void say_end(ls_mpi *mpi) {
    for (int rank = 0; rank < mpi->endpoint.size; rank++) {
        MPI_Request request;
        int ended = 0;
        if (rank == mpi->endpoint.rank || ls_mpi_list_room(&mpi->named) != LS_OK ||
            MPI_Isend(NULL, 0, MPI_BYTE, rank, LS_MPI_END, mpi->comm, &request) != MPI_SUCCESS) {
            continue;
        }
        if (MPI_Test(&request, &ended, MPI_STATUS_IGNORE) == MPI_SUCCESS && ended == 0) {
            ls_mpi_list_add(&mpi->named, request, &ls_mpi_bare);
        }
    }
}

/* Others may have had to do with what this rank leaves: their MPI waits for this one to take what they sent. */
static void await_ends(ls_mpi *mpi) {
    const uint64_t begun_ns = mpi->awake_ns;
    while (mpi->ends != mpi->endpoint.size - 1 && mpi->awake_ns - begun_ns < LINGER_NS && look(mpi)) {
    }
}

bool ls_mpi_close(ls_endpoint *endpoint, uint64_t linger_ns) {
    ls_mpi *mpi = (ls_mpi *)endpoint;
    ls_mpi_list *lists[] = {&mpi->named, &mpi->any};
    const bool left_open = mpi->named.count != 0 && !mpi->withdrew;
    if (mpi->forsaken) {
        discard(mpi);
        return true;
    }
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < lists[k]->count; i++) {
            orphan(mpi, lists[k], i);
        }
    }
    say_end(mpi);
    (void)look(mpi);
    settle(mpi, &ls_mpi_small, linger_ns);
    settle(mpi, &ls_mpi_large, mpi->withdrew ? linger_ns : (uint64_t)(mpi->options.timeout * 1e9));
    if (left_open) {
        await_ends(mpi);
    }
    const bool large = has(mpi, &ls_mpi_large);
    const bool done = !large && !has(mpi, &ls_mpi_small);
    if (large && !mpi->withdrew) {
        ls_log_write(LS_LOG_WARNING,
                     "ls_comm_free: MPI still uses buffers of a call that not all ranks made: keep them until the "
                     "process ends");
    }
    retire(mpi);
    return done;
}
