/* The replicas of a trial's model: outer steps (.outer), and the comparison of the replicas. */
#ifndef LS_TRAIN_REPLICAS_H
#define LS_TRAIN_REPLICAS_H

#include "train/trial.h"

/* Fails if `.outer` does not fit the other options. */
ls_status ls_trial_check_outer(const ls_trial_options *options);

/*
 * Before the training of an epoch: takes changes that hooks or the program have made to the parameters. Does nothing
 * without `.outer`.
 */
ls_status ls_trial_outer_begin(const ls_trial *trial);

/* After a training step: counts it, and runs an outer step if it is time. Does nothing without `.outer`. */
ls_status ls_trial_outer_step(const ls_trial *trial);

/* Runs an outer step if there were training steps since the last one. Does nothing without `.outer`. Collective. */
ls_status ls_trial_outer_sync(const ls_trial *trial);

/* Returns whether checkpoints must wait for the next outer step. */
bool ls_trial_awaits_outer_step(const ls_trial *trial);

/*
 * Fails with LS_ERR_MISMATCH if the parameters of replicas that should be equal differ, and with LS_ERR_STATE between
 * two outer steps. Collective.
 */
ls_status ls_trial_check_replicas(ls_trial *trial);

/* Returns `.shards` of the trial's data-parallel model; 0 without. */
int ls_trial_shards(const ls_trial *trial);

/*
 * Fails with LS_ERR_ARGUMENT if the loaders of the trial have other `.shards` than its model, or if its communicator
 * has other ranks; with LS_ERR_UNSUPPORTED if the trial has a user step or an outer optimizer.
 * ls_trial_check_loader checks one loader.
 */
ls_status ls_trial_check_shards(const ls_trial_options *options);
ls_status ls_trial_check_loader(const char *call, const ls_trial *trial, const ls_loader *loader);

#endif
