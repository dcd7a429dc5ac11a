/**
 * @file callbacks.h
 * Callbacks of trials that are ready to use. A constructor returns an ls_callback for the `callbacks` of
 * ls_trial_options, which the trial takes over, or another constructor here; where it fails, the callback is `invalid`
 * and ls_trial_new fails with its error:
 *
 * ```c
 * ls_callback stop = ls_early_stopping(&(ls_early_stopping_options){.monitor = "val_acc", .patience = 3});
 * ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
 *                                                    .optimizer = optimizer,
 *                                                    .criterion = ls_criterion_cross_entropy,
 *                                                    .train = training,
 *                                                    .validate = validation,
 *                                                    LS_CALLBACKS(stop, ls_console(NULL))});
 * ```
 *
 * What a callback has found out is read by functions of the callback (`ls_early_stopping_best(&stop)`), until the trial
 * is freed. Options may be NULL, and zero is their default. Every rank makes the same callbacks in the same order: some
 * exchange numbers, and those with files or printed lines do that on rank 0 alone, by themselves. ls_trial_run refuses
 * different callbacks and options with LS_ERR_MISMATCH (`describe` of ls_callback). What they remember goes into
 * checkpoints (`state` and `set_state` of ls_callback).
 *
 * Hooks between on_sample and on_step_training are not called where a trial has a step of its own: a callback that
 * needs one then fails in ls_trial_new and says what to call in the step instead.
 */
#ifndef LOCKSTEP_CALLBACKS_H
#define LOCKSTEP_CALLBACKS_H

#include <lockstep/train.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- composition ----------------------------------------------------------------------------------------------- */

/*
 * Callbacks made of callbacks, which are taken over, also on failure. What is said of "each hook" is of the hooks that
 * the callback has, each by itself. Ranks must agree on which hooks are called where those exchange something.
 */

/** Each hook is called the first time only (torchbearer's once). Remembers which were. */
LS_API ls_callback ls_once(ls_callback callback);
/** Each hook is called the first time in each epoch only (once_per_epoch). Remembers the epochs. */
LS_API ls_callback ls_once_per_epoch(ls_callback callback);
/** Whether hooks are called now. */
typedef bool (*ls_callback_predicate)(const ls_trial_state *state, void *user);
/** Each hook is called where `predicate(state, user)` says so (only_if). `user` is lent. */
LS_API ls_callback ls_only_if(ls_callback callback, ls_callback_predicate predicate, void *user);
/** Each hook is called on that rank of the trial's communicator only: for callbacks that exchange nothing. */
LS_API ls_callback ls_on_rank(ls_callback callback, int rank);
/** Several as one, called in this order. The array is copied. */
LS_API ls_callback ls_callbacks_of(const ls_callback *callbacks, int count);

/* ---- stopping -------------------------------------------------------------------------------------------------- */

/** Which values of a metric are better. */
typedef enum ls_monitor_mode {
    LS_MONITOR_AUTO = 0, /**< larger ones where the metric's name contains "acc", else smaller ones */
    LS_MONITOR_MIN,
    LS_MONITOR_MAX
} ls_monitor_mode;

/** Options of ls_early_stopping. */
typedef struct ls_early_stopping_options {
    const char *monitor;  /**< the metric, as ls_trial_metric names it (copied); NULL: "val_loss" */
    ls_monitor_mode mode; /**< what is better */
    double min_delta;     /**< better by more than this counts; not negative */
    int64_t patience;     /**< epochs in a row without a better value that end the run; 0 and 1: the first one */
    bool restore_best;    /**< the model ends a run with the parameters and buffers of the best epoch */
} ls_early_stopping_options;

/**
 * Ends a run when a metric has stopped to become better (torchbearer's EarlyStopping): after each epoch, by values that
 * all ranks have alike. A value that is not finite is not better. A run that goes on from the checkpoint behind the
 * epoch that ended another one ends at once. Fails with LS_ERR_ARGUMENT if the trial has no such metric: in on_start,
 * or after the first epoch if the program's own callbacks may measure it.
 */
LS_API ls_callback ls_early_stopping(const ls_early_stopping_options *options);
/** The best value so far; NAN before the first epoch, and for another callback. */
LS_API double ls_early_stopping_best(const ls_callback *callback);
/** Whether it has ended a run. */
LS_API bool ls_early_stopping_stopped(const ls_callback *callback);

