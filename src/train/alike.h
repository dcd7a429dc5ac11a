/* Checks that the ranks of a trial have the same setup and the same parameters. Both functions are collective. */
#ifndef LS_TRAIN_ALIKE_H
#define LS_TRAIN_ALIKE_H

#include "train/trial.h"

/* Returns LS_ERR_MISMATCH if ranks have different loaders, checkpoint options, optimizers, metrics or callbacks. */
ls_status ls_trial_check_alike(const ls_trial *trial);

/* Returns LS_ERR_MISMATCH if the ranks of a data-parallel model have different parameters. */
ls_status ls_trial_check_replicas(const ls_trial *trial);

#endif
