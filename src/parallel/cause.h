/*
 * Propagation of the cause of a failure to the other ranks. A failed rank still takes part in the call in which the
 * other ranks wait for it, and reports its failure there. All ranks of the call then call ls_cause_share.
 */
#ifndef LS_PARALLEL_CAUSE_H
#define LS_PARALLEL_CAUSE_H

#include <lockstep/comm.h>

#include "base/status.h"

/*
 * Gives every rank the message of the first rank that has failed by itself. LS_ERR_MISMATCH counts as the consequence
 * of another rank's failure. `failed`: this rank has failed, with the thread's present error. A rank that has failed by
 * itself keeps its error. The others get LS_ERR_MISMATCH, "ls_backward: rank 1 failed: ..." for the call "ls_backward".
 * Collective. Returns the status of the thread's error, never LS_OK.
 */
ls_status ls_cause_share(ls_comm *comm, const char *call, bool failed);

#endif
