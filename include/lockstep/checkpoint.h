/**
 * @file checkpoint.h
 * Checkpoints of trials. A trial that resumes from a checkpoint, also within an epoch, gives the same bits as a run
 * without interruption. docs/reference/checkpoint-format.md describes the content of a checkpoint.
 */
#ifndef LOCKSTEP_CHECKPOINT_H
#define LOCKSTEP_CHECKPOINT_H

#include <lockstep/train.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * When and where a trial writes checkpoints: `.checkpoint` of ls_trial_options. If none of the intervals is given, the
 * trial writes a checkpoint after every epoch. Every rank gives the same options.
 *
 * ```c
 * ls_trial *trial = ls_trial_new(&(ls_trial_options){
 *     .model = model,
 *     .optimizer = optimizer,
 *     .criterion = ls_criterion_cross_entropy,
 *     .train = training,
 *     .checkpoint = &(ls_checkpoint_options){.folder = "run1", .every_steps = 1000},
 *     .resume = "run1",
 * });
 * ```
 *
 * - A checkpoint is copied after a step or an epoch, when all hooks have run, and written by a thread. One checkpoint
 * is written at a time: if the next one is due before that, it waits for the next step. ls_trial_run returns when all
 *   checkpoints are complete. A failure to write ends the run on all ranks.
 * - During the run, SIGTERM or SIGUSR1 on any rank causes a checkpoint after the current step (in validation: after the
 *   epoch). ls_trial_run then returns LS_ERR_STOPPED on all ranks, without calling on_end. Exit with LS_EXIT_STOPPED
 *   then. After the run the signals have their previous handlers.
 * - If a hook has stopped the run, the checkpoint records this. The first ls_trial_run of a trial that resumes from it
 *   ends immediately, and the next ls_trial_run continues.
 * - Checkpoints include the modes of layers (ls_module_train).
 * - Before a checkpoint of a data-parallel model is written, the ranks compare their parameters. If they differ,
 * nothing is written and the run fails with LS_ERR_MISMATCH.
 * - All ranks need the same folder. ls_trial_run fails with LS_ERR_IO before the first step if a rank does not see what
 *   rank 0 creates there.
 * - The folder may contain other files. The trial removes only its own files, by names such as
 *   "epoch-000003-step-0000000120" and ".new-0123456789abcdef-epoch-000003-step-0000000120". With `best`, a file "best"
 *   that is not a link is LS_ERR_STATE.
 * - One trial at a time uses a folder: another trial fails with LS_ERR_STATE after half a second. A trial also refuses
 * a folder with complete checkpoints that are further than the beginning of its run (LS_ERR_STATE): the folder would
 *   contain two histories. With `overwrite`, ls_trial_run removes these checkpoints before its first step: all if the
 *   trial starts fresh, and none if `.resume` of ls_trial_options found the newest. It removes no other files, and no
 *   checkpoints of a trial that still runs.
 */
struct ls_checkpoint_options {
    const char *folder;   /**< folder of the checkpoints (copied); created if missing */
    int64_t every_steps;  /**< interval in training steps */
    double every_seconds; /**< interval in seconds, by rank 0's clock */
    int64_t every_epochs; /**< interval in epochs, including their validation */
    int keep;             /**< number of newest checkpoints to keep; older ones are removed when a new one is complete;
                               0: 3 */
    /** A metric, by its name for ls_trial_metric (copied), such as "val_loss". Every epoch in which the metric reaches
     * its best value so far is followed by a checkpoint, in addition to `every_epochs`. This checkpoint is kept until
     * there is a better one. The link `best` in the folder points to it. NULL: no best checkpoint. */
    const char *best;
    bool highest;    /**< the highest value of the metric is best, not the lowest */
    bool no_signals; /**< leaves SIGTERM and SIGUSR1 alone */
    bool overwrite;  /**< ls_trial_run removes checkpoints of an earlier run that are further than this trial */
};

/**
 * Writes a checkpoint to `folder`, and returns when it is complete. Replaces the folder if it is a checkpoint.
 * Collective if the trial has a communicator.
 *
 * Fails with:
 *
 * - LS_ERR_IO if `folder` exists and is not a checkpoint, such as a link, or a folder without a manifest of Lockstep
 * - LS_ERR_STATE in a hook: set `state->save` there
 * - LS_ERR_MISMATCH if the ranks of a data-parallel model have different parameters, as in ls_trial_run
 */
LS_API ls_status ls_trial_save(ls_trial *trial, const char *folder) LS_WARN_UNUSED;

/**
 * Restores the trial from a checkpoint. `folder` is a checkpoint, or contains checkpoints: then the newest complete one
 * is used. Collective if the trial has a communicator.
 *
 * - Model, optimizer, loader, metrics and callbacks must match the checkpoint. A callback whose state is not in the
 *   checkpoint starts from its initial state, with a warning in the log.
 * - On another number of ranks, training continues at the same sample. A global batch must begin there
 *   (LS_ERR_ARGUMENT). New ranks get the random numbers and the states of callbacks of rank 0.
 * - Fails with LS_ERR_FORMAT, and names the file, if a file is damaged.
 * - Fails with LS_ERR_UNSUPPORTED if a newer Lockstep wrote the checkpoint.
 * - Fails with the errors of ls_module_load and ls_optimizer_load if the model or the optimizer does not match.
 * - Fails with LS_ERR_STATE in a hook.
 *
 * After a failure the trial may have a part of the checkpoint.
 */
LS_API ls_status ls_trial_load(ls_trial *trial, const char *folder) LS_WARN_UNUSED;

#ifdef __cplusplus
}
#endif

#endif
