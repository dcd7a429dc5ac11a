/* The scheduler: the queue of a communicator, messages, and waiting. */
#ifndef LS_COMM_WORK_H
#define LS_COMM_WORK_H

#include "base/wait.h"
#include "comm/record.h"

/* Waits until the call in progress has finished. */
ls_status ls_comm_finish(ls_comm *comm);

/* Executes all queued work. Failures are stored in the work. */
void ls_comm_drain(ls_comm *comm);

/* Executes a send or receive, either now or as work. `*work` must be NULL. */
ls_status ls_work_post(ls_comm *comm, ls_call *call, ls_work **work);

/* Queues `call` and sets `*work`. */
ls_status ls_work_queue(ls_comm *comm, const ls_call *call, ls_work **work);

/* Logs a warning that names the first unfinished receive or collective of the communicator, if there is one. */
void ls_work_warn_unfinished(const ls_comm *comm, const char *call);

/* Detaches all work from the communicator when the communicator is freed. */
void ls_work_abandon(ls_comm *comm);

/* Advances the open work of the communicator once, without waiting: its queue, or a posted request. */
void ls_comm_move_open(ls_comm *comm);

/* For a waiting call, advances the queue of this communicator and the other communicators of this thread. */
void ls_comm_move_all(ls_comm *comm);

/* Starts a wait for several communicators. No backend can sleep until any one of several communicators has an event. */
#define LS_WAIT_FOR_WORK ((ls_wait){.yields = 1000, .longest_ns = 50000})

#endif
