/* A step: the work of a pass on one batch. */
#ifndef LS_TRAIN_STEP_H
#define LS_TRAIN_STEP_H

#include "train/trial.h"

typedef ls_status ls_trial_step_function(ls_trial *trial);

/* Sets the batch in trial->state, and runs a step on it in its own scope. */
ls_status ls_trial_step(ls_trial *trial, const ls_batch *batch, ls_trial_step_function *step);

ls_status ls_trial_training_step(ls_trial *trial);
ls_status ls_trial_validation_step(ls_trial *trial);

/* Computes state->output from state->input, and calls the hooks before and after. Does nothing if this rank's share
 * of the batch is empty. */
ls_status ls_trial_forward(ls_trial *trial);

/*
 * Ends a training step, or an epoch after all its hooks. The ranks agree on whether to continue, and write a checkpoint
 * if one is due. Returns LS_ERR_STOPPED if a signal ended the run after a checkpoint. Collective.
 */
ls_status ls_trial_end_of_step(ls_trial *trial, bool epoch);

#endif
