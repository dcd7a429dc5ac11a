/* References to a communicator, for higher layers, which do not know its record. */
#ifndef LS_COMM_HOLD_H
#define LS_COMM_HOLD_H

#include <lockstep/comm.h>

/*
 * Atomic reference counting. An object that uses a communicator (a module, a node of the tape, memory from
 * ls_comm_alloc) holds a reference. ls_comm_free and ls_finalize drop the first reference. Then this rank has left, and
 * every call fails with LS_ERR_STATE, but rank, size and memory from ls_comm_alloc stay valid until the last reference
 * is dropped. ls_comm_drop accepts NULL.
 */
ls_comm *ls_comm_hold(ls_comm *comm);
void ls_comm_drop(ls_comm *comm);

/*
 * Adds a number to the agreement of subsequent allgatherv and reduce_scatterv calls. If the ranks' numbers differ,
 * these calls fail with LS_ERR_MISMATCH. 0 disables the check.
 */
void ls_comm_set_check(ls_comm *comm, uint64_t number);

/* Fails with LS_ERR_STATE for `call` if this rank has left the communicator. Check this before taking a reference. */
ls_status ls_comm_check_open(const char *call, const ls_comm *comm);

/* Fails because the communicator argument of `call` is NULL. Quotes the last error, which may be the cause. */
ls_status ls_comm_fail_missing(const char *call);

/* Returns the setting of ls_comm_set_any_order. */
bool ls_comm_has_any_order(const ls_comm *comm);

/* Records that only the library calls this communicator, so ls_finalize does not report its unfinished calls. */
void ls_comm_set_internal(ls_comm *comm);

#endif
