/**
 * @file metrics.h
 * What a trial measures. A metric is one number of each pass over a loader, of training, validation or evaluation:
 * "loss", "val_loss", "test_loss". What all ranks counted is brought together where the pass ends, and divided once, so
 * that the value is that of one process with all the samples, however they are shared out.
 */
#ifndef LOCKSTEP_METRICS_H
#define LOCKSTEP_METRICS_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a trial is doing: see train.h. */
typedef struct ls_trial_state ls_trial_state;

/**
 * A metric: one of a constructor below, or your own. Your own has `measure`, or `add`, `result` and `width`. Its
 * functions are called after each step, on ranks whose share of the batch is not empty. A status other than LS_OK ends
 * the run, as a hook's does.
 *
 * A metric that has `release`, or that a constructor made, goes into one trial, which takes it over: ls_trial_free
 * gives it back, or ls_trial_new where it fails.
 */
typedef struct ls_metric {
    const char *name; /**< up to 32 bytes of UTF-8; lent, and must outlive the trial */
    /** Of a mean: over a pass, the sum of `sum` over all batches and ranks, divided by that of `weight`. */
    ls_status (*measure)(const ls_trial_state *state, void *user, double *sum, double *weight);
    void *user; /**< given to the functions */
    /** Of a formula over several numbers: how many. They are 0 where a pass begins. */
    int width;
    /** Adds the batch to them. */
    ls_status (*add)(const ls_trial_state *state, void *user, double *sums);
    /** What they come to, added up over all batches and ranks; also called for those of this rank so far. */
    double (*result)(const double *sums, void *user);
    void (*release)(void *user); /**< NULL, or called with `user` when the trial is done with it */
    struct ls_metric_rule *rule; /**< of constructors; leave it NULL */
    bool invalid;                /**< its constructor failed: ls_trial_new fails with that error */
} ls_metric;

/**
 * Metrics of constructors and your own in ls_trial_options, in place of its two fields:
 *
 * ```c
 * ls_metric error = {.name = "error", .measure = measure};
 * ls_trial *trial =
 *     ls_trial_new(&(ls_trial_options){.model = model, LS_CUSTOM_METRICS(ls_metric_named("acc"), error)});
 * ```
 */
#define LS_CUSTOM_METRICS(...)                                                                                         \
    .custom_metrics = (const ls_metric[]){__VA_ARGS__},                                                                \
    .custom_metric_count = (int)(sizeof((const ls_metric[]){__VA_ARGS__}) / sizeof(ls_metric))

/**
 * How metrics read outputs [n] or [n, 1], one number a target: what is a yes. With outputs [n, classes, ...] the class
 * with the largest number is meant.
 */
typedef enum ls_outputs {
    LS_OUTPUTS_BY_CRITERION = 0, /**< as probabilities with ls_criterion_bce, as logits with
                                      ls_criterion_bce_with_logits, else as classes */
    LS_OUTPUTS_PROBABILITIES,    /**< numbers beyond 0.5; there are no classes */
    LS_OUTPUTS_LOGITS            /**< numbers beyond 0; there are no classes */
} ls_outputs;

/**
 * Metrics by name. Of all samples of a pass:
 *   - "loss": the criterion's, a mean over samples. If a class loss ignores targets or has weights for classes,
 *     the losses of the ranks are weighted by the divisor of the class loss. The result equals the loss of one
 *     process. Otherwise the losses are weighted by the number of samples. A batch in which every target is
 *     ignored is left out;
 *   - "acc": the share of targets that are met. Outputs [n, classes, ...] say the class with the largest number; the
 *     targets are class numbers [n, ...] or one-hot rows of the outputs' shape. (Where only that fits, the classes are
 *     the last axis: [n, ..., classes].) With ls_criterion_bce it is "binary_acc", with ls_criterion_bce_with_logits
 *     "binary_acc_logits". With any other criterion, outputs of one number a target ([n] or [n, 1]) are LS_ERR_SHAPE,
 *     as is what fits nothing. Targets that ls_criterion_cross_entropy ignores do not count, here and for all metrics
 *     of classes;
 *   - "binary_acc": the share of outputs, probabilities, that are beyond 0.5 where the target is, and only there;
 *     output and target have one shape, of which [n] and [n, 1] are the same;
 *   - "binary_acc_logits": the same for logits, which are beyond 0;
 *   - "top_5_acc", with any number: see ls_metric_top_k_acc;
 *   - "mse": the mean of (output - target)^2; "rmse": its root; "mae": the mean of |output - target|. Output and target
 *     have one shape, of which [n] and [n, 1] are the same;
 *   - "r2": 1 - sum (output - target)^2 / sum (target - mean of targets)^2, of each number that a sample has, and the
 *     mean of those (scikit-learn's r2_score: where all targets are alike, 1 if they are met and else 0). NAN of fewer
 *     than two samples;
 *   - "precision", "recall", "f1", and these with "_macro", "_micro" and "_per_class": see ls_metric_precision;
 *   - "confusion": see ls_metric_confusion;
 *   - "roc_auc": the area under the curve of true over false positives: the share of pairs of a sample of class 1 and
 *     one of class 0 in which the first has the larger output, equal ones counted half (Hanley and McNeil, Radiology
 *     143, 1982; scikit-learn's roc_auc_score). Outputs are [n] or [n, 1], scores of any kind, or [n, 2], of two
 *     classes; targets are 0 or 1 (else LS_ERR_ARGUMENT). NAN where only one class is there, or a score is NaN. It
 *     keeps two numbers of each sample of the pass, and where that ends those of all on all ranks.
 *
 * Of the run:
 *   - "lr": the learning rate at the end of training, of group 0 (see ls_metric_lr); there is none of other passes;
 *   - "epoch": its number, from 0;
 *   - "samples_per_second": of all ranks, in a pass, hooks and what is between batches included;
 *   - "data_wait": seconds in which a rank waited for its loader in the pass, the mean over ranks;
 *   - "comm_wait": seconds that a rank's thread, the one that the trial runs on, spent in calls of communicators and
 *     in waiting for them to end: the work of these calls and what other ranks were late; the mean over ranks. Of a
 *     call that goes on beside the thread's own work (ls_work) its start and the wait for its end count.
 *
 * Of each NAME of these that is a mean ("loss", accuracies, "mse", "mae"):
 *   - "running_NAME": see ls_metric_running;
 *   - "NAME_var" and "NAME_std": see ls_metric_var.
 */
