/*
 * metrics: what a trial measures. A metric is an object of a type: {init, update, merge, result} over a tally, an array
 * of numbers. names.c has the table of all names; each family of metrics has a file.
 *
 * Each batch is measured in three steps. The metrics ask for tensors on the model's device; one fetch copies all of
 * these to the host; the metrics update their tallies. At the end of a pass, one all-reduce exchanges the numbers of
 * all metrics and ranks (exchange.c), and each metric computes its result from the merged tally.
 */
#ifndef LS_TRAIN_METRICS_METRIC_H
#define LS_TRAIN_METRICS_METRIC_H

#include "train/trial.h"

/* The numbers of a metric in a pass. */
typedef struct ls_tally {
    const ls_metric *metric;
    double *items;
    size_t count;
    size_t room; /* allocated */
} ls_tally;

/* A batch on this rank, as a metric sees it. */
typedef struct ls_batch_numbers {
    const ls_trial_state *state;
    const double *asked; /* the elements of the tensor that the metric asked for, on the host */
    int64_t asked_count;
    double sum;        /* of a mean */
    double weight;     /* of a mean: its divisor; 0 if the share is empty */
    double samples;    /* if not 0: the weight of the mean of the global batch in the mean of the pass */
    double scatter;    /* of a mean of elements: the sum of squared differences from the mean of the batch */
    double seconds[3]; /* by ls_clock_kind, since the last batch */
} ls_batch_numbers;

typedef enum ls_clock_kind { LS_CLOCK_ALL, LS_CLOCK_DATA, LS_CLOCK_COMM } ls_clock_kind;

/* What a mean is taken of: either elements, or a sum and a weight for each batch. */
typedef struct ls_batch_mean {
    /* Returns a number for each element of the batch. `*kept`, initially NULL, may become a bool tensor: which elements
     * count. The elements that do not count are numbers, too. */
    ls_tensor *(*elements)(const ls_metric *metric, const ls_trial_state *state, ls_tensor **kept);
    bool refuses; /* an element is NaN if its target is not a class, which ends the run */
    ls_tensor *(*ask)(const ls_metric *metric, const ls_trial_state *state);
    /* Sets sum and weight of the batch. */
    ls_status (*measure)(const ls_metric *metric, ls_batch_numbers *batch);
} ls_batch_mean;

/* How a metric keeps numbers, and what follows from them. */
typedef struct ls_metric_type {
    int width; /* how many numbers there are before the first batch */
    int unit;  /* further numbers come in groups of this size; 0: there are none */
    /* The first `kept` numbers are of the rank alone: a trial that resumes on fewer ranks drops those of the other
     * ranks, and on more ranks, a new rank copies them. With `alike`, they are the same on all ranks. */
    int kept;
    bool alike;
    bool settles;        /* the first batch sets the count, for all passes of the trial: ls_tally_settle */
    bool grows;          /* ranks may have different counts */
    bool is_mean;        /* running means and variances can be made of the metric */
    bool scatter;        /* wants .scatter of each batch */
    bool lasting;        /* keeps its numbers from pass to pass */
    bool training_only;  /* not measured in other passes */
    bool at_end;         /* `update` is called at the end of the pass, too, after the hooks of its last batch */
    bool costly;         /* the progress line leaves its result out */
    ls_clock_kind clock; /* of metrics of time */
    /* Checks the options of a trial. NULL: nothing to check. */
    ls_status (*prepare)(ls_metric *metric, const ls_trial_options *options);
    /* Returns the tensor that `update` wants of the batch. NULL: none, or that of the mean. */
    ls_tensor *(*ask)(const ls_metric *metric, const ls_trial_state *state);
    /* Begins a pass with numbers that are 0, or `lasting`. NULL: nothing to do. */
    void (*init)(ls_tally *tally);
    /* Adds a batch, also if the share of this rank is empty. */
    ls_status (*update)(ls_tally *tally, const ls_batch_numbers *batch);
    /* Adds the numbers of the next rank. NULL: adds number by number. */
    ls_status (*merge)(ls_tally *tally, const double *other, size_t count);
    /* Returns the value; NAN if there is none. May sort the numbers. */
    double (*result)(const ls_tally *tally);
    /* Lists the values of a metric with `several`. */
    ls_status (*results)(const ls_tally *tally, ls_tally *values);
    /* Whether numbers from a checkpoint can be those of a pass. NULL: all of the right count can. */
    bool (*valid)(const ls_metric *metric, const double *numbers, size_t count);
} ls_metric_type;

/* The score of a class, from the counts of classes.c. */
typedef double ls_class_score(const double counts[]);

struct ls_metric {
    const ls_metric_type *type;
    const ls_batch_mean *of; /* what the mean is taken of; NULL: the metric is not made of a mean */
    ls_class_score *score;   /* of precision, recall and f1 */
    size_t width;            /* numbers before the first batch, or what ranks have settled on */
    int k;                   /* of top_k; the group of a learning rate */
    ls_average average;
    ls_outputs outputs;
    int window; /* of a running mean */
    int every;
    bool population; /* of a variance */
    bool root;       /* of a variance: the result is its square root */
    bool binary;     /* outputs are read as numbers, not as classes */
    bool several;    /* has several values, in no history */
    bool taken;      /* a trial owns the metric */
    ls_metric_functions own;
    void *user;
    ls_metric **array; /* of ls_metric_array; owned */
    char name[LS_METRIC_NAME_LIMIT];
};

