/* Keeping a communicator for later: for the floors above, which need not know more of its inside. */
#ifndef LS_COMM_HOLD_H
#define LS_COMM_HOLD_H

#include <lockstep/comm.h>

/*
 * References, counted atomically. Whoever keeps a communicator for later (a module, a node of the tape, memory of
 * ls_comm_alloc) holds one; the one of who opened it is given up by ls_comm_free or ls_finalize. Then this rank has
 * left, and every call is LS_ERR_STATE, but rank, size and memory of ls_comm_alloc stay until the last holder lets go.
 * ls_comm_drop takes NULL.
 */
ls_comm *ls_comm_hold(ls_comm *comm);
void ls_comm_drop(ls_comm *comm);

/* LS_ERR_STATE for `call` when this rank has left the communicator: to be asked before it is held. */
ls_status ls_comm_check_open(const char *call, const ls_comm *comm);

#endif
