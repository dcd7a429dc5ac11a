/**
 * @file loss.h
 * Losses and criteria, with gradients.
 *
 * ```c
 * ls_class_loss_options options = {.label_smoothing = 0.1};
 * ls_tensor *loss = ls_cross_entropy(ls_forward(model, x), target, &options);
 * ls_status status = ls_backward(loss);
 * ```
 *
 * - A loss is one number: the mean of the losses of all elements, samples or rows, or their sum. With LS_LOSS_NONE it
 *   has one number per element, sample or row.
 * - The mean over no elements is NaN.
 * - In losses by element, x and target have the same shape and do not broadcast (LS_ERR_SHAPE). One of them must be
 *   floating-point: if both have integers or booleans, the call fails with LS_ERR_ARGUMENT; convert one with ls_to.
 *   Gradients flow to x and target.
 * - In ls_cross_entropy, ls_nll_loss and losses of vectors, all tensors except the targets have the same floating-point
 *   dtype (LS_ERR_SHAPE). Gradients flow to these tensors, except class weights, and to targets that are
 *   probabilities.
 */
#ifndef LOCKSTEP_LOSS_H
#define LOCKSTEP_LOSS_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Selects how the losses of the elements are reduced: to their mean, to their sum, or not at all. */
typedef enum ls_loss_reduction { LS_LOSS_MEAN = 0, LS_LOSS_SUM, LS_LOSS_NONE } ls_loss_reduction;

