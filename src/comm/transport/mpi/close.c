/* Closes an endpoint over MPI: see mpi.h. */
#include <pthread.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "comm/transport/mpi/inside.h"

#define MOST_WITHDRAWN_NS UINT64_C(200000000)  /* total time that withdrawals wait for MPI to complete requests */
#define TAKING_NS         UINT64_C(5000000000) /* time for ranks that have left to receive the messages sent to them */
#define LONGEST_PAUSE_NS  50000
#define DROPPED_PER_LOOK  16 /* in messages; a limit is needed because another rank may send endlessly */

ls_transfer ls_mpi_program, ls_mpi_own;

/* ---- discarding messages ----------------------------------------------------------------------------------------- */

/* Returns false while a message is received only to be discarded. */
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

/* Starts receiving a probed message in order to discard it. Receives the whole message, because Open MPI writes past
 * the end of a buffer that is too small. */
static bool drop(ls_mpi *mpi, const MPI_Status *found) {
    int bytes = 0;
    if (MPI_Get_count(found, MPI_BYTE, &bytes) != MPI_SUCCESS) {
        return false;
    }
    mpi->dropped = ls_allocate((size_t)bytes + 1);
    if (mpi->dropped == NULL || MPI_Irecv(mpi->dropped, bytes, MPI_BYTE, found->MPI_SOURCE, found->MPI_TAG, mpi->comm,
                                          &mpi->dropping) != MPI_SUCCESS) {
        mpi->dropping = MPI_REQUEST_NULL;
        return false;
    }
    mpi->ends += found->MPI_TAG == LS_MPI_END;
    return true;
}

/* Receives and discards up to DROPPED_PER_LOOK messages that have arrived. Sets `*moved` to true if there were any. */
static void drop_some(ls_mpi *mpi, bool *moved) {
    MPI_Status found;
    for (int i = 0; i < DROPPED_PER_LOOK && has_dropped(mpi); i++) {
        int there = 0;
        if (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi->comm, &there, &found) != MPI_SUCCESS || there == 0 ||
            !drop(mpi, &found)) {
            return;
        }
        *moved = true;
    }
}

/* ---- requests in progress ---------------------------------------------------------------------------------------- */

