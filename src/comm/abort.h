/* Revokes a communicator after a failure between calls. For higher layers, which do not include backend.h. */
#ifndef LS_COMM_ABORT_H
#define LS_COMM_ABORT_H

#include <lockstep/comm.h>

/* Revokes the communicator with this thread's error, whose status is `status`, and notifies the other ranks. Returns
 * `status`. */
ls_status ls_comm_abort(ls_comm *comm, ls_status status);

#endif
