/* Programs that train under `lockstep run` and never join its job. */
#ifndef LS_COMM_JOINED_H
#define LS_COMM_JOINED_H

/* Notes that this process joins a job, or makes a communicator over MPI. */
void ls_joined(void);

/* Logs a warning, once in a process, if `lockstep run` started the process as rank 0 of several and it has not joined
 * the job. For the first step of an optimizer. */
void ls_warn_unless_joined(void);

#endif
