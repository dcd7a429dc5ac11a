/*
 * A batch of which each rank has some samples. While the model of a data-parallel module runs on such a part, the
 * thread's ls_thread_state.batch says so: operations that make a sample's result of more than the sample (statistics of
 * the batch, random numbers) then work on the whole batch.
 */
#ifndef LS_AUTOGRAD_BATCH_H
#define LS_AUTOGRAD_BATCH_H

#include "base/status.h"

typedef struct ls_batch_part ls_batch_part;
struct ls_batch_part {
    int64_t samples;                          /* of this rank */
    int64_t first;                            /* where they begin in the batch, once `locate` was called */
    ls_status (*locate)(ls_batch_part *part); /* collective, once for each run of the model */
    /* Sums of the numbers over ranks, the same bits on all of them. Collective. */
    ls_status (*add)(ls_batch_part *part, double *numbers, int64_t count);
    /* NULL, or has the part live on for a node that refers to it (true), until false. */
    void (*hold)(ls_batch_part *part, bool hold);
};

#endif
