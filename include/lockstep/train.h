/**
 * @file train.h
 * Training loops: a trial runs epochs of training and validation over loaders, measures, shows progress and calls
 * callbacks. Its model, hooks and layout of progress follow torchbearer's Trial (arXiv 1809.03363).
 */
#ifndef LOCKSTEP_TRAIN_H
#define LOCKSTEP_TRAIN_H

#include <lockstep/data.h>
#include <lockstep/metrics.h>
#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A training run. Opaque. */
typedef struct ls_trial ls_trial;

/** What a trial is in the midst of. */
typedef enum ls_trial_phase {
    LS_PHASE_NONE = 0, /**< outside of any pass over a loader */
    LS_PHASE_TRAINING,
    LS_PHASE_VALIDATION,
    LS_PHASE_EVALUATION, /**< ls_trial_evaluate */
    LS_PHASE_PREDICTION, /**< ls_trial_predict */
    LS_PHASE_REPLAY      /**< ls_trial_replay: there are no tensors, and nothing is computed */
} ls_trial_phase;

/** What a trial is doing, as callbacks and metrics see it. Tensors are lent for the time of the step. */
struct ls_trial_state {
    ls_trial *trial;
    ls_module *model;
    ls_optimizer *optimizer;
    ls_comm *comm;          /**< NULL without one */
    ls_trial_phase phase;   /**< of the pass that is under way */
    ls_loader *loader;      /**< that it goes over; NULL in LS_PHASE_NONE and LS_PHASE_REPLAY */
    ls_criterion criterion; /**< a hook may put another here, for the steps that follow */
    void *criterion_user;   /**< given to it; likewise */
    int64_t epoch;          /**< of the trial, from 0 */
    int64_t epochs;         /**< to be run in all */
    int64_t batch;          /**< in the epoch, from 0 */
    int64_t batches;        /**< in the epoch; -1 where the loader does not know */
    int64_t step;           /**< training steps taken since the trial was made */
    int64_t first;          /**< index in the global batch of this rank's first sample; see ls_batch */
    int64_t count;          /**< this rank's samples in the batch */
    int64_t global_count;   /**< all ranks' */
    ls_tensor *input;       /**< on_sample may put another tensor here */
    ls_tensor *target;      /**< likewise */
    ls_tensor *output;      /**< of the model */
    ls_tensor *loss;        /**< of the criterion */
    /** Set by a hook or a step, on one rank or several: training ends on all after this step. The epoch has then its
     * on_end_training, but no validation, no on_end_epoch and no place in the history (torchbearer's STOP_TRAINING); in
     * validation, or behind it, the epoch is ended as usual. A further ls_trial_run goes on. */
    bool stop;
    bool save; /**< likewise: a checkpoint is written after this step, or this epoch, where the trial has an
                    ls_checkpoint_callback */
};

/**
 * A hook. A status other than LS_OK ends the run with it, on every rank, whichever it was called on; ls_error_message()
 * should say why: the other ranks are told that too, with the rank and the hook.
 */
typedef ls_status (*ls_callback_function)(ls_trial_state *state, void *user);

/**
 * The hooks of a trial, all optional, in the order in which they are called. A rank whose share of a batch is empty is
 * not called from on_sample to on_criterion; every other hook is called on every rank. Where a trial has a step of its
 * own, on_forward, on_criterion and on_backward are not called: what lies between on_sample and on_step_training is the
 * step's. The hooks of validation are those of ls_trial_evaluate and ls_trial_predict, too.
 */
