/*
 * Averages buckets of gradients while the backward pass is still computing other gradients.
 *
 * A pass makes these calls, on all ranks in the same order:
 *
 * 1. If the gradients are sent as 16-bit floats, an exchange of the scaling factors, because gradients are scaled
 *    before they are rounded.
 * 2. An all-reduce per bucket. A rank launches a bucket when the bucket's gradients are complete and all earlier
 *    buckets are launched. The end of the pass launches the remaining buckets. Buckets are first launched in the order
 *    of the flat buffers, and later in the order in which rank 0 has completed them. A failed pass restores the first
 *    order on all ranks. Without `.shards`, the first pass averages all gradients at its end.
 * 3. The tail, with the scaling factors and the mark of each parameter (averaging.h).
 *
 * The buckets use two private communicators in turn, so that the wire is not idle between two buckets, and the
 * program's other calls do not wait for buckets. The tail uses the module's communicator, and a rank waits for buckets
 * only after the tail. A rank that waits for other ranks therefore always waits on the module's communicator, and
 * notices there if another rank makes a different call because of a failure.
 *
 * The number of buckets never changes. A rank that fails, or has no samples, launches all remaining buckets, whatever
 * its gradients are, and notifies the other ranks through the tail. No rank waits forever, and the ranks stay in step.
 *
 * A failed pass may also end without a tail, after a failure in communication inside the loss or in another module in
 * the same loss. The rank then launches the remaining buckets. These buckets are stale: they complete during the next
 * pass, which launches no buckets. Its tail shows whether the buckets of all ranks were stale. If so, this pass
 * averages the gradients at its end. Otherwise, some rank has not taken part in the failed pass, and this pass fails on
 * all ranks.
 *
 * In a captured step, the record has a call for each complete gradient, which launches the buckets of a replay.
 *
 * With `.shards`, the passes of a step are the last slices of the ranks (slices.h). Before a bucket is launched, the
 * sums of this rank's earlier slices are added to it. A step with stale buckets always fails on all ranks.
 */
#ifndef LS_PARALLEL_OVERLAP_H
#define LS_PARALLEL_OVERLAP_H

#include "autograd/tape.h"
#include "base/status.h"
#include "parallel/reducer.h"

struct ls_data_parallel_state;

enum { LS_BUCKET_COMMS = 2 };

typedef struct ls_overlap {
    bool on;
    ls_comm *bucket_comms[LS_BUCKET_COMMS]; /* private communicators, owned */
    ls_pass_observer observer;
    /* With `.shards`: adds the sums of earlier slices to an encoded bucket. Otherwise NULL. */
    void (*add_earlier)(const struct ls_data_parallel_state *state, const ls_bucket *bucket);
    uint64_t calls; /* number of communicator calls for buckets */
    /* The buckets. Each array contains one element per parameter of the model. */
    int *leaves;    /* number of gradients in each bucket; initially -1 */
    int *order;     /* the buckets in launch order */
    bool ordered;   /* `order` is rank 0's order */
    int *missing;   /* number of gradients in each bucket that are not yet complete in this pass */
    int *completed; /* the buckets that this pass has completed, in order of completion */
    int completed_count;
    /* The present pass. */
    bool begun;           /* buckets may be in flight; the tail has not arrived */
    bool abandoned;       /* the pass has failed, and all its buckets are in flight */
    bool stale;           /* the buckets of an earlier pass take the place of this pass's buckets */
    bool dirty;           /* the stale buckets may have changed the gradients of this pass */
    double factor;        /* factor for the gradients, applied before they are sent */
    bool ready;           /* the factor is known */
    ls_work *weights;     /* exchange of the scaling factors, for formats that convert */
    double mean_weight;   /* buffer of the exchange; a number in the tail's dtype */
    int launched;         /* number of launched buckets */
    ls_saved_error error; /* error of the first call that failed */
} ls_overlap;

#endif