#define LS_METRICS(...)                                                                                                \
    (const char *const[]) {                                                                                            \
        __VA_ARGS__, (const char *)0                                                                                   \
    }

/*
 * ---- constructors -----------------------------------------------------------------------------------------------
 * Each gives a metric for `custom_metrics` of one trial, or for one other constructor; one that failed is `invalid`,
 * and what is made of it is, too. Their names are fixed; what they measure is of all ranks.
 */

/** The metric of that name. */
LS_API ls_metric ls_metric_named(const char *name);

/** "top_K_acc": the share of targets whose class is among the k largest outputs; of equal ones the first count. Shapes
 * are those of "acc"; LS_ERR_SHAPE for fewer than k classes. */
LS_API ls_metric ls_metric_top_k_acc(int k);

/** How the numbers of classes become one. */
typedef enum ls_average {
    LS_AVERAGE_USUAL = 0, /**< macro of classes; of yes and no (see ls_outputs) that of yes */
    LS_AVERAGE_MACRO,     /**< the mean over all classes that are said or asked for somewhere in the pass */
    LS_AVERAGE_MICRO,     /**< all classes are counted together */
    LS_AVERAGE_NONE       /**< each class has a value of its own: ls_trial_metric_values */
} ls_average;

/** Of metrics of classes. */
typedef struct ls_class_metric_options {
    ls_average average;
    ls_outputs outputs;
} ls_class_metric_options;

/**
 * "precision", "precision_macro", "precision_micro" or "precision_per_class": of the answers that say a class, the
 * share that is right; 0 where there are none (as scikit-learn, whose precision_score also has the averages). Shapes
 * are those of "acc" or, read as yes and no, of "binary_acc". LS_ERR_ARGUMENT, in the run, for a target that is no
 * class; LS_ERR_SHAPE where the number of classes changes. `options` may be NULL.
 */
LS_API ls_metric ls_metric_precision(const ls_class_metric_options *options);
/** "recall", ...: of the targets of a class, the share that is met. */
LS_API ls_metric ls_metric_recall(const ls_class_metric_options *options);
/** "f1", ...: 2 precision recall / (precision + recall) of a class; of several, the mean of those. */
LS_API ls_metric ls_metric_f1(const ls_class_metric_options *options);
/** "confusion": how often target i was answered by class j, number i * classes + j of ls_trial_metric_values. There is
 * no average; of yes and no, no is class 0. */
LS_API ls_metric ls_metric_confusion(const ls_class_metric_options *options);

/** "lr" of group 0, "lr_1" of group 1, ...: its learning rate at the end of training, behind the hooks of the last
 * step. ls_trial_new fails where the optimizer has no such group. */
LS_API ls_metric ls_metric_lr(int group);

/** Of ls_metric_running. */
typedef struct ls_running_options {
    int window; /**< the mean is that of so many batches, up to 10000; 0: 50 */
    int every;  /**< it is made anew with the first batch of an epoch and each so many later; 0: 10 */
} ls_running_options;

/**
 * "running_NAME" of a metric that is a mean, which it takes over: the mean of the values of the last batches of
 * training, those of the epochs before among them. A batch's value is that of all ranks, which take as many batches
 * each, here and where variances are those of batches. There is none of validation and evaluation (torchbearer 0.5's
 * RunningMean; that of an epoch is what it was at the last time that it was made anew). `options` may be NULL.
 */
LS_API ls_metric ls_metric_running(ls_metric of, const ls_running_options *options);

/**
 * "NAME_var" of a metric that is a mean, which it takes over: the variance in a pass, of samples or their parts where
 * the metric has a number for each (accuracies, "mse", "mae"), else of batches ("loss", your own), all of one weight.
 * That of a sample, sum (x - mean)^2 / (n - 1), as torchbearer's Var; with `population` divided by n. NAN of too few.
 */
LS_API ls_metric ls_metric_var(ls_metric of, bool population);
/** "NAME_std": its root. */
LS_API ls_metric ls_metric_std(ls_metric of, bool population);

#ifdef __cplusplus
}
#endif

#endif
