/* The replicas of a trial's model: outer steps (.outer), and the comparison of replicas. */
#ifndef LS_TRAIN_REPLICAS_H
#define LS_TRAIN_REPLICAS_H

#include "train/trial.h"

/* Fails if `.outer` is incompatible with the other options. */
ls_status ls_trial_check_outer(const ls_trial_options *options);

/*
 * Call this before the training of an epoch. Accepts changes that hooks or the program have made to the parameters.
 * Does nothing without `.outer`.
 */
ls_status ls_trial_outer_begin(const ls_trial *trial);

/* Call this after a training step. Counts the step, and runs an outer step if one is due. Does nothing without
 * `.outer`. */
ls_status ls_trial_outer_step(const ls_trial *trial);

/* Runs an outer step if there were training steps since the last outer step. Does nothing without `.outer`.
 * Collective. */
ls_status ls_trial_outer_sync(const ls_trial *trial);

/* Returns whether checkpoints must wait for the next outer step. */
bool ls_trial_awaits_outer_step(const ls_trial *trial);

/*
 * Fails with LS_ERR_MISMATCH if the parameters differ between replicas that should be equal, and with LS_ERR_STATE
 * between two outer steps. Collective.
 */
ls_status ls_trial_check_replicas(ls_trial *trial);

/* Returns `.shards` of the trial's data-parallel model, or 0 without `.shards`. */
int ls_trial_shards(const ls_trial *trial);

/*
 * Fails with LS_ERR_ARGUMENT if `.shards` differs between the trial's loaders and its model, or if the trial's
 * communicator has different ranks. Fails with LS_ERR_UNSUPPORTED if the trial has a user step or an outer optimizer.
 * ls_trial_check_loader checks a single loader.
 */
ls_status ls_trial_check_shards(const ls_trial_options *options);
ls_status ls_trial_check_loader(const char *call, const ls_trial *trial, const ls_loader *loader);

#endif
