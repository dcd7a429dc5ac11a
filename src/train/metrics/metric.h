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

/* Numbers that may become more; the memory stays when they become fewer. */
typedef struct ls_numbers {
    double *items;
    size_t count;
    size_t room;
} ls_numbers;

/* So many numbers: those that are new are 0. Room doubles. */
ls_status ls_numbers_resize(ls_numbers *numbers, size_t count);
void ls_numbers_free(ls_numbers *numbers);

typedef struct ls_measure ls_measure;
typedef struct ls_metrics ls_metrics;
typedef struct ls_metric_rule ls_metric_rule;

/* A batch, as an aggregate sees it, on this rank. */
typedef struct ls_batch_numbers {
    const ls_trial_state *state;
    double sum;    /* of what a mean is taken of */
    double weight; /* what that is divided by; 0 where the share is empty */
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
    /* Adds a batch to what was measured before it in the pass. Called for every batch, an empty share too. */
    ls_status (*add)(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch);
    /* The value of `count` numbers; NAN when there is none. */
    double (*value)(const ls_measure *measure, double *numbers, size_t count);
    /* Whether these can be the numbers of a pass that is under way. NULL: there are always `width` of them. */
    bool (*fits)(const ls_metric_rule *rule, const double *numbers, size_t count);
} ls_aggregate;

/* What is measured. */
typedef struct ls_metric_kind {
    const char *name;
    const ls_aggregate *aggregate;
    /* What there is a mean of: a number of each sample or each part of one. Its sum over the batch is asked for. */
    ls_tensor *(*elements)(const ls_measure *measure, const ls_trial_state *state);
    /* What is asked for, where that is something else: any shape and dtype. NULL: nothing. */
    ls_tensor *(*ask)(const ls_measure *measure, const ls_trial_state *state);
    /* Sets sum and weight of what was asked for, where there are no elements. NULL: the kind has no mean. */
    ls_status (*mean)(const ls_measure *measure, ls_batch_numbers *batch);
} ls_metric_kind;

/* A metric as it was asked for: by name, by a constructor or of the user's own. */
struct ls_metric_rule {
    const ls_metric_kind *kind;
    const ls_aggregate *aggregate;
    int width;     /* of the numbers before the first batch */
    ls_metric own; /* of the user's: what is measured */
    char name[LS_METRIC_NAME_LIMIT];
};

struct ls_measure {
    const ls_metric_rule *rule;
    ls_metric given;     /* with the rule, where that is a constructor's; ls_metrics_drop frees it, */
    bool lent;           /* unless it is still the user's, as long as the trial is being made */
    ls_metric_rule own;  /* the rule of a user's metric */
    int64_t elements;    /* of the batch, of this rank: what there is a mean of */
    const double *asked; /* what was asked for of it, on the host */
    int64_t asked_count;
};

/* The numbers of one pass. A pass may be interrupted by another one, whose numbers are another set. */
typedef struct ls_metric_set {
    ls_numbers numbers[LS_METRIC_LIMIT];
    struct ls_metric_set *outer; /* of the pass that was interrupted; NULL: there is none */
} ls_metric_set;

struct ls_metrics {
    ls_measure measures[LS_METRIC_LIMIT];
    int count;
    ls_metric_set *set;              /* of the pass that is under way */
    ls_metric_set *spare;            /* for the next pass that interrupts one */
    ls_numbers fetched;              /* of the batch: what all metrics asked for */
    ls_numbers all;                  /* what was brought together of all ranks */
    ls_named state[LS_METRIC_LIMIT]; /* lent */
};

/* together.c: what all ranks counted. `parts[i]` lends the numbers of metric i until the next batch. */
ls_status ls_metrics_unite(ls_metrics *metrics, ls_comm *comm, ls_numbers parts[LS_METRIC_LIMIT]);

/* Every metric has the numbers that it begins with, at least. */
ls_status ls_metrics_make_room(ls_metrics *metrics);

/* fetch.c: asks all metrics for what they want of the batch, and has it on the host. */
ls_status ls_metrics_fetch(ls_metrics *metrics, const ls_trial_state *state);

/* names.c: a rule of the kind, under its name; NULL and an error when there is no memory. */
ls_metric_rule *ls_metric_rule_make(const ls_metric_kind *kind);
/* What a constructor gives, which takes the rule over; with NULL, what one that failed gives. */
ls_metric ls_metric_of_rule(ls_metric_rule *rule);
/* own.c: the rule of a user's metric; LS_ERR_ARGUMENT where it has not what it needs. */
ls_status ls_metric_rule_own(const ls_metric *metric, ls_metric_rule *rule);

/* state.c: gives back what ls_metrics_state lent. */
void ls_metrics_forget_state(ls_metrics *metrics);

/* The rows. */
extern const ls_aggregate ls_aggregate_mean;
extern const ls_metric_kind ls_metric_loss, ls_metric_acc, ls_metric_binary_acc, ls_metric_binary_acc_logits;

#endif
