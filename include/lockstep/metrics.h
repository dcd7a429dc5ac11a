/**
 * @file metrics.h
 * Metrics of a trial:
 *
 * ```c
 * ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
 *                                                    .criterion = ls_criterion_cross_entropy,
 *                                                    .metrics = LS_METRICS("loss", "acc", "top_5_acc")});
 * ls_status status = trial != NULL ? ls_trial_evaluate(trial, validation, "test") : ls_error_status();
 * printf("accuracy %.3f\n", ls_trial_metric(trial, "test_acc"));
 * ```
 *
 * A metric is a number that a trial computes in each pass over a loader: "loss" for training, "val_loss" for
 * validation, "test_loss" for an evaluation with the label "test". At the end of a pass, the trial merges the sums of
 * all ranks and divides once. The value of a metric over samples therefore equals the value of one process with all
 * samples, up to rounding, however the samples are distributed over ranks. docs/reference/training.md compares the
 * metrics with other libraries' metrics.
 */
#ifndef LOCKSTEP_METRICS_H
#define LOCKSTEP_METRICS_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The state of a trial: see train.h. */
typedef struct ls_trial_state ls_trial_state;

/** A metric. Opaque. ls_metric_new and the other constructors below return it. */
typedef struct ls_metric ls_metric;

/**
 * The functions of a custom metric, for ls_metric_new. Set either `mean` alone, or `width`, `update` and `result`, and
 * optionally `merge` and `init`. The trial calls `mean` or `update` after each step, if this rank's share of the batch
 * is not empty (with `.shards`, after each slice of the step). A status other than LS_OK ends the run, like the status
 * of a hook.
 */
typedef struct ls_metric_functions {
    const char *name; /**< name in results (copied), at most 32 bytes of UTF-8 without control characters */
    /** For a mean: sets the sum and the weight of the batch. The metric is the sum of `sum` over all batches and ranks
     * of the pass, divided by the sum of `weight`. */
    ls_status (*mean)(const ls_trial_state *state, void *user, double *sum, double *weight);
    /** For any other metric: how many numbers each rank accumulates. */
    int width;
    /** Sets the `width` numbers, which are 0 before the call, at the beginning of a pass. On several ranks and with
     * `.shards`, the trial calls the function several times per pass. Requires `merge`. NULL leaves the numbers at 0.
     */
    void (*init)(double *numbers, void *user);
    /** Adds the batch's contribution to `numbers`, which this rank (with `.shards`, this slice) accumulates. */
    ls_status (*update)(const ls_trial_state *state, void *user, double *numbers);
    /** Merges the numbers of another rank (with `.shards`, of another slice) into `numbers`, at the end of a pass. The
     * trial starts with the numbers of `init` and merges the ranks or slices in ascending order. A merge into the
     * numbers of `init` must therefore return `other`. A rank or slice without samples in the pass has the numbers of
     * `init` too: a merge of such an `other` must not change `numbers`. NULL adds the numbers of all ranks. */
    void (*merge)(double *numbers, const double *other, void *user);
    /** Returns the value of the metric from the numbers of all ranks, or from this rank's numbers so far. */
    double (*result)(const double *numbers, void *user);
    void (*release)(void *user); /**< frees `user` with the metric; NULL means that the metric borrows `user` */
} ls_metric_functions;

/**
 * Creates a metric from user-defined functions. Copies `functions` and passes `user` to each of them. Takes ownership
 * of `user` if `release` is set, otherwise borrows it. Returns ownership to the caller: pass the metric
 * to ls_trial_new, which takes ownership, or free it with ls_metric_free. Returns NULL on failure.
 */
LS_API ls_metric *ls_metric_new(const ls_metric_functions *functions, void *user);

/** Frees a metric. Does nothing if a trial owns the metric. NULL is allowed. */
LS_API void ls_metric_free(ls_metric *metric);

/** Returns the name of the metric, a borrowed pointer. Names of a trial's results consist of a prefix and this name. */
LS_API const char *ls_metric_name(const ls_metric *metric);

/**
 * Copies an array of metrics, for languages in which a temporary array does not live long enough. Returns a borrowed
 * pointer: the first metric that is not NULL owns the copy. Returns NULL if all elements are NULL. If out of memory,
 * frees the metrics and returns NULL.
 */