/** Options of ls_terminate_on_nan. */
typedef struct ls_terminate_on_nan_options {
    bool by_layer; /**< looks at the output of every module, not of the model alone, and so names the first; modules
                      with hooks are not fused with their neighbours */
} ls_terminate_on_nan_options;

/**
 * Ends a run, on all ranks with LS_ERR_STATE and one sentence, at the first number that is NaN or infinite in the
 * model's output, the loss or a gradient, before the optimizer's step; in a trial with a step of its own in its output
 * and loss, after the step. The sentence names the tensor, the rank and the step: of several, what comes first in the
 * step, on the lowest rank. The gradients of a data-parallel module are those of all ranks by then. In validation it
 * looks at outputs and losses, and ends the run after the pass. A loss over no targets (all of the rank's
 * targets are ignored) may be NaN: its gradient is 0. Where a `.grad_scaler` of the trial skips steps, it does not look
 * at gradients. Costs a pass over those tensors and one small all-reduce a step. (torchbearer's TerminateOnNaN looks at
 * a metric.)
 */
LS_API ls_callback ls_terminate_on_nan(const ls_terminate_on_nan_options *options);

/* ---- gradients ------------------------------------------------------------------------------------------------- */

/** ls_clip_grad_norm behind each backward pass (torchbearer's GradientNormClipping). */
LS_API ls_callback ls_gradient_norm_clipping(double max_norm);
/** ls_clip_grad_value behind each backward pass (GradientClipping). */
LS_API ls_callback ls_gradient_value_clipping(double limit);
/**
 * Adds rate * (sum |w|^p)^(1/p) of each parameter to the loss in training: with p = 2 its Euclidean norm, not the
 * square of that, as torchbearer's L2WeightDecay; with p = 1 L1WeightDecay. The metric "loss" contains it. The rate is
 * not negative (torchbearer's is 5e-4), p positive.
 */
LS_API ls_callback ls_weight_decay(double rate, double p);

/* ---- weights to begin with ------------------------------------------------------------------------------------- */

/** How weights are drawn: the ls_nn_init_ function of the name. */
typedef enum ls_weight_rule {
    LS_KAIMING_UNIFORM = 0,
    LS_KAIMING_NORMAL,
    LS_XAVIER_UNIFORM,
    LS_XAVIER_NORMAL,
    LS_ORTHOGONAL,
    LS_WEIGHT_RULES /**< how many there are */
} ls_weight_rule;

/** Options of ls_initialize. */
typedef struct ls_initialize_options {
    ls_weight_rule rule;
    double slope;   /**< of the leaky ReLU that follows, for Kaiming's rules */
    double gain;    /**< of the others; 0: 1 */
    bool zero_bias; /**< parameters "bias" become 0 (torchbearer's ZeroBias) */
    const char *const
        *targets; /**< words, ended by NULL (lent as long as the callback); modules are meant whose type has
                       one of them in its name, and that are not divided over ranks; NULL: "Linear", "Conv" */
    uint64_t seed;
} ls_initialize_options;

/**
 * When the trial is made, draws the parameter "weight" of two axes or more of each such module anew (torchbearer's
 * KaimingUniform and its kin). The numbers are functions of the seed and the parameter's name: the same on all ranks,
 * however they are seeded, and in a pipeline. Make the trial before weights are loaded.
 */
LS_API ls_callback ls_initialize(const ls_initialize_options *options);

/** Options of ls_lsuv. */
typedef struct ls_lsuv_options {
    double deviation;           /**< that outputs are to have; 0: 1 */
    double tolerance;           /**< 0: 0.1 */
    int attempts;               /**< at most, for each layer; 0: 10 */
    bool keep_weights;          /**< scales the weights as they are, and not orthonormal ones */
    const char *const *targets; /**< as of ls_initialize */
    uint64_t seed;
} ls_lsuv_options;

/**
 * Before the first step of a trial makes the weights of one layer after the other, in the order of the model's
 * children, orthonormal, and scales them until the layer's outputs have the deviation (Mishkin and Matas, arXiv
 * 1511.06422; torchbearer's LsuvInit), for the first batch of the training loader: all ranks' samples count. The model
 * is in evaluation mode for that. A trial that goes on from a checkpoint skips it. LS_ERR_STATE where a layer's outputs
 * do not vary.
 */