/* ---- metric.c ---------------------------------------------------------------------------------------------------- */

/* Sets the count; new numbers are 0. The room doubles, and never shrinks. */
ls_status ls_tally_resize(ls_tally *tally, size_t count);
/* Sets the count at the first batch of a pass. LS_ERR_SHAPE if a later batch has another count. */
ls_status ls_tally_settle(ls_tally *tally, size_t count, const ls_trial_state *state);
/* Sets the count to that of the beginning of a pass, unless it is larger. */
ls_status ls_tally_begin(ls_tally *tally);
void ls_tally_free(ls_tally *tally);

/* Returns a metric. NULL on failure. */
ls_metric *ls_metric_make(const char *name, const ls_metric_type *type, const ls_batch_mean *of);
/* Adds a prefix and a suffix to the name of a mean. Takes ownership of `of` and returns it. Returns NULL and an error
 * that starts with `call` if `of` is not a mean. */
ls_metric *ls_metric_take_mean(const char *call, ls_metric *of, const char *prefix, const char *suffix);
/* Frees a metric, whoever owns it. */
void ls_metric_destroy(ls_metric *metric);

/* Whether the metric is measured in this pass. */
static inline bool ls_metric_is_on(const ls_metric *metric, const ls_trial_state *state) {
    return !metric->type->training_only || state->phase == LS_PHASE_TRAINING;
}

/* ---- combinators and families ------------------------------------------------------------------------------------ */

/* combinators.c: sum / weight of two numbers, NAN if the weight is 0. */
double ls_mean_of_numbers(const double numbers[2]);
/* Merges count, mean and sum of squared differences from the mean of two sets of numbers. */
enum { LS_MOMENTS = 3 };
void ls_moments_add(double moments[LS_MOMENTS], double count, double mean, double scatter);

/* classes.c: a metric of classes with this score; NULL: the confusion matrix. */
ls_metric *ls_metric_of_classes(const char *call, const char *name, ls_class_score *score,
                                const ls_class_metric_options *options);
ls_class_score ls_score_precision, ls_score_recall, ls_score_f1;

extern const ls_batch_mean ls_mean_of_loss, ls_mean_of_matches, ls_mean_of_top_k, ls_mean_of_squares, ls_mean_of_sizes;
extern const ls_metric_type ls_type_mean, ls_type_root_mean, ls_type_loss, ls_type_r2, ls_type_roc_auc, ls_type_lr,
    ls_type_epoch, ls_type_samples_per_second, ls_type_data_wait, ls_type_comm_wait;

/* ---- the metrics of a trial -------------------------------------------------------------------------------------- */

/* The tallies of one pass on this rank. A pass that interrupts another pass has another set. */
typedef struct ls_metric_set {
    ls_tally tallies[LS_METRIC_LIMIT];
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
    ls_tally values;
} ls_several;

/* What was asked for a metric. */
typedef struct ls_asked {
    const double *numbers;
    int64_t count;
    int64_t elements; /* of a mean of elements that all count: how many there are; else -1 */
} ls_asked;

typedef struct ls_metrics {
    ls_metric *items[LS_METRIC_LIMIT];
    int count;
    int owned;                       /* the first metrics: those made from names, and all after ls_metrics_take */
    ls_metric_set *set;              /* of the pass that is under way */
    ls_metric_set *spare;            /* for passes that interrupt; a list by `outer` */
    ls_asked asked[LS_METRIC_LIMIT]; /* of the batch */
    ls_tally fetched;                /* of the batch, for all metrics */
    ls_tally exchanged[2];           /* the buffers of the two rounds of an exchange */
    ls_tally merged[LS_METRIC_LIMIT];
    ls_named state[LS_METRIC_LIMIT]; /* borrowed by callers of ls_metrics_state */
    ls_several *several;
    int several_count;
    bool metered; /* the communication of this thread is metered for these metrics */
} ls_metrics;

/* sets.c: gives every tally the numbers that it begins with, unless it has more. */
ls_status ls_metrics_make_room(ls_metrics *metrics);
/* Restarts the clocks. */
void ls_metrics_mark(ls_metrics *metrics);

/* fetch.c: copies to the host what all metrics ask for of the batch: metrics->asked. */
ls_status ls_metrics_fetch(ls_metrics *metrics, const ls_trial_state *state);

/* exchange.c: merges the numbers of all ranks. Returns a borrowed list of tallies, valid until the next batch; NULL on
 * failure. Collective. */
const ls_tally *ls_metrics_exchange(ls_metrics *metrics, const ls_trial_state *state);

/* results.c: where the values of that name are stored; NULL if there is no memory. */
ls_tally *ls_metrics_keep_several(ls_metrics *metrics, const char *name);

#endif