LS_API ls_metric *const *ls_metric_array(ls_metric *const *metrics, int count);

/**
 * Sets .custom_metrics and .custom_metric_count of ls_trial_options, in C and in C++20. Without the macro, set
 * .custom_metrics to an array and .custom_metric_count to its length.
 *
 * ```c
 * ls_metric *own = ls_metric_new(&(ls_metric_functions){.name = "own", .mean = measure}, NULL);
 * ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model, LS_CUSTOM_METRICS(ls_metric_top_k_acc(3), own)});
 * ```
 */
#ifdef __cplusplus
#define LS_CUSTOM_METRICS(...)                                                                                         \
    .custom_metrics = ls_metric_array_of({__VA_ARGS__}),                                                               \
    .custom_metric_count = (int)(sizeof(ls_metric_pointers{__VA_ARGS__}) / sizeof(ls_metric *))
#else
#define LS_CUSTOM_METRICS(...)                                                                                         \
    .custom_metrics = (ls_metric *const[]){__VA_ARGS__},                                                               \
    .custom_metric_count = (int)(sizeof((ls_metric *const[]){__VA_ARGS__}) / sizeof(ls_metric *))
#endif

/**
 * How a metric interprets outputs. As classes, outputs [n, classes, ...] predict the class with the largest number. As
 * binary outputs, they have one number per target and the shape of the targets ([n] and [n, 1] are equivalent).
 */
typedef enum ls_outputs {
    LS_OUTPUTS_BY_CRITERION = 0, /**< probabilities with ls_criterion_bce, logits with ls_criterion_bce_with_logits,
                                      otherwise classes */
    LS_OUTPUTS_PROBABILITIES,    /**< binary: positive class if the number is above 0.5 */
    LS_OUTPUTS_LOGITS            /**< binary: positive class if the number is above 0 */
} ls_outputs;

/**
 * Returns a list of names for .metrics of ls_trial_options, in C and in C++20: LS_METRICS("loss", "acc"). Without the
 * macro, use an array of names with a final NULL. (In C++, each LS_METRICS in the source has one list per thread. The
 * next evaluation of this LS_METRICS overwrites it.)
 *
 * Metrics over the samples of a pass:
 *   - "loss": the loss of the criterion, a mean over samples: each global batch is weighted by its number of samples.
 *     Within a global batch, the losses of the ranks are weighted by their numbers of samples, or by the divisors of a
 *     class loss that ignores targets or has weights for classes. So the result equals the loss of one process. A batch
 *     in which all targets are ignored does not count. If the criterion uses LS_LOSS_SUM, the losses of ranks that
 *     share a global batch (`.comm` of the loader) are added. A sum that the criterion computes with ls_sum is treated
 *     as a mean. In a user step, one call with LS_LOSS_SUM has this effect, even if its result is not state->loss.
 *     Exceptions: if the criterion adds a class loss with ignored or weighted targets and other terms, all terms have
 *     the weights of the class loss, and the result on several ranks is an approximation. If it adds a sum and a mean,
 *     the means of the ranks are added, too. The gradients are exact.
 *   - "acc": the share of targets that are predicted correctly. Outputs [n, classes, ...] predict the class with the
 *     largest number. Targets are class numbers [n, ...], or one-hot rows with the outputs' shape. The classes may
 *     also be the last axis, [n, ..., classes], if only this fits. With ls_criterion_bce, "acc" is "binary_acc"; with
 *     ls_criterion_bce_with_logits, "binary_acc_logits". Otherwise outputs [n] or [n, 1] cause LS_ERR_SHAPE, as do
 *     shapes that do not match. Targets that ls_criterion_cross_entropy ignores do not count in "acc" or in any other
 *     classification metric.
 *   - "binary_acc": the share of outputs (probabilities) for which output > 0.5 equals target > 0.5. Output and target
 *     have the same shape; [n] and [n, 1] are equivalent.
 *   - "binary_acc_logits": the same for outputs that are logits, which are compared with 0.
 *   - "top_5_acc", with any number: see ls_metric_top_k_acc.
 *   - "mse": the mean of (output - target)^2; "rmse": its square root; "mae": the mean of |output - target|. Output and
 *     target have the same shape; [n] and [n, 1] are equivalent.
 *   - "r2": 1 - sum (output - target)^2 / sum (target - mean of targets)^2 for each column of a sample, and the mean
 *     over columns, like scikit-learn's r2_score. If all targets are equal: 1 if all outputs are exact, otherwise 0.
 *     NAN for fewer than two samples.
 *   - "precision", "recall", "f1", and each of these names with "_macro", "_micro" or "_per_class": see
 *     ls_metric_precision.
 *   - "confusion": see ls_metric_confusion.
 *   - "roc_auc": the area under the curve of true positives over false positives (Hanley and McNeil, Radiology 143,
 *     1982; scikit-learn's roc_auc_score). Outputs are scores [n] or [n, 1], or [n, 2] for two classes. Targets must be
 *     0 or 1 (LS_ERR_ARGUMENT). NAN if only one class occurs, or if a score is NaN. Keeps two numbers per sample of the
 *     pass; at the end of the pass, each rank has the numbers of all ranks.
 *
 * Metrics of the run:
 *   - "lr": the learning rate of group 0 at the end of training (see ls_metric_lr); only in training.
 *   - "epoch": the number of the epoch, from 0; in ls_trial_evaluate between runs, 0.
 *   - "samples_per_second": the samples of all ranks in the pass, divided by the time of the pass, including hooks and
 *     pauses. A sample that several ranks have, as in tensor parallelism, counts once per rank.
 *   - "data_wait": the seconds of the pass in which a rank waited for its loader; the mean over ranks.
 *   - "comm_wait": the seconds of the pass that the trial's thread spent in communicator calls, including the wait for
 *     slower ranks; the mean over ranks. For asynchronous work (ls_work), only its start and the waits for it count.
 *
 * Combinations, for each NAME above that is a mean ("loss", the accuracies, "mse", "mae"):
 *   - "running_NAME": see ls_metric_running;
 *   - "NAME_var" and "NAME_std": see ls_metric_var.
 */
