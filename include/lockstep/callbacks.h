/**
 * @file callbacks.h
 * Ready-made callbacks for trials:
 *
 * ```c
 * ls_callback *stop = ls_early_stopping(&(ls_early_stopping_options){.monitor = "val_acc", .patience = 3});
 * ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
 *                                                    .optimizer = optimizer,
 *                                                    .criterion = ls_criterion_cross_entropy,
 *                                                    .train = training,
 *                                                    .validate = validation,
 *                                                    .metrics = LS_METRICS("loss", "acc"),
 *                                                    LS_CALLBACKS(stop, ls_console(NULL))});
 * ```
 *
 * docs/reference/training.md lists all callbacks; docs/explanation/trials.md describes the order of hooks.
 *
 * - A constructor returns ownership of a callback to the caller, or NULL on failure. ls_trial_new, and constructors
 *   that combine callbacks, take ownership. If an element of `.callbacks` is NULL, ls_trial_new fails with the error
 *   from the constructor.
 * - Until the trial is freed, a callback's results can be read with its functions (`ls_early_stopping_best(stop)`).
 * - Options may be NULL, except in ls_cutout. A zero field selects the default.
 * - Every rank must create the same callbacks in the same order, because some callbacks exchange numbers. ls_trial_run
 *   fails with LS_ERR_MISMATCH if the descriptions of the ranks' callbacks differ (`describe` of ls_callback_hooks).
 * - Callbacks write files and print on rank 0 only.
 * - With ls_terminate_on_nan, ls_manifold_mixup, ls_timer or ls_run_log, a trial trains without `.capture`, with a
 *   warning.
 * - Some callbacks fail with LS_ERR_UNSUPPORTED if the model has `.zero` of ls_data_parallel:
 *   docs/explanation/sharded-state.md lists them.
 * - Checkpoints contain the state of callbacks (`state` and `set_state` of ls_callback_hooks).
 * - A trial with a user step does not call on_forward, on_criterion or on_backward. ls_trial_new fails if a callback
 *   needs one of these hooks. The message names the function to call in the user step instead.
 */
#ifndef LOCKSTEP_CALLBACKS_H
#define LOCKSTEP_CALLBACKS_H

#include <lockstep/train.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- composition ------------------------------------------------------------------------------------------------- */

/*
 * Callbacks that combine callbacks. These constructors take ownership of their callbacks. A condition applies to each
 * hook separately, also to on_init and on_start, in which many callbacks prepare their work. If a condition skips
 * on_init, ls_weight_averaging and .restore_best of ls_early_stopping fail later with LS_ERR_STATE. If a callback
 * communicates, the condition must be the same on all ranks.
 */

/** Calls each hook once (torchbearer's once). Checkpoints record the hooks that were called. */
LS_API ls_callback *ls_once(ls_callback *callback);
/** Calls each hook once per epoch, the first time that it occurs (torchbearer's once_per_epoch). The epoch is `epoch`
 * of ls_trial_state, which is 0 in ls_trial_evaluate and ls_trial_predict. Checkpoints record the epochs. */
LS_API ls_callback *ls_once_per_epoch(ls_callback *callback);
/** Returns true to call the hook, false to skip it. */
typedef bool (*ls_callback_predicate)(const ls_trial_state *state, void *user);
/** Calls a hook if `predicate(state, user)` returns true (torchbearer's only_if). Borrows `user`. */
LS_API ls_callback *ls_only_if(ls_callback *callback, ls_callback_predicate predicate, void *user);
/** Calls the hooks only on one rank of the trial's communicator. The callback must not communicate. */
LS_API ls_callback *ls_on_rank(ls_callback *callback, int rank);
/** Combines callbacks into one callback, which calls them in the order of the array. Copies the array. */
LS_API ls_callback *ls_callbacks_of(ls_callback *const *callbacks, int count);

/* ---- stopping ---------------------------------------------------------------------------------------------------- */

