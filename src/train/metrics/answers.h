/*
 * Predictions and targets as class numbers. Outputs [n, classes, ...] predict the class with the largest number;
 * outputs with one number per target predict 0 or 1. Shapes and criterion decide which, and along which axis the
 * classes are.
 */
#ifndef LS_TRAIN_METRICS_ANSWERS_H
#define LS_TRAIN_METRICS_ANSWERS_H

#include "train/metrics/metric.h"

typedef struct ls_answers {
    ls_tensor *predicted;
    ls_tensor *targets; /* of the same shape */
    ls_tensor *kept;    /* bool: the answers that count; NULL: all */
    int64_t classes;
} ls_answers;

/* How the metric reads outputs in a trial with these options; LS_OUTPUTS_BY_CRITERION: as classes. */
ls_outputs ls_answers_reading(const ls_metric *metric, const ls_trial_options *options);
/* Reads the predictions and targets of the batch. Returns false and sets an error if shapes do not fit. */
bool ls_answers_read(const ls_metric *metric, const ls_trial_state *state, ls_answers *answers);

/* How many classes the outputs of the batch have; 0 if the share is empty. */
int64_t ls_answers_classes(const ls_metric *metric, const ls_trial_state *state);

/* How outputs of classes are laid out. */
typedef struct ls_class_layout {
    int axis;     /* of the classes */
    bool one_hot; /* targets have the shape of the outputs; else they are class numbers */
} ls_class_layout;

bool ls_class_layout_find(const ls_metric *metric, const ls_trial_state *state, ls_class_layout *layout);
/* Returns the targets as class numbers, i64; and a bool tensor of the targets that count, NULL if all do. */
ls_tensor *ls_class_targets(const ls_trial_state *state, const ls_class_layout *layout);
ls_tensor *ls_class_targets_kept(const ls_trial_state *state, const ls_class_layout *layout, ls_tensor *targets);

/* Whether outputs and targets have the same shape; [n] and [n, 1] are equivalent. Sets an error if not. */
bool ls_answers_are_numbers(const ls_metric *metric, const ls_trial_state *state);

#endif
