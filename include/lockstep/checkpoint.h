/**
 * @file checkpoint.h
 * Checkpoints of trials:
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
 * A trial that resumes from a checkpoint on the same number of ranks, even within an epoch, finishes with results that
 * are bit-identical to the results of an uninterrupted run. docs/reference/checkpoint-format.md describes the contents
 * of a checkpoint, and docs/tutorial/5-checkpoint-and-resume.md describes what the program must do.
 */
#ifndef LOCKSTEP_CHECKPOINT_H
#define LOCKSTEP_CHECKPOINT_H

#include <lockstep/train.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * When and where a trial writes checkpoints: `.checkpoint` of ls_trial_options. If all intervals are 0, the trial
 * writes a checkpoint after every epoch. Every rank must pass the same options. docs/reference/checkpoint-format.md
 * describes folders and signals.
 *
 * - Checkpoints are copied after a step or an epoch, when all hooks have run, and then written by a thread. One
 *   checkpoint is written at a time: if the next one is due earlier, it waits for a later step. ls_trial_run returns
 *   when all checkpoints are complete. If a checkpoint cannot be written, the run ends on all ranks.
 * - During the run, SIGTERM or SIGUSR1 on any rank causes a checkpoint after the current step (in validation: after the
 *   epoch). ls_trial_run then returns LS_ERR_STOPPED on all ranks, without on_end. The program should exit with
 *   LS_EXIT_STOPPED. A signal after the last epoch is ignored. After the run, the previous signal handlers are
 *   restored.
 * - If a hook stops the run, the checkpoint records the stop. The first ls_trial_run of a trial that resumes from it
 *   ends immediately, and the next ls_trial_run continues.
 * - Before a checkpoint of a data-parallel model is written, the ranks compare their parameters. If the parameters
 *   differ, nothing is written and the run fails with LS_ERR_MISMATCH. While ls_data_parallel_no_sync is on, the
 *   ranks do not compare them, and the checkpoint has the parameters and the optimizer of rank 0.
 * - All ranks need the same folder. ls_trial_run fails with LS_ERR_IO before the first step if a rank does not see a
 *   folder that rank 0 creates there.
 * - The folder may contain other files. The trial removes only its own files, by names such as
 *   "epoch-000003-step-0000000120" and ".new-0123456789abcdef-epoch-000003-step-0000000120". It renames damaged
 *   later checkpoints to names such as "damaged-epoch-000003-step-0000000120", and replaces an earlier folder of this
 *   name.
 * - With `best`, ls_trial_run fails with LS_ERR_STATE if the folder has a file "best" that is not a link.
 * - One trial at a time uses a folder. Another trial fails with LS_ERR_STATE after half a second, if the file system
 *   supports locks.
 * - ls_trial_run fails with LS_ERR_STATE if the folder has complete checkpoints at a later position than the trial's
 *   (by epoch, then by step), because the folder would contain two histories. With `overwrite`, ls_trial_run removes
 *   these checkpoints, and the link `best` to one of them, before its first step, after all checks and on_start: all if
 *   the trial starts fresh, and none if `.resume` found the newest.
 */
struct ls_checkpoint_options {
    const char *folder;   /**< folder of the checkpoints (copied); created if missing */
    int64_t every_steps;  /**< interval in training steps; 0 selects none */
    double every_seconds; /**< interval in seconds, by rank 0's clock; 0 selects none */
    int64_t every_epochs; /**< interval in epochs; the checkpoint follows the epoch's validation; 0 selects none */
    int keep;             /**< number of newest checkpoints to keep; 0 selects the default, 3. Older checkpoints are
                             removed when a new one is complete. */
    /** Name of a metric for ls_trial_metric (copied), such as "val_loss". If an epoch has the best value so far, the
     * trial writes a checkpoint after it, in addition to `every_epochs`. This checkpoint counts among the `keep`
     * newest. The link `best` in the folder points to it, and it is kept until a better checkpoint is complete. A
     * trial that resumes with the same `best` and `highest` knows the best value of the earlier epochs. If the trial
     * does not have the metric, ls_trial_run fails with LS_ERR_ARGUMENT. NULL selects no best checkpoint. */
    const char *best;
    bool highest;    /**< the highest value is best, instead of the lowest */
    bool no_signals; /**< does not handle SIGTERM and SIGUSR1 */
    bool overwrite;  /**< removes checkpoints of an earlier run at later positions than this trial's */
};

