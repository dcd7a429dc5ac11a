/* The memory limit of a trial: `.memory_limit`. */
#ifndef LS_TRAIN_BUDGET_H
#define LS_TRAIN_BUDGET_H

#include "train/trial.h"

/*
 * Fails with LS_ERR_MEMORY if the current tensors, together with the gradients and optimizer state yet to be allocated,
 * exceed the limit.
 */
ls_status ls_trial_check_memory(const ls_trial *trial);

/* Call this after every training step. Fails if the peak exceeds the limit after the run's first step with samples. */
ls_status ls_trial_check_first_step(ls_trial *trial);

#endif
