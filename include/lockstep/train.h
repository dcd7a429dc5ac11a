/**
 * @file train.h
 * Training loops:
 *
 * ```c
 * ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
 *                                                    .optimizer = optimizer,
 *                                                    .criterion = ls_criterion_cross_entropy,
 *                                                    .train = training,
 *                                                    .validate = validation,
 *                                                    .metrics = LS_METRICS("loss", "acc")});
 * ls_status status = trial != NULL ? ls_trial_run(trial, 10) : ls_error_status();
 * ls_trial_free(trial);
 * ```
 *
 * A trial runs epochs of training and validation over loaders, computes metrics, shows progress and calls callbacks.
 * Its hooks and the layout of its progress follow torchbearer's Trial (arXiv 1809.03363). docs/explanation/trials.md
 * explains trials.
 */
#ifndef LOCKSTEP_TRAIN_H
#define LOCKSTEP_TRAIN_H

#include <lockstep/comm.h>
#include <lockstep/data.h>
#include <lockstep/loss.h>
#include <lockstep/metrics.h>
#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#ifdef __cplusplus
#include <initializer_list>

extern "C" {
#endif

/** A training run. Opaque. */
typedef struct ls_trial ls_trial;

/** When and where a trial writes checkpoints. See checkpoint.h. */
typedef struct ls_checkpoint_options ls_checkpoint_options;

/** The current activity of a trial. */
typedef enum ls_trial_phase {
    LS_PHASE_NONE = 0, /**< outside of a pass over a loader and its hooks */
    LS_PHASE_TRAINING,
    LS_PHASE_VALIDATION,
    LS_PHASE_EVALUATION, /**< ls_trial_evaluate */
    LS_PHASE_PREDICTION, /**< ls_trial_predict */
    LS_PHASE_REPLAY      /**< ls_trial_replay, without tensors or computation */
} ls_trial_phase;

/** The state of a trial, for callbacks, metrics and user steps. Callbacks borrow the tensors until the step ends. */
struct ls_trial_state {
    ls_trial *trial;
    ls_module *model;
    ls_optimizer *optimizer;
    ls_comm *comm;          /**< communicator of the trial; NULL if the trial has none */
    ls_trial_phase phase;   /**< current pass */
    ls_loader *loader;      /**< loader of the pass; NULL in LS_PHASE_NONE and LS_PHASE_REPLAY */
    ls_criterion criterion; /**< criterion for subsequent steps; a hook may replace it */
    void *criterion_user;   /**< user pointer of the criterion; a hook may replace it */
    int64_t epoch;          /**< index of the epoch in the trial, from 0; 0 in ls_trial_evaluate and ls_trial_predict */
    int64_t epochs;         /**< total number of epochs (argument of ls_trial_run); 1 in evaluations and predictions */
    int64_t batch;          /**< index of the batch in the epoch, from 0; after the last batch, the number of batches */
    int64_t batches;        /**< number of batches in the epoch; -1 if unknown */
    int64_t step;  /**< number of training steps of the trial, with the steps of a checkpoint from which it resumed */
    int64_t first; /**< index in the global batch of this rank's first sample; see ls_batch */
    int64_t count; /**< number of samples in this rank's share of the batch */
    int64_t global_count; /**< number of samples in the global batch */
    ls_tensor *input;     /**< input of this rank's share; on_sample may replace it */
    ls_tensor *target;    /**< target of this rank's share; on_sample may replace it */
    ls_tensor *output;    /**< output of the model; with `.shards`, NULL in on_backward and on_step_training */
    ls_tensor *loss;      /**< loss of the criterion or the user step; with `.shards`, NULL like `output` */
    /**
     * Request to end the run on all ranks after this step. A hook or a user step on any rank may set it.
     *
     * - If set during training, on_end_training follows, but no validation and no on_end_epoch. The epoch is not in the
     *   history (torchbearer's STOP_TRAINING).
     * - If set during or after validation, the epoch ends as usual.
     * - If set in on_end_training, the run writes no further checkpoint: a checkpoint that is due but waits for the
     *   previous one, and `save` in on_end_training, are dropped with a warning. To write a last checkpoint, set `stop`
     *   and `save` in on_step_training.
     * - Calling ls_trial_run again continues the training.
     */
    bool stop;
    bool save; /**< request for a checkpoint after this step or epoch, if the trial has `.checkpoint`; a hook or a user
                  step on any rank may set it */
};

/**
 * A hook. If it returns a status other than LS_OK on any rank, the run ends with this status on all ranks. If several
 * ranks fail with different statuses, all ranks get one of them. Set the message with ls_error_set: the other ranks get
 * this message with the rank number and the name of the hook. Do not return LS_ERR_MISMATCH, because the other ranks
 * may then keep their own message.
 */
typedef ls_status (*ls_callback_function)(ls_trial_state *state, void *user);

/**
 * The functions of a callback, for ls_callback_new. All functions are optional. Hooks are listed in the order in which
 * a trial calls them.
 *
 * - If a rank's share of a batch is empty, it skips on_sample, on_forward and on_criterion. Every rank calls the other
 *   hooks.
 * - A trial with a user step does not call on_forward, on_criterion or on_backward.
 * - With `.shards` of ls_data_parallel_options, some hooks run once for each slice (docs/explanation/same-bits.md).
 * - ls_trial_evaluate and ls_trial_predict also call the validation hooks.
 */
typedef struct ls_callback_hooks {
    /** Name in messages and checkpoints (copied), without '/' and with 1 to 80 bytes. NULL selects "callback N",
     * counted from 0. */
    const char *name;
    ls_callback_function on_init;  /**< called at the end of ls_trial_new, before `.resume` */
    ls_callback_function on_start; /**< called at the beginning of a run */
    ls_callback_function on_start_epoch;
    ls_callback_function on_start_training;
    ls_callback_function on_sample;        /**< called when state->input and state->target are set */
    ls_callback_function on_forward;       /**< called when state->output is set */
    ls_callback_function on_criterion;     /**< called when state->loss is set */
    ls_callback_function on_backward;      /**< called when the gradients are complete */
    ls_callback_function on_step_training; /**< called after the training step, even if the scaler skipped it */
    ls_callback_function on_end_training;  /**< called when the training metrics of the epoch are complete */
    ls_callback_function on_start_validation;
    ls_callback_function on_sample_validation;
    ls_callback_function on_forward_validation;
    ls_callback_function on_criterion_validation;
    ls_callback_function on_step_validation;
    ls_callback_function on_end_validation; /**< called when the validation metrics are complete */
    ls_callback_function on_end_epoch;      /**< called after ls_trial_run has added the epoch to the history */
    ls_callback_function
        on_checkpoint;           /**< called when the epoch is complete; the program may save its own files here */
    ls_callback_function on_end; /**< called at the end of a run that has not failed */
    /** Lists the state of the callback as named tensors, for checkpoints. The trial borrows the tensors until it
     * calls another function of the callback. Set both `state` and `set_state`, or neither. Without them,
     * checkpoints do not contain the callback's state. */
    ls_status (*state)(void *user, const ls_named **tensors, int *count);
    /** Copies the state from a checkpoint when a trial resumes. Returns an error if the tensors do not match. */
    ls_status (*set_state)(void *user, const ls_named *tensors, int count);
    /** Frees `user` when the callback is freed. */
    void (*release)(void *user);
    /** Writes the kind and the options of the callback into `text`, which has `size` bytes, terminated by NUL. Only
     * the first 511 bytes count. ls_trial_run fails with LS_ERR_MISMATCH if the strings of the ranks differ. If
     * `describe` is NULL or writes an empty string, the ranks do not compare the callback. */
    void (*describe)(void *user, char *text, size_t size);
} ls_callback_hooks;

/** A callback: hooks that a trial calls. Opaque. ls_callback_new and the constructors of callbacks.h return it. */
typedef struct ls_callback ls_callback;

/**
 * Creates a callback from user-defined hooks. Copies `hooks` and passes `user` to every function. Takes ownership of
 * `user` if `release` is set, otherwise borrows it. Returns ownership to the caller: pass the
 * callback to ls_trial_new, which takes ownership, or free it with ls_callback_free. Returns NULL on failure.
 *
 * ```c
 * ls_callback *callback = ls_callback_new(&(ls_callback_hooks){.name = "mine", .on_end_epoch = report}, NULL);
 * ```
 */
LS_API ls_callback *ls_callback_new(const ls_callback_hooks *hooks, void *user);

/** Frees a callback. Does nothing while a trial or another callback owns it. NULL is allowed. */
LS_API void ls_callback_free(ls_callback *callback);

/**
 * Copies an array of callbacks, for LS_CALLBACKS in C++, because a temporary array does not live until ls_trial_new.
 * Returns a borrowed pointer: the first callback that is not NULL owns the copy. Returns NULL if all elements are NULL.
 * If out of memory, frees the callbacks and returns NULL. Fails with LS_ERR_ARGUMENT if `count` is negative, or if the
 * array is NULL although `count` is not 0.
 */
LS_API ls_callback *const *ls_callback_array(ls_callback *const *callbacks, int count);

/**
 * Sets .callbacks and .callback_count of ls_trial_options, in C and in C++. Without the macro, set .callbacks to an
 * array and .callback_count to its length.
 *
 * ```c
 * ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model, LS_CALLBACKS(ls_csv_log("log.csv", NULL), mine)});
 * ```
 */
#ifdef __cplusplus
#define LS_CALLBACKS(...)                                                                                              \
    .callbacks = ls_callback_array_of({__VA_ARGS__}),                                                                  \
    .callback_count = static_cast<int>(sizeof(ls_callback_pointers{__VA_ARGS__}) / sizeof(ls_callback *))
#else
#define LS_CALLBACKS(...)                                                                                              \
    .callbacks = (ls_callback *const[]){__VA_ARGS__},                                                                  \
    .callback_count = (int)(sizeof((ls_callback *const[]){__VA_ARGS__}) / sizeof(ls_callback *))
#endif

/** Options for ls_trial_new. The trial takes ownership of callbacks and metrics, even if ls_trial_new fails. It
 * borrows all other objects: free the trial first. ls_trial_run fails with LS_ERR_STATE if the model, a loader or the
 * optimizer was freed. */
typedef struct ls_trial_options {
    ls_module *model;
    ls_optimizer *optimizer; /**< optimizer of the default step; may be NULL with a user step, and for a trial that only
                                evaluates or predicts */
    ls_criterion criterion;  /**< loss of the default step and of validation; may be NULL with a user step and without
                                validation */
    void *criterion_user;    /**< argument of the criterion */
    /**
     * A user step: a function that replaces the default training step (forward pass, criterion, backward pass,
     * optimizer step). NULL selects the default step.
     *
     * - The function gets the batch in `state`. It may make any number of passes and optimizer steps.
     * - It must set state->output and state->loss, which metrics read. If the loss is a number, set state->loss to
     *   `ls_scalar(loss, LS_F64)`.
     * - The trial calls it in a separate scope, and does not clear gradients beforehand.
     * - Every rank calls it. If the share of a rank is empty (state->count is 0), the function still takes part in the
     *   communication of the other ranks (ls_data_parallel_skip).
     * - A status other than LS_OK ends the run on all ranks, like the status of a hook.
     */
    ls_callback_function step;
    void *step_user;     /**< argument of the user step */
    ls_loader *train;    /**< training loader; NULL if the trial only evaluates */
    ls_loader *validate; /**< validation loader; NULL skips validation */
    ls_comm *comm; /**< communicator for metrics and agreement; NULL selects the communicator of .outer, or of a model
                      that ls_data_parallel returned; if both exist, this field must be set */
    const char *const *metrics; /**< LS_METRICS("loss", "acc"); NULL selects "loss" */
    /** Metric objects, after `metrics`; see LS_CUSTOM_METRICS. The trial takes ownership of the metrics, even if
     * ls_trial_new fails, and copies the array. */
    ls_metric *const *custom_metrics;
    int custom_metric_count;
    /** Callbacks in the order of their calls; see LS_CALLBACKS. The trial copies the array. A callback belongs to one
     * trial: a second trial fails with LS_ERR_STATE, and a repeated element causes LS_ERR_ARGUMENT. If an element is
     * NULL, ls_trial_new fails with the error from the constructor. */
    ls_callback *const *callbacks;
    int callback_count;
    /** When and where the trial writes checkpoints (copied); see checkpoint.h. NULL selects no checkpoints. */
    const ls_checkpoint_options *checkpoint;
    /**
     * Number of batches in an epoch of training; 0 selects the length of the loader's epoch. A larger number continues
     * with the loader's next epoch. At the end of the epoch, the rest of the loader's epoch is skipped, unless
     * `endless` is set.
     */
    int64_t train_steps;
    int64_t validate_steps; /**< number of batches in each validation, like `train_steps` */
    int64_t evaluate_steps; /**< number of batches in ls_trial_evaluate and ls_trial_predict */
    bool endless;           /**< with train_steps: an epoch begins at the loader's position after the previous epoch */
    int64_t max_steps;      /**< total number of training steps after which a run ends; the epoch then ends with its
                               validation, even if it is incomplete; 0 means no limit */
    /** Folder with checkpoints (checkpoint.h). ls_trial_new restores the newest complete checkpoint, as ls_trial_load
     * does, logs the names of damaged checkpoints, and is then collective if the trial has a communicator. If the
     * folder has no complete checkpoint with a name such as "epoch-000003-step-0000000120", the trial starts fresh.
     * With NULL, the trial starts fresh. */
    const char *resume;
    /** LS_BF16 or LS_F16 runs the model, the criterion and the user step under ls_autocast (autograd.h), including
     * validation, evaluation and prediction. LS_F32, which is 0, leaves autocast as it is. */
    ls_dtype autocast;
    /** Loss scaler, for LS_F16. Steps that overflow are skipped. Hooks see unscaled losses and gradients. A user step
     * must call the scaler itself. Checkpoints contain its state. NULL selects no scaling. */
    ls_grad_scaler *grad_scaler;
    /**
     * Device such as "cuda:0". Each batch is moved to the device before on_sample, and ls_trial_new moves the model to
     * it. With NULL, batches stay on the loader's device. ls_trial_new fails with:
     *
     * - LS_ERR_STATE if the model is on a different device and belongs to an optimizer or to ls_data_parallel, because
     *   it can no longer move
     * - LS_ERR_UNSUPPORTED if the model is on two devices
     * - the errors from ls_use_device
     */
    const char *device;
    bool quiet;       /**< suppresses the progress output that rank 0 otherwise prints to standard output */
    bool bar_per_run; /**< shows one progress bar for all epochs of a run, instead of one for each pass */
    /**
     * Maximum number of bytes of tensor memory that a rank may use, counted as in ls_memory_stats. 0 means no limit.
     * ls_trial_run fails with LS_ERR_MEMORY on all ranks, and with the bytes of each kind in the message:
     *
     * - before the first step, if the existing tensors, missing gradients and the state that the optimizer allocates
     *   later exceed the limit
     * - after the first step with samples, which has then changed the parameters, if the peak of the run so far exceeds
     *   the limit
     *
     * Later steps are not checked. The limits of the ranks may differ.
     */
    int64_t memory_limit;
    /**
     * Outer optimizer of the model, for local SGD and DiLoCo (ls_outer_new); borrowed. NULL selects none.
     *
     * - The trial calls ls_outer_step after each training step. Every `.steps` calls (ls_outer_options), this function
     *   runs an outer step, after which the parameters are equal on all ranks.
     * - It calls ls_outer_sync at the end of the training of each epoch, before validation, and after a hook has
     *   stopped the run.
     * - A checkpoint that is due within an epoch, even after a signal, is written after the next outer step.
     *   Checkpoints contain the state of every rank's optimizer, and the momentum of the outer optimizer.
     */
    ls_outer *outer;
    /**
     * Captures the default step at the first batch, and replays it (step.h; experimental). Small models train faster.
     * The results are bit-identical to the results without capture.
     *
     * - Batches with other shapes, such as the smaller last batch of an epoch, run the step as usual. A batch with more
     *   samples than the captured batch is captured instead.
     * - The criterion's and the model's decisions and numbers are captured as they are. If they depend on the program's
     *   variables, such as *criterion_user, do not change these variables during training.
     * - The step is captured again after a hook has changed a mode, a trainable layer, or the criterion, the model or
     *   the optimizer in the state, unless that happens in every step.
     * - Each replay overwrites the output and the loss: a hook that keeps them must copy them:
     *   ls_keep(ls_clone(ls_detach(x))).
     * - A rank that cannot capture the step runs all steps as usual. Rank 0 logs once why it cannot capture the step;
     *   the other ranks log nothing. Reasons are on_forward, on_criterion or on_backward of a callback (except for
     *   gradient clipping and weight decay, alone or in ls_callbacks_of), a user step, a gradient scaler, .shards,
     *   inputs that require a gradient or are not contiguous, and everything that ls_step_capture refuses.
     */
    bool capture;
} ls_trial_options;

/** Creates a trial and calls on_init. Returns ownership to the caller: free it with ls_trial_free. Returns NULL on
 * failure, for example if an option is missing or invalid, if a metric is unknown, or if on_init fails. */
LS_API ls_trial *ls_trial_new(const ls_trial_options *options);

/**
 * Runs epochs until the trial has run `epochs` epochs in total, including the epochs of a checkpoint from which it
 * resumed. Collective if the trial has a communicator. docs/explanation/trials.md describes the loop and its checks.
 *
 * - Training starts at the position of its loader (ls_loader_seek): without `.train_steps`, the rest of the loader's
 *   epoch counts as one epoch. Each validation starts at epoch 0, batch 0 of its loader.
 * - The ranks must have the same setup: loaders that divide batches over the ranks (samples, batch size, seed, order),
 *   optimizers (kind, options, rates), metrics, the library's callbacks and their options. Optimizers may differ if a
 *   rank has a user step, and in a pipeline. The program's own callbacks may exist on some ranks only.
 * - The ranks compare the parameters of a data-parallel model after on_start, after each epoch and before each
 *   checkpoint (ls_data_parallel_check). They skip the comparison while ls_data_parallel_no_sync is on, and while
 *   gradients of passes under it wait for their averaging: replicas may differ then, as in local SGD.
 * - If the model is not in training mode, the whole model is set to training mode before on_start. Otherwise each layer
 *   keeps its mode. Modes that hooks set outside validation (ls_module_train) are kept.
 * - Validation and its hooks run in evaluation mode. Afterwards all modes are restored.
 * - Rank 0 logs one warning if the ranks train separate models that do not communicate, or if each rank trains on all
 *   samples, with or without ls_data_parallel. To train separate models on purpose, give each trial a `.comm` of one
 *   rank.
 *
 * If a hook or the user step fails on a rank, the run ends on all ranks with its status and a message that names the
 * rank ("ls_trial: rank 1 failed: the hook on_backward of callback 0: ..."). If all ranks fail with the same status,
 * each rank keeps its own message. After a failure, the ranks may be at different steps: resume from a checkpoint. Also
 * fails with:
 *
 * - LS_ERR_STOPPED if a signal ended the run after a checkpoint (ls_checkpoint_options); a further call continues
 * - LS_ERR_MISMATCH if setups or parameters differ, with both values and ranks
 * - LS_ERR_ARGUMENT if `epochs` is negative, the trial lacks a training loader, or the training loader has no batches;
 *   without a user step, also if the trial lacks an optimizer, or if the model has trainable parameters, but the
 *   optimizer has no parameter of the model
 * - LS_ERR_UNSUPPORTED if the model contains an ls_pipeline and the trial has no user step
 * - LS_ERR_MEMORY if a rank needs more memory than its `.memory_limit`
 * - LS_ERR_STATE if layers were added to the model after ls_data_parallel was called or, without a user step, after the
 *   optimizer was created, or if a hook or the user step of this trial calls ls_trial_run
 */
LS_API ls_status ls_trial_run(ls_trial *trial, int64_t epochs) LS_WARN_UNUSED;

/**
 * Computes the metrics of the model in evaluation mode, on the batches of epoch 0 of the loader, or on
 * `.evaluate_steps` batches, beginning with epoch 0. Collective if the trial has a communicator.
 *
 * - `label` (UTF-8) is shown in the progress output and is the prefix of the results' names, as in "test_loss". If the
 *   loader has no samples, metrics that are computed from samples are NAN.
 * - If the history has an epoch, the results are added to its last epoch. They replace results of the same name in this
 *   epoch: the label "val" replaces the results of the validation.
 * - Calls the hooks on_start, on_start_epoch, the validation hooks, on_end_epoch and on_end, as torchbearer does.
 * - Afterwards, all modes are restored. If the loader is the training loader, its position is restored, too.
 * - A hook may call this function with a loader that no run is using. Then no hooks are called, and the history does
 *   not change. Fails with LS_ERR_STATE in hooks that run once for each slice (docs/explanation/same-bits.md), and
 *   between two outer steps (ls_outer_step).
 * - Fails with LS_ERR_ARGUMENT if the trial has no criterion, or if the label is not UTF-8 or too long: names of
 *   results, such as "test_loss", have at most 63 bytes. A trial has at most 128 such names (LS_ERR_ARGUMENT).
 */
LS_API ls_status ls_trial_evaluate(ls_trial *trial, ls_loader *loader, const char *label) LS_WARN_UNUSED;

/**
 * Computes the model's outputs in evaluation mode, for the samples of all ranks in the batches that
 * ls_trial_evaluate uses. Collective if the trial has a communicator.
 *
 * - `*outputs` [samples, ...] is on the CPU and belongs to the innermost scope.
 * - Rank 0 gets the outputs, and the other ranks get NULL. With `on_all_ranks`, every rank gets the outputs.
 * - Rows are in the order of the data set, whatever the loader's order is. If the loader has no data set, rows are in
 *   the order of batches, and within a batch in the order of ranks.
 * - If ranks have the same samples, as in tensor parallelism and pipelines, the outputs contain each sample once.
 * - Calls the hooks of ls_trial_evaluate except on_criterion_validation. There are no targets, losses or metrics.
 * - Fails with LS_ERR_SHAPE if an output does not have one row per sample, or if outputs differ in dtype, or in shape
 *   beyond the first axis. Fails with LS_ERR_MISMATCH if ranks have different outputs for the same samples of a data
 *   set: their models are separate, or the outputs are shards. Fails with LS_ERR_STATE if it is called by a hook of
 *   another prediction of this trial, by a hook that runs once for each slice, or between two outer steps
 *   (ls_outer_step).
 */
LS_API ls_status ls_trial_predict(ls_trial *trial, ls_loader *loader, bool on_all_ranks,
                                  ls_tensor **outputs) LS_WARN_UNUSED;

/**
 * Calls the hooks of callbacks for every epoch in the history of the trial, without computation and without tensors
 * (torchbearer's replay). Borrows the callbacks until it returns. In the hooks of a pass, ls_trial_metric returns
 * the results of this pass in the epoch. In on_end_epoch, it returns all results of the epoch. With `one_batch`, each
 * pass has one batch. If a hook sets state->stop, the replay ends. Does not call on_init or on_checkpoint. If a
 * callback is NULL, fails with the error from its constructor, or with LS_ERR_ARGUMENT. Fails with LS_ERR_STATE if a
 * hook or the user step of this trial calls it.
 */
LS_API ls_status ls_trial_replay(ls_trial *trial, ls_callback *const *callbacks, int count,
                                 bool one_batch) LS_WARN_UNUSED;

/**
 * Returns the value of a metric: "loss" for training, "val_loss" for validation, "test_loss" for ls_trial_evaluate
 * with the label "test". Returns NAN if the metric has no value yet. Returns NAN and sets LS_ERR_ARGUMENT with the
 * available names (ls_error_status, ls_error_message) if the trial or the name is NULL, or if the name is neither a
 * metric nor a prefix with a metric, such as "test_loss". The prefix "val_" needs .validate or an earlier evaluation
 * with the label "val".
 *
 * - During a pass that computes the metric, in the hooks of a batch and in a user step: returns the value over this
 *   rank's samples so far in the pass, or NAN before the first batch. From on_step_training (on_step_validation) on,
 *   the current batch is included; from on_sample to on_backward it is not. If a trial resumes within an epoch, the
 *   batches before the checkpoint are included. With `.shards`, slices of the current batch are included when they end.
 * - Otherwise, from on_end_training (on_end_validation) to on_start_training (on_start_validation) of the next pass:
 *   returns the last value over all ranks, the same on every rank.
 */
LS_API double ls_trial_metric(const ls_trial *trial, const char *name);
/**
 * Returns all values of a metric in the last complete pass that computed it: several for "val_confusion" or
 * "recall_per_class", one for other metrics. Sets `*count` (may be NULL) to the number of values. Returns a borrowed
 * pointer, valid until the metric is computed again, or NULL if the metric has no values. The values are the same on
 * every rank. If a metric has several values, they are not in the history, and ls_trial_metric returns NAN. Sets the
 * same errors as ls_trial_metric.
 */
LS_API const double *ls_trial_metric_values(const ls_trial *trial, const char *name, int64_t *count);

/** Returns the number of epochs in the history. */
LS_API int64_t ls_trial_history_count(const ls_trial *trial);
/**
 * Returns a metric's value in an epoch of the history, or NAN if the history does not have the epoch, or the
 * epoch does not have the metric. Sets the same errors as ls_trial_metric.
 */
LS_API double ls_trial_history(const ls_trial *trial, int64_t epoch, const char *name);
/** Writes the history as a CSV file with a header, a line per epoch, and a column per metric. Fields are quoted as in
 * RFC 4180. "nan" marks a missing value. */
LS_API ls_status ls_trial_write_history(const ls_trial *trial, const char *path) LS_WARN_UNUSED;

/**
 * Returns the training samples per second over all ranks, excluding the time of validation. After step 10, the first 10
 * steps of the trial do not count. A sample counts once for each rank that trains on it, even if ranks have the same
 * samples, as in tensor parallelism. Returns 0 before the first step and on failure. Collective if the trial has a
 * communicator.
 */
LS_API double ls_trial_throughput(ls_trial *trial);

/** Frees the trial with its callbacks and metrics. NULL is allowed. */
LS_API void ls_trial_free(ls_trial *trial);

#ifdef __cplusplus
}

/* For LS_CALLBACKS. */
using ls_callback_pointers = ls_callback *[];

inline ls_callback *const *ls_callback_array_of(std::initializer_list<ls_callback *> callbacks) {
    return ls_callback_array(callbacks.begin(), static_cast<int>(callbacks.size()));
}
#endif

#endif