LS_API ls_callback ls_lsuv(const ls_lsuv_options *options);

/* ---- learning rates -------------------------------------------------------------------------------------------- */

/** Options of ls_scheduler. */
typedef struct ls_scheduler_options {
    bool per_step;       /**< advances behind each step of training, not each epoch */
    const char *monitor; /**< of ls_schedule_plateau: the metric, as ls_trial_metric names it (copied), which all ranks
                              have alike; not with per_step */
} ls_scheduler_options;

/** Advances a schedule (taken over; free the trial before its optimizer) behind each epoch of training. */
LS_API ls_callback ls_scheduler(ls_schedule *schedule, const ls_scheduler_options *options);

/** Options of ls_rate_finder. */
typedef struct ls_rate_finder_options {
    double lowest;     /**< the rate to begin with; 0: 1e-7 */
    double highest;    /**< the last one; 0: 10 */
    int64_t steps;     /**< of training; 0: 100 */
    double smoothing;  /**< below 1: how much the smoothed loss keeps of the one before; 0: 0.9, LS_ZERO: none */
    double divergence; /**< ends where the smoothed loss is so many times the best; above 1; 0: 4 */
    bool apply;        /**< training begins with the suggestion; a schedule keeps to the rates that it was made with */
} ls_rate_finder_options;

/**
 * Before the first epoch of a trial, trains for some steps with rates that grow exponentially, batch after batch
 * (Smith, arXiv 1506.01186, section 3.3), until the loss diverges, and puts everything back: parameters, buffers,
 * optimizer, loader, random numbers, metrics. The trial's step is taken as it is, without callbacks. Groups whose rate
 * is 0 stay frozen. A trial that goes on from a checkpoint skips it.
 */
LS_API ls_callback ls_rate_finder(const ls_rate_finder_options *options);
/** The rate at which the smoothed loss, over the logarithm of the rate, falls the fastest; NAN when there is none:
 * before a run, or where it never falls. The same on every rank. */
LS_API double ls_rate_finder_suggestion(const ls_callback *callback);
/** How many steps it took. */
LS_API int64_t ls_rate_finder_count(const ls_callback *callback);
/** The rate of a step and the mean loss over all ranks, not smoothed; either may be NULL, both are NAN out of range. */
LS_API void ls_rate_finder_point(const ls_callback *callback, int64_t step, double *rate, double *loss);

/* ---- samples --------------------------------------------------------------------------------------------------- */

/*
 * These put other inputs and targets in place of a batch's, in training alone. Random numbers are functions of seed,
 * epoch, batch and the sample's place in the global batch, and what one sample needs of another one is taken from the
 * data set, which every rank has, and not from another rank: so the samples are the same, bit by bit, on any number of
 * ranks, and nothing is exchanged. (It is read twice, then, and is as the data set has it: callbacks before this one
 * have changed the first sample, not the other.) Targets that are class numbers [n] become rows [n,
 * classes] of f32, which ls_cross_entropy takes as probabilities; rows stay rows. LS_ERR_ARGUMENT, from on_sample,
 * where inputs are not floating or a class number is not below `classes`.
 */

/** Options of ls_mixup. */
typedef struct ls_mixup_options {
    double alpha;      /**< lambda is drawn from Beta(alpha, alpha), once a batch; 0: 1 */
    double lambda;     /**< 0 to 1: not drawn, but this; 0: drawn */
    int64_t classes;   /**< where targets are class numbers: how many there are */
    bool keep_targets; /**< mixes inputs alone: with lambda 0.5 this is SamplePairing (Inoue, arXiv 1801.02929) */
    uint64_t seed;
} ls_mixup_options;

/** Each input becomes lambda x + (1 - lambda) y, y being the input of another sample of the global batch by a random
 * permutation; so do targets (Zhang et al., arXiv 1710.09412; torchbearer's Mixup). Needs a loader of a data set. */
LS_API ls_callback ls_mixup(const ls_mixup_options *options);

/** Options of ls_cutmix. */
typedef struct ls_cutmix_options {
    double alpha;    /**< lambda is drawn from Beta(alpha, alpha), once a batch; 0: 1 */
    int64_t classes; /**< where targets are class numbers: how many there are */
    uint64_t seed;
} ls_cutmix_options;