/** Selects which values of a metric are better. */
typedef enum ls_monitor_mode {
    LS_MONITOR_AUTO = 0, /**< larger values if the metric's name contains "acc", otherwise smaller values */
    LS_MONITOR_MIN,
    LS_MONITOR_MAX
} ls_monitor_mode;

/** Options for ls_early_stopping. */
typedef struct ls_early_stopping_options {
    const char *monitor;  /**< name of the metric for ls_trial_metric (copied); NULL selects "val_loss" */
    ls_monitor_mode mode; /**< which values are better */
    double min_delta;     /**< an improvement must change the metric by more than this value; not negative */
    int64_t
        patience; /**< number of consecutive epochs without improvement that end the run; 0 selects the default, 1 */
    bool restore_best; /**< restores the parameters and buffers of the best epoch at the end of the run */
} ls_early_stopping_options;

/**
 * Ends a run when a metric has stopped improving (torchbearer's EarlyStopping). Compares values after each epoch. All
 * ranks have the same values. A value that is not finite is not an improvement. A run that resumes from the checkpoint
 * of a stopped run, or of a run that has already waited `patience` epochs, ends immediately. If the trial does not have
 * the metric, on_start fails with LS_ERR_ARGUMENT; if the program's own callbacks or a user step may compute the
 * metric, the failure comes after the first epoch.
 */
LS_API ls_callback *ls_early_stopping(const ls_early_stopping_options *options);
/**
 * Returns the value of the best epoch so far: the last value that improved by more than `min_delta`, or the first
 * finite value. Returns NAN before the first finite value, and for a callback of a different kind.
 */
LS_API double ls_early_stopping_best(const ls_callback *callback);
/** Returns whether the callback has ended a run. */
LS_API bool ls_early_stopping_stopped(const ls_callback *callback);

/** Options for ls_terminate_on_nan. */
typedef struct ls_terminate_on_nan_options {
    bool by_layer; /**< checks the output of every module without children, to name the first of these modules with such
                      a number; slower, because modules with hooks are not fused with their neighbors */
} ls_terminate_on_nan_options;

/**
 * Ends a run at the first NaN or infinite number in the model's output, the loss or a parameter's gradient. The run
 * fails on all ranks with LS_ERR_STATE.
 *
 * - The check takes place before the optimizer's step. In a trial with a user step, it takes place after the step, and
 *   covers the output and the loss.
 * - The message names the tensor (the output, the loss or a gradient, whichever comes first), the lowest rank with such
 *   a tensor (or "every rank"), the batch, and the number of training steps before the batch. Gradients of a
 *   data-parallel module are already averaged over ranks.
 * - In validation, ls_trial_evaluate and ls_trial_predict, the check covers outputs and losses, and the failure comes
 *   after the pass.
 * - If all targets of a rank are ignored, its loss may be NaN: the gradient of this loss is 0.
 * - If the trial has a `.grad_scaler`, gradients are not checked, because the scaler skips such steps.
 * - ls_trial_new fails with LS_ERR_UNSUPPORTED if the model has .zero = 2 or 3: a rank has only parts of the gradients.
 *
 * Each step costs one pass over these tensors and one small all-reduce. (torchbearer's TerminateOnNaN checks a metric.)
 */
LS_API ls_callback *ls_terminate_on_nan(const ls_terminate_on_nan_options *options);

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/** Calls ls_clip_grad_norm after each backward pass (torchbearer's GradientNormClipping). `max_norm` is positive. */
LS_API ls_callback *ls_gradient_norm_clipping(double max_norm);
/** Calls ls_clip_grad_value after each backward pass (torchbearer's GradientClipping). `limit` is positive. */
LS_API ls_callback *ls_gradient_value_clipping(double limit);
/**
 * Adds rate * (sum |w|^p)^(1/p) of each parameter to the training loss and to the metric "loss". With p = 2, this is
 * torchbearer's L2WeightDecay, which uses the Euclidean norm and not its square. With p = 1, it is L1WeightDecay. The
 * rate must not be negative (torchbearer's default is 5e-4), and p must be positive. If the criterion uses LS_LOSS_SUM,
 * the metric contains the term once per rank with samples in the batch (with `.shards`, once per slice with samples);
 * the gradient contains it once. ls_trial_new fails with LS_ERR_UNSUPPORTED if the model has sharded layers, is an
 * ls_pipeline, or has .zero = 2 or 3: a rank has only parts of the parameters or of their gradients.
 */