#ifdef __cplusplus
#define LS_METRICS(...)                                                                                                \
    ([](std::initializer_list<const char *> ls_names) -> const char *const * {                                         \
        static thread_local const char *ls_list[LS_METRIC_NAMES];                                                      \
        return ls_metric_names(ls_list, ls_names);                                                                     \
    }({__VA_ARGS__}))
#else
#define LS_METRICS(...)                                                                                                \
    (const char *const[]) {                                                                                            \
        __VA_ARGS__, (const char *)0                                                                                   \
    }
#endif

/*
 * ---- constructors -----------------------------------------------------------------------------------------------
 * Each constructor returns ownership of a metric to the caller, or NULL on failure. ls_trial_new takes ownership of the
 * metrics in its list, even if it fails. If a metric in the list is NULL, ls_trial_new fails with the error from the
 * constructor. A metric belongs to one trial: a second trial fails with LS_ERR_STATE. A name, such as "running_NAME",
 * must have at most 32 bytes (otherwise LS_ERR_ARGUMENT).
 */

/** Returns the metric with this name, one of the names that LS_METRICS lists. */
LS_API ls_metric *ls_metric_named(const char *name);

/** Returns the metric "top_K_acc": the share of targets whose class is among the k largest outputs. If outputs are
 * equal, lower classes come first. Shapes are as for "acc" with classes. During the run, outputs with fewer than k
 * classes cause LS_ERR_SHAPE, and a target that is not a valid class causes LS_ERR_ARGUMENT. */
LS_API ls_metric *ls_metric_top_k_acc(int k);

/** Selects how a metric averages over classes. */
typedef enum ls_average {
    LS_AVERAGE_USUAL = 0, /**< macro average for outputs with classes; for binary outputs (ls_outputs), the value of the
                             positive class */
    LS_AVERAGE_MACRO,     /**< mean over all classes that occur in the pass as a prediction or a target */
    LS_AVERAGE_MICRO,     /**< value computed from the counts summed over all classes */
    LS_AVERAGE_NONE       /**< one value for each class; see ls_trial_metric_values */
} ls_average;

