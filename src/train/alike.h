/* Checks that the ranks of a trial have the same setup. */
#ifndef LS_TRAIN_ALIKE_H
#define LS_TRAIN_ALIKE_H

#include "train/trial.h"

/*
 * Fails with LS_ERR_MISMATCH if ranks have different loaders, checkpoint options, optimizers, metrics or callbacks.
 * Collective.
 */
ls_status ls_trial_check_alike(const ls_trial *trial);

#endif