LS_API ls_callback *ls_weight_decay(double rate, double p);

/* ---- initial weights --------------------------------------------------------------------------------------------- */

/** The distribution of initial weights, as in the function ls_nn_init_NAME. */
typedef enum ls_weight_rule {
    LS_KAIMING_UNIFORM = 0,
    LS_KAIMING_NORMAL,
    LS_XAVIER_UNIFORM,
    LS_XAVIER_NORMAL,
    LS_ORTHOGONAL,
    LS_WEIGHT_RULES /**< the number of rules */
} ls_weight_rule;

/** Options for ls_initialize. */
typedef struct ls_initialize_options {
    ls_weight_rule rule;
    double slope;               /**< slope of the leaky ReLU after the layer, for the Kaiming rules */
    double gain;                /**< gain of the other rules; 0 selects the default, 1 */
    bool zero_bias;             /**< sets the parameter "bias" of the selected modules to 0 (torchbearer's ZeroBias) */
    const char *const *targets; /**< words (borrowed until ls_trial_new returns), terminated by NULL: a module is
                                   selected if its type name contains one of the words and none of its own parameters
                                   is sharded over ranks (tensor parallelism); NULL selects "Linear" and "Conv" */
    uint64_t seed;
} ls_initialize_options;

/**
 * Initializes the parameter "weight" of the selected modules in ls_trial_new, if it has at least two axes
 * (torchbearer's KaimingUniform and similar callbacks). With .weight_norm, initializes "weight_v" and sets "weight_g"
 * to its norms, so that the layer's weight is the initialized weight. The numbers depend only on `.seed` and the
 * module's name. All ranks get the same numbers, even if they called ls_seed with different seeds, and even in a
 * pipeline. Load weights after ls_trial_new.
 */
LS_API ls_callback *ls_initialize(const ls_initialize_options *options);

/** Options for ls_lsuv. */
typedef struct ls_lsuv_options {
    double deviation;  /**< standard deviation of each layer's outputs; 0 selects the default, 1 */
    double tolerance;  /**< the error of the standard deviation must be below this number; 0 selects the default, 0.1 */
    int attempts;      /**< maximum number of attempts per layer; 0 selects the default, 10 */
    bool keep_weights; /**< starts from the existing weights instead of orthonormal weights */
    const char *const *targets; /**< as in ls_initialize_options, but borrowed until the initialization */
    uint64_t seed;
} ls_lsuv_options;

/**
 * Initializes layers by layer-sequential unit variance before the first step of a trial (Mishkin and Matas, arXiv
 * 1511.06422; torchbearer's LsuvInit). Goes through the layers in the order of the model's children, makes the weights
 * orthonormal, and scales them until the layer's outputs have the requested standard deviation, or the attempts end.
 *
 * - The model's input is the first global training batch, before on_sample. The model is in evaluation mode.
 * - A trial that resumes from a checkpoint after a training step skips the initialization.
 * - on_start fails with LS_ERR_STATE if the outputs of a layer do not vary or are not finite. The next run then starts
 *   the initialization again.
 * - Layers without a parameter "weight" of at least two axes, such as layers with .weight_norm, keep their values.
 * - ls_trial_new fails with LS_ERR_UNSUPPORTED if the model is a pipeline.
 */
LS_API ls_callback *ls_lsuv(const ls_lsuv_options *options);

/* ---- learning rates ---------------------------------------------------------------------------------------------- */

