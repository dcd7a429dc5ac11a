/*
 * metrics: what a trial measures. One metric by name is one `static const` row, a kind: what it wants to know of a
 * batch, and how the numbers of batches become its value, which is an aggregate, another row. One file per family.
 *
 * A batch goes through in three steps. The kinds say what they want of it, as tensors on the model's device; all of
 * those come to the host together; the aggregates add them to the numbers that the trial keeps for each metric. Where a
 * pass ends, the numbers of all ranks are brought together, all metrics' in one all-reduce, and each aggregate makes
 * its value of them, once. So a value does not depend on how samples are shared out.
 */
#ifndef LS_TRAIN_METRICS_METRIC_H
#define LS_TRAIN_METRICS_METRIC_H

#include "train/trial.h"

typedef struct ls_measure ls_measure;
typedef struct ls_metrics ls_metrics;

/* Numbers that may become more; the memory stays when they become fewer. */
typedef struct ls_numbers {
    double *items;
    size_t count;
    size_t room;
} ls_numbers;

/* The most batches of a running mean. */
#define LS_WINDOW_LIMIT 10000

/* So many numbers: those that are new are 0. Room doubles. */
ls_status ls_numbers_resize(ls_numbers *numbers, size_t count);
void ls_numbers_free(ls_numbers *numbers);
/* So many numbers at the first batch, and no other number at a later one: LS_ERR_SHAPE. */
ls_status ls_numbers_settle(const ls_measure *measure, ls_numbers *numbers, size_t count, const ls_trial_state *state);

/* A batch, as an aggregate sees it, on this rank. */
typedef struct ls_batch_numbers {
    const ls_trial_state *state;
    double sum;          /* of what a mean is taken of */
    double weight;       /* what that is divided by; 0 where the share is empty */
    double samples;      /* if not 0, what the mean of the batch counts for in that of the pass, instead of `weight` */
    double scatter;      /* where the aggregate wants it: the sum of squared differences from the batch's mean */
    double seconds;      /* since the batch before */
    double data_seconds; /* of them, in which the loader made the batch */
    double comm_seconds; /* of them, in calls of communicators; counted where a metric wants them */
} ls_batch_numbers;

/* How numbers of ranks become those of all. */
typedef enum ls_union {
    LS_ADDED = 0, /* number by number */
    LS_APART,     /* rank after rank, as many of each */
    LS_ROWS       /* rank after rank, any number of each */
} ls_union;

/* What numbers a metric keeps, and what becomes of them. */
typedef struct ls_aggregate {
    int width; /* how many there are before the first batch, all 0; those of a user's formula are counted by the rule */
    ls_union together;
    bool is_mean;       /* running means and variances can be made of it */
    bool grows;         /* a rank may have fewer numbers than another, whose further ones then are 0 */
    bool settles;       /* the first batch says how many there are: ls_numbers_settle */
    bool scatter;       /* wants that of each batch */
    bool training_only; /* no number of other passes */
    bool costly;        /* its value is not made for the progress line */
    /* Where a pass begins. NULL: forgets all numbers. */
    void (*begin)(ls_numbers *numbers);
    /* Adds a batch to what was measured before it in the pass. Called for every batch, an empty share too. */
    ls_status (*add)(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch);
    /* Where the pass ends, behind its last hooks. NULL: nothing more. */
    ls_status (*end)(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch);
    /* The value of `count` numbers, which it may sort; NAN when there is none. */
    double (*value)(const ls_measure *measure, double *numbers, size_t count);
    /* The values, where there are several; `values` are none before. */
    ls_status (*values)(const double *numbers, size_t count, ls_numbers *values);
    /* Whether these can be the numbers of a pass that is under way. NULL: there are always `width` of them. */
    bool (*fits)(const ls_metric *rule, const double *numbers, size_t count);
    /* Where training goes on with fewer ranks: puts those of a rank that is gone, as many, to a rank's own. With
     * `nothing`, where it goes on with more: makes of the zeros of a new rank what all ranks have alike. NULL: adds
     * them, or leaves zeros. Rows just follow each other. */
    void (*join)(double *numbers, const double *of, size_t count, bool nothing);
} ls_aggregate;

/* What is measured. */
typedef struct ls_metric_kind {
    const char *name;
    const ls_aggregate *aggregate;
    /* Its constructor, where classes are averaged over. */
    ls_metric *(*by_average)(const ls_class_metric_options *options);
    /* When the trial is made: checks what the metric needs of it. NULL: nothing. */
    ls_status (*prepare)(ls_measure *measure, const ls_trial_options *options);
    /* What there is a mean of: a number of each sample or each part of one. Its sum over the batch is asked for.
     * `*kept`, NULL before, may become which of them count, as bool; they are numbers where they do not, too. With
     * `refuses` an element is NaN where a target is no class, which ends the run. */
    bool refuses;
    ls_tensor *(*elements)(const ls_measure *measure, const ls_trial_state *state, ls_tensor **kept);
    /* What is asked for, where that is something else: any shape and dtype. NULL: nothing. */
    ls_tensor *(*ask)(ls_measure *measure, const ls_trial_state *state);
    /* Sets sum and weight of what was asked for, where there are no elements. NULL: the kind has no mean. */
    ls_status (*mean)(const ls_measure *measure, ls_batch_numbers *batch);
} ls_metric_kind;