/**
 * Writes a checkpoint to `folder`, and returns when it is complete. Replaces `folder`, with all files in it, if it is
 * a checkpoint or an empty folder. A folder with a file manifest.json and a name such as
 * "epoch-000003-step-0000000120" counts as a checkpoint, even if it is damaged. Collective if the trial has a
 * communicator. Fails with:
 *
 * - LS_ERR_IO if a file cannot be written or removed, or if `folder` exists and is neither empty nor a checkpoint, such
 *   as a link, or a folder with files but without a valid Lockstep manifest
 * - LS_ERR_STATE if a hook calls it (set `state->save` in the hook instead), or between two outer steps
 *   (ls_outer_step) on several ranks
 * - LS_ERR_MISMATCH if the ranks of a data-parallel model have different parameters, as in ls_trial_run
 */
LS_API ls_status ls_trial_save(ls_trial *trial, const char *folder) LS_WARN_UNUSED;

/**
 * Restores the trial from a checkpoint. `folder` is a checkpoint, or the `.folder` of ls_checkpoint_options, in which
 * the newest complete checkpoint is used. In such a folder, only names such as "epoch-000003-step-0000000120" are
 * checkpoints. Collective if the trial has a communicator. After a failure, the trial may be partially restored.
 *
 * - The model, the optimizer and the metrics must match the checkpoint. If a loader of a data set orders the samples
 *   differently from the checkpoint's loader within an epoch, the log has a warning.
 * - If the checkpoint does not have the state of one of the trial's `.callbacks`, this callback keeps its current
 *   state, with a warning in the log. The states of callbacks that the trial does not have are ignored, with a warning.
 *   The order of callbacks does not matter, unless their kinds and options (`describe`) are equal. These callbacks, and
 *   the callbacks in a checkpoint of an older version, are found by their names and their order.
 * - If the options of a callback have changed, and one callback and one state of its kind are left, the callback gets
 *   this state, with a warning. If several are left, the callback keeps its current state. A kind includes the metric
 *   and the direction of ls_early_stopping, the interval and the metric of ls_scheduler, and the callbacks in a group.
 * - The learning rates of the trial's optimizer are restored. Exceptions: an ls_scheduler sets the rates for its
 *   current step if its options have changed, or the options of a callback in the same group, or if its state is from
 *   an older version. The `set_state` of your own callbacks may set rates, too.
 * - Modes of layers (ls_module_train) are restored, too, unless the model is sharded differently.
 * - On a different number of ranks, training continues at the same sample. New ranks get rank 0's random numbers and
 *   rank 0's callback states.
 * - A model that is sharded over ranks (tensor parallelism, pipelines) may be sharded over ranks other than those in
 *   the checkpoint, or not at all. Weights and the state of the optimizer are bit-identical.
 *
 * Fails with:
 *
 * - LS_ERR_FORMAT if a file is damaged, with the name of the file or of the checkpoint, or if the trial has different
 *   metrics
 * - LS_ERR_IO if `folder` is not a checkpoint and contains no complete checkpoint with such a name
 * - LS_ERR_UNSUPPORTED if a newer Lockstep wrote the checkpoint, or if the model is sharded differently from the
 *   checkpoint's model, and the checkpoint has contents that cannot be resharded (docs/reference/checkpoint-format.md)
 * - LS_ERR_ARGUMENT if only the trial or only the checkpoint has an optimizer or a training loader, if no global batch
 *   of the trial begins at the sample of the checkpoint, or if `.shards` differs within an epoch
 * - LS_ERR_STATE in a hook
 * - the errors from ls_module_load and ls_optimizer_load if the model or the optimizer does not match
 */
LS_API ls_status ls_trial_load(ls_trial *trial, const char *folder) LS_WARN_UNUSED;

#ifdef __cplusplus
}
#endif

#endif
