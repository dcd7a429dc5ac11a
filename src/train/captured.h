/* `.capture` of a trial: captures the default step (autograd/captured_step.h), and replays it. */
#ifndef LS_TRAIN_CAPTURED_H
#define LS_TRAIN_CAPTURED_H

#include "train/trial.h"

/*
 * Runs a step on the batch in trial->state, after on_sample: replays it, captures it, or only calls it. `compute`
 * computes the output, the loss and the gradients, and updates the parameters.
 */
ls_status ls_trial_captured_step(ls_trial *trial, ls_status (*compute)(ls_trial *trial));

/* Logs, once per trial, why a step of a different kind is not captured. */
void ls_trial_refuse_capture(ls_trial *trial, const char *why);

/* Frees the captured step. */
void ls_trial_forget_capture(ls_trial *trial);

#endif
