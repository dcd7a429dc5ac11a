/* The budget of memory: `.memory_limit` of a trial. */
#ifndef LS_TRAIN_BUDGET_H
#define LS_TRAIN_BUDGET_H

#include "train/trial.h"

/*
 * Fails with LS_ERR_MEMORY if the present tensors, and the gradients and the state of the optimizer that do not exist
 * yet, exceed the limit.
 */
ls_status ls_trial_check_memory(const ls_trial *trial);

/* Called after every training step. Fails if the peak exceeds the limit after the run's first step with samples. */
ls_status ls_trial_check_first_step(ls_trial *trial);

#endif
