/* The record of a communicator, its references and its failure. Calls no functions in other files of the call layer
 * (the table in record.h). */
#include "comm/record.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/freed.h"
#include "base/memory.h"
#include "comm/device_buffers.h"
#include "comm/rank_report.h"

static ls_status reserve(ls_comm *comm, const ls_join_context *join) {
    const size_t size = (size_t)comm->size;
    size_t *numbers = ls_allocate_zeroed(LS_PLACE_ARRAYS * size, sizeof *numbers);
    comm->parts[0] = numbers;
    comm->prefix = ls_duplicate_string(join->prefix);
    if (numbers == NULL || comm->prefix == NULL) {
        return ls_fail_memory("ls_comm_open", LS_PLACE_ARRAYS * size * sizeof *numbers);
    }
    for (size_t i = 1; i < LS_PLACE_ARRAYS; i++) {
        comm->parts[i] = numbers + i * size;
    }
    return LS_OK;
}

int ls_comm_forks;

static void count_fork(void) {
    ls_comm_forks++;
}

static void watch_forks(void) {
    (void)pthread_atfork(NULL, NULL, count_fork); /* fails only if out of memory */
}

static void free_blocks(ls_comm *comm) {
    while (comm->blocks != NULL) {
        ls_comm_block *next = comm->blocks->next;
        ls_free(comm->blocks);
        comm->blocks = next;
    }
}

/* Everything but the record. */
static void empty(ls_comm *comm) {
    free_blocks(comm);
    ls_monitor_free(comm->monitor);
    comm->monitor = NULL;
    ls_free(comm->parts[0]);
    ls_free(comm->scratch);
    ls_free(comm->prefix);
    ls_free(comm->origins);
    comm->parts[0] = NULL;
    comm->scratch = NULL;
    comm->prefix = NULL;
    comm->origins = NULL;
    comm->store = NULL;
}

static void discard(ls_comm *comm) {
    empty(comm);
    free(comm);
}

ls_comm *ls_comm_make(const ls_backend *backend, const ls_join_context *join) {
    ls_comm *comm = calloc(1, sizeof *comm); /* for ls_keep_freed */
    if (comm == NULL) {
        (void)ls_fail_memory("ls_comm_open", sizeof *comm);
        return NULL;
    }
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    atomic_init(&comm->references, 1);
    comm->backend = backend;
    comm->forks = ls_comm_forks;
    comm->rank = join->rank;
    comm->size = join->size;
    comm->local_rank = join->local_rank;
    comm->local_size = join->local_size;
    comm->store = join->store;
    comm->timeout = join->timeout;
    comm->machine = join->machine;
    snprintf(comm->address, sizeof comm->address, "%s", join->address != NULL ? join->address : "");
    if (reserve(comm, join) != LS_OK) {
        discard(comm);
        return NULL;
    }
    return comm;
}

ls_comm *ls_comm_open(const ls_backend *backend, const ls_join_context *join) {
    if (join->size < 1 || join->rank < 0 || join->rank >= join->size) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_comm_open: rank %d of %d ranks does not exist", join->rank,
                            join->size);
    }
    ls_comm *comm = ls_comm_make(backend, join);
    if (comm != NULL && backend->open(join, &comm->state) != LS_OK) {
        discard(comm);
        return NULL;
    }
    return comm;
}

void ls_comm_on_free(ls_comm *comm, void (*function)(void *argument, bool failed), void *argument) {
    comm->on_free = function;
    comm->on_free_argument = argument;
}

bool ls_comm_is_inherited(const ls_comm *comm) {
    return comm->forks != ls_comm_forks;
}

void ls_comm_set_check(ls_comm *comm, uint64_t number) {
    comm->check = number;
}

void ls_comm_set_internal(ls_comm *comm) {
    comm->internal = true;
}

ls_comm *ls_comm_hold(ls_comm *comm) {
    atomic_fetch_add_explicit(&comm->references, 1, memory_order_relaxed);
    return comm;
}

