/*
 * The inside of backend mpi: what its files share. The engine makes all calls (comm/collective) over messages of MPI
 * (comm/transport/mpi), so that every wait has an end, sums have the order that lockstep/comm.h names, and ranks that
 * disagree are told so; MPI's own collectives promise none of this, so that the engine uses them only for what is
 * agreed on and may have any order. Here is how MPI starts and ends.
 *
 * process.c starts MPI and leaves it; meet.c waits for all ranks to come; worker.c makes calls of MPI that know no end
 * to waiting; mpi.c opens, divides and closes. MPI makes a communicator for each of Lockstep's.
 */
#ifndef LS_COMM_BACKEND_MPI_H
#define LS_COMM_BACKEND_MPI_H

#include <mpi.h>
#include <sched.h>

#include "comm/backend.h"
#include "comm/transport/mpi/mpi.h"

/* ---- process.c -----------------------------------------------------------------------------------------------------
 */

/* Starts MPI unless the program has, and duplicates the world's communicator. Waits once in a process, at most
 * `timeout` seconds for each step. */
ls_status ls_mpi_join(double timeout);

/* The duplicate, on which ranks meet. */
MPI_Comm ls_mpi_world(void);

/* The ranks of the world did not meet in time, and so never will. */
void ls_mpi_lose_world(void);

/* Whether MPI is initialized and not finalized. */
bool ls_mpi_runs(void);

/* Has MPI_Finalize take in the last messages of endpoints that have closed, and tells endpoints of it. */
ls_status ls_mpi_watch_finalize(void);

/* Bytes of the largest message that this process sends without asking the receiver, without MPI's own header. */
size_t ls_mpi_unasked(void);

/* How the process has to end: see leave_mpi. A failure also is a call of MPI that may go on. */
void ls_mpi_count_world(int change);
void ls_mpi_note_exit(void);
void ls_mpi_note_failure(void);

/* The launcher ends the others soon: waits 2 s, in which they learn of it, and say for whom they waited. */
void ls_mpi_await_reports(void);

/* ---- meet.c --------------------------------------------------------------------------------------------------------
 */

/* What a rank tells the others when they meet. */
typedef struct ls_mpi_greeting {
    uint64_t here; /* filled in, as is the host */
    uint64_t machine;
    int64_t unasked;
    int64_t launcher;             /* its connection, see process.c */
    int32_t own;                  /* an ls_own_collectives, or -1: what LOCKSTEP_MPI_COLLECTIVES says is none */
    ls_mpi_reductions reductions; /* that its MPI computes correctly */
    cpu_set_t cores;              /* that it may run on */
    char host[64];
} ls_mpi_greeting;

/* Waits for all ranks of `comm`, which all call this, and gives what each of them said, to be freed by the caller.
 * Warns every 5 s of those who are missing; LS_ERR_TIMEOUT naming them after so many seconds. `comm` is of no use then:
 * the exchange is still under way. */
ls_status ls_mpi_meet(MPI_Comm comm, const ls_mpi_greeting *own, double timeout, ls_mpi_greeting **all);

/* MPI_Comm_dup by ranks that just met. Where this fails MPI may still write to `*duplicate`. */
ls_status ls_mpi_duplicate(MPI_Comm comm, double timeout, MPI_Comm *duplicate);

/* ---- worker.c ------------------------------------------------------------------------------------------------------
 */

/* Gives an MPI error code. */
typedef int ls_mpi_task(void *argument);

/* Has a thread do `task`, which is called `name`, and waits for it: so many seconds, or 5 if that is less.
 * LS_ERR_TIMEOUT: the task goes on all the same, with its argument. This thread is always the same, for what MPI wants
 * from one thread: one at a time calls this, and after LS_ERR_TIMEOUT nobody. */
ls_status ls_mpi_in_first_thread(ls_mpi_task *task, const char *name, double timeout);

/* The same in a thread of one's own. NULL and an error. After LS_ERR_TIMEOUT it must not be ended. */
typedef struct ls_mpi_worker ls_mpi_worker;
ls_mpi_worker *ls_mpi_worker_start(void);
ls_status ls_mpi_worker_run(ls_mpi_worker *worker, ls_mpi_task *task, void *argument, const char *name, double timeout);
void ls_mpi_worker_end(ls_mpi_worker *worker);

#endif
