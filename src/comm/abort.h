/* Failures between calls of a communicator. For higher layers, which do not include backend.h. */
#ifndef LS_COMM_ABORT_H
#define LS_COMM_ABORT_H

#include <lockstep/comm.h>

/* Revokes the communicator with this thread's error, whose status is `status`, and notifies the other ranks. Returns
 * `status`. */
ls_status ls_comm_abort(ls_comm *comm, ls_status status);

/* Declares that this thread's error is the failure of the communicator's rank `failed_rank`. If this process exits for
 * this reason, the launcher waits for that rank to exit, and names it as the first failure. */
void ls_comm_set_failed_rank(const ls_comm *comm, int failed_rank);

#endif