typedef struct ls_callback {
    void *user;                    /**< given to every hook */
    ls_callback_function on_init;  /**< the trial was made */
    ls_callback_function on_start; /**< a run begins */
    ls_callback_function on_start_epoch;
    ls_callback_function on_start_training;
    ls_callback_function on_sample;        /**< input and target are there */
    ls_callback_function on_forward;       /**< output is there */
    ls_callback_function on_criterion;     /**< loss is there */
    ls_callback_function on_backward;      /**< gradients are there */
    ls_callback_function on_step_training; /**< the parameters have changed */
    ls_callback_function on_end_training;  /**< the epoch's training metrics are there */
    ls_callback_function on_start_validation;
    ls_callback_function on_sample_validation;
    ls_callback_function on_forward_validation;
    ls_callback_function on_criterion_validation;
    ls_callback_function on_step_validation;
    ls_callback_function on_end_validation; /**< the validation metrics are there */
    ls_callback_function on_end_epoch;      /**< the epoch is in the history */
    ls_callback_function on_checkpoint;     /**< a good moment to save */
    ls_callback_function on_end;            /**< the run ends */
    const char *name; /**< for messages and checkpoints; NULL: "callback N", N being its number from 0 */
    /** What it remembers, for a checkpoint: named tensors, lent until the next call of one of its functions. NULL: it
     * remembers nothing. */
    ls_status (*state)(void *user, const ls_named **tensors, int *count);
    /** Has it remember that again, in a trial that goes on from the checkpoint: copies what it needs, or refuses. */
    ls_status (*set_state)(void *user, const ls_named *tensors, int count);
    /** NULL, or called with `user` when the trial is done with it: by ls_trial_free, or by ls_trial_new on failure. A
     * callback that has this is taken over by the trial. */
    void (*release)(void *user);
    bool invalid; /**< its constructor failed: ls_trial_new fails with that error */
    /** Writes the kind and the options of the callback into `text` of `size` bytes, ended by NUL. Texts over 511 bytes
     * are cut. ls_trial_run fails with LS_ERR_MISMATCH if the texts of the ranks differ. If this is NULL, or if it
     * writes an empty text, the callback is not compared. */
    void (*describe)(void *user, char *text, size_t size);
    bool built_in; /**< true in callbacks that the library's constructors return; leave it false in yours */
} ls_callback;

/**
 * The callbacks of ls_trial_options, in place of its two fields:
 *
 * ```c
 * ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model, LS_CALLBACKS(ls_csv_log("log.csv", NULL), mine)});
 * ```
 */
#define LS_CALLBACKS(...)                                                                                              \
    .callbacks = (const ls_callback[]){__VA_ARGS__},                                                                   \
    .callback_count = (int)(sizeof((const ls_callback[]){__VA_ARGS__}) / sizeof(ls_callback))

/** What a trial consists of. Everything is lent and must outlive it, but for metrics and for callbacks that have
 * `release`: the trial takes ownership of these, also if ls_trial_new fails.
 * ls_trial_run is LS_ERR_STATE if a loader or the optimizer was freed before. */
