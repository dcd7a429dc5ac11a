/* Starts the public calls that move data. */
#ifndef LS_COMM_CALLS_H
#define LS_COMM_CALLS_H

#include "comm/record.h"

/* Numbers the call and executes it, either now or, if `work` is not NULL, when its turn comes. */
ls_status ls_comm_call(ls_comm *comm, ls_call *call, ls_work **work);

#endif
