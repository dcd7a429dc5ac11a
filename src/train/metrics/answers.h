/*
 * What outputs say and targets ask for, as class numbers: of outputs [n, classes, ...] that of the largest; of one
 * number a target, 0 or 1. Which of the two it is, and where the classes are, the shapes say, and the criterion.
 */
#ifndef LS_TRAIN_METRICS_ANSWERS_H
#define LS_TRAIN_METRICS_ANSWERS_H

#include "train/metrics/metric.h"

typedef struct ls_answers {
    ls_tensor *said;
    ls_tensor *right; /* of the same shape */
    ls_tensor *kept;  /* bool: those that count; NULL: all do */
    int64_t classes;
} ls_answers;

/* How the metric reads outputs in a trial with these options; LS_OUTPUTS_BY_CRITERION: as classes. */
ls_outputs ls_answers_reading(const ls_metric *metric, const ls_trial_options *options);
/* Whether there are answers; the error says why not. */
bool ls_answers_read(const ls_metric *metric, const ls_trial_state *state, ls_answers *answers);

/* How many classes the outputs of the batch have; 0 if the share is empty. */
int64_t ls_answers_classes(const ls_metric *metric, const ls_trial_state *state);

/* Of outputs of classes, which are not read yet. */
typedef struct ls_class_layout {
    int axis;     /* of the classes */
    bool one_hot; /* targets are rows like the outputs, else class numbers */
} ls_class_layout;

bool ls_class_layout_find(const ls_metric *metric, const ls_trial_state *state, ls_class_layout *layout);
/* The class numbers that targets ask for, i64; and which of these count, NULL where the criterion ignores none. */
ls_tensor *ls_class_targets(const ls_trial_state *state, const ls_class_layout *layout);
ls_tensor *ls_class_targets_kept(const ls_trial_state *state, const ls_class_layout *layout, ls_tensor *targets);

/* Whether there are outputs and targets of one shape, of which [n] and [n, 1] are the same; the error says why not. */
bool ls_answers_are_numbers(const ls_metric *metric, const ls_trial_state *state);

#endif
