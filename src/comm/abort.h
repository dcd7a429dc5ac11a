/* Revokes a communicator after a failure between calls. For higher layers, which do not include backend.h. */
#ifndef LS_COMM_ABORT_H
#define LS_COMM_ABORT_H

#include <lockstep/comm.h>

/* Ends the communicator with this thread's error, of `status`, which it returns, and tells the other ranks. */
ls_status ls_comm_abort(ls_comm *comm, ls_status status);

#endif