/**
 * A rectangle of each input [n, ..., height, width] becomes that of another sample, as in ls_mixup: of sides
 * sqrt(1 - lambda) of the picture's, around a random point and cut off at the edges, the same in all of a batch.
 * Targets are mixed by the areas (Yun et al., arXiv 1905.04899, algorithm A1; torchbearer's CutMix mixes them by
 * lambda, also where the rectangle is cut off).
 */
LS_API ls_callback ls_cutmix(const ls_cutmix_options *options);

/** Options of ls_cutout. */
typedef struct ls_cutout_options {
    int64_t length; /**< of a side, in pixels */
    int holes;      /**< in each picture; 0: 1 */
    double fill;    /**< their new value */
    bool noise;     /**< instead: uniform from 0 to 1, each pixel and channel by itself (torchbearer's RandomErase) */
    uint64_t seed;
} ls_cutout_options;

/** Squares of each input [n, ..., height, width] around random points are filled; they may lie over the edges (DeVries
 * and Taylor, arXiv 1708.04552; torchbearer's Cutout). */
LS_API ls_callback ls_cutout(const ls_cutout_options *options);

/** Targets become (1 - epsilon) target + epsilon / classes (Szegedy et al., arXiv 1512.00567, section 7; torchbearer's
 * LabelSmoothingRegularisation): for losses that have no option for it. `classes` is needed where targets are class
 * numbers, else 0. */
LS_API ls_callback ls_label_smoothing(double epsilon, int64_t classes);

/** Options of ls_manifold_mixup. */
typedef struct ls_manifold_mixup_options {
    double alpha;              /**< as of ls_mixup */
    double lambda;             /**< likewise */
    int64_t classes;           /**< likewise */
    const char *const *layers; /**< names, ended by NULL (copied), one of which is drawn for each batch; NULL: the
                                    children of the model */
    uint64_t seed;
} ls_manifold_mixup_options;

/**
 * ls_mixup of what a layer gives, in place of inputs (Verma et al., arXiv 1806.05236; torchbearer's ManifoldMixup). The
 * model is given 2 n rows, the samples and their partners, and the layer's outputs become n, so that the layers up to
 * that one are computed twice and nothing is exchanged. In ls_data_parallel no layer behind it may work on the whole
 * batch (ls_nn_batch_norm_1d, ls_nn_dropout). The outputs' first axis counts samples.
 */
LS_API ls_callback ls_manifold_mixup(const ls_manifold_mixup_options *options);

/* ---- averages of weights --------------------------------------------------------------------------------------- */

/** Options of ls_weight_averaging. */
typedef struct ls_weight_averaging_options {
    double decay; /**< 0 to 1: behind each step, average = decay average + (1 - decay) weights (Polyak averaging with
                       exponential weights); 0: behind each epoch the mean of all so far (stochastic weight
                       averaging: Izmailov et al., arXiv 1803.05407) */
    int64_t first_epoch; /**< from which on; it begins with the weights of then */
    bool no_swap;        /**< validates the weights as they are */
    bool keep;           /**< the model has the averages when a run has ended */
} ls_weight_averaging_options;

/** Averages parameters and buffers over training, and puts the averages in place of them while the model is validated
 * or evaluated. Statistics of batch normalisation are averaged, not measured anew. */
LS_API ls_callback ls_weight_averaging(const ls_weight_averaging_options *options);
/** How many weights the averages are of; 0 for another callback. */
LS_API int64_t ls_weight_averaging_count(const ls_callback *callback);

/* ---- what a run tells ------------------------------------------------------------------------------------------ */

/** Options of ls_csv_log. */
typedef struct ls_csv_log_options {
    char separator; /**< 0: a comma */
    bool per_batch; /**< a line for each batch of training: epoch, batch, loss over all ranks (one small all-reduce),
                       and learning rate of group 0 */
    bool no_header; /**< no line of names */
    bool append;    /**< a trial that begins at epoch 0 writes behind what the file has */
} ls_csv_log_options;

/**
 * Writes a CSV file while the trial runs (torchbearer's CSVLogger): on rank 0, a line for each epoch with its number
 * and the metrics of the history, each in the file when the next hook runs. A trial that goes on from a checkpoint
 * keeps the lines from before that and writes what comes then, so that no line is there twice. LS_ERR_IO when the file
 * cannot be written. The path is copied.
 */
