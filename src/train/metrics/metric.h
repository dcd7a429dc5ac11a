/*
 * metrics: the measurements of a trial. A metric is an object with a type: the functions {init, update, merge, result}
 * work on a tally, an array of numbers. names.c has the table of all names. Each family of metrics has its own file.
 *
 * Each batch has three steps. Metrics return tensors on the model's device (`ask`). One fetch copies all of them to the
 * host. Then the metrics update their tallies. At the end of a pass, one all-reduce exchanges the numbers of all
 * metrics and ranks (exchange.c), and each metric computes its result from the merged tally.
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

/* A batch on this rank, for `update`. */
typedef struct ls_batch_numbers {
    const ls_trial_state *state;
    const double *asked; /* elements of the tensor that the metric requested with `ask`, in host memory */
    int64_t asked_count;
    double sum;        /* for a mean, its sum */
    double weight;     /* for a mean, its divisor; 0 if the share is empty */
    double samples;    /* weight of the global batch's mean in the mean of the pass; 0 if not set */
    double scatter;    /* for a mean over elements, the sum of squared differences from the mean of the batch */
    double seconds[3]; /* seconds since the last batch, indexed by ls_clock_kind */
    bool further;      /* not this rank's first slice: the first slice has already counted the time */
} ls_batch_numbers;

typedef enum ls_clock_kind { LS_CLOCK_ALL, LS_CLOCK_DATA, LS_CLOCK_COMM } ls_clock_kind;

/* The source of a mean: either elements, or one sum and weight per batch. */
typedef struct ls_batch_mean {
    /*
     * Returns a number for each element of the batch. May set `*kept`, which is initially NULL, to a bool tensor of the
     * elements that count. Elements that do not count must be finite too.
     */
    ls_tensor *(*elements)(const ls_metric *metric, const ls_trial_state *state, ls_tensor **kept);
    bool refuses; /* an element is NaN if its target is not a valid class; the run then fails */
    ls_tensor *(*ask)(const ls_metric *metric, const ls_trial_state *state);
    /* Sets the sum and the weight of the batch. */
    ls_status (*measure)(const ls_metric *metric, ls_batch_numbers *batch);
} ls_batch_mean;

/* The type of a metric: its numbers and its result. */
typedef struct ls_metric_type {
    int width; /* count of numbers before the first batch */
    int unit;  /* further numbers come in groups of this size; 0 if there are none */
    /*
     * The first `kept` numbers belong to this rank alone. If a trial resumes on fewer ranks, the numbers of the missing
     * ranks are dropped. If it resumes on more ranks, a new rank copies them. With `alike`, these numbers are equal on
     * all ranks.
     */
    int kept;
    bool alike;
    bool settles;        /* the first batch of a pass determines the count: ls_tally_settle */
    bool grows;          /* counts may differ between ranks */
    bool is_mean;        /* running means and variances can be derived from the metric */
    bool scatter;        /* requires .scatter for each batch */
    bool lasting;        /* keeps its numbers between passes */
    bool training_only;  /* only computed in training */
    bool at_end;         /* `update` is also called at the end of the pass, after the hooks of its last batch */
    bool costly;         /* the progress line omits its result */
    ls_clock_kind clock; /* clock used by a time metric */
    /* Checks the options of a trial. NULL if there is nothing to check. */
    ls_status (*prepare)(ls_metric *metric, const ls_trial_options *options);
    /* Returns the tensor that `update` needs. NULL if `update` needs no tensor, or only the tensor of the mean. */
    ls_tensor *(*ask)(const ls_metric *metric, const ls_trial_state *state);
    /* Begins a pass, with numbers that are 0 or `lasting`. NULL if there is nothing to do. */
    void (*init)(ls_tally *tally);
    /* Adds a batch, even if the share of this rank is empty. */
    ls_status (*update)(ls_tally *tally, const ls_batch_numbers *batch);
    /* Merges the numbers of the next rank. NULL adds them element by element. */
    ls_status (*merge)(ls_tally *tally, const double *other, size_t count);
    /* Returns the value, or NAN. May sort the numbers. */
    double (*result)(const ls_tally *tally);
    /* Lists the values of a metric with `several`. */
    ls_status (*results)(const ls_tally *tally, ls_tally *values);
    /* Returns whether numbers from a checkpoint are valid for a pass. NULL accepts all numbers with the right count. */
    bool (*valid)(const ls_metric *metric, const double *numbers, size_t count);
} ls_metric_type;