/* Replaces the transfer of a request with a placeholder, because its owner withdraws the transfer. */
static void withdraw_request(ls_mpi_list *list, int i) {
    const ls_transfer *transfer = list->transfers[i];
    if (transfer == &ls_mpi_program || transfer == &ls_mpi_own) {
        return;
    }
    if (transfer->receives && list->requests[i] != MPI_REQUEST_NULL) {
        (void)MPI_Cancel(&list->requests[i]); /* completes the receive, unless its message has begun to arrive */
    }
    list->transfers[i] = transfer->of_user ? &ls_mpi_program : &ls_mpi_own;
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

/* Polls all requests and incoming messages once, and pauses. Returns false if MPI failed. */
static bool look(ls_mpi *mpi) {
    bool moved = false;
    const bool sound = ls_mpi_test(mpi, &mpi->named, &moved) == LS_OK && ls_mpi_test(mpi, &mpi->any, &moved) == LS_OK;
    drop_some(mpi, &moved);
    ls_mpi_note_look(mpi, moved);
    ls_mpi_pause(mpi);
    return sound;
}

/* Waits at most `longest_ns` until MPI has completed all requests of a kind. */
static void await_requests(ls_mpi *mpi, const ls_transfer *kind, uint64_t longest_ns) {
    const uint64_t begun_ns = mpi->clock.ns;
    while (has(mpi, kind) && mpi->clock.ns - begun_ns < longest_ns && look(mpi)) {
    }
}

void ls_mpi_withdraw(ls_endpoint *endpoint, ls_transfer *transfer) {
    ls_mpi *mpi = (ls_mpi *)endpoint;
    ls_mpi_list *lists[] = {&mpi->named, &mpi->any};
    bool found = false;
    mpi->withdrew = true;
    for (int k = 0; k < 2 && !ls_mpi_is_finalized(); k++) {
        for (int i = 0; i < lists[k]->count; i++) {
            if (lists[k]->transfers[i] == transfer) {
                withdraw_request(lists[k], i);
                found = true;
            }
        }
    }
    if (found && mpi->withdrawn_ns < MOST_WITHDRAWN_NS) {
        const uint64_t begun_ns = mpi->clock.ns;
        await_requests(mpi, &ls_mpi_program, MOST_WITHDRAWN_NS - mpi->withdrawn_ns);
        mpi->withdrawn_ns += mpi->clock.ns - begun_ns;
    }
}

/* ---- closed endpoints -------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ls_mpi *_Atomic closing; /* changed only while holding the lock */

/* Releases the memory of the endpoint's owner, which MPI no longer uses. */
static void release(ls_mpi *mpi) {
    if (mpi->release != NULL) {
        mpi->release(mpi->owner);
        mpi->release = NULL;
    }
}

static void discard(ls_mpi *mpi) {
    release(mpi);
    ls_mpi_list_free(&mpi->named);
    ls_mpi_list_free(&mpi->any);
    ls_free(mpi->dropped);
    ls_free(mpi->numbers);
    ls_free(mpi);
}

/* Returns true if MPI has completed all requests and no more messages can arrive. Releases the owner's memory as soon
 * as MPI no longer uses it. */
static bool is_over(ls_mpi *mpi) {
    bool moved = false;
    const bool sound = ls_mpi_test(mpi, &mpi->named, &moved) == LS_OK && ls_mpi_test(mpi, &mpi->any, &moved) == LS_OK;
    const bool unused = mpi->named.count + mpi->any.count == 0;
    drop_some(mpi, &moved);
    if (unused) {
        release(mpi);
    }
    return sound && unused && mpi->ends == mpi->endpoint.size - 1 && mpi->dropping == MPI_REQUEST_NULL;
}

/* Returns true if MPI may still use the program's buffers, and ls_mpi_finish_closed still has time to wait for it. */
static bool is_awaited(ls_mpi *mpi) {
    const bool all_left = mpi->ends == mpi->endpoint.size - 1;
    const uint64_t longest_ns = (uint64_t)(mpi->options.timeout * 1e9);
    if (mpi->given_up || !has(mpi, &ls_mpi_program)) {
        return false;
    }
    (void)ls_awake_poll(&mpi->clock, ls_clock_ns());
    mpi->closed_ns = mpi->closed_ns != 0 ? mpi->closed_ns : mpi->clock.ns + 1;
    mpi->left_ns = all_left && mpi->left_ns == 0 ? mpi->clock.ns + 1 : mpi->left_ns;
    mpi->given_up = mpi->clock.ns + 1 - mpi->closed_ns > longest_ns ||
                    (mpi->left_ns != 0 && mpi->clock.ns + 1 - mpi->left_ns > TAKING_NS);
    if (mpi->given_up) {
        ls_log_write(LS_LOG_WARNING,
                     "ls_work_wait: MPI still uses buffers of a call that not all ranks made: keep them until the "
                     "process ends");
    }
    return !mpi->given_up;
}

/* Returns true if any closed endpoint is awaited. */
static bool any_is_awaited(void) {
    bool any = false;
    pthread_mutex_lock(&lock);
    for (ls_mpi *mpi = closing; mpi != NULL; mpi = mpi->next) {
        any = is_awaited(mpi) || any;
    }
    pthread_mutex_unlock(&lock);
    return any;
}

bool ls_mpi_finish_closed(bool wait) {
    ls_wait pauses = {.longest_ns = LONGEST_PAUSE_NS};
    while (ls_mpi_check_allowed() == LS_OK && !ls_mpi_progress_closing() && any_is_awaited()) {
        if (!wait) {
            return false;
        }
        (void)ls_wait_pause(&pauses);
    }
    return true;
}

bool ls_mpi_has_closing(void) {
    return closing != NULL;
}

bool ls_mpi_progress_closing(void) {
    ls_mpi *kept = NULL;
    if (ls_mpi_is_finalized()) {
        return true;
    }
    pthread_mutex_lock(&lock);
    for (ls_mpi *mpi = closing, *next; mpi != NULL; mpi = next) {
        next = mpi->next;
        if (is_over(mpi)) {
            MPI_Comm_free(&mpi->comm);
            discard(mpi);
        } else {
            mpi->next = kept;
            kept = mpi;
        }
    }
    closing = kept;
    pthread_mutex_unlock(&lock);
    return kept == NULL;
}

static void add_closing(ls_mpi *mpi) {
    pthread_mutex_lock(&lock);
    mpi->next = closing;
    closing = mpi;
    pthread_mutex_unlock(&lock);
}

/* ---- closing ----------------------------------------------------------------------------------------------------- */

/* Notifies the other ranks that this rank sends nothing more. MPI frees each request after its message has been
 * sent. */
static void say_end(ls_mpi *mpi) {
    for (int rank = 0; rank < mpi->endpoint.size; rank++) {
        MPI_Request request;
        if (rank != mpi->endpoint.rank &&
            MPI_Isend(NULL, 0, MPI_BYTE, rank, LS_MPI_END, mpi->comm, &request) == MPI_SUCCESS) {
            MPI_Request_free(&request);
        }
    }
}

/*
 * Does not wait for other ranks, unless the owner has failed: another rank may close its endpoints in a different
 * order, and wait for this rank. Sends may still be in progress, because some MPI libraries complete a send only when
 * its receiver has received it. If the owner has failed, its last messages, which report the failure, get `linger_ns`.
 */
void ls_mpi_close(ls_endpoint *endpoint, uint64_t linger_ns, ls_endpoint_release *release_owner, void *owner) {
    ls_mpi *mpi = (ls_mpi *)endpoint;
    ls_mpi_list *lists[] = {&mpi->named, &mpi->any};
    bool moved = false;
    mpi->release = release_owner;
    mpi->owner = owner;
    if (ls_mpi_is_finalized() || mpi->comm == MPI_COMM_NULL) {
        discard(mpi);
        return;
    }
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < lists[k]->count; i++) {
            withdraw_request(lists[k], i);
        }
    }
    say_end(mpi);
    (void)ls_mpi_test(mpi, &mpi->named, &moved); /* some MPI libraries send data only during MPI calls */
    if (mpi->withdrew) {
        await_requests(mpi, &ls_mpi_own, linger_ns);
        await_requests(mpi, &ls_mpi_program, linger_ns);
    }
    add_closing(mpi);
}
