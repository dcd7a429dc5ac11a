/*
 * How ranks meet where there is no wire between them yet, or no communicator on it any more: with an end to waiting and
 * the names of those who do not come. Messages would mix with the program's own on a communicator of its own; so this
 * is a nonblocking exchange of all with all, in which every MPI library here has each rank send to each other one
 * directly: a rank whose greeting is here has come. Starting and ending MPI cannot be given up by the thread that is in
 * it, therefore another one does both: MPI wants them from the same one.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/mpi/mpi.h"
#include "comm/store_roster.h"

#define LEAST_SECONDS 5 /* that MPI may need at least to start or to end, on a busy machine */
#define WARN_SECONDS  5
#define LOOKS         2000 /* then this rank naps */
#define NAP_NS        50000
#define STOPPED_NS    UINT64_C(100000000) /* between two looks of a process that runs is less */

/* Time that passed while this process ran. */
typedef struct stopwatch {
    unsigned looks;
    uint64_t looked_ns;
    uint64_t waited_ns;
    uint64_t warned_ns;
} stopwatch;

/* A pause after a look in vain; whether it is time for a warning. */
static bool rest(stopwatch *watch) {
    const uint64_t now = ls_clock_ns();
    const uint64_t since = watch->looked_ns != 0 ? now - watch->looked_ns : 0;
    watch->waited_ns += since < STOPPED_NS ? since : STOPPED_NS;
    watch->looked_ns = now;
    if (++watch->looks > LOOKS) {
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    } else {
        sched_yield();
    }
    const bool warns = watch->waited_ns - watch->warned_ns >= (uint64_t)WARN_SECONDS * 1000000000;
    watch->warned_ns = warns ? watch->waited_ns : watch->warned_ns;
    return warns;
}

static ls_status look(MPI_Request *request, const char *function, bool *ended) {
    int done = 0;
    const int code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
    *ended = done != 0;
    return code == MPI_SUCCESS ? LS_OK : ls_mpi_fail("ls_comm_open", function, code);
}

/* ---- greetings -----------------------------------------------------------------------------------------------------
 */

