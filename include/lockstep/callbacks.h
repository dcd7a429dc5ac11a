/**
 * @file callbacks.h
 * Ready-made callbacks of trials. A constructor returns an ls_callback, or NULL on failure. Give it to ls_trial_new, or
 * to a constructor of this header that combines callbacks; both take ownership. If an element of `.callbacks` is NULL,
 * ls_trial_new fails with the error of the constructor:
 *
 * ```c
 * ls_callback *stop = ls_early_stopping(&(ls_early_stopping_options){.monitor = "val_acc", .patience = 3});
 * ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
 *                                                    .optimizer = optimizer,
 *                                                    .criterion = ls_criterion_cross_entropy,
 *                                                    .train = training,
 *                                                    .validate = validation,
 *                                                    LS_CALLBACKS(stop, ls_console(NULL))});
 * ```
 *
 * - Functions of a callback read its results (`ls_early_stopping_best(stop)`) until the trial is freed.
 * - Options may be NULL. A zero field selects the default.
 * - Every rank makes the same callbacks in the same order, because some callbacks exchange numbers. Callbacks that
 * write files or print do so on rank 0 only. ls_trial_run fails with LS_ERR_MISMATCH if the callbacks or their options
 *   differ between ranks (`describe` of ls_callback_hooks).
 * - Checkpoints contain the state of callbacks (`state` and `set_state` of ls_callback_hooks).
 * - A trial with a step of its own does not call on_forward, on_criterion and on_backward. ls_trial_new fails if a
 *   callback needs one of these hooks. The message says which function to call in the step instead.
 */
#ifndef LOCKSTEP_CALLBACKS_H
#define LOCKSTEP_CALLBACKS_H

#include <lockstep/train.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- composition ----------------------------------------------------------------------------------------------- */

/*
 * Callbacks made of callbacks. These constructors take ownership of their callbacks. A condition applies to each hook
 * separately. If a callback communicates, all ranks must agree on which hooks are called.
 */

/** Calls each hook the first time only (torchbearer's once). Checkpoints contain which hooks were called. */
LS_API ls_callback *ls_once(ls_callback *callback);
/** Calls each hook the first time in each epoch only (torchbearer's once_per_epoch). Checkpoints contain the epochs. */
LS_API ls_callback *ls_once_per_epoch(ls_callback *callback);
/** Returns whether a hook is called now. */
typedef bool (*ls_callback_predicate)(const ls_trial_state *state, void *user);
/** Calls a hook if `predicate(state, user)` returns true (torchbearer's only_if). Borrows `user`. */
LS_API ls_callback *ls_only_if(ls_callback *callback, ls_callback_predicate predicate, void *user);
/** Calls the hooks on one rank of the trial's communicator only. The callback must not communicate. */
LS_API ls_callback *ls_on_rank(ls_callback *callback, int rank);
/** Combines several callbacks into one callback, which calls them in this order. Copies the array. */
LS_API ls_callback *ls_callbacks_of(ls_callback *const *callbacks, int count);

/* ---- stopping -------------------------------------------------------------------------------------------------- */

/** Which values of a metric are better. */
typedef enum ls_monitor_mode {
    LS_MONITOR_AUTO = 0, /**< larger values if the metric's name contains "acc", otherwise smaller values */
    LS_MONITOR_MIN,
    LS_MONITOR_MAX
} ls_monitor_mode;

/** Options of ls_early_stopping. */
typedef struct ls_early_stopping_options {
    const char *monitor;  /**< name of the metric for ls_trial_metric (copied); NULL: "val_loss" */
    ls_monitor_mode mode; /**< which values are better */
    double min_delta;     /**< smallest change that counts as an improvement; not negative */
    int64_t patience;     /**< consecutive epochs without improvement that end the run; 0 and 1: the first such epoch */
    bool restore_best;    /**< restores the parameters and buffers of the best epoch at the end of the run */
} ls_early_stopping_options;

/**
 * Ends a run when a metric has stopped improving (torchbearer's EarlyStopping). Compares values after each epoch; all
 * ranks have the same values. A value that is not finite is not an improvement. A run that resumes from the checkpoint
 * of a stopped run ends at once. Fails with LS_ERR_ARGUMENT if the trial has no such metric: in on_start, or after the
 * first epoch if callbacks of the program may measure it.
 */
LS_API ls_callback *ls_early_stopping(const ls_early_stopping_options *options);
/** Returns the best value so far; NAN before the first epoch, and for another kind of callback. */
LS_API double ls_early_stopping_best(const ls_callback *callback);
/** Returns whether the callback has ended a run. */
LS_API bool ls_early_stopping_stopped(const ls_callback *callback);

