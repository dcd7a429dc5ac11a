/*
 * Predictions and targets as class numbers. For outputs [n, classes, ...], the prediction is the class with the largest
 * output. For outputs with one number per target, the prediction is 0 or 1. The shapes and the criterion determine
 * which case applies, and the class axis.
 */
#ifndef LS_TRAIN_METRICS_ANSWERS_H
#define LS_TRAIN_METRICS_ANSWERS_H

#include "train/metrics/metric.h"

typedef struct ls_answers {
    ls_tensor *predicted;
    ls_tensor *targets; /* same shape as `predicted` */
    ls_tensor *kept;    /* bool: predictions that count; NULL if all count */
    int64_t classes;
} ls_answers;

/* Returns how the metric interprets outputs in a trial with these options. LS_OUTPUTS_BY_CRITERION means classes. */
ls_outputs ls_answers_reading(const ls_metric *metric, const ls_trial_options *options);
/* Reads the predictions and targets of the batch. Returns false with an error if the shapes do not fit. */
bool ls_answers_read(const ls_metric *metric, const ls_trial_state *state, ls_answers *answers);

/* Returns the number of classes in the outputs of the batch, or 0 if the share is empty. */
int64_t ls_answers_classes(const ls_metric *metric, const ls_trial_state *state);

/* Stands for a target that is not a class number. */
#define LS_NO_CLASS INT64_MIN

/* The layout of outputs for several classes. */
typedef struct ls_class_layout {
    int axis;     /* axis of the classes */
    bool one_hot; /* targets have the same shape as the outputs; otherwise they are class numbers */
} ls_class_layout;

bool ls_class_layout_find(const ls_metric *metric, const ls_trial_state *state, ls_class_layout *layout);
/* Returns the class number that the criterion ignores, or NULL if it ignores none. Borrowed from the criterion. */
const int64_t *ls_class_ignored(const ls_trial_state *state);

/* Returns the targets as class numbers (i64), with LS_NO_CLASS for fractions and NaN. Also returns a bool tensor of the
 * targets that count, or NULL if all count. */
ls_tensor *ls_class_targets(const ls_trial_state *state, const ls_class_layout *layout);
ls_tensor *ls_class_targets_kept(const ls_trial_state *state, const ls_class_layout *layout, ls_tensor *targets);

/* Returns whether outputs and targets have the same shape; [n] and [n, 1] are equivalent. If not, sets an error. */
bool ls_answers_are_numbers(const ls_metric *metric, const ls_trial_state *state);

#endif