typedef struct ls_trial_options {
    ls_module *model;
    ls_optimizer *optimizer; /**< NULL: the trial can only evaluate, if it has no step of its own either */
    ls_criterion criterion;  /**< NULL: only with a step of its own, and without validation */
    void *criterion_user;    /**< given to it */
    /**
     * A training step of your own: forward passes, backward passes and optimizer steps, as many as it takes, with the
     * batch in `state`. NULL: one of each, by the criterion. It leaves what the metrics need in state->loss and
     * state->output, which must be there when it returns (`state->loss = ls_scalar(loss, LS_F64)` where the loss is a
     * number by then). It is called in a scope of its own, with gradients as the step before left them, on every rank:
     * a rank whose share is empty (state->count 0) does what the others need of it (ls_data_parallel_skip). A status
     * other than LS_OK ends the run on all ranks, as a hook's does.
     */
    ls_callback_function step;
    void *step_user; /**< given to it */
    ls_loader *train;
    ls_loader *validate;        /**< NULL: no validation */
    ls_comm *comm;              /**< over which metrics are reduced; NULL: the model's, if ls_data_parallel made it */
    const char *const *metrics; /**< LS_METRICS("loss", "acc"); NULL: the loss */
    /** After these, metrics of constructors and of your own; see LS_CUSTOM_METRICS. The trial takes ownership of the
     * metrics, also if ls_trial_new fails, and copies the array. */
    ls_metric *const *custom_metrics;
    int custom_metric_count;
    const ls_callback *callbacks; /**< called in this order (copied); see LS_CALLBACKS */
    int callback_count;
    /**
     * Batches of an epoch of training; 0: as many as the loader's epoch has. Where they are more, the loader goes
     * round; where they are fewer, the rest of the loader's epoch is left out, unless the trial is `endless`.
     */
    int64_t train_steps;
    int64_t validate_steps; /**< likewise, of each validation */
    int64_t evaluate_steps; /**< likewise, of ls_trial_evaluate and ls_trial_predict */
    bool endless;           /**< with train_steps: an epoch begins where the one before left the loader */
    int64_t max_steps;      /**< end after so many training steps, also in the midst of an epoch, which has its
                               validation then; 0: no limit */
    /** A folder with checkpoints (checkpoint.h): ls_trial_new puts the trial where the newest whole one is, as
     * ls_trial_load does; damaged ones are named in the log and passed over. Where there is none the trial begins anew.
     * NULL: it does so anyway. With it, ls_trial_new is a collective call where the trial has a communicator. */
    const char *resume;
    /** LS_BF16 or LS_F16: the model, the criterion and a step of one's own run under ls_autocast (autograd.h), in
     * training and in every measurement. LS_F32, which is zero: in f32. */
    ls_dtype autocast;
    /** Scales losses, for LS_F16, and skips steps that overflow; hooks see losses and gradients without the scale. A
     * step of one's own calls it itself. Checkpoints have its state. NULL: there is none. */
    ls_grad_scaler *grad_scaler;
    /** The device that every batch is brought to before on_sample, "cuda:0", say; ls_trial_new moves a model there that
     * is elsewhere. A model that an optimizer or ls_data_parallel has taken can no longer move, and must be there: else
     * LS_ERR_STATE. Other errors: those of ls_use_device; LS_ERR_UNSUPPORTED for a model on two devices. NULL: batches
     * are where their loader puts them. */
    const char *device;
    bool quiet;       /**< no progress on standard output (only rank 0 shows any) */
    bool bar_per_run; /**< one bar for all epochs of a run, in place of one for each pass */
} ls_trial_options;

/** A trial; calls on_init. NULL and an error when something is missing or a metric is unknown. */
LS_API ls_trial *ls_trial_new(const ls_trial_options *options);

/**
 * Runs epochs until `epochs` have been run since the trial was made, those before a checkpoint that it goes on from
 * counted. The training loader goes on from where it stands
 * (ls_loader_seek): what is left of its epoch counts as one. Validation begins at epoch 0, batch 0 of its loader each
 * time. Collective where the trial has a communicator. A rank that fails, in a hook or in its own step, ends the run on
 * all ranks with its status and a message that names it
 * ("ls_trial: rank 1 failed: the hook on_backward of callback 0: ..."); where all fail alike each has its own message.
 * LS_ERR_STOPPED where a signal has ended it behind a checkpoint (ls_checkpoint_callback): a further call goes on.
 *
 * The ranks must have the same setup: loaders that divide batches over the ranks (samples, batch size, seed, order),
 * optimizers (kind, options, rates), metrics, the library's callbacks and their options. The optimizers may differ if a
 * rank has a step of its own. The parameters of a data-parallel model are compared after on_start, after each epoch and
 * before each checkpoint (ls_data_parallel_check). They are not compared while ls_data_parallel_no_sync is on, or
 * gradients of passes under it are not averaged yet: replicas may differ then, as in local SGD. A difference is
 * LS_ERR_MISMATCH, with both values and ranks. The program's own callbacks may be on some ranks only.
 *
 * Returns LS_ERR_ARGUMENT or LS_ERR_STATE for a trial that would train nothing: negative `epochs`, a training loader
 * without batches, an optimizer without parameters of the model, or a model that got layers after the optimizer. Logs
 * one warning if the ranks train separate models that do not communicate, or if each rank trains on all samples. For
 * separate models on purpose, give each trial a `.comm` of one rank.
 *
 * The model is put into training mode before on_start, unless it is in training mode already. Modes set by hooks
 * (ls_module_train), and modes that layers have when the run begins, are kept. Validation, with its hooks, runs in
 * evaluation mode, and restores all modes afterwards.
 */
LS_API ls_status ls_trial_run(ls_trial *trial, int64_t epochs) LS_WARN_UNUSED;

