#include <pthread.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/threads.h"
#include "comm/comm.h"
#include "comm/rank_report.h"
#include "comm/rendezvous.h"
#include "comm/separate.h"

/* A world and the store that its ranks met in. */
typedef struct membership {
    ls_comm *comm;     /* NULL after another thread has freed it */
    ls_store *store;   /* NULL for a world of one rank */
    ls_comm *launcher; /* see ls_rendezvous_result */
    bool failed;       /* to end well */
} membership;

static _Thread_local membership *mine;

/* Returns the world of this thread; NULL if the thread has no world. A forked child of a rank has no world, and does
 * not change the rank's world. */
static membership *current(void) {
    if (mine != NULL && mine->comm != NULL && ls_comm_is_inherited(mine->comm)) {
        mine = NULL;
    }
    if (mine != NULL && mine->comm == NULL) {
        ls_free(mine);
        mine = NULL;
        ls_log_set_rank(-1);
    }
    return mine;
}

/* The last step of freeing a world. Until now, the store on rank 0 has served the other ranks. */
static void end_membership(void *argument, bool failed) {
    membership *ended = argument;
    ls_store_close(ended->store);
    if (!failed && !ended->failed) {
        ls_comm_free(ended->launcher);
    } /* otherwise it stays open: MPI is not finalized, because this may block forever, and its launcher terminates the
         others */
    ended->comm = NULL;
    (void)current(); /* if the world belongs to another thread, that thread detects the change at its next call */
}

/*
 * Runs when a process exits that is still a rank. Notifies the other ranks, and logs a warning if the exit status
 * reports success; a failed process has already reported its error. An exit without handlers is detected as a death by
 * the other ranks. on_exit (GNU) provides the exit status, which atexit does not.
 */
static void end_without_finalize(int status, void *argument) {
    (void)argument;
    if (status != 0 && ls_error_status() != LS_OK) {
        ls_rank_report_tell(ls_error_status(), -1);
    }
    const membership *left = current();
    if (left != NULL && ls_comm_size(left->comm) > 1 && ls_comm_check(left->comm) == LS_OK) {
        if (status == 0) {
            ls_log_write(LS_LOG_WARNING,
                         "rank %d ended without ls_finalize: ranks that wait for it fail. Call ls_finalize on every "
                         "rank before the program ends",
                         ls_comm_rank(left->comm));
        }
        ls_comm_leave(left->comm, LS_LEAVE_EXITED);
    }
}

static void watch_exit(void) {
    (void)on_exit(end_without_finalize, NULL); /* fails only if out of memory */
}

/* Warns once per machine, because OpenMP silently ignores such a value. */
static void warn_of_threads(int local_rank) {
    if (local_rank == 0 && ls_threads_from_environment() == LS_THREADS_WRONG) {
        ls_log_write(LS_LOG_WARNING,
                     "OMP_NUM_THREADS=%s is not a number of threads, and is ignored: each rank uses its share of the "
                     "cores",
                     getenv("OMP_NUM_THREADS"));
    }
}

/*
 * The launcher reads standard output through a pipe. The C library would write only full blocks, so lines would arrive
 * late, and a killed rank would lose lines. An unbuffered stream stays unbuffered.
 */
static void print_by_lines(void) {
    struct stat output;
    if (__fbufsize(stdout) != 1 && fstat(STDOUT_FILENO, &output) == 0 &&
        (S_ISFIFO(output.st_mode) || S_ISSOCK(output.st_mode))) {
        (void)setvbuf(stdout, NULL, _IOLBF, 0);
    }
}

/* Opens the world communicator. Takes ownership of the store. */
static ls_comm *open_world(const ls_job *job, const ls_rendezvous_result *meeting) {
    const ls_join_context join = {.rank = job->rank,
                                  .size = job->size,
                                  .local_rank = meeting->local_rank,
                                  .local_size = meeting->local_size,
                                  .store = meeting->store,
                                  .prefix = "world/",
                                  .timeout = job->timeout,
                                  .machine = meeting->machine,
                                  .address = meeting->address};
    membership *joined = ls_allocate_zeroed(1, sizeof *joined);
    if (joined == NULL) {
        ls_fail_memory("ls_init", sizeof *joined);
    } else {
        *joined = (membership){
            .comm = ls_comm_open(meeting->backend, &join), .store = meeting->store, .launcher = meeting->launcher};
    }
    if (joined == NULL || joined->comm == NULL) {
        ls_saved_error cause;
        ls_error_save(&cause);
        ls_store_close(meeting->store);
        ls_comm_free(meeting->launcher);
        ls_free(joined);
        (void)ls_error_put_back(&cause);
        return NULL;
    }
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_exit);
    mine = joined;
    ls_comm_on_free(joined->comm, end_membership, joined);
    if (job->progress_thread && ls_comm_drive(joined->comm) != LS_OK) {
        ls_comm_free(joined->comm);
        return NULL;
    }
    ls_threads_share(meeting->local_size);
    warn_of_threads(meeting->local_rank);
    if (job->launched) {
        print_by_lines();
    }
    ls_log_set_rank(job->rank);
    return joined->comm;
}

ls_comm *ls_init_job(const ls_job *job) {
    ls_rendezvous_result meeting;
    ls_joined();
    if (current() != NULL) {
        return ls_fail_null(LS_ERR_STATE, "this thread is already rank %d of %d; call ls_finalize first",
                            ls_comm_rank(mine->comm), ls_comm_size(mine->comm));
    }
    ls_saved_error earlier;
    ls_error_save(&earlier);
    ls_comm *comm = ls_rendezvous(job, &meeting) == LS_OK ? open_world(job, &meeting) : NULL;
    if (comm != NULL) { /* failed attempts before the other ranks arrived are not failures of this call */
        (void)ls_error_put_back(&earlier);
    }
    return comm;
}

ls_comm *ls_init(const ls_init_options *options) {
    ls_job job;
    ls_comm *comm = NULL;
    if (ls_job_read(&job, options) == LS_OK) {
        ls_rank_report_open(job.rank);
        comm = ls_init_job(&job);
    }
    if (comm == NULL) {
        ls_rank_report_tell(ls_fail_in("ls_init"), -1);
    }
    return comm;
}

ls_comm *ls_world(void) {
    return current() != NULL ? mine->comm : NULL;
}

static bool advance_sends(void *world) {
    return ls_comm_advance_sends(world);
}

/* Waits until all ranks have arrived here. */
static ls_status await_leaving(const membership *left) {
    if (left->store != NULL) {
        LS_TRY(ls_store_leave_while(left->store, advance_sends, left->comm));
    } else if (ls_comm_size(left->comm) > 1) { /* the ranks met without a store */
        LS_TRY(ls_comm_meet_leaving(left->comm));
    }
    /* A program may have finalized MPI too early, even if MPI is no longer needed. */
    return ls_comm_check_allowed(left->launcher != NULL ? left->launcher : left->comm);
}

ls_status ls_finalize(void) {
    if (current() == NULL) {
        return LS_OK;
    }
    ls_saved_error cause;
    ls_warn_if_separate(mine->comm);
    ls_comm_leave(mine->comm, LS_LEAVE_FINALIZED);
    ls_status status = await_leaving(mine);
    ls_comm_withdraw_sends(mine->comm);
    if (status != LS_OK) {
        status = ls_fail_in("ls_finalize");
        ls_rank_report_tell(status, -1);
        ls_error_save(&cause);
        mine->failed = true;
    }
    ls_comm_end(mine->comm, "ls_finalize has left the job");
    if (status != LS_OK) {
        (void)ls_error_put_back(&cause);
    }
    return status;
}