/** Options for ls_scheduler. */
typedef struct ls_scheduler_options {
    bool per_step; /**< advances the schedule after each training step instead of after each epoch */
    /**
     * Name of a metric for ls_trial_metric (copied). Required for ls_schedule_plateau; other schedules ignore its
     * value. The value must be the same on all ranks. If the trial does not have the metric, on_start fails as in
     * ls_early_stopping. A callback that computes the metric must come before this callback. Cannot be combined with
     * per_step.
     */
    const char *monitor;
} ls_scheduler_options;

/** Advances a schedule after each training epoch. Takes ownership of the schedule: free the trial before the
 * schedule's optimizer. */
LS_API ls_callback *ls_scheduler(ls_schedule *schedule, const ls_scheduler_options *options);

/** Options for ls_rate_finder. */
typedef struct ls_rate_finder_options {
    double lowest;     /**< first rate; 0 selects the default, 1e-7 */
    double highest;    /**< last rate; 0 selects the default, 10 */
    int64_t steps;     /**< maximum number of training steps, at least 3; 0 selects the default, 100 */
    double smoothing;  /**< weight of the earlier losses in the smoothed loss, an average with corrected bias as in
                          Adam, below 1; 0 selects the default, 0.9, and LS_ZERO selects no smoothing */
    double divergence; /**< smoothed loss that ends the test, as a multiple d > 1 of the smallest smoothed loss L (if L
                          is negative: L + (d - 1) |L|); 0 selects the default, 4 */
    bool apply; /**< trains with the suggested rate, if there is one; schedules keep the rates with which they were
                   created */
} ls_rate_finder_options;

/**
 * Runs the learning rate range test before the first epoch of a trial (Smith, arXiv 1506.01186, section 3.3): trains
 * with a rate that grows exponentially from batch to batch, until the loss diverges. Then restores parameters, buffers,
 * optimizer, loader, random numbers, metrics and the error feedback of PowerSGD.
 *
 * - The test uses the step of the trial, without callbacks and without outer steps. With .outer of the trial, each
 *   replica therefore trains alone, and the losses are means over the replicas. A replica is the model of one rank, or
 *   of a group of ranks that ls_data_parallel keeps equal.
 * - Objects that belong only to a user step, such as a second model and its optimizer, are not restored.
 * - Parameter groups with a rate of 0 stay frozen. All other groups get the same rate, in the test and with `.apply`,
 *   even if their rates differed.
 * - on_start fails with LS_ERR_STATE if all rates are 0, as in a warm-up that starts at 0 (ls_schedule_warm_up).
 * - A trial that resumes from a checkpoint after the test or a training step skips the test.
 */
LS_API ls_callback *ls_rate_finder(const ls_rate_finder_options *options);
/** Returns the rate at which the smoothed loss, as a function of the logarithm of the rate, falls most steeply. Ignores
 * the first tenth of the test. The result is the same on all ranks. Returns NAN before the test, if the trial has
 * skipped it, and if the smoothed loss after a step is never lower than before the step. */
LS_API double ls_rate_finder_suggestion(const ls_callback *callback);
/** Returns the number of steps that the test has made. Returns 0 before the test, and if the trial has skipped it. */
LS_API int64_t ls_rate_finder_count(const ls_callback *callback);
/** Sets `*rate` to the rate of a step, counted from 0, and `*loss` to its loss over all ranks, without smoothing.
 * Either pointer may be NULL. Both numbers are NAN if the step is out of range. */
LS_API void ls_rate_finder_point(const ls_callback *callback, int64_t step, double *rate, double *loss);

/* ---- samples ----------------------------------------------------------------------------------------------------- */

/*
 * These callbacks replace the inputs and targets of training batches.
 *
 * - Random numbers are functions of seed, epoch, batch and the sample's index in the global batch. Partners (samples
 *   that are mixed in) come from the data set, not from another rank. So the samples are bit-identical on any number of
 *   ranks, without communication.
 * - A partner is read from the data set again, without the changes of earlier callbacks.
 * - A callback that changes targets turns class numbers [n] into f32 rows [n, classes], which ls_cross_entropy treats
 *   as probabilities. Floating-point targets keep their shape.
 * - on_sample of ls_mixup, ls_cutmix and ls_cutout fails with LS_ERR_ARGUMENT if the inputs are not floating-point.
 * - on_sample of a callback that changes targets fails with LS_ERR_ARGUMENT if integer targets are not class numbers
 *   [n] from 0 to `classes` - 1.
 */