/**
 * Measures the model on the batches of epoch 0 of the loader, in evaluation mode. `label`, UTF-8, is shown with the
 * progress, and names the results: "test_loss"; they are added to the last epoch of the history, if there is one. Hooks
 * are called as torchbearer does: on_start, on_start_epoch, those of validation, on_end_epoch, on_end. The model is
 * then in the mode it was in, and training goes on from where its loader stood, if it is that one. A hook may evaluate
 * too, on a loader that no run is using: then no hooks are called, and the history stays as it is.
 */
LS_API ls_status ls_trial_evaluate(ls_trial *trial, ls_loader *loader, const char *label) LS_WARN_UNUSED;

/**
 * The model's outputs for the samples of epoch 0 of the loader, all ranks' together, in evaluation mode: `*outputs`
 * [samples, ...], on the CPU, belongs to the innermost scope. Rows are in the order of the data set, however the loader
 * orders them; of a loader of another kind in the order of batches, and of ranks within a batch. `*outputs` is on rank
 * 0 alone, NULL on the others, unless `on_all_ranks`. Hooks are those of ls_trial_evaluate but on_criterion_validation:
 * there are no targets, no losses and no metrics. LS_ERR_SHAPE where outputs differ in shape or dtype.
 */
LS_API ls_status ls_trial_predict(ls_trial *trial, ls_loader *loader, bool on_all_ranks,
                                  ls_tensor **outputs) LS_WARN_UNUSED;

/**
 * Calls callbacks (lent) as the runs of this trial did, epoch after epoch of its history, without computing anything:
 * ls_trial_metric gives what was known then, and there are no tensors. With `one_batch` each pass has one batch. A hook
 * that stops ends it. on_init and on_checkpoint are not called (torchbearer's replay).
 */
LS_API ls_status ls_trial_replay(ls_trial *trial, const ls_callback *callbacks, int count,
                                 bool one_batch) LS_WARN_UNUSED;

/**
 * Returns the value of a metric: "loss" of training, "val_loss" of validation, "test_loss" of ls_trial_evaluate with
 * the label "test". NAN if there is none.
 *
 * - Within a pass that measures the metric, in hooks and in a step of your own: the value of this rank's samples so far
 *   in the pass. After on_step_training (on_step_validation) of a batch, the batch is included; before, in on_sample to
 *   on_backward, it is not. NAN before the first batch. In a trial that resumes in the middle of an epoch, the batches
 *   before the checkpoint are included.
 * - Outside of such a pass, from on_end_training (on_end_validation) on: the last value of all ranks, the same on every
 *   rank.
 */
LS_API double ls_trial_metric(const ls_trial *trial, const char *name);
/**
 * Returns the values of a metric that has several ("val_confusion", "recall_per_class"), or the one value of any other
 * metric, of the last pass that has ended. Sets `*count` (may be NULL) to the number of values. Returns a borrowed
 * pointer, valid until the metric is measured again, or NULL if there are no values. The values are not in the history,
 * and ls_trial_metric of such a metric is NAN. The same on every rank.
 */
LS_API const double *ls_trial_metric_values(const ls_trial *trial, const char *name, int64_t *count);

/** Epochs in the history. */
LS_API int64_t ls_trial_history_count(const ls_trial *trial);
/** A metric's value in an epoch of the history; NAN when there is none. */
LS_API double ls_trial_history(const ls_trial *trial, int64_t epoch, const char *name);
/** Writes the history as a CSV file: a line per epoch, a column for each name in it, "nan" where an epoch has none. */
LS_API ls_status ls_trial_save_history(const ls_trial *trial, const char *path) LS_WARN_UNUSED;

/**
 * Training samples per second over all ranks, counted over the training steps only: validation is left out, and so are
 * the trial's first 10 steps once there are more. 0 before the first. A collective call when the trial has a
 * communicator.
 */
LS_API double ls_trial_throughput(ls_trial *trial);

/** Frees it. NULL is allowed. */
LS_API void ls_trial_free(ls_trial *trial);

#ifdef __cplusplus
}
#endif

#endif
