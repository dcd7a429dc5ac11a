/*
 * The internal interface of communicators: how ls_init, ls_spawn, ls_run_threads and ls_comm_split create a
 * communicator. The calls on buffers are in lockstep/comm.h; backend.h is the interface of their implementations.
 */
#ifndef LS_COMM_COMM_H
#define LS_COMM_COMM_H

#include "comm/backend.h"
#include "comm/hold.h"

/*
 * Opens a communicator on `backend`. Borrows `join` and everything that it points to, including the store, until this
 * function returns. Returns ownership to the caller, who frees the communicator with ls_comm_free. On failure, sets an
 * error, leaves nothing behind and returns NULL.
 */
ls_comm *ls_comm_open(const ls_backend *backend, const ls_join_context *join);

/* Does the same as ls_comm_free. Later calls report the reason `why`: "ls_finalize has left the job". */
void ls_comm_end(ls_comm *comm, const char *why);

/* Notifies all ranks of this communicator, and of all communicators split from it, that this rank makes no more
 * calls, and why. Later calls on the split communicators fail. Does not wait. */
void ls_comm_leave(ls_comm *comm, ls_leave_reason reason);

/* Called after ls_comm_leave with LS_LEAVE_FINALIZED: advances the sends that this rank has begun on these
 * communicators, without waiting. Returns true while some of them are unfinished. Keeps this thread's error. */
bool ls_comm_advance_sends(ls_comm *comm);

/* Called after the last ls_comm_advance_sends: no communicator uses the buffers of unfinished sends any longer. On some
 * backends, only the communicator's end has this effect. */
void ls_comm_withdraw_sends(ls_comm *comm);

/* Called afterwards by ranks that met without a store: waits until all ranks have left through ls_finalize. */
ls_status ls_comm_meet_leaving(ls_comm *comm);

/* Fails with the communicator's earlier failure if it no longer works, or if it belongs to a different process. */
ls_status ls_comm_check(const ls_comm *comm);

/* Fails with LS_ERR_STATE if the backend's library does not allow this thread to call on the communicator now: see
 * ls_backend.check. */
ls_status ls_comm_check_allowed(const ls_comm *comm);

/* Returns true if this process is a fork of the process that opened the communicator. Such a process is not a rank:
 * every call fails, and ls_comm_free does nothing. */
bool ls_comm_is_inherited(const ls_comm *comm);

/*
 * In driver.c: marks a communicator without work as driven by the progress thread, and starts this thread for the first
 * such communicator. Does nothing if the backend does not allow other threads.
 */
ls_status ls_comm_drive(ls_comm *comm);

/* Returns the backend's name of the algorithm that this rank's latest call or send used; "-" if the backend has only
 * one. */
const char *ls_comm_algorithm(const ls_comm *comm);

/* Returns the number of messages that this rank has sent on the communicator so far, and their bytes. Returns false
 * if the backend does not count messages. */
bool ls_comm_traffic(const ls_comm *comm, uint64_t *messages, uint64_t *bytes);

/*
 * Makes ls_comm_free call `function(argument, failed)` as its last step, after the backend has closed; `failed` is true
 * if a call had revoked the communicator. For resources of a communicator that this file does not know: the store, or
 * the world of threads. There is only one such function per communicator: a new one replaces the previous one.
 */
void ls_comm_on_free(ls_comm *comm, void (*function)(void *argument, bool failed), void *argument);

#endif