/** Computes (x - target)^2. */
LS_API ls_tensor *ls_mse_loss(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
/** Computes |x - target|. */
LS_API ls_tensor *ls_l1_loss(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
/**
 * Computes d^2 / 2 if |d| <= delta, otherwise delta * (|d| - delta / 2), with d = x - target (Huber, Ann. Math. Stat.
 * 35, 1964). delta must be positive.
 */
LS_API ls_tensor *ls_huber_loss(ls_tensor *x, ls_tensor *target, double delta, ls_loss_reduction reduction);

/** Options for ls_cross_entropy. Zero fields select the defaults. */
typedef struct ls_class_loss_options {
    ls_loss_reduction reduction;
    ls_tensor *weight; /**< class weights [classes] of the logits' dtype, or NULL; the mean then divides by the sum of
                          the targets' weights; must not require a gradient (LS_ERR_UNSUPPORTED) */
    double label_smoothing; /**< fraction of the target, 0 to 1, that is spread over all classes (Szegedy et al., arXiv
                               1512.00567) */
    bool ignore;            /**< skips targets equal to ignore_index, also in the divisor of the mean */
    int64_t ignore_index;
} ls_class_loss_options;

/**
 * Computes -log softmax(logits)[target], like PyTorch's cross_entropy. `options` may be NULL.
 * - logits are [n, classes], [n, classes, ...] or [classes].
 * - target is [n], [n, ...] or [], of i64, i32 or u8. A target that is out of range fails with LS_ERR_ARGUMENT, and the
 *   message gives its value.
 * - If every target is ignored, the mean is NaN and the gradient 0.
 * - A floating-point target of the logits' shape holds probabilities. The loss is then -sum over classes of weight
 *   target log softmax(logits). Its mean divides by the number of these sums, even with weights. `ignore` then fails
 *   with LS_ERR_UNSUPPORTED.
 */
LS_API ls_tensor *ls_cross_entropy(ls_tensor *logits, ls_tensor *target, const ls_class_loss_options *options);

/** Options for ls_nll_loss: the options of ls_cross_entropy without label smoothing. Zero fields select the
 * defaults. */
typedef struct ls_nll_loss_options {
    ls_loss_reduction reduction;
    ls_tensor *weight; /**< see ls_class_loss_options */
    bool ignore;       /**< skips targets equal to ignore_index */
    int64_t ignore_index;
} ls_nll_loss_options;

/** Computes -log_probabilities[target] for class numbers, like ls_cross_entropy. `options` may be NULL. */
LS_API ls_tensor *ls_nll_loss(ls_tensor *log_probabilities, ls_tensor *target, const ls_nll_loss_options *options);
/**
 * Computes -(target * log p + (1 - target) * log(1 - p)). Each log is at least -100, as in PyTorch. Fails with
 * LS_ERR_ARGUMENT if any p is outside 0 to 1. NaN gives NaN.
 */
LS_API ls_tensor *ls_bce_loss(ls_tensor *probability, ls_tensor *target, ls_loss_reduction reduction);
/** Options for ls_bce_with_logits_loss. Zero fields select the defaults. */
typedef struct ls_bce_with_logits_options {
    ls_loss_reduction reduction;
    ls_tensor *weight; /**< factor that multiplies the loss of each element; broadcasts to the logits' shape; may be
                          NULL; the mean divides by the number of elements, as in PyTorch */
    ls_tensor
        *pos_weight; /**< factor that multiplies the loss of positive targets; broadcasts to the logits' shape; may be
                        NULL. A factor above 1 raises recall, for example negatives / positives of each column */
} ls_bce_with_logits_options;

/**
 * Computes -weight * (pos_weight * target * log p + (1 - target) * log(1 - p)) with p = sigmoid(logits), without
 * overflow (PyTorch's BCEWithLogitsLoss). Infinite logits can give NaN. Gradients flow to the weights, too. `options`
 * may be NULL.
 */
LS_API ls_tensor *ls_bce_with_logits_loss(ls_tensor *logits, ls_tensor *target,
                                          const ls_bce_with_logits_options *options);
/**
 * Computes target * (log target - log_probabilities), and 0 if target is 0. LS_LOSS_MEAN divides by the number of
 * elements (PyTorch's reduction="mean", not "batchmean").
 */
LS_API ls_tensor *ls_kl_div_loss(ls_tensor *log_probabilities, ls_tensor *target, ls_loss_reduction reduction);

/**
 * Computes a . b / (max(|a|, epsilon) max(|b|, epsilon)) along `axis`, and removes the axis (PyTorch's
 * cosine_similarity, whose default epsilon is 1e-8). a and b have the same number of axes and are broadcastable.
 * `epsilon` must not be negative. If it is 0, the similarity with a zero vector is NaN.
 */
LS_API ls_tensor *ls_cosine_similarity(ls_tensor *a, ls_tensor *b, int axis, double epsilon);
/**
 * Computes 1 - cos if target is above 0, otherwise max(cos - margin, 0), with cos = a . b / sqrt((a . a + 1e-12) (b . b
 * + 1e-12)) for each row of a and b [n, width]. target is [n], of any dtype, and contains 1 and -1 (PyTorch's
 * cosine_embedding_loss).
 */
LS_API ls_tensor *ls_cosine_embedding_loss(ls_tensor *a, ls_tensor *b, ls_tensor *target, double margin,
                                           ls_loss_reduction reduction);
/**
 * Computes max(d(anchor, positive) - d(anchor, negative) + margin, 0) with d(x, y) = |x - y + 1e-6| along the last axis
 * (Schroff et al., arXiv 1503.03832; PyTorch's triplet_margin_loss without `swap`; its default margin is 1). All three
 * tensors are [n, ..., width], with the same shape.
 */
LS_API ls_tensor *ls_triplet_margin_loss(ls_tensor *anchor, ls_tensor *positive, ls_tensor *negative, double margin,
                                         ls_loss_reduction reduction);

/**
 * The loss function of a trial or a pipeline. Returns the loss of a batch from the model's output and its target: one
 * number, a mean (or, in a trial, a sum) over the samples. `user` is the pointer that was registered with the function.
 */
typedef ls_tensor *(*ls_criterion)(ls_tensor *output, ls_tensor *target, void *user);

/** Returns ls_cross_entropy. `user` is NULL or points to ls_class_loss_options with LS_LOSS_MEAN or
 * LS_LOSS_SUM. */
LS_API ls_tensor *ls_criterion_cross_entropy(ls_tensor *output, ls_tensor *target, void *user);
/** Returns the mean of ls_mse_loss. This function and ls_criterion_bce do not use `user`. */
LS_API ls_tensor *ls_criterion_mse(ls_tensor *output, ls_tensor *target, void *user);
/** Returns the mean of ls_bce_loss. Outputs are probabilities. */
LS_API ls_tensor *ls_criterion_bce(ls_tensor *output, ls_tensor *target, void *user);
/**
 * Returns ls_bce_with_logits_loss. Outputs are logits. `user` is NULL or points to ls_bce_with_logits_options with
 * LS_LOSS_MEAN.
 */
LS_API ls_tensor *ls_criterion_bce_with_logits(ls_tensor *output, ls_tensor *target, void *user);

#ifdef __cplusplus
}
#endif

#endif
