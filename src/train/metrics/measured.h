/* The metrics of a trial and their numbers. */
#ifndef LS_TRAIN_METRICS_MEASURED_H
#define LS_TRAIN_METRICS_MEASURED_H

#include "train/metrics/metric.h"

/* What was asked for a metric. */
typedef struct ls_asked {
    const double *numbers;
    int64_t count;
    int64_t elements; /* of a mean of elements that all count: how many there are; else -1 */
} ls_asked;

/* The numbers of one pass on this rank. A pass that interrupts another pass has another set. */
typedef struct ls_metric_set {
    ls_numbers numbers[LS_METRIC_LIMIT];
    char prefix[LS_METRIC_NAME_LIMIT]; /* of the results of the pass */
    bool under_way;                    /* a pass has begun, and its results are not known yet */
    bool begun;                        /* a batch of the pass was measured */
    uint64_t at_ns;                    /* when the last batch was measured, or the pass began */
    uint64_t data_ns;                  /* spent in the loader since then */
    uint64_t comm_ns;                  /* the meter of communication at that time */
    struct ls_metric_set *outer;       /* of the interrupted pass; NULL: none */
} ls_metric_set;

/* The last values of a metric that has several. */
typedef struct ls_several {
    char name[LS_METRIC_NAME_LIMIT];
    ls_numbers values;
} ls_several;

typedef struct ls_metrics {
    ls_metric *items[LS_METRIC_LIMIT];
    int count;
    int owned;                       /* the first metrics: those made from names, and all after ls_metrics_take */
    ls_metric_set *set;              /* of the pass that is under way */
    ls_metric_set *spare;            /* for passes that interrupt; a list by `outer` */
    ls_asked asked[LS_METRIC_LIMIT]; /* of the batch */
    ls_numbers fetched;              /* of the batch, for all metrics */
    ls_numbers exchanged[2];         /* the buffers of the two rounds of an exchange */
    ls_numbers merged[LS_METRIC_LIMIT];
    ls_named state[LS_METRIC_LIMIT]; /* lent by ls_metrics_state */
    ls_several *several;
    int several_count;
    bool metered; /* the communication of this thread is metered for these metrics */
} ls_metrics;

/* sets.c: gives every metric the numbers that it begins with, unless it has more. */
ls_status ls_metrics_make_room(ls_metrics *metrics);
/* Restarts the clocks. */
void ls_metrics_mark(ls_metrics *metrics);

/* fetch.c: copies to the host what all metrics ask for of the batch: metrics->asked. */
ls_status ls_metrics_fetch(ls_metrics *metrics, const ls_trial_state *state);

/* exchange.c: merges the numbers of all ranks. `merged[i]` is a view of those of metric i, valid until the next batch.
 * Collective. */
ls_status ls_metrics_exchange(ls_metrics *metrics, const ls_trial_state *state, ls_numbers merged[LS_METRIC_LIMIT]);

/* results.c: where the values of that name are stored; NULL if there is no memory. */
ls_numbers *ls_metrics_keep_several(ls_metrics *metrics, const char *name);

#endif
