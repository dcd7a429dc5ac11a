/*
 * Backend mpi: the interface between its files. The engine (comm/engine) implements all calls with MPI messages
 * (comm/transport/mpi). Therefore every wait has a time limit, sums have the order stated in lockstep/comm.h, and ranks
 * whose calls differ get an error. MPI's own collectives guarantee none of this: the engine uses them only after all
 * ranks have agreed on the call, and only if its order is free.
 *
 * process.c starts and finalizes MPI. meet.c waits until all ranks are present. worker.c makes MPI calls that have no
 * time limit. mpi.c opens, splits and closes communicators. Each Lockstep communicator has its own MPI communicator.
 */
#ifndef LS_COMM_BACKEND_MPI_H
#define LS_COMM_BACKEND_MPI_H

#include <mpi.h>
#include <sched.h>

#include "comm/backend.h"
#include "comm/transport/mpi/mpi.h"

/* ---- process.c --------------------------------------------------------------------------------------------------- */

/* Starts MPI unless the program has started it, and duplicates MPI_COMM_WORLD. Happens only once per process. Each
 * step waits at most `timeout` seconds. */
ls_status ls_mpi_join(double timeout);

/* Returns the duplicate of MPI_COMM_WORLD, over which ranks meet. */
MPI_Comm ls_mpi_world(void);

/* Records that the ranks of the world did not meet in time: later attempts fail. */
void ls_mpi_lose_world(void);

/* Returns true if MPI is initialized and not finalized. */
bool ls_mpi_runs(void);

/* Registers a function that MPI_Finalize calls first. It calls `ends`, receives the last messages of closed endpoints,
 * and notifies open endpoints. `ends` may be NULL. */
ls_status ls_mpi_watch_finalize(void (*ends)(void));

/* Returns the size in bytes, without MPI's own header, of the largest message that this process sends eagerly. */
size_t ls_mpi_unasked(void);

/* Record how the process must exit: see leave_mpi. An MPI call that timed out and may still be running is a failure,
 * too. */
void ls_mpi_count_world(int change);
void ls_mpi_note_exit(void);
void ls_mpi_note_failure(void);

/* Waits 2 s, so that the other ranks detect the failure and report which rank they waited for before the launcher
   terminates them. */
void ls_mpi_await_reports(void);

/* ---- meet.c ------------------------------------------------------------------------------------------------------ */

/* The data that each rank sends to the others when the ranks of a communicator meet. */
typedef struct ls_mpi_greeting {
    uint64_t here; /* set by ls_mpi_meet, like `host` */
    uint64_t machine;
    int64_t unasked;
    int64_t launcher;             /* the rank's connection to the launcher: see process.c */
    ls_mpi_reductions reductions; /* the reductions that the rank's MPI computes correctly */
    cpu_set_t cores;              /* the cores that the rank may run on */
    char host[64];
} ls_mpi_greeting;

/* Waits for all ranks of `comm`, all of which call this function, and stores their greetings in `*all`; the caller
 * frees the array with ls_free. Every 5 s, logs a warning that names the missing ranks. After `timeout` seconds,
 * fails with LS_ERR_TIMEOUT and names them. `comm` can no longer be used then, because the exchange is still in
 * progress. */
ls_status ls_mpi_meet(MPI_Comm comm, const ls_mpi_greeting *own, double timeout, ls_mpi_greeting **all);

/* Duplicates `comm` after its ranks have met. If this fails, MPI may still write to `*duplicate`. */
ls_status ls_mpi_duplicate(MPI_Comm comm, double timeout, MPI_Comm *duplicate);

/* ---- worker.c ---------------------------------------------------------------------------------------------------- */

/* Returns an MPI error code. */
typedef int ls_mpi_task(void *argument);

/* Runs `task` in a thread and waits for `timeout` seconds, but at least 5 s. `name` is the task's name in messages.
 * After LS_ERR_TIMEOUT, the task is still running. All calls use the same thread, because MPI requires some calls to
 * be made by the same thread. Only one thread at a time may call this function, and it must not be called after
 * LS_ERR_TIMEOUT. */
ls_status ls_mpi_in_first_thread(ls_mpi_task *task, const char *name, double timeout);

/* A new thread: ls_mpi_worker_run runs a task in it, with the same rules as ls_mpi_in_first_thread. ls_mpi_worker_start
 * returns NULL on failure. After LS_ERR_TIMEOUT, do not call ls_mpi_worker_end. */
typedef struct ls_mpi_worker ls_mpi_worker;
ls_mpi_worker *ls_mpi_worker_start(void);
ls_status ls_mpi_worker_run(ls_mpi_worker *worker, ls_mpi_task *task, void *argument, const char *name, double timeout);
void ls_mpi_worker_end(ls_mpi_worker *worker);

#endif
