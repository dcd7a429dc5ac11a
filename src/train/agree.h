/* Agreements: all ranks of a trial continue, stop or fail together. Every function is collective. */
#ifndef LS_TRAIN_AGREE_H
#define LS_TRAIN_AGREE_H

#include "train/trial.h"

/* Begins a run or an evaluation: finds out whether any rank has callbacks or a user step. */
ls_status ls_trial_begin_agreeing(ls_trial *trial);

/*
 * Sends the `status` of this rank to the other ranks. All ranks then continue or stop together, or fail with the status
 * and the message of the rank that failed. A rank that has not failed takes part only if `trial->agrees`.
 */
ls_status ls_trial_agree(ls_trial *trial, ls_status status);

/*
 * Does the same at the end of a run or an evaluation. All ranks always take part, because one rank may fail after its
 * last collective call.
 */
ls_status ls_trial_agree_at_end(ls_trial *trial, ls_status status);

#endif