/* Computes the score of a class from the counts in classes.c. */
typedef double ls_class_score(const double counts[]);

struct ls_metric {
    const ls_metric_type *type; /* NULL in a record that ls_metric_destroy has retired */
    const ls_batch_mean *of;    /* source of the mean; NULL if the metric is not a mean */
    ls_class_score *score;      /* score for precision, recall and f1 */
    size_t width;               /* count of numbers before the first batch */
    int k;                      /* k of top_k, or the group of a learning rate */
    ls_average average;
    ls_outputs outputs;
    int window; /* window of a running mean, in batches */
    int every;
    bool population; /* variance with divisor n */
    bool root;       /* the result is the square root of the variance */
    bool binary;     /* outputs are numbers, not classes */
    bool several;    /* has several values, which the history does not contain */
    bool taken;      /* a trial owns the metric */
    ls_metric_functions own;
    void *user;
    struct ls_metric_copy *copies; /* arrays of ls_metric_array; owned */
    char name[LS_METRIC_NAME_LIMIT];
};

/* ---- metric.c ---------------------------------------------------------------------------------------------------- */

/* Sets the count. New numbers are 0. The capacity doubles when it is exceeded, and never shrinks. */
ls_status ls_tally_resize(ls_tally *tally, size_t count);
/* Sets the count at the first batch of a pass. Fails with LS_ERR_SHAPE if the count of a later batch differs. */
ls_status ls_tally_settle(ls_tally *tally, size_t count, const ls_trial_state *state);
/* Raises the count to the value that it has at the start of a pass. A larger count stays unchanged. */
ls_status ls_tally_begin(ls_tally *tally);
/* Merges the numbers of another rank or slice. Without `merge`, adds the elements from index `first` on. */
ls_status ls_tally_add(ls_tally *tally, const double *numbers, size_t count, size_t first);
void ls_tally_free(ls_tally *tally);

/* Creates a metric. Returns NULL on failure. */
ls_metric *ls_metric_make(const char *name, const ls_metric_type *type, const ls_batch_mean *of);
/*
 * Adds a prefix and a suffix to the name of a mean. Takes ownership of `of` and returns it. If `of` is not a mean,
 * returns NULL with an error that starts with `call`.
 */
ls_metric *ls_metric_take_mean(const char *call, ls_metric *of, const char *prefix, const char *suffix);
/* Frees a metric, even if it has an owner. */
void ls_metric_destroy(ls_metric *metric);
/* Fails with LS_ERR_STATE if the metric was freed. */
ls_status ls_metric_check_here(const char *call, const ls_metric *metric);

/* Returns whether the metric is computed in this pass. */
static inline bool ls_metric_is_on(const ls_metric *metric, const ls_trial_state *state) {
    return !metric->type->training_only || state->phase == LS_PHASE_TRAINING;
}

/* ---- combinators and families ------------------------------------------------------------------------------------ */

/* combinators.c: returns numbers[0] / numbers[1] (sum / weight), or NAN if the weight is 0. */
double ls_mean_of_numbers(const double numbers[2]);
/* Merges the count, mean and sum of squared differences from the mean of two sets of numbers. */
enum { LS_MOMENTS = 3 };
void ls_moments_add(double moments[LS_MOMENTS], double count, double mean, double scatter);

/* classes.c: creates a classification metric with this score. NULL selects the confusion matrix. */
ls_metric *ls_metric_of_classes(const char *call, const char *name, ls_class_score *score,
                                const ls_class_metric_options *options);
ls_class_score ls_score_precision, ls_score_recall, ls_score_f1;

