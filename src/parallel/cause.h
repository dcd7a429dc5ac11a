/*
 * Sends the cause of a failure to the other ranks. A failed rank still joins the call in which the other ranks wait for
 * it, and reports its failure there. All ranks of the call then call ls_cause_share.
 */
#ifndef LS_PARALLEL_CAUSE_H
#define LS_PARALLEL_CAUSE_H

#include <lockstep/comm.h>

#include "base/status.h"

/*
 * Gives every rank the message of the first rank that failed on its own. LS_ERR_MISMATCH counts as the consequence of
 * another rank's failure. `failed` means that this rank has failed with the thread's current error. A rank that failed
 * on its own keeps its error. All other ranks get LS_ERR_MISMATCH, with the message "ls_backward: rank 1 failed: ..."
 * for the call "ls_backward". Collective. Returns the status of the thread's error, never LS_OK.
 */
ls_status ls_cause_share(ls_comm *comm, const char *call, bool failed);

/*
 * Replaces `count` numbers, at most LS_FAILURE_NUMBERS, with their maximum over ranks. The same message shows whether a
 * rank has failed: then the numbers stay, and all ranks fail with ls_cause_share. Collective.
 */
enum { LS_FAILURE_NUMBERS = 2 };
ls_status ls_failure_share(ls_comm *comm, const char *call, bool failed, int64_t *numbers, int count);

#endif