/* A meeting under way. MPI writes to it until the request has ended, which may be never. */
typedef struct meeting {
    ls_mpi_greeting own;
    ls_mpi_greeting *all;
    int *numbers; /* what MPI wants to know: bytes for each rank, where they are, where they come */
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

/* Who has come. MPI still writes where this looks: at worst somebody is missed who comes just now. */
static const ls_roster *call_roll(meeting *here, int rank) {
    for (int other = 0; other < here->roster.size; other++) {
        const volatile ls_mpi_greeting *greeting = &here->all[other];
        if (other == rank || greeting->here != 0) {
            ls_card *card = &here->roster.cards[other];
            here->roster.states[other] = LS_RANK_HERE;
            snprintf(card->host, sizeof card->host, "%s", other == rank ? here->own.host : here->all[other].host);
        }
    }
    return &here->roster;
}

static ls_status await(meeting *here, MPI_Request *request, int rank, double timeout) {
    stopwatch watch = {0};
    for (;;) {
        bool ended = false;
        LS_TRY(look(request, "MPI_Ialltoallv", &ended));
        if (ended) {
            return LS_OK;
        }
        if (rest(&watch)) {
            ls_roster_report_missing(call_roll(here, rank));
        }
        if ((double)watch.waited_ns > timeout * 1e9) {
            return ls_roster_fail_missing(call_roll(here, rank), timeout);
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
    const ls_status status = code == MPI_SUCCESS ? await(here, &request, rank, timeout)
                                                 : ls_mpi_fail("ls_comm_open", "MPI_Ialltoallv", code);
    if (status != LS_OK) { /* what MPI may still write to stays */
        ls_mpi_note_failure();
        return status;
    }
    *all = here->all;
    here->all = NULL;
    discard(here);
    return LS_OK;
}

/* ---- duplicates ----------------------------------------------------------------------------------------------------
 */

ls_status ls_mpi_duplicate(MPI_Comm comm, double timeout, MPI_Comm *duplicate) {
    MPI_Request request = MPI_REQUEST_NULL;
    stopwatch watch = {0};
    bool ended = false;
    const int code = MPI_Comm_idup(comm, duplicate, &request);
    if (code != MPI_SUCCESS) {
        return ls_mpi_fail("ls_comm_open", "MPI_Comm_idup", code);
    }
    LS_TRY(look(&request, "MPI_Comm_idup", &ended));
    while (!ended) {
        (void)rest(&watch);
        if ((double)watch.waited_ns > timeout * 1e9) {
            return ls_fail(LS_ERR_TIMEOUT,
                           "all ranks came, but MPI_Comm_idup did not end within %g s: one of them was stopped or lost "
                           "since, which MPI does not name",
                           timeout);
        }
        LS_TRY(look(&request, "MPI_Comm_idup", &ended));
    }
    return LS_OK;
}

/* ---- calls that know no end to waiting -----------------------------------------------------------------------------
 */

/* The thread that starts MPI and ends it: what it has to do now, if anything, and the outcome of the last such thing.
 */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool there;
    int (*task)(void);
    int code;
} worker = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *run_tasks(void *argument) {
    sigset_t all;
    pthread_mutex_lock(&worker.lock);
    for (;;) {
        while (worker.task == NULL) {
            pthread_cond_wait(&worker.changed, &worker.lock);
        }
        pthread_mutex_unlock(&worker.lock);
        const int code = worker.task();
        sigfillset(&all); /* signals are the program's; threads of MPI's own were made by now, as MPI wants them */
        (void)pthread_sigmask(SIG_SETMASK, &all, NULL);
        pthread_mutex_lock(&worker.lock);
        worker.code = code;
        worker.task = NULL;
        pthread_cond_broadcast(&worker.changed);
    }
    return argument;
}

static ls_status start_worker(void) {
    pthread_t thread;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&worker.changed, &attributes);
    pthread_condattr_destroy(&attributes);
    if (pthread_create(&thread, NULL, run_tasks, NULL) != 0) {
        return ls_fail_memory("ls_comm_open", sizeof thread);
    }
    worker.there = true;
    pthread_detach(thread);
    return LS_OK;
}

/* Waits, with the lock, until the task has ended or so many seconds are over; whether it has ended. */
static bool await_worker(double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const long nanoseconds = until.tv_nsec + (long)((seconds - (double)(long)seconds) * 1e9);
    until.tv_sec += (time_t)seconds + nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;
    while (worker.task != NULL && pthread_cond_timedwait(&worker.changed, &worker.lock, &until) != ETIMEDOUT) {
    }
    return worker.task == NULL;
}

ls_status ls_mpi_in_thread(int (*task)(void), const char *name, double timeout) {
    const double longest = timeout > LEAST_SECONDS ? timeout : LEAST_SECONDS;
    double waited = 0;
    bool ended = false;
    if (!worker.there) {
        LS_TRY(start_worker());
    }
    pthread_mutex_lock(&worker.lock);
    worker.task = task;
    pthread_cond_broadcast(&worker.changed);
    while (!ended && waited < longest) {
        if (waited > 0) {
            ls_log_write(LS_LOG_WARNING,
                         "waiting in %s for %g s: it ends when every rank of the job has come to it, and does not say "
                         "who has not",
                         name, waited);
        }
        /* By steps, of which time while this process was stopped lengthens none but one. */
        const double step = longest - waited < WARN_SECONDS ? longest - waited : WARN_SECONDS;
        ended = await_worker(step);
        waited += step;
    }
    const int code = worker.code;
    pthread_mutex_unlock(&worker.lock);
    if (!ended) {
        return ls_fail(LS_ERR_TIMEOUT,
                       "%s did not end within %g s: some rank of this job has not come to it, and MPI does not say "
                       "which",
                       name, longest);
    }
    return code == MPI_SUCCESS ? LS_OK : ls_mpi_fail("ls_comm_open", name, code);
}
