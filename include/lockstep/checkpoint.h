/**
 * @file checkpoint.h
 * Checkpoints of trials, and going on from them: with the bits of a run that was not interrupted, also from the midst
 * of an epoch. docs/TRAINING.md tells what is in one and what a program should do.
 */
#ifndef LOCKSTEP_CHECKPOINT_H
#define LOCKSTEP_CHECKPOINT_H

#include <lockstep/train.h>

#ifdef __cplusplus
extern "C" {
#endif

/** When checkpoints are written, and where. Several of the times may be given; none: at the end of every epoch. */
typedef struct ls_checkpoint_options {
    const char *folder;   /**< that holds them (copied), seen by all ranks; it is made if missing */
    int64_t every_steps;  /**< after every so many training steps */
    double every_seconds; /**< when so much time has passed since the last one, by rank 0's clock */
    int64_t every_epochs; /**< at the end of every so many epochs, with their validation */
    int keep;             /**< how many of the newest stay; older ones go when a newer one is whole; 0: 3 */
    /** A metric (copied), as ls_trial_metric names it: "val_loss". At the end of an epoch in which it is the best so
     * far there is a checkpoint, whatever `every_epochs` says; it stays until a better one is whole, and the link
     * `best` in the folder leads to it. NULL: none is the best. */
    const char *best;
    bool highest;    /**< the highest value of it is the best, not the lowest */
    bool no_signals; /**< SIGTERM and SIGUSR1 are left alone */
    bool overwrite;  /**< ls_trial_run removes the checkpoints of an earlier run that are further than this trial */
} ls_checkpoint_options;

/**
 * A callback that writes checkpoints while training goes on: what they hold is copied after a step or an epoch, when
 * all hooks have run, and written by a thread. One is under way at a time: where the next is due before that, it waits
 * for the next step. ls_trial_run returns when all are whole. A failure to write ends the run on all ranks. Every rank
 * gives the same options, and one trial has one such callback.
 *
 * While the trial runs, SIGTERM and SIGUSR1, on whichever rank, have a checkpoint written after the step that is under
 * way (in validation: after the epoch); ls_trial_run then returns LS_ERR_STOPPED on all ranks, without calling on_end.
 * Afterwards the signals do what they did before. A program ends with LS_EXIT_STOPPED then.
 *
 * What is written behind a step or an epoch at which a hook has stopped the run is of a run that has ended: the first
 * ls_trial_run of a trial that goes on from there ends as that did, the next one goes on.
 *
 * Modes of layers (ls_module_train) are part of a checkpoint. Before a checkpoint of a data-parallel model is
 * written, the ranks compare their parameters. If they differ, nothing is written and the run fails with
 * LS_ERR_MISMATCH.
 *
 * All ranks need the same folder: ls_trial_run is LS_ERR_IO, before the first step, if a rank does not see what rank 0
 * makes there. The folder may hold other files: the callback removes only what it has made itself, by names such as
 * "epoch-000003-step-0000000120" and ".new-0123456789abcdef-epoch-000003-step-0000000120". A file "best" that is not a
 * link is LS_ERR_STATE if `best` is given.
 *
 * A folder is used by one trial at a time (LS_ERR_STATE after half a second), and a trial refuses (LS_ERR_STATE) a
 * folder in which there are whole checkpoints further than where it begins: it would leave two histories there. With
 * `overwrite` it removes these checkpoints before its first step: all of them if it starts fresh, none if `.resume` of
 * ls_trial_options found the newest. It removes no other files, and no checkpoints of a trial that still runs.
 *
 * ls_trial_new takes the callback over. On failure it is invalid (`.invalid`), and the error is set.
 */
LS_API ls_callback ls_checkpoint_callback(const ls_checkpoint_options *options);

/**
 * Writes a checkpoint to the folder of this name, which is replaced as a whole if it is one already (LS_ERR_IO where it
 * is something else: a link to one, or a folder whose manifest.json is not Lockstep's), and returns when it is whole.
 * Outside of runs (LS_ERR_STATE in a hook: set `state->save` there). LS_ERR_MISMATCH if the ranks of a data-parallel
 * model have different parameters, as in ls_trial_run. A collective call where the trial has a communicator.
 */
LS_API ls_status ls_trial_save(ls_trial *trial, const char *folder) LS_WARN_UNUSED;

/**
 * Puts the trial where it was when the checkpoint was written: `folder` is one, or it holds some, of which the newest
 * whole one is taken. The model, optimizer, loader, metrics and callbacks must be like those of that time. A callback
 * that remembers something of which the checkpoint has nothing begins anew, with a warning in the log. On another
 * number of ranks training goes on at the same sample, which must be where one of the global batches begins
 * (LS_ERR_ARGUMENT); what each rank has of its own (random numbers, states of callbacks) is there rank 0's on those
 * that are new.
 *
 * LS_ERR_FORMAT names the file that is damaged, LS_ERR_UNSUPPORTED says that a newer Lockstep wrote the checkpoint; the
 * errors of ls_module_load and ls_optimizer_load that the model or optimizer is another one. After those the trial may
 * have a part of the checkpoint. Outside of runs. A collective call where the trial has a communicator.
 */
LS_API ls_status ls_trial_load(ls_trial *trial, const char *folder) LS_WARN_UNUSED;

#ifdef __cplusplus
}
#endif

#endif