/** Options of ls_terminate_on_nan. */
typedef struct ls_terminate_on_nan_options {
    bool by_layer; /**< checks the output of every module, not only of the model, and so finds the first module; modules
                      with hooks are not fused with their neighbors */
} ls_terminate_on_nan_options;

/**
 * Ends a run at the first NaN or infinite number in the model's output, the loss or a gradient. The run fails on all
 * ranks with LS_ERR_STATE.
 *
 * - The check takes place before the optimizer's step. In a trial with a step of its own, it takes place after the step
 *   and covers the output and the loss.
 * - The message names the tensor, the rank and the step. If several tensors qualify, it names the first one in the
 * step, on the lowest rank. Gradients of a data-parallel module are already averaged over ranks.
 * - In validation, the check covers outputs and losses, and the run ends after the pass.
 * - A loss without targets may be NaN (all targets of the rank are ignored): its gradient is 0.
 * - If a `.grad_scaler` of the trial skips steps, gradients are not checked.
 *
 * The cost is one pass over these tensors and one small all-reduce per step. (torchbearer's TerminateOnNaN checks a
 * metric.)
 */
LS_API ls_callback *ls_terminate_on_nan(const ls_terminate_on_nan_options *options);

/* ---- gradients ------------------------------------------------------------------------------------------------- */

/** Calls ls_clip_grad_norm after each backward pass (torchbearer's GradientNormClipping). */
LS_API ls_callback *ls_gradient_norm_clipping(double max_norm);
/** Calls ls_clip_grad_value after each backward pass (torchbearer's GradientClipping). */
LS_API ls_callback *ls_gradient_value_clipping(double limit);
/**
 * Adds rate * (sum |w|^p)^(1/p) of each parameter to the training loss. With p = 2 this is the Euclidean norm, not its
 * square, as in torchbearer's L2WeightDecay; with p = 1 it is L1WeightDecay. The metric "loss" includes it. The rate
 * must not be negative (torchbearer's default is 5e-4), and p must be positive.
 */
LS_API ls_callback *ls_weight_decay(double rate, double p);

/* ---- initial weights ------------------------------------------------------------------------------------------- */

/** How weights are drawn: the ls_nn_init_ function of the same name. */
typedef enum ls_weight_rule {
    LS_KAIMING_UNIFORM = 0,
    LS_KAIMING_NORMAL,
    LS_XAVIER_UNIFORM,
    LS_XAVIER_NORMAL,
    LS_ORTHOGONAL,
    LS_WEIGHT_RULES /**< the number of rules */
} ls_weight_rule;

/** Options of ls_initialize. */
typedef struct ls_initialize_options {
    ls_weight_rule rule;
    double slope;               /**< slope of the leaky ReLU after the layer, for Kaiming's rules */
    double gain;                /**< gain of the other rules; 0: 1 */
    bool zero_bias;             /**< sets parameters "bias" to 0 (torchbearer's ZeroBias) */
    const char *const *targets; /**< words, ended by NULL (borrowed): selects modules whose type name contains one of
                                   the words, and that are not sharded over ranks; NULL: "Linear", "Conv" */
    uint64_t seed;
} ls_initialize_options;

/**
 * Draws the parameter "weight" of the selected modules when the trial is made, if it has at least two axes
 * (torchbearer's KaimingUniform and similar callbacks). The numbers are functions of the seed and the parameter's name:
 * all ranks draw the same numbers whatever their own seeds are, also in a pipeline. Load weights after the trial is
 * made.
 */
LS_API ls_callback *ls_initialize(const ls_initialize_options *options);

/** Options of ls_lsuv. */
typedef struct ls_lsuv_options {
    double deviation;           /**< standard deviation of each layer's outputs; 0: 1 */
    double tolerance;           /**< 0: 0.1 */
    int attempts;               /**< largest number of attempts per layer; 0: 10 */
    bool keep_weights;          /**< scales the weights as they are, instead of orthonormal weights */
    const char *const *targets; /**< as in ls_initialize_options */
    uint64_t seed;
} ls_lsuv_options;

/**
 * Initializes layers by layer-sequential unit variance before the first step of a trial (Mishkin and Matas, arXiv
 * 1511.06422; torchbearer's LsuvInit). Goes through the layers in the order of the model's children, makes the weights
 * orthonormal, and scales them until the layer's outputs have the deviation.
 *
 * - The outputs are those of the first training batch, over the samples of all ranks, with the model in evaluation
 * mode.
 * - A trial that resumes from a checkpoint skips the initialization.
 * - Fails with LS_ERR_STATE if the outputs of a layer do not vary.
 */