/** Options for classification metrics. */
typedef struct ls_class_metric_options {
    ls_average average;
    ls_outputs outputs;
} ls_class_metric_options;

/**
 * Returns the metric "precision", "precision_macro", "precision_micro" or "precision_per_class": the share of
 * predictions of a class that are correct, or 0 if this class is never predicted (like scikit-learn's precision_score).
 * Shapes are as for "acc", or as for "binary_acc" if outputs are binary. During the run, a target that is not a valid
 * class causes LS_ERR_ARGUMENT, and a change in the number of classes within a pass causes LS_ERR_SHAPE. The result is
 * NAN if no target of the pass counts. `options` may be NULL.
 */
LS_API ls_metric *ls_metric_precision(const ls_class_metric_options *options);
/** Returns the metric "recall" (or "recall_macro" and so on): the share of targets of a class that are predicted as
 * this class. */
LS_API ls_metric *ls_metric_recall(const ls_class_metric_options *options);
/** Returns the metric "f1" (or "f1_macro" and so on): 2 * precision * recall / (precision + recall), for one class, or
 * 0 if both are 0. The macro average is the mean over the classes that occur (LS_AVERAGE_MACRO). */
LS_API ls_metric *ls_metric_f1(const ls_class_metric_options *options);
/** Returns the metric "confusion": the number of targets of class i with prediction j is at index i * classes + j of
 * ls_trial_metric_values. Ignores .average. For binary outputs, the negative class is class 0. If N ranks have the same
 * samples, as in tensor parallelism, the counts are N times as large. */
LS_API ls_metric *ls_metric_confusion(const ls_class_metric_options *options);

/** Returns the metric "lr" for group 0, "lr_1" for group 1, and so on: the learning rate of the group at the end of
 * training, after the hooks of the last step. ls_trial_new fails if the optimizer does not have this group. */
LS_API ls_metric *ls_metric_lr(int group);

/** Options for ls_metric_running. */
typedef struct ls_running_options {
    int window; /**< number of batches in the mean, at most 10000; 0 selects the default, 50 */
    int every;  /**< number of batches between updates, starting at the first batch of each epoch; at most 10000;
                   0 selects the default, 10 */
} ls_running_options;

/**
 * Returns the metric "running_NAME" for the metric `of`, which must be a mean: the mean of the values of the last
 * batches, which may belong to earlier epochs (torchbearer 0.5's RunningMean). Takes ownership of `of`. The value of a
 * batch is its value over all ranks; all ranks have the same number of batches. The metric exists in training only. The
 * result of an epoch is the mean at its last update. `options` may be NULL.
 */
LS_API ls_metric *ls_metric_running(ls_metric *of, const ls_running_options *options);

/**
 * Returns the metric "NAME_var" for the metric `of`, which must be a mean: the variance of its values x in a pass, sum
 * (x - mean)^2 / (n - 1), or / n with `population`. Takes ownership of `of`. Accuracies, "mse" and "mae" have a value x
 * for each sample or element. "loss" and custom metrics have a value for each batch, and all batches have the same
 * weight. The result is NAN if n is too small.
 */
LS_API ls_metric *ls_metric_var(ls_metric *of, bool population);
/** Returns the metric "NAME_std": the square root of "NAME_var". Takes ownership of the metric `of`. */
LS_API ls_metric *ls_metric_std(ls_metric *of, bool population);

#ifdef __cplusplus
}

/* Array size for LS_CUSTOM_METRICS and LS_METRICS: one more than the number of names that a trial accepts, plus one
 * for NULL. */
#define LS_METRIC_NAMES 34
using ls_metric_pointers = ls_metric *[];

inline ls_metric *const *ls_metric_array_of(std::initializer_list<ls_metric *> metrics) {
    return ls_metric_array(metrics.begin(), static_cast<int>(metrics.size()));
}

inline const char *const *ls_metric_names(const char **list, std::initializer_list<const char *> names) {
    int count = 0;
    for (const char *name : names) {
        if (count < LS_METRIC_NAMES - 1) {
            list[count++] = name;
        }
    }
    list[count] = nullptr;
    return list;
}
#endif

#endif
