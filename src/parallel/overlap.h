/*
 * Averages buckets of gradients while the backward pass still computes other gradients.
 *
 * A pass makes these calls, on all ranks in the same order:
 *
 * 1. If the gradients are sent as 16-bit floats: the scaling factors, because gradients are scaled before they are
 *    rounded.
 * 2. An all-reduce per bucket. A rank launches a bucket when the bucket's gradients are complete and all earlier
 *    buckets are launched. The end of the pass launches the rest. After the first pass, the order of the launches is
 *    the order in which rank 0 has completed the buckets.
 * 3. The tail, with the scaling factors and the mark of each parameter (averaging.h).
 *
 * The buckets use two private communicators in turn, so that the wire is not idle between two buckets, and other calls
 * of the program do not wait for buckets. The tail uses the module's communicator, and a rank waits for buckets only
 * after the tail. So a rank that waits for other ranks always does so on the module's communicator, where it learns if
 * another rank makes another call because of a failure.
 *
 * The number of buckets never changes. A rank that fails, or has no samples, launches all buckets that are left,
 * whatever its gradients are, and the tail tells the other ranks. So no rank waits, and the ranks stay in step.
 *
 * A failed pass may also end without a tail: after a failure in communication inside the loss, or of another module in
 * the same loss. The rank then launches the buckets that are left, and the buckets are stale: they end in the next
 * pass, which launches no others. Its tail shows whether the buckets of all ranks were stale. If so, this pass averages
 * the gradients at its end. Otherwise a rank has not taken part in the failed pass, and this pass fails on all ranks.
 */
#ifndef LS_PARALLEL_OVERLAP_H
#define LS_PARALLEL_OVERLAP_H

#include "autograd/tape.h"
#include "base/status.h"
#include "parallel/reducer.h"

enum { LS_OVERLAP_LANES = 2 };

typedef struct ls_overlap {
    bool on;
    ls_comm *lanes[LS_OVERLAP_LANES]; /* private communicators, owned */
    ls_pass_observer observer;
    /* The buckets. Each array has one element per parameter of the model. */
    int *leaves;    /* number of gradients in each bucket; -1 at first */
    int *order;     /* the buckets in the order of their launches */
    bool ordered;   /* it is rank 0's order */
    int *missing;   /* number of gradients of each bucket that are not complete in this pass */
    int *completed; /* the buckets that this pass has completed, in this order */
    int completed_count;
    /* The present pass. */
    bool begun;           /* buckets may be in flight; the tail has not arrived */
    bool abandoned;       /* the pass has failed: its buckets are all in flight */
    bool stale;           /* the buckets of an earlier pass stand for the buckets of this pass */
    bool dirty;           /* these buckets may have changed the gradients of this pass */
    double factor;        /* by which the gradients are multiplied before they are sent */
    bool ready;           /* the factor is known */
    ls_work *weights;     /* exchange of the scaling factors, for formats that convert */
    double mean_weight;   /* its buffer; a number of the tail's dtype */
    int launched;         /* number of launched buckets */
    ls_saved_error error; /* of the first call that has failed */
} ls_overlap;

#endif
