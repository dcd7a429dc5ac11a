/* Passes of evaluation and prediction, between runs or inside hooks. */
#ifndef LS_TRAIN_EVALUATE_H
#define LS_TRAIN_EVALUATE_H

#include "train/pass.h"

/* Runs the pass with hooks, or without hooks if it is called from a hook. Restores the state of the trial. */
ls_status ls_trial_evaluation_pass(ls_trial *trial, const ls_trial_pass *pass);

#endif
