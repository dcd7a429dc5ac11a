/*
 * Communicators from the inside: how ls_init, ls_spawn, ls_run_threads and ls_comm_split make one. The calls on
 * buffers are in lockstep/comm.h; what carries them is behind backend.h.
 */
#ifndef LS_COMM_COMM_H
#define LS_COMM_COMM_H

#include "comm/backend.h"
#include "comm/hold.h"

/*
 * Opens a communicator on `backend`. Borrows `join` and everything that it points to, the store included, until this
 * returns. Returns ownership to the caller: free it with ls_comm_free. Returns NULL and sets an error on failure, and
 * then leaves nothing behind.
 */
ls_comm *ls_comm_open(const ls_backend *backend, const ls_join_context *join);

/* ls_comm_free, which `why` tells of later: "ls_finalize has left the job". */
void ls_comm_end(ls_comm *comm, const char *why);

/* Tells all ranks, on this communicator and on all that were split from it, that this one makes no more calls, and why;
 * later calls on those parts fail. Does not wait. */
void ls_comm_leave(ls_comm *comm, ls_leave_reason reason);

/* Then, for ranks that met without a store: waits for all to leave by ls_finalize. */
ls_status ls_comm_meet_leaving(ls_comm *comm);

/* Whether the communicator still works and is this process's; otherwise its failure again. */
ls_status ls_comm_check(const ls_comm *comm);

/* LS_ERR_STATE if the library that carries the communicator allows this thread no call on it now: ls_backend.check. */
ls_status ls_comm_check_allowed(const ls_comm *comm);

/* Returns true if this process is a fork of the process that opened the communicator. Then it is not a rank: every call
 * fails, and ls_comm_free does nothing. */
bool ls_comm_is_inherited(const ls_comm *comm);

/*
 * driver.c: marks a communicator without work as driven by the progress thread, and starts the thread if this is the
 * first. Does nothing if the backend does not allow other threads.
 */
ls_status ls_comm_drive(ls_comm *comm);

/* How this rank's latest call or send travelled: a word of the backend's; "-" where it has one way. */
const char *ls_comm_algorithm(const ls_comm *comm);

/* Messages that this rank has sent on the communicator so far, and their bytes. False: the backend counts none. */
bool ls_comm_traffic(const ls_comm *comm, uint64_t *messages, uint64_t *bytes);

/*
 * ls_comm_free calls `function(argument, whether a call had revoked the communicator)` as its last step, after the
 * backend closed: for what belongs to a communicator but is not known here (the store, the thread's world). One
 * function per communicator; the latest counts.
 */
void ls_comm_on_free(ls_comm *comm, void (*function)(void *argument, bool failed), void *argument);

#endif
