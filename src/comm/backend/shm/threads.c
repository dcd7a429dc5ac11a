/* ls_run_threads: ranks that are threads of this process, over ordinary memory. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "comm/backend/shm/shm.h"
#include "comm/comm.h"
#include "comm/reduce.h"
#include "comm/rendezvous.h"

typedef struct thread_rank {
    pthread_t thread;
    ls_join_context join;
    ls_rank_function function;
    void *argument;
    pthread_mutex_t *gate; /* held until all threads exist */
    const bool *cancelled;
    atomic_int *failures; /* of all ranks */
    int failure;          /* position of this rank's failure in the order of failures, from 1; 0 if it has not failed */
    ls_status status;
    char message[LS_ERROR_CAPACITY];
} thread_rank;

/* Called when the function has freed its world itself. */
static void note_freed(void *freed, bool failed) {
    (void)failed;
    *(bool *)freed = true;
}

static ls_status run_rank(thread_rank *self) {
    ls_comm *world = ls_comm_open(&ls_backend_shm, &self->join);
    if (world == NULL) { /* the other ranks must not wait for this rank */
        self->failure = ++*self->failures;
        ls_shm absent = {.rank = self->join.rank, .size = self->join.size, .file = -1};
        (void)ls_shm_layout(&absent, self->join.shared);
        ls_shm_leave(&absent, LS_LEAVE_FREED);
        return ls_error_status();
    }
    bool freed = false;
    ls_comm_on_free(world, note_freed, &freed);
    ls_log_set_rank(self->join.rank);
    const uint32_t errors = ls_error_count;
    const ls_status status = self->function(world, self->argument);
    if (status != LS_OK && ls_error_count == errors) {
        (void)ls_fail(status, "ls_run_threads: rank %d of %d: its function returned %s", self->join.rank,
                      self->join.size, ls_status_name(status));
    }
    self->failure = status != LS_OK ? ++*self->failures : 0; /* before other ranks detect its exit and fail */
    ls_saved_error cause;
    ls_error_save(&cause);
    cause.status = status; /* the function may not have set an error */
    if (!freed) {
        ls_comm_free(world);
    }
    (void)ls_error_put_back(&cause);
    return status;
}

static void *rank_main(void *argument) {
    thread_rank *self = argument;
    pthread_mutex_lock(self->gate);
    const bool cancelled = *self->cancelled;
    pthread_mutex_unlock(self->gate);
    if (!cancelled) {
        self->status = run_rank(self);
        memcpy(self->message, ls_error_message(), sizeof self->message);
    }
    return NULL;
}

/* Reports the error of the rank that failed first, because it may be the cause of the other errors. */
static ls_status report(const thread_rank *ranks, int count) {
    const thread_rank *first = NULL;
    for (int rank = 0; rank < count; rank++) {
        if (ranks[rank].failure != 0 && (first == NULL || ranks[rank].failure < first->failure)) {
            first = &ranks[rank];
        }
    }
    if (first == NULL) {
        return LS_OK;
    }
    ls_error_restore(first->status, first->message);
    return first->status;
}

/* Starts all threads. If this fails, no thread runs the function. */
static ls_status start_and_wait(thread_rank *ranks, int count) {
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    bool cancelled = false;
    atomic_int failures = 0;
    int started = 0;
    int failure = 0;
    pthread_mutex_lock(&gate);
    while (started < count && failure == 0) {
        ranks[started].gate = &gate;
        ranks[started].cancelled = &cancelled;
        ranks[started].failures = &failures;
        failure = pthread_create(&ranks[started].thread, NULL, rank_main, &ranks[started]);
        started += failure == 0;
    }
    cancelled = failure != 0;
    pthread_mutex_unlock(&gate);
    for (int rank = 0; rank < started; rank++) {
        pthread_join(ranks[rank].thread, NULL);
    }
    if (failure != 0) {
        return ls_fail(LS_ERR_IO, "ls_run_threads: cannot start thread %d of %d: %s", started, count,
                       strerror(failure));
    }
    return report(ranks, count);
}

ls_status ls_run_threads(int count, ls_rank_function function, void *argument) {
    if (count < 1 || count > LS_REDUCE_MAX_RANKS) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_run_threads: ranks is %d, but must be from 1 to %d", count,
                       LS_REDUCE_MAX_RANKS);
    }
    if (function == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_run_threads: the function is NULL");
    }
    double timeout = 0;
    if (ls_timeout_read(&(ls_init_options){0}, &timeout) != LS_OK) {
        return ls_fail_in("ls_run_threads");
    }
    ls_shm layout = {.size = count};
    const size_t bytes = ls_shm_layout(&layout, NULL);
    void *shared = ls_allocate_aligned(bytes, 4096);
    thread_rank *ranks = ls_allocate_zeroed((size_t)count, sizeof *ranks);
    ls_status status = LS_OK;
    if (shared == NULL || ranks == NULL) {
        status = ls_fail_memory("ls_run_threads", bytes);
    } else {
        memset(shared, 0, bytes);
        (void)ls_shm_layout(&layout, shared);
        (void)ls_shm_hold_world(layout.control);
        for (int rank = 0; rank < count; rank++) {
            ranks[rank].function = function;
            ranks[rank].argument = argument;
            ranks[rank].join = (ls_join_context){.rank = rank,
                                                 .size = count,
                                                 .local_rank = rank,
                                                 .local_size = count,
                                                 .prefix = "",
                                                 .timeout = timeout,
                                                 .shared = shared};
        }
        status = start_and_wait(ranks, count);
        ls_shm_drop_world(layout.control);
        shared = NULL;
    }
    ls_free(shared);
    ls_free(ranks);
    return status;
}