/* A metric as it was asked for: by name, by a constructor or of the user's own. */
struct ls_metric {
    const ls_metric_kind *kind;
    const ls_aggregate *aggregate;
    int width; /* of the numbers before the first batch */
    int k;     /* of top_k; the group of a learning rate */
    ls_average average;
    ls_outputs outputs;
    int window;              /* of a running mean: batches */
    int every;               /* of which the value is made anew after so many */
    bool population;         /* of a variance: that of all there is, not of a sample of it */
    ls_metric_functions own; /* of the user's */
    void *user;
    bool taken;        /* a trial owns the metric */
    ls_metric **array; /* of ls_metric_array; owned */
    char name[LS_METRIC_NAME_LIMIT];
};

struct ls_measure {
    ls_metric *rule;
    int64_t width;       /* of the numbers before the first batch: the rule's, or what ranks have settled on */
    int64_t elements;    /* of the batch, of this rank, where all count: how many a mean is taken of; else -1 */
    int64_t classes;     /* that its outputs tell apart */
    bool yes_or_no;      /* outputs are read as numbers, not as classes */
    const double *asked; /* what was asked for of it, on the host */
    int64_t asked_count;
};

/* The numbers of one pass. A pass may be interrupted by another one, whose numbers are another set. */
typedef struct ls_metric_set {
    ls_numbers numbers[LS_METRIC_LIMIT];
    uint64_t at_ns;              /* when the last batch was measured, or the pass began */
    uint64_t data_ns;            /* waited for the next one so far */
    uint64_t comm_ns;            /* what the meter of communication showed then */
    struct ls_metric_set *outer; /* of the pass that was interrupted; NULL: there is none */
} ls_metric_set;

/* The last values of a metric that has several. */
typedef struct ls_several {
    char name[LS_METRIC_NAME_LIMIT];
    ls_numbers values;
} ls_several;

struct ls_metrics {
    ls_measure measures[LS_METRIC_LIMIT];
    int count;
    int owned;                       /* the first metrics: those made from names, and all after ls_metrics_take */
    ls_metric_set *set;              /* of the pass that is under way */
    ls_metric_set *spare;            /* for the next pass that interrupts one; a list by `outer` */
    ls_numbers fetched;              /* of the batch: what all metrics asked for */
    ls_numbers all;                  /* what was brought together of all ranks */
    ls_numbers rows;                 /* of metrics whose rows are kept: those of all ranks */
    size_t *row_counts;              /* of each rank */
    ls_named state[LS_METRIC_LIMIT]; /* lent */
    ls_several *several;             /* the last values of metrics that have several */
    int several_count;
    bool metered; /* this thread's communication is, for these metrics */
};

/* together.c: what all ranks counted. `parts[i]` lends the numbers of metric i until the next batch. */
ls_status ls_metrics_unite(ls_metrics *metrics, const ls_trial_state *state, ls_numbers parts[LS_METRIC_LIMIT]);

/* Whether the metric is measured in this pass. */
bool ls_measure_is_on(const ls_measure *measure, const ls_trial_state *state);

/* Time is counted from now on. */
void ls_metrics_mark(ls_metrics *metrics);

/* Every metric has the numbers that it begins with, at least. */
ls_status ls_metrics_make_room(ls_metrics *metrics);

/* fetch.c: asks all metrics for what they want of the batch, and has it on the host. */
ls_status ls_metrics_fetch(ls_metrics *metrics, const ls_trial_state *state);

/* spread.c: count, mean and the sum of squared differences from the mean of some numbers, and of others, as one. */
enum { LS_MOMENTS = 3 };
void ls_moments_add(double moments[LS_MOMENTS], double count, double mean, double scatter);

/* metric.c: returns a metric with the name of the kind. NULL on failure. */
ls_metric *ls_metric_make(const ls_metric_kind *kind);
/* Adds a prefix and a suffix to the name of a mean. Takes ownership of `of` and returns it. Returns NULL and an error
 * that starts with `call` if `of` is not a mean. */
ls_metric *ls_metric_take_mean(const char *call, ls_metric *of, const char *prefix, const char *suffix);
/* Frees a metric, whoever owns it. */
void ls_metric_destroy(ls_metric *metric);

/* state.c: gives back what ls_metrics_state lent. */
void ls_metrics_forget_state(ls_metrics *metrics);

/* mean.c: sum / weight of `numbers`, NAN if the weight is 0. */
double ls_mean_of_numbers(const ls_measure *measure, double *numbers, size_t count);

/* The rows. */
extern const ls_aggregate ls_aggregate_mean, ls_aggregate_root_mean, ls_aggregate_running;
extern const ls_metric_kind ls_kind_loss, ls_kind_acc, ls_kind_binary_acc, ls_kind_binary_acc_logits, ls_kind_top_k_acc,
    ls_kind_mse, ls_kind_mae, ls_kind_rmse, ls_kind_r2, ls_kind_precision, ls_kind_recall, ls_kind_f1,
    ls_kind_confusion, ls_kind_roc_auc, ls_kind_lr, ls_kind_epoch, ls_kind_samples_per_second, ls_kind_data_wait,
    ls_kind_comm_wait;

#endif
