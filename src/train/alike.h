/* Checks that the ranks of a trial have the same setup. */
#ifndef LS_TRAIN_ALIKE_H
#define LS_TRAIN_ALIKE_H

#include "train/trial.h"

/*
 * Fails with LS_ERR_MISMATCH if ranks have different loaders, checkpoint options, optimizers, metrics or callbacks.
 * Collective.
 */
ls_status ls_trial_check_alike(const ls_trial *trial);

/*
 * Calls `each` for every line of this rank's setup, for example with "optimizer" and "ls_adam (learning_rate 0.001)".
 * Both strings are printable.
 */
ls_status ls_trial_describe(const ls_trial *trial, void (*each)(const char *subject, const char *line, void *user),
                            void *user);

#endif
