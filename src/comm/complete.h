/* Starts calls of the backend. */
#ifndef LS_COMM_COMPLETE_H
#define LS_COMM_COMPLETE_H

#include "comm/record.h"

/* Starts `call` on the backend. First adds the arguments that the public function has not set; the added arrays are
 * valid until the next call. Records failures that revoke the communicator. */
ls_status ls_comm_begin(ls_comm *comm, const ls_call *call);

#endif
