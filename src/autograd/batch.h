/*
 * A global batch whose samples are distributed over ranks. While the model of a data-parallel module runs on this
 * rank's part, ls_thread_state.batch points to it. Operations that combine samples (batch statistics, random numbers)
 * then work on the global batch.
 */
#ifndef LS_AUTOGRAD_BATCH_H
#define LS_AUTOGRAD_BATCH_H

#include <lockstep/tensor.h>

#include "base/status.h"

typedef struct ls_batch_part ls_batch_part;
struct ls_batch_part {
    int64_t samples;                          /* of this rank */
    int64_t first;                            /* index of the first sample in the global batch; set by `locate` */
    ls_status (*locate)(ls_batch_part *part); /* collective; called at most once in each run of the model */
    /* Sums the numbers over ranks, with bit-identical results on all of them. Collective. */
    ls_status (*add)(ls_batch_part *part, double *numbers, int64_t count);
    /* Records that this rank has changed a tensor in place, and that all ranks have given it the same elements. */
    void (*keep_equal)(ls_batch_part *part, const ls_tensor *changed);
    /*
     * Ends a call in which a rank has reported a failure; `failed` means that this rank has failed (see
     * ls_cause_share). Never returns LS_OK. Collective.
     */
    ls_status (*share_cause)(ls_batch_part *part, bool failed);
    /* May be NULL. Called with true, keeps the part alive for a node that refers to it, until called with false */
    void (*hold)(ls_batch_part *part, bool hold);
};

#endif