extern const ls_batch_mean ls_mean_of_loss, ls_mean_of_matches, ls_mean_of_top_k, ls_mean_of_squares, ls_mean_of_sizes;
extern const ls_metric_type ls_type_mean, ls_type_root_mean, ls_type_loss, ls_type_r2, ls_type_roc_auc, ls_type_lr,
    ls_type_epoch, ls_type_samples_per_second, ls_type_data_wait, ls_type_comm_wait;

/* ---- the metrics of a trial -------------------------------------------------------------------------------------- */

/*
 * The tallies of one pass on this rank. If a pass interrupts another pass, it has its own set. With slices, a set
 * contains the tallies of the rank's first slice.
 */
typedef struct ls_metric_set {
    ls_tally tallies[LS_METRIC_LIMIT];
    char prefix[LS_METRIC_NAME_LIMIT]; /* prefix of the names of the pass's results */
    bool under_way;                    /* a pass is in progress */
    bool begun;                        /* the pass has had at least one batch */
    uint64_t at_ns;                    /* time of the last batch, or of the start of the pass */
    uint64_t data_ns;                  /* time spent in the loader since then */
    uint64_t comm_ns;                  /* communication time up to at_ns */
    struct ls_metric_set *outer;       /* set of the interrupted pass; NULL if there is none */
    struct ls_metric_set *first;       /* set of this rank's first slice; this set without slices */
    struct ls_metric_set *next;        /* set of the next slice; NULL for the last slice */
    bool further;                      /* belongs to a slice after the first */
} ls_metric_set;

/* The latest values of a metric with several values. */
typedef struct ls_several {
    char name[LS_METRIC_NAME_LIMIT];
    ls_tally values;
} ls_several;

/* The fetched numbers of a metric. */
typedef struct ls_asked {
    const double *numbers;
    int64_t count;
    int64_t elements; /* number of elements, for a mean that includes every element; otherwise -1 */
} ls_asked;

typedef struct ls_metrics {
    ls_metric *items[LS_METRIC_LIMIT];
    int count;
    /* Number of parts whose numbers are merged: ranks or, with `.shards`, slices. */
    int parts;
    int first_part, own_parts;       /* of this rank */
    bool sliced;                     /* the parts are slices */
    int owned;                       /* number of leading metrics that the trial owns; all after ls_metrics_take */
    ls_metric_set *set;              /* of the current pass */
    ls_metric_set *spare;            /* spare sets for interrupting passes; a list linked by `outer` */
    ls_asked asked[LS_METRIC_LIMIT]; /* fetched numbers of the current batch */
    ls_tally fetched;                /* buffer for the fetched numbers of all metrics */
    ls_tally exchanged[2];           /* buffers for the two rounds of an exchange */
    ls_tally merged[LS_METRIC_LIMIT];
    ls_named state[LS_METRIC_LIMIT]; /* borrowed by callers of ls_metrics_state */
    ls_several *several;
    int several_count;
    bool metered; /* metering of this thread's communication is on */
} ls_metrics;

/* sets.c: sets the count of every tally in the set to its initial value, unless it is larger. */
ls_status ls_metrics_make_room(const ls_metrics *metrics, ls_metric_set *set);
/* Restarts the clocks. */
void ls_metrics_mark(ls_metrics *metrics);

/* fetch.c: copies the tensors that metrics need from this batch to the host, into metrics->asked. */
ls_status ls_metrics_fetch(ls_metrics *metrics, const ls_trial_state *state);

/* exchange.c: merges the numbers of all ranks. Returns a borrowed list of tallies, which is valid until the next
 * batch, or NULL on failure. Collective. */
const ls_tally *ls_metrics_exchange(ls_metrics *metrics, const ls_trial_state *state);

/*
 * Merges the numbers of this rank's slices. Returns a borrowed tally, valid until the next call or exchange, or NULL on
 * failure. `first` is the set of the first slice.
 */
const ls_tally *ls_metrics_merge_slices(ls_metrics *metrics, const ls_metric_set *first, int i);

/* results.c: returns the tally that stores the values with this name, or NULL if out of memory. */
ls_tally *ls_metrics_keep_several(ls_metrics *metrics, const char *name);

#endif