/** Options for ls_mixup. */
typedef struct ls_mixup_options {
    double alpha;      /**< parameter of Beta(alpha, alpha), the distribution of each batch's lambda; 0 selects the
                          default, 1 */
    double lambda;     /**< fixed lambda, at most 1; 0 selects a random lambda for each batch */
    int64_t classes;   /**< number of classes, if targets are class numbers; otherwise ignored */
    bool keep_targets; /**< keeps the targets unchanged; with lambda 0.5, this is SamplePairing (Inoue, arXiv
                          1801.02929) */
    uint64_t seed;
} ls_mixup_options;

/** Replaces each input x with lambda x + (1 - lambda) y, where y is the input of the partner: a random permutation of
 * the global batch assigns each sample a partner. Mixes targets in the same way (Zhang et al., arXiv 1710.09412;
 * torchbearer's Mixup). If the loader has no data set, on_sample fails with LS_ERR_UNSUPPORTED. */
LS_API ls_callback *ls_mixup(const ls_mixup_options *options);

/** Options for ls_cutmix. */
typedef struct ls_cutmix_options {
    double alpha;    /**< as in ls_mixup_options; 0 selects the default, 1 */
    int64_t classes; /**< number of classes, if targets are class numbers; otherwise ignored */
    uint64_t seed;
} ls_cutmix_options;

/**
 * Replaces a rectangle of each input [n, ..., height, width] with the same rectangle of its partner (see ls_mixup). The
 * rectangle is sqrt(1 - lambda) times as high and as wide as the picture, is centered on a random point and is clipped
 * at the edges. It is the same for all inputs of a batch. Mixes targets in proportion to the areas (Yun et al., arXiv
 * 1905.04899, algorithm A1). torchbearer's CutMix mixes targets by lambda, even if the rectangle is clipped.
 */
LS_API ls_callback *ls_cutmix(const ls_cutmix_options *options);

/** Options for ls_cutout. */
typedef struct ls_cutout_options {
    int64_t length; /**< side of a square, in pixels; required */
    int holes;      /**< number of squares per picture; 0 selects the default, 1 */
    double fill;    /**< value of the pixels in a square */
    bool noise; /**< fills with uniform noise from 0 to 1 per pixel and channel, instead of with `fill` (torchbearer's
                   RandomErase) */
    uint64_t seed;
} ls_cutout_options;

/** Fills squares of each input [n, ..., height, width] around random points. Squares may extend beyond the edges
 * (DeVries and Taylor, arXiv 1708.04552; torchbearer's Cutout). */
LS_API ls_callback *ls_cutout(const ls_cutout_options *options);

/** Replaces targets with (1 - epsilon) target + epsilon / classes, for losses without an option for label smoothing
 * (Szegedy et al., arXiv 1512.00567, section 7; torchbearer's LabelSmoothingRegularisation). `classes` is required if
 * targets are class numbers; otherwise it is ignored. Floating-point targets are [n, classes, ...]. */
LS_API ls_callback *ls_label_smoothing(double epsilon, int64_t classes);

/** Options for ls_manifold_mixup. */
typedef struct ls_manifold_mixup_options {
    double alpha;              /**< as in ls_mixup_options */
    double lambda;             /**< as in ls_mixup_options */
    int64_t classes;           /**< as in ls_mixup_options */
    const char *const *layers; /**< names of layers (copied), terminated by NULL; one of them is drawn for each batch;
                                  NULL selects the children of the model */
    uint64_t seed;
} ls_manifold_mixup_options;