LS_API ls_callback *ls_lsuv(const ls_lsuv_options *options);

/* ---- learning rates -------------------------------------------------------------------------------------------- */

/** Options of ls_scheduler. */
typedef struct ls_scheduler_options {
    bool per_step;       /**< advances after each training step, not after each epoch */
    const char *monitor; /**< metric of ls_schedule_plateau, by its name for ls_trial_metric (copied); all ranks have
                            the same value; not with per_step */
} ls_scheduler_options;

/** Advances a schedule after each epoch of training. Takes ownership of the schedule: free the trial before the
 * optimizer of the schedule. */
LS_API ls_callback *ls_scheduler(ls_schedule *schedule, const ls_scheduler_options *options);

/** Options of ls_rate_finder. */
typedef struct ls_rate_finder_options {
    double lowest;     /**< first rate; 0: 1e-7 */
    double highest;    /**< last rate; 0: 10 */
    int64_t steps;     /**< training steps; 0: 100 */
    double smoothing;  /**< factor of the previous smoothed loss, below 1; 0: 0.9, LS_ZERO: no smoothing */
    double divergence; /**< ends when the smoothed loss exceeds its minimum times this factor, above 1; 0: 4 */
    bool apply;        /**< training starts with the suggested rate; schedules keep the rates of their construction */
} ls_rate_finder_options;

/**
 * Runs the learning rate range test before the first epoch of a trial (Smith, arXiv 1506.01186, section 3.3): trains
 * with rates that grow exponentially from batch to batch, until the loss diverges. Then restores parameters, buffers,
 * optimizer, loader, random numbers and metrics.
 *
 * - The test uses the trial's own step, without callbacks.
 * - Parameter groups with a rate of 0 stay frozen.
 * - A trial that resumes from a checkpoint skips the test.
 */
LS_API ls_callback *ls_rate_finder(const ls_rate_finder_options *options);
/** Returns the rate at which the smoothed loss falls fastest over the logarithm of the rate. Returns NAN before a run,
 * and if the loss never falls. All ranks return the same rate. */
LS_API double ls_rate_finder_suggestion(const ls_callback *callback);
/** Returns the number of steps of the test. */
LS_API int64_t ls_rate_finder_count(const ls_callback *callback);
/** Returns the rate of a step and its mean loss over all ranks, without smoothing. Either pointer may be NULL. Both
 * numbers are NAN if the step is out of range. */
LS_API void ls_rate_finder_point(const ls_callback *callback, int64_t step, double *rate, double *loss);

/* ---- samples --------------------------------------------------------------------------------------------------- */

/*
 * These callbacks replace the inputs and targets of training batches.
 *
 * - Random numbers are functions of seed, epoch, batch and the sample's index in the global batch. A sample that is
 *   mixed in comes from the data set, not from another rank. So the samples are bit-identical on any number of ranks,
 *   without communication.
 * - A sample that is mixed in is read a second time, as the data set has it: callbacks before this one have changed
 *   only the first sample.
 * - Targets that are class numbers [n] become rows [n, classes] of f32, which ls_cross_entropy takes as probabilities.
 *   Targets that are rows remain rows.
 * - on_sample fails with LS_ERR_ARGUMENT if the inputs are not floating-point, or if a class number is not below
 *   `classes`.
 */

/** Options of ls_mixup. */
typedef struct ls_mixup_options {
    double alpha;      /**< lambda is drawn from Beta(alpha, alpha) once per batch; 0: 1 */
    double lambda;     /**< fixed lambda, at most 1; 0: drawn */
    int64_t classes;   /**< number of classes, if targets are class numbers */
    bool keep_targets; /**< mixes only inputs: with lambda 0.5, SamplePairing (Inoue, arXiv 1801.02929) */
    uint64_t seed;
} ls_mixup_options;

/** Replaces each input x by lambda x + (1 - lambda) y, where y is the input of another sample of the global batch by a
 * random permutation. Mixes targets in the same way (Zhang et al., arXiv 1710.09412; torchbearer's Mixup). Needs the
 * loader of a data set. */
LS_API ls_callback *ls_mixup(const ls_mixup_options *options);

/** Options of ls_cutmix. */
typedef struct ls_cutmix_options {
    double alpha;    /**< lambda is drawn from Beta(alpha, alpha) once per batch; 0: 1 */
    int64_t classes; /**< number of classes, if targets are class numbers */
    uint64_t seed;
} ls_cutmix_options;

