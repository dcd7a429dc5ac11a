/*
 * Backend mpi: the interface between its files. The engine (comm/engine) makes all calls over messages of MPI
 * (comm/transport/mpi). So every wait has a time limit, sums have the order that lockstep/comm.h states, and ranks that
 * disagree get an error. MPI's own collectives guarantee none of this: the engine uses them only for calls that all
 * ranks have agreed on and whose order is free.
 *
 * process.c starts and finalizes MPI. meet.c waits until all ranks are present. worker.c makes calls of MPI that have
 * no time limit. mpi.c opens, splits and closes communicators. Each communicator of Lockstep has its own MPI
 * communicator.
 */
#ifndef LS_COMM_BACKEND_MPI_H
#define LS_COMM_BACKEND_MPI_H

#include <mpi.h>
#include <sched.h>

#include "comm/backend.h"
#include "comm/transport/mpi/mpi.h"

/* ---- process.c --------------------------------------------------------------------------------------------------- */

/* Starts MPI unless the program has started it, and duplicates MPI_COMM_WORLD, once per process. Each step waits at
 * most `timeout` seconds. */
ls_status ls_mpi_join(double timeout);

/* Returns the duplicate of MPI_COMM_WORLD, on which ranks meet. */
MPI_Comm ls_mpi_world(void);

/* Notes that the ranks of the world did not meet in time: later attempts fail. */
void ls_mpi_lose_world(void);

/* Returns true if MPI is initialized and not finalized. */
bool ls_mpi_runs(void);

/* Registers a function that MPI_Finalize calls first: it receives the last messages of closed endpoints, and notifies
 * open endpoints. */
ls_status ls_mpi_watch_finalize(void);

/* Returns the size in bytes of the largest message that this process sends eagerly, without MPI's own header. */
size_t ls_mpi_unasked(void);

/* Note how the process must exit: see leave_mpi. A call of MPI that timed out and may still run is a failure, too. */
void ls_mpi_count_world(int change);
void ls_mpi_note_exit(void);
void ls_mpi_note_failure(void);

/* Waits 2 s before the launcher ends the other ranks: they learn of the failure and report which rank they waited for.
 */
void ls_mpi_await_reports(void);

/* ---- meet.c ------------------------------------------------------------------------------------------------------ */

/* What each rank sends to the others in a meeting. */
typedef struct ls_mpi_greeting {
    uint64_t here; /* ls_mpi_meet fills in this and `host` */
    uint64_t machine;
    int64_t unasked;
    int64_t launcher;             /* the rank's connection, see process.c */
    ls_mpi_reductions reductions; /* the reductions that the rank's MPI computes correctly */
    cpu_set_t cores;              /* the cores that the rank may run on */
    char host[64];
} ls_mpi_greeting;

/* Waits for all ranks of `comm`, which all call this, and stores their greetings in `*all`; the caller frees the array
 * with ls_free. Every 5 s, a warning names the missing ranks. Fails with LS_ERR_TIMEOUT, naming them, after `timeout`
 * seconds. `comm` then cannot be used: the exchange is still in progress. */
ls_status ls_mpi_meet(MPI_Comm comm, const ls_mpi_greeting *own, double timeout, ls_mpi_greeting **all);

/* Duplicates `comm` after its ranks have met. If this fails, MPI may still write to `*duplicate`. */
ls_status ls_mpi_duplicate(MPI_Comm comm, double timeout, MPI_Comm *duplicate);

/* ---- worker.c ---------------------------------------------------------------------------------------------------- */

/* Returns an MPI error code. */
typedef int ls_mpi_task(void *argument);

/* Runs `task` in a thread and waits for `timeout` seconds, but at least 5 s. `name` is the task's name in messages.
 * After LS_ERR_TIMEOUT, the task still runs. The thread is the same in all calls, because MPI requires one thread for
 * some calls. Only one thread may call this at a time, and none after LS_ERR_TIMEOUT. */
ls_status ls_mpi_in_first_thread(ls_mpi_task *task, const char *name, double timeout);

/* Does the same in a new thread. ls_mpi_worker_start returns NULL on failure. After LS_ERR_TIMEOUT, do not call
 * ls_mpi_worker_end. */
typedef struct ls_mpi_worker ls_mpi_worker;
ls_mpi_worker *ls_mpi_worker_start(void);
ls_status ls_mpi_worker_run(ls_mpi_worker *worker, ls_mpi_task *task, void *argument, const char *name, double timeout);
void ls_mpi_worker_end(ls_mpi_worker *worker);

#endif
