/* The transport over MPI: sending, receiving, waiting. See mpi.h. */
#include "comm/transport/mpi/mpi.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/transport/mpi/inside.h"

/*
 * Numbers of polls without progress before a rank yields, and before it sleeps: if every rank of the machine has a
 * core, and otherwise. Waiting ranks that only yield to each other keep the core from working ranks, so a waiting rank
 * eventually sleeps. It does not sleep at once, because a large message progresses only when MPI is polled.
 */
#define LOOKS_BEFORE_YIELD         4000
#define LOOKS_BEFORE_SLEEP         20000
#define SHARING_LOOKS_BEFORE_YIELD 16
#define SHARING_LOOKS_BEFORE_SLEEP 1000
#define SLEEP_NS                   50000

/*
 * If another program runs a busy loop on the core, a yield returns only after that program has used up its time slice.
 * A rank that sleeps gets the core as soon as it wakes. After MOST_LONG_YIELDS such yields, this rank sleeps in its
 * next PAUSES_ASLEEP pauses.
 */
#define MOST_LONG_YIELDS 4
#define PAUSES_ASLEEP    2000

/* A rank that waits for a given rank polls the receives from any rank only once in this number of polls. */
#define LOOKS_PER_ANY     16
#define LOOKS_PER_CLOCK   16
#define LOOKS_PER_CLOSING 8
#define AT_ONCE           ((size_t)256) /* in bytes; Open MPI has usually sent such messages when MPI_Isend returns */
#define MOST              ((size_t)LS_TRANSPORT_LEAST_EXACT) /* in bytes; MPI's counts are of type int */

ls_status ls_mpi_fail(const char *function, int code) {
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    int class = code;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) {
        snprintf(text, sizeof text, "error %d", code);
    }
    const bool too_long = MPI_Error_class(code, &class) == MPI_SUCCESS && class == MPI_ERR_TRUNCATE;
    return ls_fail(too_long ? LS_ERR_PEER : LS_ERR_IO, "%s: %s", function, text);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

void ls_mpi_list_free(ls_mpi_list *list) {
    ls_free(list->requests);
    ls_free(list->transfers);
    ls_free(list->statuses);
    ls_free(list->indices);
}

ls_status ls_mpi_list_room(ls_mpi_list *list) {
    if (list->count < list->capacity) {
        return LS_OK;
    }
    const size_t old = (size_t)list->capacity;
    const size_t most = old == 0 ? 16 : 2 * old;
    MPI_Request *requests = ls_reallocate(list->requests, old * sizeof *requests, most * sizeof *requests);
    list->requests = requests != NULL ? requests : list->requests;
    ls_transfer **transfers = ls_reallocate(list->transfers, old * sizeof(void *), most * sizeof(void *));
    list->transfers = transfers != NULL ? transfers : list->transfers;
    MPI_Status *statuses = ls_reallocate(list->statuses, old * sizeof *statuses, most * sizeof *statuses);
    list->statuses = statuses != NULL ? statuses : list->statuses;
    int *indices = ls_reallocate(list->indices, old * sizeof *indices, most * sizeof *indices);
    list->indices = indices != NULL ? indices : list->indices;
    if (requests == NULL || transfers == NULL || statuses == NULL || indices == NULL) {
        return ls_fail_memory("MPI requests", most * (sizeof *requests + sizeof *statuses));
    }
    list->capacity = (int)most;
    return LS_OK;
}

void ls_mpi_list_add(ls_mpi_list *list, MPI_Request request, ls_transfer *transfer) {
    list->requests[list->count] = request;
    list->transfers[list->count++] = transfer;
}

/* Records that one MPI message of a transfer has completed. The transfer ends with its last message. */
static void end_message(ls_transfer *transfer, const MPI_Status *status) {
    int bytes = 1;
    if (transfer == &ls_mpi_program || transfer == &ls_mpi_own) {
        return;
    }
    if (transfer->receives) {
        MPI_Get_count(status, MPI_BYTE, &bytes);
    }
    transfer->moved += (size_t)bytes;
    if (--transfer->number != 0) {
        return;
    }
    transfer->ended = true;
    if (transfer->receives) {
        transfer->bytes = transfer->moved;
        transfer->peer = status->MPI_SOURCE;
    }
}

/* Removes the requests that MPI has completed or that have failed. */
static void take_off_ended(ls_mpi_list *list) {
    int kept = 0;
    for (int i = 0; i < list->count; i++) {
        list->requests[kept] = list->requests[i];
        list->transfers[kept] = list->transfers[i];
        kept += list->requests[i] != MPI_REQUEST_NULL;
    }
    list->count = kept;
}