/**
 * Replaces a rectangle of each input [n, ..., height, width] by the same rectangle of another sample, chosen as in
 * ls_mixup. Its sides are sqrt(1 - lambda) times those of the picture, around a random point, clipped at the edges, and
 * the same for all inputs of a batch. Mixes targets in proportion to the areas (Yun et al., arXiv 1905.04899, algorithm
 * A1; torchbearer's CutMix always mixes targets by lambda, even if the rectangle is clipped).
 */
LS_API ls_callback *ls_cutmix(const ls_cutmix_options *options);

/** Options of ls_cutout. */
typedef struct ls_cutout_options {
    int64_t length; /**< side of a square, in pixels */
    int holes;      /**< squares per picture; 0: 1 */
    double fill;    /**< value of the pixels in a square */
    bool noise;     /**< fills with uniform noise from 0 to 1 for each pixel and channel (torchbearer's RandomErase) */
    uint64_t seed;
} ls_cutout_options;

/** Fills squares of each input [n, ..., height, width] around random points. Squares may extend beyond the edges
 * (DeVries and Taylor, arXiv 1708.04552; torchbearer's Cutout). */
LS_API ls_callback *ls_cutout(const ls_cutout_options *options);

/** Replaces targets by (1 - epsilon) target + epsilon / classes, for losses without such an option (Szegedy et al.,
 * arXiv 1512.00567, section 7; torchbearer's LabelSmoothingRegularisation). `classes` is needed if targets are class
 * numbers, otherwise 0. */
LS_API ls_callback *ls_label_smoothing(double epsilon, int64_t classes);

/** Options of ls_manifold_mixup. */
typedef struct ls_manifold_mixup_options {
    double alpha;              /**< as in ls_mixup_options */
    double lambda;             /**< as in ls_mixup_options */
    int64_t classes;           /**< as in ls_mixup_options */
    const char *const *layers; /**< names of layers, ended by NULL (copied); one layer is drawn for each batch; NULL:
                                  the children of the model */
    uint64_t seed;
} ls_manifold_mixup_options;

/**
 * Applies ls_mixup to the outputs of a layer instead of the inputs (Verma et al., arXiv 1806.05236; torchbearer's
 * ManifoldMixup). The first axis of these outputs must count samples.
 *
 * The model gets 2 n rows, the samples and their partners, and the outputs of the layer are reduced to n rows. So
 * layers up to this layer are computed for both samples, without communication. In ls_data_parallel, no later layer may
 * depend on the whole batch (ls_nn_batch_norm_1d, ls_nn_dropout).
 */
LS_API ls_callback *ls_manifold_mixup(const ls_manifold_mixup_options *options);

/* ---- averages of weights --------------------------------------------------------------------------------------- */

/** Options of ls_weight_averaging. */
typedef struct ls_weight_averaging_options {
    double decay; /**< 0 to 1: after each step, average = decay average + (1 - decay) weights (Polyak averaging with
                       exponential weights); 0: after each epoch, the mean of all epochs so far (stochastic weight
                       averaging: Izmailov et al., arXiv 1803.05407) */
    int64_t first_epoch; /**< first epoch of averaging; the average starts with the weights at this time */
    bool no_swap;        /**< validates the weights, not the averages */
    bool keep;           /**< the model gets the averages at the end of a run */
} ls_weight_averaging_options;

/** Averages parameters and buffers over training. Validation and ls_trial_evaluate use the averages. Statistics of
 * batch normalization are averaged, not measured again. */
LS_API ls_callback *ls_weight_averaging(const ls_weight_averaging_options *options);
/** Returns the number of weights in the average; 0 for another kind of callback. */
LS_API int64_t ls_weight_averaging_count(const ls_callback *callback);

/* ---- logs ------------------------------------------------------------------------------------------------------ */

/** Options of ls_csv_log. */
typedef struct ls_csv_log_options {
    char separator; /**< 0: a comma */
    bool per_batch; /**< a line for each training batch: epoch, batch, loss over all ranks (one small all-reduce), and
                       learning rate of group 0 */
    bool no_header; /**< no line of names */
    bool append;    /**< a trial that starts at epoch 0 appends to an existing file */
} ls_csv_log_options;

/**
 * Writes a CSV file on rank 0 (torchbearer's CSVLogger): a line for each epoch with its number and the metrics of the
 * history. Each line is in the file before the next hook runs. A trial that resumes from a checkpoint keeps the earlier
 * lines and removes later ones, so the file has each line once. Fails with LS_ERR_IO if the file cannot be written.
 * Copies the path.
 */
