/*
 * Programs that train on several ranks, but whose ranks do not communicate: each trains a model of its own. Such a
 * program gets one warning. The state belongs to the process, or to the thread if its ranks are threads.
 */
#ifndef LS_COMM_SEPARATE_H
#define LS_COMM_SEPARATE_H

#include <lockstep/comm.h>

/* Notes that this process joins a job, or makes a communicator over MPI. */
void ls_joined(void);

/*
 * Notes that an optimizer of this thread makes its first step. Warns if `lockstep run` started the process as rank 0 of
 * several and it has not joined the job.
 */
void ls_training_begins(void);

/*
 * Warns, once, on rank 0 of a world of several ranks, if this thread has made no call on a communicator since
 * ls_training_begins. For the times at which a program that averages models itself has called one: the second epoch of
 * a loader, and ls_finalize. `world` may be NULL.
 */
void ls_warn_if_separate(const ls_comm *world);

/* Notes that separate models are intended, or were already warned of: ls_warn_if_separate does nothing from now on. */
void ls_training_is_checked(void);

#endif
