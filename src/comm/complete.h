/* The begin of a call on the backend. */
#ifndef LS_COMM_COMPLETE_H
#define LS_COMM_COMPLETE_H

#include "comm/record.h"

/* Begins `call` on the backend, after adding what the call leaves out; the added arrays stay valid
 * until the next call. Records failures that revoke the communicator. */
ls_status ls_comm_begin(ls_comm *comm, const ls_call *call);

#endif