/**
 * Applies ls_mixup to the outputs of a layer instead of the inputs (Verma et al., arXiv 1806.05236; torchbearer's
 * ManifoldMixup). The first axis of these outputs must count samples.
 *
 * The model gets 2 n rows, the samples and their partners, and the layer's outputs are reduced to n rows. All layers up
 * to this layer therefore process both samples, without communication. Put the callback after ls_mixup, ls_cutmix and
 * ls_cutout: on_sample of a later one fails with LS_ERR_SHAPE.
 *
 * - In ls_data_parallel over several ranks or with .shards, an ls_nn_dropout after this layer fails with
 *   LS_ERR_UNSUPPORTED. The masks of an ls_nn_dropout before it depend on the number of ranks or shards.
 * - ls_trial_new fails with LS_ERR_ARGUMENT if the model does not have a layer. A training step fails with
 *   LS_ERR_STATE if the model does not call the layer.
 * - on_sample fails with LS_ERR_UNSUPPORTED if the model has .shards and batch normalization.
 * - The backward pass fails if a module that contains the layer is recomputed (ls_recompute).
 */
LS_API ls_callback *ls_manifold_mixup(const ls_manifold_mixup_options *options);

/* ---- averages of weights ----------------------------------------------------------------------------------------- */

/** Options for ls_weight_averaging. */
typedef struct ls_weight_averaging_options {
    double decay; /**< decay factor, above 0 and below 1: average = decay * average + (1 - decay) * weights after each
                     step, or with `.outer` of a trial after each outer step (exponential moving average); 0 selects
                     the mean over epochs, updated after the training of each epoch that no hook stopped (stochastic
                     weight averaging: Izmailov et al., arXiv 1803.05407); LS_ZERO is refused. After a stop between
                     outer steps, the averages in the last checkpoint do not include the final outer step. */
    int64_t first_epoch; /**< first epoch of averaging; the first update copies the weights */
    bool no_swap;        /**< runs validation with the weights instead of the averages. Set it for all but one
                            ls_weight_averaging of a trial; otherwise ls_trial_new fails with LS_ERR_ARGUMENT if the
                            trial has `.validate`. Without `.validate`, ls_trial_evaluate and ls_trial_predict fail
                            after the first update. */
    bool keep;           /**< replaces the model's weights with the averages at the end of a run */
} ls_weight_averaging_options;

/** Averages parameters and buffers during training. Validation, ls_trial_evaluate and ls_trial_predict use the averages
 * after the first update; ls_trial_evaluate in a hook uses the model as it is. Statistics of batch normalization are
 * averaged, not recomputed. */
LS_API ls_callback *ls_weight_averaging(const ls_weight_averaging_options *options);
/** Returns the number of updates of the average, or 0 for a callback of a different kind. */
LS_API int64_t ls_weight_averaging_count(const ls_callback *callback);

/* ---- logs -------------------------------------------------------------------------------------------------------- */

/** Options for ls_csv_log. */
typedef struct ls_csv_log_options {
    char separator; /**< separator of fields, not a quote or a character that occurs in numbers; 0 selects a comma */
    bool per_batch; /**< writes a line for each training batch instead, with epoch, batch, loss over all ranks (one
                       small all-reduce), and learning rate of group 0 */
    bool no_header; /**< omits the header line with the column names */
    bool append;    /**< appends to an existing file, even if the trial starts at epoch 0 */
} ls_csv_log_options;

/**
 * Writes a CSV file on rank 0 (torchbearer's CSVLogger): a line for each epoch with its number and the metrics of the
 * history. Each line is written to the file before the next hook runs. A trial that resumes from a checkpoint keeps the
 * earlier lines and removes later ones, so the file has each line once. If a run failed, or stopped at the end of an
 * epoch, the next run may repeat this epoch without loading a checkpoint. The file then has the lines of this epoch
 * twice. The run fails with LS_ERR_IO on all ranks if the file cannot be written. Copies the path.
 */
LS_API ls_callback *ls_csv_log(const char *path, const ls_csv_log_options *options);