LS_API ls_callback *ls_csv_log(const char *path, const ls_csv_log_options *options);

/** Options of ls_tensorboard. */
typedef struct ls_tensorboard_options {
    int64_t every_steps; /**< interval in training steps for the loss over all ranks and the learning rates; 0: never */
    int64_t images;      /**< number of inputs of rank 0's first batch to show, if they are pictures; 0: none */
    bool no_histograms;  /**< no histograms of the parameters after each epoch */
    bool no_model;       /**< no text and no graph of the model */
} ls_tensorboard_options;

/**
 * Writes an event file for TensorBoard into a folder, on rank 0 (torchbearer's TensorBoard, TensorBoardImages and
 * TensorBoardText; ls_events_open).
 *
 * - Tags are "epoch/NAME" for each metric of the history, "batch/loss", "batch/learning_rate/GROUP", "parameters/NAME"
 *   and "input/NUMBER".
 * - The model is written as text and as a graph, in which children follow each other in the order of their addition.
 * - Values that TensorBoard cannot show are left out, for example parameters that are not finite.
 * - The folder and its files are kept: a trial that resumes adds a file.
 *
 * Copies the path.
 */
LS_API ls_callback *ls_tensorboard(const char *folder, const ls_tensorboard_options *options);

/** Options of ls_console. */
typedef struct ls_console_options {
    int digits;     /**< significant digits of each number, at most 17; 0: 4 */
    bool per_batch; /**< a line for each batch, too: rank 0's metrics so far */
} ls_console_options;

/** Prints a line for each pass on rank 0 (torchbearer's ConsolePrinter), such as "0/3(t): loss=0.4521, acc=0.8412", for
 * training (t), validation (v) and ls_trial_evaluate (e). For logs and batch jobs, with `.quiet` of the trial. */
LS_API ls_callback *ls_console(const ls_console_options *options);

/**
 * Prints a confusion matrix on rank 0 after each validation and ls_trial_evaluate (torchbearer's PyCM): a row for each
 * target and a column for each answer, for at most 20 classes. With `shares`, each row sums to 1. `metric` is the name
 * of an ls_metric_confusion of the trial (copied; NULL: "confusion"). on_end_validation fails with LS_ERR_ARGUMENT if
 * the trial has no such metric.
 */
LS_API ls_callback *ls_confusion_printer(const char *metric, bool shares);

/** The parts of the time of a run. */
typedef enum ls_time {
    LS_TIME_DATA = 0,      /**< waiting for batches, and for the other ranks' agreement on the next step */
    LS_TIME_FORWARD,       /**< from the sample to the loss */
    LS_TIME_BACKWARD,      /**< the backward pass, including the communication of gradients */
    LS_TIME_OPTIMIZER,     /**< on_backward of other callbacks, the optimizer's step and the metrics */
    LS_TIME_OWN_STEP,      /**< a step of the trial's own, instead of the previous three parts */
    LS_TIME_WAITING,       /**< waiting for the slowest rank after a step, with `waiting` */
    LS_TIME_VALIDATION,    /**< passes of validation */
    LS_TIME_COMMUNICATION, /**< communication calls of this thread, including waiting for other ranks; also counted in
                                the part during which they occur */
    LS_TIME_TOTAL,         /**< runs from beginning to end */
    LS_TIMES               /**< the number of parts */
} ls_time;

/** Options of ls_timer. */
typedef struct ls_timer_options {
    bool waiting;  /**< measures how long each step waits for the slowest rank: one barrier per step */
    bool no_table; /**< prints nothing */
} ls_timer_options;

/**
 * Measures the time of the parts of a run in this process (torchbearer's TimerMetric). Work of a device counts where
 * the process waits for it. At the end of a run, rank 0 prints a table in seconds: minimum, mean and maximum over
 * ranks. Give it as the last callback.
 */
LS_API ls_callback *ls_timer(const ls_timer_options *options);
/** Returns the seconds of this rank so far; NAN for another kind of callback. */
LS_API double ls_timer_seconds(const ls_callback *callback, ls_time what);
/** Returns minimum, mean and maximum over ranks at the end of the last run; NAN before. Each pointer may be NULL. */
LS_API void ls_timer_over_ranks(const ls_callback *callback, ls_time what, double *least, double *mean,
                                double *largest);

#ifdef __cplusplus
}
#endif

#endif
