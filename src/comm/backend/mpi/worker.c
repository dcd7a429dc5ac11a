/*
 * MPI calls that have no time limit. A thread cannot abandon such a call, so a worker thread makes it, and the calling
 * thread waits for the worker up to its own time limit.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/mpi/mpi.h"

#define LEAST_SECONDS 5 /* the minimum time limit, because MPI is slow on a busy machine */
#define WARN_SECONDS  5

/* A worker thread, its current task (if any), and the result of its last task. */
struct ls_mpi_worker {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool there;
    bool ends; /* the thread exits when it has no task */
    ls_mpi_task *task;
    void *argument;
    int code;
};

static void *run_tasks(void *argument) {
    ls_mpi_worker *own = argument;
    sigset_t all;
    pthread_mutex_lock(&own->lock);
    for (;;) {
        while (own->task == NULL && !own->ends) {
            pthread_cond_wait(&own->changed, &own->lock);
        }
        if (own->task == NULL) {
            break;
        }
        pthread_mutex_unlock(&own->lock);
        const int code = own->task(own->argument);
        sigfillset(&all); /* signals belong to the program; MPI's threads already exist, with the mask that they need */
        (void)pthread_sigmask(SIG_SETMASK, &all, NULL);
        pthread_mutex_lock(&own->lock);
        own->code = code;
        own->task = NULL;
        pthread_cond_broadcast(&own->changed);
    }
    pthread_mutex_unlock(&own->lock);
    return NULL;
}

static ls_status start(ls_mpi_worker *own) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&own->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    if (pthread_create(&own->thread, NULL, run_tasks, own) != 0) {
        pthread_cond_destroy(&own->changed);
        return ls_fail_memory("a thread for MPI", sizeof own->thread);
    }
    own->there = true;
    return LS_OK;
}

/* Waits, with the lock held, until the task has finished or `seconds` have passed. Returns true if the task has
 * finished. */
static bool await(ls_mpi_worker *own, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const long nanoseconds = until.tv_nsec + (long)((seconds - (double)(long)seconds) * 1e9);
    until.tv_sec += (time_t)seconds + nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;
    while (own->task != NULL && pthread_cond_timedwait(&own->changed, &own->lock, &until) != ETIMEDOUT) {
    }
    return own->task == NULL;
}

ls_status ls_mpi_worker_run(ls_mpi_worker *own, ls_mpi_task *task, void *argument, const char *name, double timeout) {
    const double longest = timeout > LEAST_SECONDS ? timeout : LEAST_SECONDS;
    double waited = 0;
    bool ended = false;
    pthread_mutex_lock(&own->lock);
    own->argument = argument;
    own->task = task;
    pthread_cond_broadcast(&own->changed);
    while (!ended && waited < longest) {
        if (waited > 0) {
            ls_log_write(LS_LOG_WARNING,
                         "still waiting in %s after %g s: the call returns when every rank has made it; MPI does not "
                         "report which ranks have not",
                         name, waited);
        }
        /* Waits in short steps: if this process is stopped for some time, only one step of the wait is lost. */
        const double step = longest - waited < WARN_SECONDS ? longest - waited : WARN_SECONDS;
        ended = await(own, step);
        waited += step;
    }
    const int code = own->code;
    pthread_mutex_unlock(&own->lock);
    if (!ended) {
        ls_mpi_note_failure();
        return ls_fail(
            LS_ERR_TIMEOUT,
            "%s did not finish within %g s: a rank of this job has not called it, and MPI does not report which", name,
            longest);
    }
    return code == MPI_SUCCESS ? LS_OK : ls_mpi_fail(name, code);
}

ls_status ls_mpi_in_first_thread(ls_mpi_task *task, const char *name, double timeout) {
    static ls_mpi_worker first = {.lock = PTHREAD_MUTEX_INITIALIZER};
    if (!first.there) {
        LS_TRY(start(&first));
        pthread_detach(first.thread);
    }
    return ls_mpi_worker_run(&first, task, NULL, name, timeout);
}

ls_mpi_worker *ls_mpi_worker_start(void) {
    ls_mpi_worker *own = ls_allocate_zeroed(1, sizeof *own);
    if (own == NULL) {
        (void)ls_fail_memory("a thread for MPI", sizeof *own);
        return NULL;
    }
    pthread_mutex_init(&own->lock, NULL);
    if (start(own) != LS_OK) {
        pthread_mutex_destroy(&own->lock);
        ls_free(own);
        return NULL;
    }
    return own;
}

void ls_mpi_worker_end(ls_mpi_worker *own) {
    if (own == NULL) {
        return;
    }
    pthread_mutex_lock(&own->lock);
    own->ends = true;
    pthread_cond_broadcast(&own->changed);
    pthread_mutex_unlock(&own->lock);
    pthread_join(own->thread, NULL);
    pthread_cond_destroy(&own->changed);
    pthread_mutex_destroy(&own->lock);
    ls_free(own);
}