LS_API ls_callback ls_csv_log(const char *path, const ls_csv_log_options *options);

/** Options of ls_tensorboard. */
typedef struct ls_tensorboard_options {
    int64_t every_steps; /**< the loss of all ranks' batch and the learning rates, behind each so many steps of
                            training; 0: not */
    int64_t images;      /**< how many inputs of rank 0's first batch are shown, if they are pictures; 0: none */
    bool no_histograms;  /**< of the parameters, behind each epoch */
    bool no_model;       /**< its text and its graph */
} ls_tensorboard_options;

/**
 * Writes an event file for TensorBoard into the folder, on rank 0 (torchbearer's TensorBoard, TensorBoardImages and
 * TensorBoardText; ls_events_open): "epoch/NAME" for each metric of the history, "batch/loss",
 * "batch/learning_rate/GROUP", "parameters/NAME", "input/NUMBER", and the model as text and as a graph, in which
 * children follow each other in the order in which they were added. What cannot be shown, parameters that are not
 * finite, say, is left out. Folder and what it has in it stay: a trial that goes on adds a file. The path is copied.
 */
LS_API ls_callback ls_tensorboard(const char *folder, const ls_tensorboard_options *options);

/** Options of ls_console. */
typedef struct ls_console_options {
    int digits;     /**< that count, of each number, to 17; 0: 4 */
    bool per_batch; /**< a line for each batch, too: rank 0's metrics so far */
} ls_console_options;

/** Prints a line for each pass on rank 0 (torchbearer's ConsolePrinter), as "0/3(t): loss=0.4521, acc=0.8412": of
 * training (t), validation (v) and ls_trial_evaluate (e). For logs and batch jobs, with `quiet` in the trial. */
LS_API ls_callback ls_console(const ls_console_options *options);

/**
 * Prints a table behind each validation and ls_trial_evaluate, on rank 0: a row for each target, a column for each
 * answer, of at most 20 classes (torchbearer's PyCM). `metric` is that of an ls_metric_confusion of the trial (copied;
 * NULL: "confusion"; LS_ERR_ARGUMENT, from on_end_validation, where there is none). With `shares` each row adds up
 * to 1.
 */
LS_API ls_callback ls_confusion_printer(const char *metric, bool shares);

/** What a run spends its time with. */
typedef enum ls_time {
    LS_TIME_DATA = 0,      /**< waiting for batches, and for the others to agree that there is one more step */
    LS_TIME_FORWARD,       /**< from the sample to the loss */
    LS_TIME_BACKWARD,      /**< the backward pass, with the communication of gradients in it */
    LS_TIME_OPTIMIZER,     /**< what other callbacks do with gradients, the step and the metrics */
    LS_TIME_OWN_STEP,      /**< a step of the trial's own, in place of those three */
    LS_TIME_WAITING,       /**< for the slowest rank behind a step, with `waiting` */
    LS_TIME_VALIDATION,    /**< passes of validation */
    LS_TIME_COMMUNICATION, /**< calls of communicators that this thread makes, and waiting for them, in whichever of the
                                others they are: with what other ranks are late */
    LS_TIME_TOTAL,         /**< runs from their beginning to their end, all of this and what is between */
    LS_TIMES               /**< how many there are */
} ls_time;

/** Options of ls_timer. */
typedef struct ls_timer_options {
    bool waiting;  /**< measures how long the slowest rank is waited for behind each step: a barrier */
    bool no_table; /**< prints nothing */
} ls_timer_options;

/**
 * Adds up what a run spends its time with (torchbearer's TimerMetric), as this process sees it: what a device still
 * works at counts where it is waited for. At the end of a run rank 0 prints a table of seconds, the least, mean and
 * largest of all ranks. Put it last of the callbacks.
 */
LS_API ls_callback ls_timer(const ls_timer_options *options);
/** Seconds of this rank so far; NAN for another callback. */
LS_API double ls_timer_seconds(const ls_callback *callback, ls_time what);
/** The least, mean and largest of all ranks when the last run ended; each may be NULL; NAN before. */
LS_API void ls_timer_over_ranks(const ls_callback *callback, ls_time what, double *least, double *mean,
                                double *largest);

#ifdef __cplusplus
}
#endif

#endif