void ls_comm_drop(ls_comm *comm) {
    if (comm == NULL || ls_comm_is_inherited(comm) ||
        atomic_fetch_sub_explicit(&comm->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (comm->state != NULL) {
        comm->backend->close(comm->state);
        comm->state = NULL;
    }
    empty(comm);
    ls_keep_freed(comm);
}

ls_status ls_comm_fail_missing(const char *call) {
    return ls_error_status() != LS_OK
               ? ls_fail_missing("%s: the communicator", call)
               : ls_fail(LS_ERR_ARGUMENT, "%s: the communicator is NULL; create it with ls_init or ls_comm_from_mpi",
                         call);
}

ls_status ls_comm_check_open(const char *call, const ls_comm *comm) {
    return comm->ended == NULL ? LS_OK : ls_fail(LS_ERR_STATE, "%s: %s", call, comm->ended);
}

int ls_comm_rank(const ls_comm *comm) {
    return comm == NULL ? -1 : comm->rank;
}

int ls_comm_size(const ls_comm *comm) {
    return comm == NULL ? 0 : comm->size;
}

int ls_comm_local_rank(const ls_comm *comm) {
    return comm == NULL ? -1 : comm->local_rank;
}

int ls_comm_local_size(const ls_comm *comm) {
    return comm == NULL ? 0 : comm->local_size;
}

const char *ls_comm_backend(const ls_comm *comm) {
    return comm == NULL ? "" : comm->backend->name;
}

bool ls_comm_takes(const ls_comm *comm, bool reduces, ls_dtype dtype, ls_reduction reduction) {
    return comm->size > 1 && comm->state != NULL && comm->backend->accepts_device_memory != NULL &&
           comm->backend->accepts_device_memory(comm->state, reduces, dtype, reduction);
}

void ls_comm_use_stream(ls_comm *comm, void *stream) {
    comm->stream = stream;
}

const char *ls_comm_algorithm(const ls_comm *comm) {
    const char *way = comm->backend->algorithm_name != NULL && comm->state != NULL
                          ? comm->backend->algorithm_name(comm->state)
                          : NULL;
    return way != NULL ? way : "-";
}

bool ls_comm_traffic(const ls_comm *comm, uint64_t *messages, uint64_t *bytes) {
    const bool counts = comm->backend->traffic != NULL && comm->state != NULL;
    if (counts) {
        comm->backend->traffic(comm->state, messages, bytes);
    }
    return counts;
}

ls_status ls_comm_check(const ls_comm *comm) {
    if (ls_comm_is_inherited(comm)) {
        return ls_fail(LS_ERR_STATE,
                       "this communicator belongs to rank %d, and process %d is a fork of that rank, not a rank; start "
                       "ranks with ls_spawn or lockstep run",
                       comm->rank, (int)getpid());
    }
    if (comm->failed != LS_OK) {
        ls_error_restore(comm->failed, comm->message);
    }
    return comm->failed;
}

ls_status ls_comm_refuse(const ls_comm *comm, ls_operation operation) {
    return comm->ended == NULL ? ls_comm_check(comm)
                               : ls_fail(LS_ERR_STATE, "ls_comm_%s: %s", ls_operation_name(operation), comm->ended);
}

/* Returns the rank's number in the world, or -1 if it is not known. */
static int world_rank(const ls_comm *comm, int rank) {
    const bool in_world = rank >= 0 && rank < comm->size && !comm->adopted;
    return !in_world ? -1 : comm->origins != NULL ? comm->origins[rank] : rank;
}

/* Stores a failure. `failed_rank` is a rank of this communicator: see ls_backend. */
static ls_status keep_failure(ls_comm *comm, ls_status status, int failed_rank) {
    comm->failed = status;
    memcpy(comm->message, ls_error_message(), sizeof comm->message);
    ls_rank_report_tell(status, world_rank(comm, failed_rank));
    return status;
}

ls_status ls_comm_abort_for(ls_comm *comm, ls_status status, int failed_rank) {
    (void)keep_failure(comm, status, failed_rank);
    if (comm->backend->abort != NULL && comm->state != NULL) {
        comm->backend->abort(comm->state, status, failed_rank);
    }
    return ls_comm_check(comm);
}

ls_status ls_comm_abort(ls_comm *comm, ls_status status) {
    return ls_comm_abort_for(comm, status, comm->rank);
}

void ls_comm_set_failed_rank(const ls_comm *comm, int failed_rank) {
    ls_rank_report_set_failed_rank(world_rank(comm, failed_rank));
}

/* A backend numbers ranks as its communicator does; users and the launcher number them as the world does. */
void ls_comm_tell_origins(const ls_comm *comm, ls_status status) {
    char text[LS_ERROR_CAPACITY], message[LS_ERROR_CAPACITY];
    if (comm->origins == NULL) {
        return;
    }
    size_t length = (size_t)snprintf(text, sizeof text, " (this communicator's ranks 0 to %d are %s ", comm->size - 1,
                                     comm->adopted ? "the MPI communicator's" : "the world's");
    int rank = 0;
    for (; rank < comm->size && length < sizeof text / 2; rank++) {
        length +=
            (size_t)snprintf(text + length, sizeof text - length, "%s%d", rank == 0 ? "" : ", ", comm->origins[rank]);
    }
    length += (size_t)snprintf(text + length, sizeof text - length, rank < comm->size ? ", ...)" : ")");
    snprintf(message, sizeof message, "%s", ls_error_message());
    if (strstr(message, text) == NULL && strlen(message) + length < sizeof message) {
        strcat(message, text);
        ls_error_restore(status, message);
    }
}

/* LS_ERR_MISMATCH and LS_ERR_MEMORY reach all ranks alike and leave them in step; any other failure revokes the
 * communicator. */
ls_status ls_comm_note_failure(ls_comm *comm, ls_status status) {
    const bool names_ranks = status == LS_ERR_PEER || status == LS_ERR_TIMEOUT || status == LS_ERR_MISMATCH;
    if (names_ranks) {
        ls_comm_tell_origins(comm, status);
    }
    const bool revokes = status != LS_ERR_MISMATCH && status != LS_ERR_MEMORY;
    const bool knows = revokes && comm->backend->failed_rank != NULL && comm->state != NULL;
    return revokes ? keep_failure(comm, status, knows ? comm->backend->failed_rank(comm->state) : -1) : status;
}

ls_status ls_comm_progress(ls_comm *comm, bool wait, bool *finished) {
    return ls_comm_note(comm, comm->backend->progress(comm->state, wait, finished));
}

ls_status ls_comm_test(ls_comm *comm, void *request, bool wait, bool *finished) {
    return ls_comm_note(comm, comm->backend->test(comm->state, request, wait, finished));
}

ls_status ls_comm_post(ls_comm *comm, const ls_call *call, void **request) {
    return ls_comm_note(comm, comm->backend->post(comm->state, call, request));
}
