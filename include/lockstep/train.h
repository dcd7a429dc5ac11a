/**
 * @file train.h
 * Training loops: a trial runs epochs of training and validation over loaders, measures, shows progress and calls
 * callbacks. Its model, hooks and layout of progress follow torchbearer's Trial (arXiv 1809.03363).
 */
#ifndef LOCKSTEP_TRAIN_H
#define LOCKSTEP_TRAIN_H

#include <lockstep/comm.h>
#include <lockstep/data.h>
#include <lockstep/loss.h>
#include <lockstep/metrics.h>
#include <lockstep/optim.h>

#ifdef __cplusplus
#include <initializer_list>

extern "C" {
#endif

/** A training run. Opaque. */
typedef struct ls_trial ls_trial;

/** When and where a trial writes checkpoints. See checkpoint.h. */
typedef struct ls_checkpoint_options ls_checkpoint_options;

/** What a trial is doing. */
typedef enum ls_trial_phase {
    LS_PHASE_NONE = 0, /**< no pass over a loader */
    LS_PHASE_TRAINING,
    LS_PHASE_VALIDATION,
    LS_PHASE_EVALUATION, /**< ls_trial_evaluate */
    LS_PHASE_PREDICTION, /**< ls_trial_predict */
    LS_PHASE_REPLAY      /**< ls_trial_replay: without tensors, and nothing is computed */
} ls_trial_phase;

/** The state of a trial, for callbacks, metrics and steps. Tensors are borrowed until the step ends. */
struct ls_trial_state {
    ls_trial *trial;
    ls_module *model;
    ls_optimizer *optimizer;
    ls_comm *comm;          /**< NULL if the trial has none */
    ls_trial_phase phase;   /**< current pass */
    ls_loader *loader;      /**< loader of the pass; NULL in LS_PHASE_NONE and LS_PHASE_REPLAY */
    ls_criterion criterion; /**< a hook may replace the criterion, for the following steps */
    void *criterion_user;   /**< user pointer of the criterion; a hook may replace it */
    int64_t epoch;          /**< index of the epoch in the trial, from 0 */
    int64_t epochs;         /**< number of epochs to run in all */
    int64_t batch;          /**< index of the batch in the epoch, from 0 */
    int64_t batches;        /**< number of batches in the epoch; -1 if the loader does not know */
    int64_t step;           /**< number of training steps since the trial was made */
    int64_t first;          /**< index in the global batch of this rank's first sample; see ls_batch */
    int64_t count;          /**< number of samples in this rank's share of the batch */
    int64_t global_count;   /**< number of samples in the global batch */
    ls_tensor *input;       /**< on_sample may replace the input */
    ls_tensor *target;      /**< on_sample may replace the target */
    ls_tensor *output;      /**< output of the model */
    ls_tensor *loss;        /**< loss of the criterion */
    /**
     * A hook or a step on any rank sets this to end the run on all ranks after this step.
     *
     * - In training, the epoch then has on_end_training, but no validation and no on_end_epoch, and is not in the
     *   history (torchbearer's STOP_TRAINING).
     * - In validation and after it, the epoch ends as usual.
     * - A further ls_trial_run continues the training.
     */
    bool stop;
    bool save; /**< a hook or a step on any rank sets this to write a checkpoint after this step or epoch, if the trial
                    has `.checkpoint` */
};

/**
 * A hook. Returning a status other than LS_OK ends the run with this status on every rank, even if only one rank calls
 * the hook. Set ls_error_message() to the reason (ls_error_set): the other ranks get the message with the rank and the
 * name of the hook.
 */
typedef ls_status (*ls_callback_function)(ls_trial_state *state, void *user);

/**
 * The functions of a callback, for ls_callback_new. All of them are optional. Hooks are listed in the order in which a
 * trial calls them.
 *
 * - A rank whose share of a batch is empty skips on_sample, on_forward and on_criterion. Every rank calls the other
 *   hooks.
 * - A trial with a step of its own does not call on_forward, on_criterion and on_backward.
 * - ls_trial_evaluate and ls_trial_predict call the hooks of validation, too.
 */
typedef struct ls_callback_hooks {
    const char *name;              /**< in messages and checkpoints (copied); NULL: "callback N", counted from 0 */
    ls_callback_function on_init;  /**< the trial is made */
    ls_callback_function on_start; /**< a run begins */
    ls_callback_function on_start_epoch;
    ls_callback_function on_start_training;
    ls_callback_function on_sample;        /**< state->input and state->target are set */
    ls_callback_function on_forward;       /**< state->output is set */
    ls_callback_function on_criterion;     /**< state->loss is set */
    ls_callback_function on_backward;      /**< the gradients are complete */
    ls_callback_function on_step_training; /**< the optimizer has changed the parameters */
    ls_callback_function on_end_training;  /**< the training metrics of the epoch are complete */
    ls_callback_function on_start_validation;
    ls_callback_function on_sample_validation;
    ls_callback_function on_forward_validation;
    ls_callback_function on_criterion_validation;
    ls_callback_function on_step_validation;
    ls_callback_function on_end_validation; /**< the validation metrics are complete */
    ls_callback_function on_end_epoch;      /**< the epoch is in the history */
    ls_callback_function on_checkpoint;     /**< the epoch is complete: save files of your own here */
    ls_callback_function on_end;            /**< the run ends */
    /** Lists the state of the callback as named tensors, for checkpoints. The trial borrows the tensors until it calls
     * another function of the callback. NULL: checkpoints contain nothing of the callback. */
    ls_status (*state)(void *user, const ls_named **tensors, int *count);
    /** Restores the state when a trial resumes from a checkpoint. Copies the values, or fails. */
    ls_status (*set_state)(void *user, const ls_named *tensors, int count);
    /** Frees `user` when the callback is freed. */
    void (*release)(void *user);
    /** Writes the kind and the options of the callback into `text` of `size` bytes, ended by NUL. Texts over 511 bytes
     * are truncated. ls_trial_run fails with LS_ERR_MISMATCH if the texts of the ranks differ. If `describe` is NULL,
     * or if it writes an empty text, the callback is not compared. */
    void (*describe)(void *user, char *text, size_t size);
} ls_callback_hooks;

/** A callback: hooks that a trial calls. Opaque: ls_callback_new and the constructors of callbacks.h make it. */
typedef struct ls_callback ls_callback;

/**
 * Makes a callback from hooks of your own. Copies `hooks` and passes `user` to every function. Takes ownership of
 * `user` if `release` is set, otherwise borrows it. Returns ownership to the caller, or NULL on failure. Give the
 * callback to ls_trial_new, which takes ownership, or free it with ls_callback_free.
 *
 * ```c
 * ls_callback *callback = ls_callback_new(&(ls_callback_hooks){.name = "mine", .on_end_epoch = report}, NULL);
 * ```
 */
LS_API ls_callback *ls_callback_new(const ls_callback_hooks *hooks, void *user);

/** Frees a callback that the caller owns. Does nothing if a trial or another callback has taken ownership. NULL is
 * allowed. */
LS_API void ls_callback_free(ls_callback *callback);

/**
 * Copies an array of callbacks, for LS_CALLBACKS in C++, where the array of an expression does not live until
 * ls_trial_new. Returns a borrowed pointer: the first callback that is not NULL owns the copy. Returns NULL if all
 * elements are NULL. Returns NULL on failure, too, and frees the callbacks.
 */
LS_API ls_callback *const *ls_callback_array(ls_callback *const *callbacks, int count);

/**
 * Sets .callbacks and .callback_count of ls_trial_options, in C and in C++. An array and its length are the equivalent
 * without a macro:
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

/** Options of ls_trial_new. The trial takes ownership of callbacks and metrics, also if ls_trial_new fails. It borrows
 * all other objects: free the trial first. ls_trial_run fails with LS_ERR_STATE if a loader or the optimizer was freed
 * before. */
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
    /** Called in this order; see LS_CALLBACKS. The trial copies the array. A callback belongs to one trial: giving it
     * to a second trial is LS_ERR_STATE, and giving it twice is LS_ERR_ARGUMENT. If an element is NULL, ls_trial_new
     * fails with the error of the constructor. */
    ls_callback *const *callbacks;
    int callback_count;
    /** When and where the trial writes checkpoints (copied); see checkpoint.h. NULL: never. */
    const ls_checkpoint_options *checkpoint;
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
 * LS_ERR_STOPPED where a signal has ended it after a checkpoint (ls_checkpoint_options): a further call goes on.
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
 * Calls the hooks of callbacks for every epoch in the history of the trial, without computing anything (torchbearer's
 * replay). Borrows the callbacks: the caller, or their trial, still owns them afterwards. ls_trial_metric returns the
 * results of the epoch, and there are no tensors. With `one_batch` each pass has one batch. A hook that sets
 * state->stop ends the replay. on_init and on_checkpoint are not called.
 */
LS_API ls_status ls_trial_replay(ls_trial *trial, ls_callback *const *callbacks, int count,
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
LS_API ls_status ls_trial_write_history(const ls_trial *trial, const char *path) LS_WARN_UNUSED;

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

/* For LS_CALLBACKS. */
using ls_callback_pointers = ls_callback *[];

inline ls_callback *const *ls_callback_array_of(std::initializer_list<ls_callback *> callbacks) {
    return ls_callback_array(callbacks.begin(), static_cast<int>(callbacks.size()));
}
#endif

#endif
