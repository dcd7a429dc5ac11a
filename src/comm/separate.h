/*
 * Detects programs that train on several ranks without communicating, so that each rank trains a separate model. Such a
 * program gets one warning. The state belongs to the process, or to the thread if its ranks are threads.
 */
#ifndef LS_COMM_SEPARATE_H
#define LS_COMM_SEPARATE_H

#include <lockstep/comm.h>

/* Records that this process joins a job, or creates a communicator over MPI. */
void ls_joined(void);

/* Warns on rank 0 if `lockstep run` or mpirun started several processes. Called if MPI connects only this process. */
void ls_warn_mpi_is_alone(void);

/*
 * Records that an optimizer of this thread is making its first or second step. Warns if `lockstep run` started the
 * process as rank 0 of several ranks and it has not joined the job.
 */
void ls_training_note_step(void);

/*
 * Warns once, on rank 0 of a world of several ranks, if this thread has made no call on a communicator since the first
 * of at least two steps. Called when even a program that averages its models itself would have communicated: at the
 * second epoch of a loader, and in ls_finalize. `world` may be NULL.
 */
void ls_warn_if_separate(const ls_comm *world);

/* Records that separate models are intended, or that the warning has been given: ls_warn_if_separate does nothing
 * from now on. */
void ls_training_is_checked(void);

#endif