/* Records a failed request. If a message was longer than its receive, its sender is to blame. */
static void note_failed(ls_mpi *mpi, const MPI_Status *status, int code) {
    int class = code;
    const int sender = status->MPI_SOURCE;
    if (MPI_Error_class(code, &class) == MPI_SUCCESS && class == MPI_ERR_TRUNCATE && sender >= 0 &&
        sender < mpi->endpoint.size) {
        mpi->endpoint.blamed = 1 + sender;
    }
}

/* Sets the error of MPI_Testsome, which may be in the statuses. Returns its status. */
static ls_status fail_some(ls_mpi *mpi, ls_mpi_list *list, int ended, int code) {
    int class = code;
    (void)MPI_Error_class(code, &class);
    for (int i = 0; class == MPI_ERR_IN_STATUS && i < ended; i++) {
        const int own = list->statuses[i].MPI_ERROR;
        if (own != MPI_SUCCESS && own != MPI_ERR_PENDING) {
            note_failed(mpi, &list->statuses[i], own);
            code = own;
            break;
        }
    }
    take_off_ended(list);
    return ls_mpi_fail("MPI_Testsome", code);
}

static ls_status test_some(ls_mpi *mpi, ls_mpi_list *list, bool *moved) {
    int ended = 0;
    const int code = MPI_Testsome(list->count, list->requests, &ended, list->indices, list->statuses);
    if (code != MPI_SUCCESS) {
        return fail_some(mpi, list, ended, code);
    }
    if (ended == 0 || ended == MPI_UNDEFINED) {
        return LS_OK;
    }
    for (int i = 0; i < ended; i++) {
        end_message(list->transfers[list->indices[i]], &list->statuses[i]);
    }
    take_off_ended(list);
    *moved = true;
    return LS_OK;
}

ls_status ls_mpi_test(ls_mpi *mpi, ls_mpi_list *list, bool *moved) {
    int ended = 0;
    MPI_Status status = {.MPI_SOURCE = MPI_ANY_SOURCE};
    if (list->count != 1) {
        return list->count != 0 ? test_some(mpi, list, moved) : LS_OK;
    }
    const int code = MPI_Test(&list->requests[0], &ended, &status);
    if (code != MPI_SUCCESS) {
        note_failed(mpi, &status, code);
        take_off_ended(list);
        return ls_mpi_fail("MPI_Test", code);
    }
    if (ended != 0) {
        list->count = 0;
        end_message(list->transfers[0], &status);
        *moved = true;
    }
    return LS_OK;
}

/* ---- sending and receiving --------------------------------------------------------------------------------------- */

/* Returns the size of the MPI message at offset `at` of a transfer. Both ranks divide a transfer in the same way,
 * because a receive of more than LS_TRANSPORT_LEAST_EXACT bytes has exactly the size of its message. */
static size_t message_at(const ls_mpi *mpi, const ls_transfer *transfer, size_t at) {
    const size_t left = transfer->bytes - at;
    return left < mpi->options.most ? left : mpi->options.most;
}

ls_status ls_mpi_check_runs(void) {
    return !ls_mpi_is_finalized()
               ? LS_OK
               : ls_fail(LS_ERR_STATE,
                         "the program has called MPI_Finalize: call ls_finalize or ls_comm_free before MPI_Finalize");
}

static ls_status send(ls_endpoint *endpoint, ls_transfer *transfer) {
    ls_mpi *mpi = (ls_mpi *)endpoint;
    transfer->ended = false;
    transfer->receives = false;
    transfer->moved = 0;
    transfer->number = 0;
    LS_TRY(ls_mpi_check_runs());
    if (mpi->comm == MPI_COMM_NULL) { /* the endpoint was closed before it was connected, so it has no peers */
        return LS_OK;
    }
    endpoint->messages++;
    endpoint->bytes += transfer->bytes;
    size_t at = 0;
    do {
        MPI_Request request;
        int ended = 0;
        const size_t bytes = message_at(mpi, transfer, at);
        LS_TRY(ls_mpi_list_room(&mpi->named));
        int code = MPI_Isend((const unsigned char *)transfer->data + at, (int)bytes, MPI_BYTE, transfer->peer,
                             transfer->channel, mpi->comm, &request);
        /* A small send has usually completed by now. If ranks share cores, a test of a larger send may yield the
         * core before all data has been sent. */
        if (code == MPI_SUCCESS && bytes <= mpi->at_once) {
            code = MPI_Test(&request, &ended, MPI_STATUS_IGNORE);
        }
        if (code != MPI_SUCCESS) {
            return ls_mpi_fail("MPI_Isend", code);
        }
        if (ended == 0) {
            transfer->number++;
            ls_mpi_list_add(&mpi->named, request, transfer);
        }
        at += bytes;
    } while (at < transfer->bytes);
    transfer->ended = transfer->number == 0;
    return LS_OK;
}

