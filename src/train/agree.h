/* Agreements: all ranks of a trial continue, stop or fail together. Every function is collective. */
#ifndef LS_TRAIN_AGREE_H
#define LS_TRAIN_AGREE_H

#include "train/trial.h"

/* Begins a run or an evaluation. Determines whether any rank has callbacks or a user step. */
ls_status ls_trial_begin_agreeing(ls_trial *trial);

/*
 * Sends this rank's `status` to the other ranks. All ranks then continue or stop together, or all fail with the status
 * and message of the rank that failed. If `trial->agrees` is not set, a rank takes part only if it has failed.
 */
ls_status ls_trial_agree(ls_trial *trial, ls_status status);

/*
 * Does the same at the end of a run or an evaluation. All ranks always take part, because a rank may fail after its
 * last collective call.
 */
ls_status ls_trial_agree_at_end(ls_trial *trial, ls_status status);

#endif