/** Options for ls_tensorboard. */
typedef struct ls_tensorboard_options {
    int64_t every_steps; /**< number of training steps between records of the learning rates and of the loss over all
                            ranks; 0 records neither */
    int64_t images;      /**< number of inputs of rank 0's first batch to show, if they are pictures; 0 shows none */
    bool no_histograms;  /**< omits the histograms of the parameters after each epoch */
    bool no_model;       /**< omits the text and the graph of the model */
} ls_tensorboard_options;

/**
 * Writes an event file for TensorBoard into a folder, on rank 0 (torchbearer's TensorBoard, TensorBoardImages and
 * TensorBoardText; ls_events_open).
 *
 * - Tags are "epoch/NAME" for each metric of the history, "batch/loss", "batch/learning_rate/GROUP", "parameters/NAME",
 *   "input/NUMBER" and "model".
 * - The model is written as text and as a graph of at most 512 nodes, in which children follow each other in the order
 *   in which they were added.
 * - Parameters that are not finite, and inputs that are not pictures, are omitted.
 * - The folder and its files are kept: each trial adds a file.
 * - If writing fails, the run fails with LS_ERR_IO on all ranks, at the latest in on_end.
 *
 * Copies the path.
 */
LS_API ls_callback *ls_tensorboard(const char *folder, const ls_tensorboard_options *options);

/** Options for ls_run_log. */
typedef struct ls_run_log_options {
    int64_t every_steps; /**< interval in training steps for the loss over all ranks (one small all-reduce) and the
                            learning rate; 0 selects the default, 10 */
    bool no_steps;       /**< omits the lines for steps, and writes only lines for epochs */
} ls_run_log_options;

/**
 * Writes the record of a run on rank 0: the file run.jsonl in the folder. `lockstep report FOLDER` renders it as a
 * page.
 *
 * - The file has one JSON object per line: the configuration and the machine at the start, the loss of steps, and after
 *   each epoch its metrics, its duration, the throughput of training over all ranks, and the time of the phases of
 *   every rank (ls_time). The first epoch of a run begins with on_start_epoch; a later epoch begins with the end of the
 *   epoch before. After the first run, the results of ls_trial_evaluate are added.
 * - The throughput counts a sample once for each rank that trains on it. Ranks with the same samples, as in tensor
 *   parallelism, therefore multiply the throughput.
 * - Each line is in the file before the next hook runs, so the record of a killed run is readable.
 * - A trial that resumes from a checkpoint removes the first line of a later step or epoch and all lines after it,
 *   and then appends. Any other trial replaces the record in the folder. Later runs of the same trial append.
 * - After a resume within an epoch, the duration of this epoch counts only the part after the resume.
 * - If writing fails, the hook and the run fail with LS_ERR_IO on all ranks.
 * - The record contains the first 8191 bytes of rank 0's command line.
 *
 * The run creates the folder if it is missing. Put the callback last in the list of callbacks: the time of a later
 * callback is counted in the next phase. Copies the path. Returns NULL with LS_ERR_ARGUMENT if the folder is NULL,
 * empty or too long, or if `.every_steps` is negative.
 */
LS_API ls_callback *ls_run_log(const char *folder, const ls_run_log_options *options);

/** Options for ls_console. */
typedef struct ls_console_options {
    int digits;     /**< significant digits of each number, at most 17; 0 selects the default, 4 */
    bool per_batch; /**< adds a line for each batch of training, validation and ls_trial_evaluate, with rank 0's metrics
                       so far */
} ls_console_options;

/** Prints a line for each pass of training (t), validation (v) and ls_trial_evaluate (e) on rank 0 (torchbearer's
 * ConsolePrinter), such as "0/3(t): loss=0.4521, acc=0.8412". Use it with `.quiet` of the trial for logs and batch
 * jobs. */
LS_API ls_callback *ls_console(const ls_console_options *options);

/**
 * Prints a confusion matrix on rank 0 after each validation and ls_trial_evaluate (torchbearer's PyCM): a row for each
 * target class and a column for each predicted class. With `shares`, each row with targets sums to 1. `metric` (copied)
 * is the name of an ls_metric_confusion in the trial; NULL selects "confusion". on_start fails with LS_ERR_ARGUMENT if
 * the trial does not have this metric, and on_end_validation if there are more than 20 classes.
 */
