/* References to a communicator, for higher layers, which need not know its record. */
#ifndef LS_COMM_HOLD_H
#define LS_COMM_HOLD_H

#include <lockstep/comm.h>

/*
 * References, counted atomically. An object that keeps a communicator (a module, a node of the tape, memory of
 * ls_comm_alloc) holds one. ls_comm_free and ls_finalize drop the first reference. Then this rank has left, and every
 * call fails with LS_ERR_STATE, but rank, size and memory of ls_comm_alloc stay until the last reference is dropped.
 * ls_comm_drop accepts NULL.
 */
ls_comm *ls_comm_hold(ls_comm *comm);
void ls_comm_drop(ls_comm *comm);

/*
 * Adds a number to the agreement of the next allgatherv and reduce_scatterv calls. If the ranks' numbers differ, these
 * calls fail with LS_ERR_MISMATCH. 0 selects no check.
 */
void ls_comm_set_check(ls_comm *comm, uint64_t number);

/* LS_ERR_STATE for `call` when this rank has left the communicator: to be asked before it is held. */
ls_status ls_comm_check_open(const char *call, const ls_comm *comm);

/* Returns whether ls_comm_set_any_order is on. */
bool ls_comm_has_any_order(const ls_comm *comm);

#endif
