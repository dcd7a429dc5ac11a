/* Passes over a loader. */
#ifndef LS_TRAIN_PASS_H
#define LS_TRAIN_PASS_H

#include "train/step.h"

typedef struct ls_trial_pass {
    ls_loader *loader;
    ls_trial_phase phase;
    int64_t steps; /* number of batches; 0 selects the rest of the loader's epoch */
    ls_trial_step_function *step;
    const char *label;       /* label on the progress line */
    const char *prefix;      /* prefix of the results' names; NULL if there are no results */
    ls_history_entry *entry; /* entry in which the results are also stored */
} ls_trial_pass;

/* Trains from the loader's position. */
ls_status ls_trial_train_pass(ls_trial *trial, const ls_trial_pass *pass);

/*
 * Reads the next batch of the training loader, for a hook that restores the loader's position. At the end of an epoch,
 * reads the first batch of the next epoch, as training does. Fails with LS_ERR_ARGUMENT if the loader has no batches.
 */
ls_status ls_trial_next_batch(const char *call, const ls_trial *trial, ls_batch *batch);

/* Moves the loader back to a position after work with result `status`. Returns the first error. */
ls_status ls_trial_seek_back(ls_loader *loader, int64_t epoch, int64_t batch, ls_status status);

/* Computes metrics on epoch 0 of the loader. If this is the training loader, restores its position. */
ls_status ls_trial_measure_pass(ls_trial *trial, const ls_trial_pass *pass);

/*
 * evaluate.c: runs the pass with hooks, or without hooks if it is called from a hook. Restores the state of the trial.
 */
ls_status ls_trial_evaluation_pass(ls_trial *trial, const ls_trial_pass *pass);

/*
 * Sets state->batch and state->batches for the hooks before a pass. `steps` is the option such as train_steps. Training
 * starts at the loader's position, other passes start at batch 0.
 */
void ls_trial_expect(ls_trial *trial, ls_trial_phase phase, const ls_loader *loader, int64_t steps);

void ls_trial_enter(ls_trial *trial, ls_trial_phase phase, ls_loader *loader);

/* Returns whether a hook or the step limit has ended the run, possibly within an epoch. */
bool ls_trial_has_ended(const ls_trial *trial);

#endif
