/* Checks for setups that a program cannot intend. */
#ifndef LS_TRAIN_SETUP_H
#define LS_TRAIN_SETUP_H

#include "train/trial.h"

/* Returns an error if the trial would train nothing. Warns once per trial about a module created by ls_nn_standardize
 * that was never fitted. */
ls_status ls_trial_check_setup(ls_trial *trial);

/*
 * Fails with LS_ERR_MISMATCH if the model is or contains a pipeline whose stages get different shares of the loader's
 * batches. `name` describes the loader. Collective over the stages.
 */
ls_status ls_trial_check_stages(const char *call, const char *name, const ls_trial *trial, const ls_loader *loader);

/*
 * ls_trial_watch_begin watches a trial from its first step, at most until the end of its first epoch. If the ranks
 * train separate models, ls_trial_watch_step (after a training step) and ls_trial_watch_epoch (after an epoch) log one
 * warning per trial; both are collective. ls_trial_watch_end ends the watch at the end of the run.
 */
void ls_trial_watch_begin(ls_trial *trial);
ls_status ls_trial_watch_step(ls_trial *trial);
ls_status ls_trial_watch_epoch(ls_trial *trial);
void ls_trial_watch_end(ls_trial *trial);

#endif
