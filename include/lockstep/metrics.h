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
    const char *name; /**< up to 32 bytes; lent, and must outlive the trial */
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

/** Metrics of constructors and your own in ls_trial_options, in place of its two fields:
 * `&(ls_trial_options){.model = model, LS_CUSTOM_METRICS(ls_metric_named("acc"), mine)}`. */
#define LS_CUSTOM_METRICS(...)                                                                                         \
    .custom_metrics = (const ls_metric[]){__VA_ARGS__},                                                                \
    .custom_metric_count = (int)(sizeof((const ls_metric[]){__VA_ARGS__}) / sizeof(ls_metric))

/**
 * Metrics by name:
 *   - "loss": the criterion's, a mean over samples;
 *   - "acc": the share of targets that are met. Outputs [n, classes, ...] say the class with the largest number; the
 *     targets are class numbers [n, ...] or one-hot rows of the outputs' shape. (Where only that fits, the classes are
 *     the last axis: [n, ..., classes].) With ls_criterion_bce it is "binary_acc", with ls_criterion_bce_with_logits
 *     "binary_acc_logits". With any other criterion, outputs of one number a target ([n] or [n, 1]) are LS_ERR_SHAPE,
 *     as is what fits nothing;
 *   - "binary_acc": the share of outputs, probabilities, that are beyond 0.5 where the target is, and only there;
 *     output and target have one shape, of which [n] and [n, 1] are the same;
 *   - "binary_acc_logits": the same for logits, which are beyond 0.
 */
#define LS_METRICS(...)                                                                                                \
    (const char *const[]) {                                                                                            \
        __VA_ARGS__, (const char *)0                                                                                   \
    }

/** The metric of that name; `invalid`, and an error, when there is none. */
LS_API ls_metric ls_metric_named(const char *name);

#ifdef __cplusplus
}
#endif

#endif