/* Starts receiving the MPI message at offset `at` of a transfer. */
static int receive_message(const ls_mpi *mpi, const ls_transfer *transfer, size_t at, MPI_Request *request) {
    return MPI_Irecv((unsigned char *)transfer->data + at, (int)message_at(mpi, transfer, at), MPI_BYTE,
                     transfer->peer < 0 ? MPI_ANY_SOURCE : transfer->peer, transfer->channel, mpi->comm, request);
}

static ls_status receive(ls_endpoint *endpoint, ls_transfer *transfer) {
    ls_mpi *mpi = (ls_mpi *)endpoint;
    ls_mpi_list *list = transfer->peer < 0 ? &mpi->any : &mpi->named;
    transfer->ended = false;
    transfer->receives = true;
    transfer->moved = 0;
    transfer->number = 0;
    LS_TRY(ls_mpi_check_runs());
    size_t at = 0;
    do {
        MPI_Request request = MPI_REQUEST_NULL;
        LS_TRY(ls_mpi_list_room(list));
        const int code = mpi->comm != MPI_COMM_NULL ? receive_message(mpi, transfer, at, &request) : MPI_SUCCESS;
        if (code != MPI_SUCCESS) {
            return ls_mpi_fail("MPI_Irecv", code);
        }
        transfer->number++;
        ls_mpi_list_add(list, request, transfer);
        at += message_at(mpi, transfer, at);
    } while (at < transfer->bytes);
    return LS_OK;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static void read_clock(ls_mpi *mpi) {
    (void)ls_awake_poll(&mpi->clock, ls_clock_ns());
}

void ls_mpi_note_look(ls_mpi *mpi, bool moved) {
    mpi->idle = moved ? 0 : mpi->idle + 1;
    if (++mpi->looks % LOOKS_PER_CLOCK == 0) {
        read_clock(mpi);
    }
}

static void yield(ls_mpi *mpi) {
    if (ls_yield(mpi->clock.polled_ns)) { /* the clock was read immediately before this */
        mpi->long_yields /= 2;
    } else if (++mpi->long_yields >= MOST_LONG_YIELDS) {
        mpi->asleep = PAUSES_ASLEEP;
    }
}

void ls_mpi_pause(ls_mpi *mpi) {
    if (mpi->idle <= mpi->looks_before_yield) {
        return;
    }
    read_clock(mpi);
    if (mpi->idle % LOOKS_PER_CLOSING == 0 && ls_mpi_has_closing()) {
        (void)ls_mpi_progress_closing(); /* other ranks may be waiting until this rank receives the messages that they
                                            sent to closed endpoints */
    }
    if (mpi->idle > mpi->looks_before_sleep || mpi->asleep > 0) {
        mpi->asleep -= mpi->asleep > 0;
        ls_sleep_ns(SLEEP_NS);
    } else {
        yield(mpi);
    }
}

/* Polls the requests. A rank that waits for a given rank polls the receives from any rank only once in LOOKS_PER_ANY
 * polls. */
static ls_status look(ls_mpi *mpi, bool *moved) {
    LS_TRY(ls_mpi_test(mpi, &mpi->named, moved));
    if (mpi->looks % LOOKS_PER_ANY == 0 || (!*moved && mpi->named.count == 0)) {
        LS_TRY(ls_mpi_test(mpi, &mpi->any, moved));
    }
    ls_mpi_note_look(mpi, *moved);
    return LS_OK;
}

static ls_status look_and_wait(ls_mpi *mpi, uint64_t wait_ns, bool *moved) {
    const uint64_t begun_ns = mpi->clock.ns;
    LS_TRY(look(mpi, moved));
    if (wait_ns == 0 && mpi->idle > LOOKS_PER_CLOCK) { /* ls_mpi_note_look reads the clock too rarely for a caller that
                                                          polls only occasionally */
        read_clock(mpi);
    }
    while (!*moved && mpi->clock.ns - begun_ns < wait_ns) {
        ls_mpi_pause(mpi);
        LS_TRY(look(mpi, moved));
    }
    return LS_OK;
}

/* True while a thread is in `progress`, where calls spend nearly all of their time. */
static atomic_bool waits;

static ls_status progress(ls_endpoint *endpoint, uint64_t wait_ns, bool *moved) {
    *moved = false;
    LS_TRY(ls_mpi_check_runs());
    atomic_store_explicit(&waits, true, memory_order_relaxed);
    const ls_status status = look_and_wait((ls_mpi *)endpoint, wait_ns, moved);
    atomic_store_explicit(&waits, false, memory_order_relaxed);
    return status;
}

ls_status ls_mpi_check_allowed(void) {
    int level = MPI_THREAD_MULTIPLE;
    int main_thread = 1;
    LS_TRY(ls_mpi_check_runs());
    if (MPI_Query_thread(&level) != MPI_SUCCESS || level == MPI_THREAD_MULTIPLE) {
        return LS_OK;
    }
    if (level == MPI_THREAD_SERIALIZED) {
        return !atomic_load_explicit(&waits, memory_order_relaxed)
                   ? LS_OK
                   : ls_fail(LS_ERR_STATE, "MPI was started with MPI_THREAD_SERIALIZED, which allows one thread at a "
                                           "time, and a different thread is inside a call: make one call at a time, or "
                                           "start MPI with MPI_THREAD_MULTIPLE");
    }
    if (MPI_Is_thread_main(&main_thread) != MPI_SUCCESS || main_thread != 0) {
        return LS_OK;
    }
    return ls_fail(LS_ERR_STATE,
                   "MPI was started with %s, which allows calls from the main thread only: make this call in the main "
                   "thread, or start MPI with MPI_THREAD_MULTIPLE",
                   level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED" : "MPI_Init (MPI_THREAD_SINGLE)");
}

static uint64_t now_ns(const ls_endpoint *endpoint) {
    return ((const ls_mpi *)endpoint)->clock.ns;
}

static ls_peer_state peer_of(const ls_endpoint *endpoint, int peer) {
    (void)endpoint, (void)peer;
    return LS_PEER_REACHED;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static const ls_transport transport_mpi = {
    .name = "mpi",
    .send = send,
    .receive = receive,
    .withdraw = ls_mpi_withdraw,
    .progress = progress,
    .can_make = ls_mpi_can_make,
    .collective = ls_mpi_collective,
    .peer = peer_of,
    .now_ns = now_ns,
    .close = ls_mpi_close,
};

ls_endpoint *ls_mpi_endpoint(const ls_mpi_options *options) {
    ls_mpi *mpi = ls_allocate_zeroed(1, sizeof *mpi);
    if (mpi == NULL || ls_mpi_list_room(&mpi->named) != LS_OK || ls_mpi_list_room(&mpi->any) != LS_OK) {
        (void)ls_fail_memory("an endpoint", sizeof *mpi);
        if (mpi != NULL) {
            ls_mpi_list_free(&mpi->named);
            ls_mpi_list_free(&mpi->any);
        }
        ls_free(mpi);
        return NULL;
    }
    mpi->options = *options;
    mpi->options.most = options->most != 0 ? options->most : MOST;
    mpi->comm = MPI_COMM_NULL;
    mpi->endpoint.transport = &transport_mpi;
    mpi->endpoint.rank = options->rank;
    mpi->endpoint.size = options->size;
    mpi->endpoint.place = options->place;
    mpi->endpoint.own = options->own;
    mpi->endpoint.oversubscribed = options->oversubscribed && options->one_machine;
    mpi->endpoint.polls = true;
    mpi->endpoint.eager =
        options->unasked > LS_TRANSPORT_LEAST_EAGER ? options->unasked : (size_t)LS_TRANSPORT_LEAST_EAGER;
    mpi->at_once = options->oversubscribed ? AT_ONCE : options->unasked;
    mpi->looks_before_yield = options->oversubscribed ? SHARING_LOOKS_BEFORE_YIELD : LOOKS_BEFORE_YIELD;
    mpi->looks_before_sleep = options->oversubscribed ? SHARING_LOOKS_BEFORE_SLEEP : LOOKS_BEFORE_SLEEP;
    mpi->dropping = MPI_REQUEST_NULL;
    return &mpi->endpoint;
}

ls_status ls_mpi_connect(ls_endpoint *endpoint, MPI_Comm comm) {
    ls_mpi *mpi = (ls_mpi *)endpoint;
    mpi->comm = comm;
    int code = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    for (int i = 0; i < mpi->any.count && code == MPI_SUCCESS; i++) { /* a receive from any rank is one MPI message */
        code = receive_message(mpi, mpi->any.transfers[i], 0, &mpi->any.requests[i]);
    }
    return code == MPI_SUCCESS ? LS_OK : ls_mpi_fail("MPI_Irecv", code);
}

const ls_mpi_options *ls_mpi_options_of(const ls_endpoint *endpoint) {
    return &((const ls_mpi *)endpoint)->options;
}

MPI_Comm ls_mpi_comm_of(const ls_endpoint *endpoint) {
    return ((const ls_mpi *)endpoint)->comm;
}

static _Atomic bool finalized;

void ls_mpi_note_finalized(void) {
    finalized = true;
}

bool ls_mpi_is_finalized(void) {
    return finalized;
}
