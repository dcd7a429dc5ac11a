/* Calls in which each rank contributes one small record and decides from the records of all ranks. */
#ifndef LS_COMM_AGREE_H
#define LS_COMM_AGREE_H

#include "comm/record.h"

/*
 * Exchanges one record per rank and returns the result of `conclude(comm, records, argument)`, which may
 * overwrite the records, stored in rank order. `call` describes this rank's record: an operation that gathers on all
 * ranks, dtype, count, width and `send`. Messages about memory begin with `name`. If out of memory for the records,
 * aborts the communicator, because the other ranks wait for this rank's record.
 */
typedef ls_status ls_agree_conclude(ls_comm *comm, void *records, void *argument);
ls_status ls_comm_agree(ls_comm *comm, const char *name, ls_call *call, ls_agree_conclude *conclude, void *argument);

#endif