LS_API ls_callback *ls_confusion_printer(const char *metric, bool shares);

/** Parts of the run time. */
typedef enum ls_time {
    LS_TIME_DATA = 0,      /**< waiting for batches, and for the ranks to agree on the next step */
    LS_TIME_FORWARD,       /**< from the input to the loss */
    LS_TIME_BACKWARD,      /**< the backward pass, including the communication of gradients; on a rank whose share is
                              empty, also the time before it in the step */
    LS_TIME_OPTIMIZER,     /**< the optimizer's step and the metrics */
    LS_TIME_USER_STEP,     /**< user step, instead of the previous three parts */
    LS_TIME_WAITING,       /**< waiting for the slowest rank after a step; measured only with `waiting` */
    LS_TIME_VALIDATION,    /**< validation passes */
    LS_TIME_COMMUNICATION, /**< communication calls of this thread, including the wait for other ranks; also counted in
                              the part during which they occur */
    LS_TIME_TOTAL,         /**< the whole run, from on_start to on_end */
    LS_TIMES               /**< the number of parts */
} ls_time;

/** Options for ls_timer. */
typedef struct ls_timer_options {
    bool waiting;  /**< measures the wait for the slowest rank, with one barrier per step */
    bool no_table; /**< omits the table at the end of a run */
} ls_timer_options;

/**
 * Measures the time of the parts of a run in this process (torchbearer's TimerMetric). A device's work counts in the
 * part in which the process waits for the device. At the end of a run, rank 0 prints a table in seconds: minimum, mean
 * and maximum over ranks. A second table shows the peak of tensor memory in this run, and the megabytes of each kind at
 * that time (ls_memory_kind). The last line shows the megabytes of rank 0 (ls_timer_bytes). Rows and lines of zeros are
 * omitted. Put the callback last in the list of callbacks: then the time in a hook of another callback counts in the
 * part that ends with this hook, such as on_backward in the backward pass.
 */
LS_API ls_callback *ls_timer(const ls_timer_options *options);
/**
 * Returns the time in seconds that this rank has spent in part `what` in all runs so far. They include the current run,
 * failed runs, and the runs before a checkpoint from which the trial has resumed. ls_trial_load replaces all times by
 * the times in the checkpoint. A part of a step counts when it ends: the part in which a run fails counts only in
 * LS_TIME_TOTAL and LS_TIME_COMMUNICATION, except for validation. Returns NAN for a callback of a different kind, and
 * if `what` is not a part. During a run, call it on the thread of the run.
 */
LS_API double ls_timer_seconds(const ls_callback *callback, ls_time what);
/**
 * Returns the number of bytes that this rank passed to communication calls between the timer's on_start and on_end in
 * the last complete run: the last run in which on_end was called. Returns 0 before such a run. Calls in on_start of
 * callbacks before the timer do not count, such as the training steps of ls_rate_finder. A call with parts for several
 * ranks counts this rank's part. An all-to-all counts all parts that this rank sends. Returns NAN for a callback of a
 * different kind.
 */
LS_API double ls_timer_bytes(const ls_callback *callback);
/** Sets the minimum, mean and maximum over ranks of the time in seconds that was spent in part `what` in the last
 * complete run (see ls_timer_bytes). Sets them to NAN before such a run. Pointers may be NULL. */
LS_API void ls_timer_over_ranks(const ls_callback *callback, ls_time what, double *least, double *mean,
                                double *largest);
/**
 * Sets the minimum, mean and maximum over ranks of the bytes of a kind in the last complete run (see ls_timer_bytes).
 * Sets them to NAN before such a run. Each rank's bytes are measured at the peak of its total. LS_MEMORY_KINDS selects
 * the total. Pointers may be NULL.
 */
LS_API void ls_timer_memory_over_ranks(const ls_callback *callback, ls_memory_kind kind, double *least, double *mean,
                                       double *largest);

#ifdef __cplusplus
}
#endif

#endif
